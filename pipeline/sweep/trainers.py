"""Checks that trainers still state the guarantee that tracked trials were trained with."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.accounting.certified import event_of, stated_of, with_noise
from pipeline.accounting.dp_events import noise_in_words
from pipeline.experiment.plugins import LOADED
from pipeline.sweep.recorder import NOT_RECORDED
from pipeline.tracking.artifacts import recorded_noise
from pipeline.tracking.reader import Reader
from pipeline.trials.config import ConfigError, TrialConfig


def check_trainers(store: Reader, trials: Sequence[TrialConfig]) -> list[str]:
    """Check that trainers still state the same guarantee for trials of the open sweep as at training time.

    Returns:
        One line per trainer with a changed file but an unchanged version, and one with epsilons of an earlier version.

    Raises:
        ConfigError: for a changed statement.
    """
    by_key = {trial.trial_key: trial for trial in trials if not trial.parts.trainer.built_in}
    by_trainer = {trial.trainer: trial for trial in by_key.values()}
    if not by_key or not store.is_open:
        return []
    messages: dict[str, str] = {}  # by trainer, and by what they are about
    for run in store.runs():
        trial = by_key.get(run.trial_key)
        if trial and run.tags.get("privacy.certified") == "stated":
            begun, notes = trial.with_recorded_noise(recorded_noise(run)), run.tags.get("privacy.notes", "")
            _check_statement(begun, notes)
            words = noise_in_words(event_of(with_noise(begun), 1).step, begun.parts.trainer.relation)
            if run.tags.get("privacy.relation") == "replace-one" and words not in notes:
                messages[f"{trial.trainer} noise"] = (
                    f"trainer '{trial.trainer}': an earlier version stored epsilons of this sweep, which stay; "
                    "it took noise under replace-one over C for epsilon/stated/pld, where it is over 2C "
                    "(docs/privacy.md, section 1)")
        trial = by_trainer.get(run.params.get("trainer", ""))
        if trial and run.params.get("trainer_version") == str(trial.trainer_version):
            module = trial.parts.trainer.works.__module__
            digest_now, digest_then = LOADED.get(module), run.tags.get(f"plugin.{module}")
            if digest_now and digest_then and digest_then not in (digest_now, NOT_RECORDED):
                messages.setdefault(trial.trainer, (
                    f"trainer '{trial.trainer}': its file was another when trials of this sweep were trained with "
                    f"version {trial.trainer_version} ({digest_then}, and now {digest_now}); raise the version if "
                    "results change"))
    return list(messages.values())


def _check_statement(trial: TrialConfig, then: str) -> None:
    """Check that a trainer states the same guarantee for a trial now as when it was trained.

    Args:
        trial: the trial with its recorded noise, and the trainer as it is now.
        then: the tracked tag `privacy.notes`, which begins with the statement.

    Raises:
        ConfigError: if the statement has changed.
    """
    try:
        now = stated_of(with_noise(trial))
    except ValueError as error:  # no noise attains the target any more
        now = str(error)
    if not then.startswith(now):
        statement_then = then.partition(", and nobody")[0]  # the words after it are the same for all trainers
        raise ConfigError(f"event: {now}, and when trial {trial.trial_key} was trained it was another one "
                          f"('{statement_then}'); restore the file, or raise the version")
