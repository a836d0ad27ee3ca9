"""Searches without training: scores that their settings alone decide, put straight into a real tracking store."""

from __future__ import annotations

import math
import secrets
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np

from pipeline.accounting import account, privacy_tags
from pipeline.accounting.budget import epoch_cost
from pipeline.experiment.experiment import Experiment, parse_experiment
from pipeline.sweep.rounds import Rounds, make_searcher
from pipeline.tracking.artifacts import config_of, names_of, tracked
from pipeline.tracking.reader import Reader
from pipeline.tracking.store import Store
from pipeline.trials.config import TrialConfig
from pipeline.trials.records import ACCURACY, CLOCK, EpochRecord, Outcome, Sealed

FILE = """
name: search
base: {dataset: digits, hidden: [8], epochs: 2, mechanism: per_example, sampler: shuffled, noise_multiplier: 20}
search:
  algorithm: random
  trials: 7
  space: {learning_rate: {loguniform: [0.05, 5]}, batch_size: {choice: [64, 128]}, momentum: {uniform: [0, 0.9]}}
  seed: 3
resources: {cpu: 2, pack_size: 4}
"""


def parse(*changes: tuple[str, str], text: str = FILE) -> Experiment:
    """The experiment of a file with `changes`, (old, new), in it."""
    for old, new in changes:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return parse_experiment(text, Path("search.yaml"))


def score(trial: TrialConfig) -> float:
    """Highest at a learning rate of 1."""
    return round(1 / (1 + abs(math.log(trial.learning_rate))), 6)


def records(trial: TrialConfig, epochs: int, status: str = "") -> list[EpochRecord]:
    """Of the first `epochs`; the last with an outcome, if there is a status."""
    outcome = Outcome(status, {"layer_1.bias": np.zeros(3, np.float32)}, ()) if status else None
    found = [EpochRecord(trial.trial_key, epoch, {
        CLOCK: 0.1, ACCURACY: score(trial) + 0.001 * epoch, "alignment/layer_1": 0.5, "alignment/layer_2": 1.0,
        **{epsilon.metric_name: epsilon.value for epsilon in account(trial, epoch)}}, privacy_tags(trial))
        for epoch in range(1, epochs + 1)]
    if outcome:
        tested = {"test/accuracy": score(trial), "test/worst_class_accuracy": score(trial) / 2}
        found[-1] = replace(found[-1], metrics={**found[-1].metrics, **tested}, outcome=outcome)
    return found


def train(store: Store, trials: Sequence[TrialConfig], epochs: int = 0, status: str = "finished",
          also: Sequence[str] = ()) -> None:
    """All epochs of every trial, or only so many; those with secret noise under a name."""
    for trial in trials:
        store.start(trial, also=also)
        if trial.secure:
            name(store, trial)
        store.log(records(trial, epochs or trial.epochs, status))


def name(store: Store, trial: TrialConfig) -> str:
    """Record a new name of a started trial's sealed result, and return it."""
    sealed = Sealed(secrets.token_hex(8), "here")
    store.name(trial.trial_key, sealed, {}, privacy_tags(trial))
    return sealed.name


def rounds(experiment: Experiment, store: Store, make=make_searcher) -> Rounds:
    """Of a sweep that is resumed: its parent run is open."""
    if store.find(experiment.name):
        return Rounds(experiment.plan, store, make)
    found = Rounds(experiment.plan, store, make)
    store.open_sweep(experiment.name, contents=found.tags)
    return found


def by_hand(store: Reader, order: int) -> float:
    """Renyi divergence of all that the database of the open sweep has released, in the trash too, added up exactly.

    An epoch that was trained again with noise from a seed counts once; with secret noise every name counts whole.
    """
    events: dict[tuple[str, str, int], Fraction] = {}
    for run in store._client.search_runs([store._experiment_id], run_view_type=3):
        if "trial_key" in run.data.tags:
            trial = config_of(tracked(run))
            released = {"": [point.step for point in store._client.get_metric_history(run.info.run_id, CLOCK)]}
            if trial.secure:
                released = {name: range(1, trial.epochs + 1) for name in names_of(run.data.tags)}
            for name, epochs in released.items():
                for epoch in epochs:
                    events[trial.trial_key, name, epoch] = Fraction(epoch_cost(trial, order))
    return float(sum(events.values(), Fraction(0)))
