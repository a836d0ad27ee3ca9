"""The audit of an experiment: what attacks see of each of its trials, beside what is claimed or certified of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pipeline.accounting.certified import with_noise
from pipeline.accounting.epsilon import Epsilon
from pipeline.accounting.photonic import claimed
from pipeline.artifacts import run_name
from pipeline.attacks import RowSpaceAudit, row_space_audit
from pipeline.config import GAUSSIAN, ConfigError, TrialConfig
from pipeline.data import Dataset, load
from pipeline.experiment import Experiment
from pipeline.release import audit_release

LAYERS = (1, 2)  # whose updates the row space attack is given
RUNS = 2000  # of the mechanism on each of two neighbours
HEADER = ("trial", "attack", "AUC", "TPR at 0.1% FPR", "mu audited", "mu certified", "verdict")


@dataclass(frozen=True)
class Finding:
    """What one attack found of one trial: a row of the table, and the epsilons that belong to it."""

    row: tuple[str, ...]
    epsilons: tuple[Epsilon, ...] = ()
    exceeds: bool = False


def audit(experiment: Experiment, number: int | None = None, data_folder: Path | None = None,
          steps: int = 1) -> Iterator[Finding]:
    """Attack every trial of an experiment, whatever its seed, or the one of a number from 1.

    Args:
        steps: of training, whose updates the row space attack is given.

    Raises:
        ConfigError: for a number that no trial has, or more steps than an epoch has.
    """
    trials = distinct(experiment.trials)
    if number is not None and not 1 <= number <= len(trials):
        raise ConfigError(f"--trial: must be at least 1 and at most the {len(trials)} of the experiment (seeds apart), "
                          f"got {number}")
    chosen = [(k, t) for k, t in enumerate(trials, start=1) if number in (None, k)]
    fewest = min(t.steps_per_epoch for _, t in chosen)
    if not 1 <= steps <= fewest:
        raise ConfigError(f"--steps: must be at least 1 and at most the {fewest} of an epoch, got {steps}")
    loaded: dict[str, Dataset] = {}
    for k, trial in chosen:
        if trial.dataset not in loaded:
            loaded[trial.dataset] = load(trial.dataset, data_folder)
        yield from findings(f"{k} {trial_name(trial, experiment)}", trial, loaded[trial.dataset], steps)


def distinct(trials: Sequence[TrialConfig]) -> list[TrialConfig]:
    """The first of all trials that differ in their seed only."""
    first: dict[TrialConfig, TrialConfig] = {}
    for trial in trials:
        first.setdefault(dataclasses.replace(trial, seed=0), trial)
    return list(first.values())


def trial_name(trial: TrialConfig, experiment: Experiment) -> str:
    """`pdfa photonic sigma=0.1`: a name without the seed."""
    algorithm, *settings, _ = run_name(trial, experiment.varied).split(" ")
    return " ".join([algorithm, *([] if trial.mechanism == "none" else [trial.mechanism]), *settings])


def findings(name: str, trial: TrialConfig, data: Dataset, steps: int) -> Iterator[Finding]:
    """The row space attack on both layers and, where an epsilon is certified, the audit of the mechanism's release."""
    for layer in LAYERS:
        found = row_space_audit(trial, data, layer, steps)
        epsilons = sorted(claimed(trial, trial.epochs), key=lambda e: e.value)[:1] if layer == LAYERS[0] else []
        yield Finding((name, f"row space, layer {layer}", f"{found.auc:.3f}", f"{found.tpr():.1%}", "-", "-",
                       _verdict(found)), tuple(epsilons))
    if trial.mechanism in GAUSSIAN and with_noise(trial).noise_multiplier:
        release = audit_release(trial, RUNS, trial.delta)
        verdict = "EXCEEDS certified" if release.exceeds else "below certified"
        yield Finding((name, f"two neighbours, one step ({release.statistic})", f"{release.auc:.3f}",
                       f"{release.tpr:.1%}", f">= {release.mu_lower:.3f}", f"{release.mu:.3f}", verdict),
                      (release.audited, release.certified), release.exceeds)


def _verdict(found: RowSpaceAudit) -> str:
    """In words; a guarantee leaves room for a little, which is seen if only many members are tried."""
    members, others = len(found.members), len(found.non_members)
    chance = ((members + others + 1) / (12 * members * others)) ** 0.5  # standard deviation of a blind attack's AUC
    if abs(found.auc - 0.5) <= 4 * chance:
        return "blind"
    return "finds its members" if found.auc >= 0.9 else "sees a little"


def table(found: Sequence[Finding]) -> str:
    """Findings as text: a table, and below it every epsilon with all that is needed to read it."""
    rows = [HEADER, *(f.row for f in found)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    lines += ["", "mu of one step whose batch may hold the record; audited: lower bound with 95% confidence"]
    for finding in found:
        lines += [f"{finding.row[0]}: {epsilon}" for epsilon in finding.epsilons]
    return "\n".join(lines)
