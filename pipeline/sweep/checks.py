"""Checks of a sweep before anything expensive starts: its trials keep their promises, and nodes offer their resources.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from pipeline.accounting.evaluations import check_evaluations
from pipeline.experiment.experiment import Experiment
from pipeline.machine import cores
from pipeline.trials.config import TrialConfig
from pipeline.trials.fields import UserError
from pipeline.trials.packs import Resources
from pipeline.trials.promises import check_promises

Bundle = Mapping[str, float]  # resource -> amount, in Ray's names: CPU, GPU, OPU
RESOURCES = ("CPU", "GPU", "OPU")
ADVICE = {  # where no node offers enough
    "OPU": "lower resources.opu, start a node with --resources='{\"OPU\": 1}', or leave out the trials that take one",
    "GPU": "lower resources.gpu (0 trains on the CPU), or start a node with a GPU",
    "CPU": "lower resources.cpu, or offer more cores",
}


class ResourceError(UserError, RuntimeError):
    """No node offers the resources of a trial; Ray itself would wait forever."""


def check_trials(experiment: Experiment, trials: Iterable[TrialConfig], possible: Iterable[TrialConfig] = ()) -> None:
    """Check the evaluations of trials to train, and that all possible trials keep the promises of their epsilons."""
    experiment.check(trials, lambda trial: check_evaluations([trial]))
    experiment.check(possible, lambda trial: check_promises([trial]))


def bundle(resources: Resources, needs_opu: bool) -> dict[str, float]:
    """Return the resources of one pack, all on one node."""
    amounts = {"CPU": resources.cpu, "GPU": resources.gpu, "OPU": resources.opu if needs_opu else 0}
    return {name: amount for name, amount in amounts.items() if amount}


def fits(node: Bundle, needed: Bundle) -> bool:
    """Whether a node with `node` in total can run a pack that needs `needed`."""
    return all(node.get(name, 0) >= amount for name, amount in needed.items())


def check_resources(trials: Iterable[TrialConfig], resources: Resources, nodes: Sequence[Bundle]) -> None:
    """Check that some node offers the resources of a pack, for packs with and without an OPU."""
    examples = {trial.needs_opu: trial.algorithm for trial in trials}  # the last trial of each kind is the example
    for needs_opu, algorithm in sorted(examples.items()):
        needed = bundle(resources, needs_opu)
        if any(fits(node, needed) for node in nodes):
            continue
        lacking = [name for name, amount in needed.items() if all(node.get(name, 0) < amount for node in nodes)]
        advice = "; ".join(ADVICE[name] for name in lacking) or "start a node that offers all of it at once"
        offered = " and ".join(_text(RESOURCES, node) for node in nodes) or "nothing"
        raise ResourceError(f"resources: no node offers {_text(lacking or needed, needed)} for {algorithm}; the nodes "
                            f"offer {offered}; {advice}")


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
    return {"CPU": workers or cores(), "OPU": 1, "GPU": math.inf}


def slots(resources: Resources, offered: Bundle) -> int:
    """Return the number of packs without an OPU that a cluster can train at the same time, at least 1."""
    return max(1, int(min(offered.get(name, 0) / amount for name, amount in bundle(resources, False).items())))
