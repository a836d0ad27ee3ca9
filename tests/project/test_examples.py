"""The examples in the docstrings of the public names, run as a reader would: where example.yaml was swept."""

import doctest
from pathlib import Path

import numpy as np
import pytest

import analysis
import pipeline
from pipeline.experiment.experiment import parse_experiment
from pipeline.tracking.store import Store
from pipeline.trials.records import EpochRecord, Outcome

FILE = """
name: example
base: {dataset: digits, hidden: [16], batch_size: 64, epochs: 2, mechanism: per_example, sampler: poisson}
grid: {algorithm: [bp, dfa], target_epsilon: [1, 8]}
"""
TABLE = """
dataset: patients
data_file: patients.csv
label: outcome
classes: [well, ill]
columns: {age: {range: [0, 120]}, ward: {values: [north, south]}}
records: {train: 80, test: 20}
test: {share: 0.2, seed: 0}
confirmed: true
"""
OF_TABLE = """
plugins: [table.yaml]
base: {dataset: patients, mechanism: none, algorithm: bp, batch_size: 16}
"""
NAMES = {name: getattr(face, name) for face in (pipeline, analysis) for name in face.__all__}


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    folder = tmp_path_factory.mktemp("swept")
    for name, text in (("example.yaml", FILE), ("table.yaml", TABLE), ("patients.yaml", OF_TABLE),
                       ("new_patients.csv", "ward,age\nnorth,30\nsouth,120\n")):
        (folder / name).write_text(text)
    with pytest.MonkeyPatch.context() as patch:
        store = Store(root=folder / "mlruns")
        store.open_sweep("example")
        for trial in parse_experiment(FILE, Path("example.yaml")).trials:
            store.start(trial)
            accuracy = 0.8 - 0.1 * (trial.algorithm == "dfa") + 0.1 * (trial.target_epsilon == 8)
            last = {"validation/accuracy": accuracy, "test/accuracy": accuracy,
                    "epsilon/certified/pld": trial.target_epsilon}
            tags = {"privacy.relation": "add/remove"}
            weights = {name: np.zeros(shape, np.float32) for number, shape in ((1, (16, 64)), (2, (10, 16)))
                       for name, shape in ((f"layer_{number}.weight", shape), (f"layer_{number}.bias", shape[:1]))}
            store.log([EpochRecord(trial.trial_key, 1, {"validation/accuracy": accuracy / 2}, tags),
                       EpochRecord(trial.trial_key, 2, last, {}, Outcome("finished", weights, ()))])
        patch.chdir(folder)
        yield


@pytest.mark.parametrize("name", NAMES)
def test_every_public_name_has_an_example_that_runs(name, swept, extensions):
    (example,) = doctest.DocTestFinder(recurse=False).find(NAMES[name], name, globs=dict(NAMES))
    assert example.examples
    assert doctest.DocTestRunner().run(example).failed == 0
