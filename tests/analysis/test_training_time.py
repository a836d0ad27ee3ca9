"""The exhibit of accuracy over training time: from a store's epochs to curves, and which trials it fits."""

import dataclasses
from itertools import product

import pytest
from stored import records, stored

from analysis.exhibits import training_time
from analysis.exhibits.catalogue import draw
from analysis.exhibits.epochs import MissingSeries
from analysis.exhibits.exhibit import MAX_WORDS
from analysis.runs import load_runs
from pipeline.experiment.exhibits import mismatch
from pipeline.trials.config import TrialConfig

pytestmark = pytest.mark.usefixtures("only_svg")

BP = TrialConfig(dataset="digits", algorithm="bp", hidden=(8,), epochs=3, mechanism="per_example", sampler="poisson",
                 target_epsilon=3.0)
GRID = [dataclasses.replace(BP, algorithm=algorithm, projector="", target_epsilon=epsilon, seed=seed)
        for algorithm, epsilon, seed in product(("bp", "dfa"), (1.0, 3.0), (0, 1))]
DIVERGED = GRID[1]  # bp, epsilon 1, seed 1: after two epochs


def seconds(config, epoch):
    return (2.0 if config.algorithm == "bp" else 1.0) * (1 + config.seed) * epoch


def accuracy(config, epoch):
    return 0.5 + 0.1 * epoch + 0.02 * config.seed + 0.01 * config.target_epsilon


def filled(folder, key="validation/accuracy", clock="time/epoch_seconds"):
    def records_of(config):
        epochs, status = ((1, 2), "diverged") if config == DIVERGED else ((1, 2, 3), "finished")
        metrics = [{key: accuracy(config, epoch), clock: seconds(config, epoch)} for epoch in epochs]
        return records(config, metrics, status=status)

    return stored(folder, "timed", GRID, records_of)


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return filled(tmp_path_factory.mktemp("store"))


@pytest.mark.parametrize("key", ["validation/accuracy", "test/accuracy"])
def test_seconds_are_summed_over_epochs_and_averaged_over_seeds(store, tmp_path, key):
    store = store if key.startswith("validation") else filled(tmp_path, key)
    shown = draw("training_time", None, load_runs(store, GRID), store)
    rows = shown.rows.set_index(["algorithm", "setting", "epoch"])
    assert len(rows) == 2 * 2 * 3 and set(rows["n"]) == {2} and set(rows["accuracy_of"]) == {key.partition("/")[0]}
    for epoch, spent in ((1, 1.5), (2, 1.5 * 3), (3, 1.5 * 6)):
        row = rows.loc[("dfa", "epsilon=3", epoch)]
        assert row["seconds"] == pytest.approx(spent) and row["mean"] == pytest.approx(100 * (0.54 + 0.1 * epoch))
    # A diverged trial keeps its last value and time: 2 (1 + 2) = 6 and 4 (1 + 2) = 12 s for two epochs, then 12 and 12.
    assert rows.loc[("bp", "epsilon=1", 3), "seconds"] == pytest.approx((12 + 12) / 2)
    assert rows.loc[("bp", "epsilon=1", 3), "mean"] == pytest.approx(50 * (0.81 + 0.73))
    caption = shown.texts.body[0]
    assert caption.startswith(key.partition("/")[0].capitalize()) and "n = 2" in caption
    assert len(caption.split()) <= MAX_WORDS


def test_runs_without_times_are_refused(tmp_path):
    store = filled(tmp_path, clock="time/other_seconds")
    with pytest.raises(MissingSeries, match="training_time: needs time/epoch_seconds, and validation/accuracy or test"):
        training_time.tabulate(load_runs(store, GRID), store)


@pytest.mark.parametrize(("changes", "reason"), [
    ({"epochs": 1}, "trials of one epoch do not have"), ({"private_metrics": "withheld"}, "private_metrics 'withheld'"),
    ({"clipping_norm": 2.0}, "also differ in clipping_norm"), ({"dataset": "mnist"}, "is of one data set")])
def test_trials_that_it_does_not_fit_are_told_why(changes, reason):
    assert mismatch("training_time", GRID) == ""
    withheld = dataclasses.replace(BP, private_metrics="withheld", validation_fraction=0.0)
    assert mismatch("training_time", [withheld]) == ""
    assert reason in mismatch("training_time", [*GRID, dataclasses.replace(BP, **changes)])
