"""Kills, drawn by a seed, over a search with a budget: spent is what the store has, and it never goes down."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from fault_tools import assert_as_if_undisturbed
from search_tools import by_hand
from test_chaos import Chaos

from pipeline.accounting.budget import restored_filter
from pipeline.experiment.experiment import load_experiment
from pipeline.sweep import status
from pipeline.tracking.reader import Reader

KILLS = {"worker SIGKILL": 7, "driver SIGKILL": 3}  # weights
FILE = """
name: paid
base: {dataset: digits, hidden: [16, 16], batch_size: 128, epochs: 24, mechanism: per_example, sampler: shuffled,
       noise_multiplier: 40, private_metrics: noisy, alignment_batches: 0}
search:
  algorithm: random
  trials: 8
  space: {learning_rate: {loguniform: [0.05, 5]}, clipping_norm: {uniform: [0.5, 4]}}
  max_concurrent: 2
budget: {epsilon: 2.4, delta: 1.0e-5}
resources: {pack_size: 1}
"""
STOP = "stop: {rule: asha, grace: 1, factor: 4}\n"


class Spent:
    """What the store of a sweep says is spent, and the same by hand; None before there is a sweep."""

    def __init__(self, root: Path) -> None:
        self._root, self.values = root, []

    def read(self) -> None:
        store = Reader(root=self._root)
        store.attach("paid")
        filter = restored_filter(store.budget())
        by_events = filter.epsilon(by_hand(store, filter.order))
        told = status.read(store, "paid").budget["spent"]
        assert by_events <= told, "epochs that were released in between are counted"
        self.values.append(by_events)


@pytest.mark.slow
@pytest.mark.parametrize(("stop", "seed", "count"), [("", 4, 10), (STOP, 1, 5)], ids=["all epochs", "stopped early"])
def test_what_is_spent_is_what_was_released_whatever_is_killed(tmp_path, stop, seed, count):
    (tmp_path / "paid.yaml").write_text(FILE + stop)
    chance, chaos, spent = random.Random(seed), Chaos(tmp_path, "paid"), Spent(tmp_path)
    kills = chance.choices(list(KILLS), list(KILLS.values()), k=count)
    assert set(kills) == set(KILLS)
    injected = chaos.endure(kills, chance, after=spent.read)
    spent.read()
    assert spent.values == sorted(spent.values) and 0 < spent.values[0] < spent.values[-1] <= 2.4
    store = Reader(root=tmp_path)
    store.attach("paid")
    filter, experiment = restored_filter(store.budget()), store.as_swept(load_experiment(tmp_path / "paid.yaml"))
    whole = filter.epsilon(by_hand(store, filter.order))
    assert whole == filter.epsilon(filter.spent(store.released())) == status.read(store, "paid").budget["spent"]
    points = [point.value for point in sorted(store._client.get_metric_history(store._parent(), "epsilon/spent"),
                                              key=lambda point: (point.step, point.timestamp))]
    assert points == sorted(points) and points[-1] == whole, "what was logged as the sweep went"
    epochs = {release.trial.trial_key: release.epochs for release in store.released()}
    assert len(epochs) == len(store.released()) == len(experiment.trials)
    if not stop:
        assert set(epochs.values()) == {24} and len(epochs) < 8, "each epoch once, and the budget ended it"
        assert_as_if_undisturbed(tmp_path, experiment, "ten kills of a search with a budget", injected)
    for run in store.runs():  # which trials are stopped depends on when they come to a rung
        assert epochs[run.trial_key] in ((1, 4, 16) if run.status == "stopped" else (24,))
    assert bool(stop) == ("stopped" in store.done().values())
