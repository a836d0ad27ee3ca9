"""Checks that trainers and networks of users still are what tracked trials were trained with."""

from __future__ import annotations

from collections.abc import Iterable

from pipeline.accounting.certified import event_of, stated_of, with_noise
from pipeline.accounting.dp_events import noise_in_words
from pipeline.experiment.plugins import LOADED
from pipeline.sweep.recorder import NOT_RECORDED
from pipeline.tracking.artifacts import TrackedRun, config_of
from pipeline.trials.config import ConfigError, TrialConfig


def check_trainers(runs: Iterable[TrackedRun], trials: Iterable[TrialConfig]) -> list[str]:
    """Refuse trainers that state something else now than for these runs; return remarks on files that have changed."""
    with_own_code = [trial for trial in trials if trial.own_code]
    keys = {trial.trial_key for trial in with_own_code}
    own = {part.name: part for trial in with_own_code for part in (trial.parts.trainer, trial.parts.network)
           if part.version}
    messages: dict[str, str] = {}  # by trainer, and by what they are about
    for run in runs:
        if run.trial_key in keys and run.tags.get("privacy.certified") == "stated":
            begun, notes = config_of(run), run.tags.get("privacy.notes", "")
            _check_statement(begun, notes)
            words = noise_in_words(event_of(with_noise(begun), 1).step, begun.parts.trainer.relation)
            if run.tags.get("privacy.relation") == "replace-one" and words not in notes:
                messages[f"{begun.trainer} noise"] = (
                    f"trainer '{begun.trainer}': an earlier version stored epsilons of this sweep, which stay; "
                    "it took noise under replace-one over C for epsilon/stated/pld, where it is over 2C "
                    "(docs/privacy.md, section 1)")
        for slot in ("trainer", "network"):
            part = own.get(run.params.get(slot, ""))
            if part is None or run.params.get(f"{slot}_version") != str(part.version):
                continue
            module = part.works.__module__
            digest_now, digest_then = LOADED.get(module), run.tags.get(f"plugin.{module}")
            if digest_now and digest_then and digest_then not in (digest_now, NOT_RECORDED):
                messages.setdefault(part.name, (
                    f"{slot} '{part.name}': its file was another when trials of this sweep were trained with version "
                    f"{part.version} ({digest_then}, and now {digest_now}); raise the version if results change"))
    return list(messages.values())


def _check_statement(trial: TrialConfig, then: str) -> None:
    """Check that a trainer states the same guarantee for a trial now as when it was trained."""
    try:
        now = stated_of(with_noise(trial))
    except ValueError as error:  # no noise attains the target any more
        now = str(error)
    if not then.startswith(now):
        statement_then = then.partition(", and nobody")[0]  # the words after it are the same for all trainers
        raise ConfigError(f"event: {now}, and when trial {trial.trial_key} was trained it was another one "
                          f"('{statement_then}'); restore the file, or raise the version")
