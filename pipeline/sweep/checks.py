"""Checks of a sweep before anything expensive starts: its trials keep their promises, and nodes offer their resources.
"""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Iterable, Mapping, Sequence

from pipeline.accounting.certified import event_of, stated_of, with_noise
from pipeline.accounting.dp_events import noise_in_words
from pipeline.accounting.evaluations import check_evaluations
from pipeline.experiment.experiment import Experiment
from pipeline.experiment.plugins import LOADED
from pipeline.tracking.artifacts import TrackedRun, config_of
from pipeline.trials.config import ConfigError, TrialConfig
from pipeline.trials.fields import UserError
from pipeline.trials.packs import Resources
from pipeline.trials.promises import check_promises

Bundle = Mapping[str, float]  # resource -> amount, in Ray's names: CPU, GPU, OPU
NOT_RECORDED = "not recorded"  # replaces a plugin's digest, which may tell of records, if metrics are not plain

ADVICE = {
    "OPU": "lower resources.opu, start a node with --resources='{\"OPU\": 1}', or leave out the trials that take one",
    "GPU": "lower resources.gpu (0 trains on the CPU), or start a node with a GPU",
    "CPU": "lower resources.cpu, or offer more cores",
}


class ResourceError(UserError, RuntimeError):
    """No node offers the resources of a trial; Ray itself would wait forever."""


def check_trials(experiment: Experiment, trials: Iterable[TrialConfig], possible: Iterable[TrialConfig] = (),
                 published: Collection[str] = ()) -> None:  # digests of feature files that trials are released with
    """Check the evaluations of trials to train, and that all possible trials keep the promises of their epsilons."""
    experiment.check(trials, lambda trial: check_evaluations([trial]))
    experiment.check(possible, lambda trial: check_promises([trial], published))


def published_digests(runs: Iterable[TrackedRun]) -> set[str]:
    """Return digests of feature files in a sweep's runs: an earlier version stored digests instead of names."""
    return {run.params["feature_sha256"] for run in runs if "feature_sha256" in run.params}


def bundle(resources: Resources, needs_opu: bool) -> dict[str, float]:
    """Return the resources of one pack, all on one node."""
    amounts = {"CPU": resources.cpu, "GPU": resources.gpu, "OPU": resources.opu if needs_opu else 0}
    return {name: amount for name, amount in amounts.items() if amount}


def fits(node: Bundle, asked: Bundle) -> bool:
    """Whether a node with `node` in total can run a pack that needs `asked`."""
    return all(node.get(name, 0) >= amount for name, amount in asked.items())


def check_resources(trials: Iterable[TrialConfig], resources: Resources, nodes: Sequence[Bundle]) -> None:
    """Check that some node offers the resources of each kind of pack."""
    algorithms = {trial.needs_opu: trial.algorithm for trial in trials}  # one for each kind of pack, for the message
    for needs_opu, algorithm in sorted(algorithms.items()):
        asked = bundle(resources, needs_opu)
        if any(fits(node, asked) for node in nodes):
            continue
        lacking = [name for name, amount in asked.items() if all(node.get(name, 0) < amount for node in nodes)]
        advice = "; ".join(ADVICE[name] for name in lacking) or "start a node that offers all of it at once"
        raise ResourceError(f"resources: no node offers {_text(lacking or asked, asked)} for {algorithm}; the nodes "
                            f"offer {' and '.join(_text(ADVICE, node) for node in nodes) or 'nothing'}; {advice}")


def _text(names: Iterable[str], amounts: Bundle) -> str:
    """Return the amounts of these resources in words, except infinite ones, which are unknown (`local_offer`)."""
    return ", ".join(f"{name}: {amounts.get(name, 0):g}" for name in sorted(names) if amounts.get(name) != math.inf)


def check_machine(trials: Sequence[TrialConfig], resources: Resources, offer: Bundle) -> None:
    """Check that this machine offers the resources of each kind of pack, and a real OPU if trials need one."""
    check_resources(trials, resources, [offer])
    if any(trial.parts.projector.hardware for trial in trials):
        from pipeline.learning.opu import check_opu  # imported here: few sweeps need it

        check_opu()


def local_offer(workers: int | None) -> dict[str, float]:
    """Return the resources of a Ray that a sweep starts on this machine; only Ray knows the number of GPUs."""
    return {"CPU": workers or os.cpu_count() or 1, "OPU": 1, "GPU": math.inf}


def slots(resources: Resources, offered: Bundle) -> int:
    """Return the number of packs without an OPU that a cluster can train at the same time, at least 1."""
    return max(1, int(min(offered.get(name, 0) / amount for name, amount in bundle(resources, False).items())))


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
