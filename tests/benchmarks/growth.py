"""What a store of more trials costs whoever reads and writes it: every command at 250 to 16,000 trials.

`make growth` prints a table and writes reports/growth.json. Nothing is trained: one trial is tracked as a sweep tracks
it, and the others are rows of the database like its own, with settings of their own. Times are CPU seconds of this
process, imports aside.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import numpy as np
import sqlalchemy
from rounds import machine, markdown, seconds

import analysis.report.report
from analysis.runs import frame_of
from pipeline.experiment.experiment import Experiment, parse_experiment
from pipeline.sweep import run, status
from pipeline.sweep.clock import Clock
from pipeline.sweep.dry_run import as_lines, preview
from pipeline.sweep.ledger import Odometer
from pipeline.sweep.outcome import contents, shared_view
from pipeline.sweep.prepare import prepare
from pipeline.sweep.private import PrivateFolder
from pipeline.sweep.recorder import Recorder
from pipeline.tracking.artifacts import param_text
from pipeline.tracking.reader import Reader
from pipeline.tracking.store import Store
from pipeline.trials.config import TrialConfig
from pipeline.trials.naming import short_name
from pipeline.trials.packs import Pack
from pipeline.trials.records import EpochRecord, Outcome

TRIALS, EPOCHS, MEASURED = (250, 1000, 4000, 16_000), 3, 40
AIM, AIM_OF_A_TRIAL = 20.0, 1.3  # most of 16,000 over 1,000
FILE = """
name: growth
base: {{dataset: digits, hidden: [8], epochs: {epochs}, batch_size: 64, mechanism: per_example, sampler: poisson,
       noise_multiplier: 20, alignment_batches: 0}}
grid: {{algorithm: [bp, dfa], clipping_norm: [0.5, 1], learning_rate: [0.1, 0.2, 0.5, 1, 2],
       seed: {{range: [0, {seeds}]}}}}
report: [frontier]
"""
TAGS = {"privacy.certified": "simulated", "privacy.delta": "1e-05", "privacy.relation": "add/remove",
        "privacy.sampler": "poisson", "privacy.notes": "none", "git_commit": "growth", "device": "cpu"}


def text(n: int) -> str:
    """An experiment file of `n` trials, or a few less."""
    return FILE.format(epochs=EPOCHS, seeds=max(1, n // 20))


def metrics(trial: TrialConfig, epoch: int) -> dict[str, float]:
    """Of one epoch; accuracies are the settings' alone."""
    accuracy = 0.5 + 0.1 * trial.clipping_norm + 0.01 * epoch + 0.02 * (trial.algorithm == "bp")
    last = {"test/accuracy": accuracy, "test/worst_class_accuracy": accuracy / 2} if epoch == EPOCHS else {}
    return {"time/epoch_seconds": 0.1, "train/loss": 1 / epoch, "validation/accuracy": accuracy,
            "epsilon/certified/pld": 0.1 * epoch, **last}


def records(trial: TrialConfig) -> list[EpochRecord]:
    """All of a trial."""
    outcome = Outcome("finished", {"layer_1.bias": np.zeros(3, np.float32)}, ())
    return [EpochRecord(trial.trial_key, epoch, metrics(trial, epoch), TAGS if epoch == 1 else {},
                        outcome if epoch == EPOCHS else None) for epoch in range(1, EPOCHS + 1)]


def fill(uri: str, root: Path, experiment: Experiment, done: int) -> None:
    """Track the sweep with its first `done` trials finished."""
    store = Store(uri, root)
    store.open_sweep(experiment.name, params={"trials": len(experiment.trials)},
                     contents={**contents(experiment.possible),
                               **shared_view(experiment.possible, experiment.varied)})
    store.log_experiment(experiment.text)
    from mlflow.store.tracking.dbmodels import models

    rows: dict[str, list[dict]] = {name: [] for name in ("SqlRun", "SqlTag", "SqlParam", "SqlMetric",
                                                         "SqlLatestMetric")}
    now = int(time.time() * 1000) - len(experiment.trials)
    for number, trial in enumerate(experiment.trials[:done]):
        of_run = {"run_uuid": uuid.uuid4().hex}
        name = short_name(trial, experiment.varied)
        rows["SqlRun"].append(of_run | dict(
            name=name, source_type="UNKNOWN", source_name="", entry_point_name="", user_id="growth", status="FINISHED",
            start_time=now + number, end_time=now + number + 1, source_version="", lifecycle_stage="active",
            artifact_uri=(root / of_run["run_uuid"]).as_uri(), experiment_id=int(store.experiment_id)))
        tags = {**TAGS, "trial_key": trial.trial_key, "mlflow.parentRunId": store._parent(), "mlflow.runName": name,
                "driver": store.driver, "status": "finished"}
        rows["SqlTag"] += [of_run | {"key": key, "value": value} for key, value in tags.items()]
        rows["SqlParam"] += [of_run | {"key": key, "value": param_text(value)}
                             for key, value in trial.canonical().items()]
        for epoch in range(1, EPOCHS + 1):
            points = [of_run | {"key": key, "value": value, "timestamp": now, "step": epoch, "is_nan": False}
                      for key, value in metrics(trial, epoch).items()]
            rows["SqlMetric"] += points
        rows["SqlLatestMetric"] += points
    engine = store._client.mlflow._tracking_client.store.engine
    with engine.begin() as connection:
        for name, content in rows.items():
            connection.execute(sqlalchemy.insert(getattr(models, name).__table__), content)


class Ready(Exception):
    """A sweep would now train; what it took until now."""


def until_it_trains(uri: str, root: Path, experiment: Experiment) -> float:
    """CPU seconds of `photonic sweep` up to the first pack, without Ray."""
    @contextlib.contextmanager
    def no_ray(*arguments: object) -> Iterator[None]:
        yield

    def trains(*arguments: object) -> None:
        raise Ready(time.process_time() - began)

    began = time.process_time()
    with (mock.patch.object(run, "running_ray", no_ray), mock.patch.object(run, "node_resources", lambda: [{"CPU": 2}]),
          mock.patch.object(run, "cluster_resources", lambda: {"CPU": 2}), mock.patch.object(run, "fit", trains)):
        try:
            run.run_sweep(experiment, root=root, tracking_uri=uri, quiet=True, trainer=lambda pack: iter(()))
        except Ready as ready:
            return ready.args[0]
    raise RuntimeError("the sweep had nothing to train")


def per_trial(uri: str, root: Path, experiment: Experiment, trials: list[TrialConfig]) -> float:
    """Median CPU seconds of the driver for a trial, from its start to its end, in a store that has all others."""
    store = Store(uri, root)
    store.open_sweep(experiment.name)
    sweep = prepare(experiment, store, Clock(), PrivateFolder(root), data_folder=None, quiet=True, commit="0123abcd")
    taking = Recorder(sweep, Odometer(store, None))
    taking.start(Pack((trials[0],)))  # lists the runs, once for a sweep
    spent = []
    for trial in trials[1:]:
        pack, began = Pack((trial,)), time.process_time()
        taking.start(pack)
        for record in records(trial):
            taking.record(pack, [record], 0.1)
        spent.append(time.process_time() - began)
    return statistics.median(spent)


def costs(uri: str, n: int, folder: Path) -> dict[str, float]:
    """CPU seconds by command, with `n` trials in a new store."""
    content, root = text(n), folder / "mlruns"
    root.mkdir()
    found: dict[str, float] = {}
    read_file = seconds(lambda: parse_experiment(content, Path("growth.yaml")))
    experiment = parse_experiment(content, Path("growth.yaml"))
    found["dry run"] = read_file + seconds(lambda: list(as_lines(preview(experiment, 2, root))))
    left = list(experiment.trials[-MEASURED - 1:])
    fill(uri, root, experiment, len(experiment.trials) - len(left))
    found["start"] = until_it_trains(uri, root, experiment)
    found["a trial"] = per_trial(uri, root, experiment, left)
    store = Store(uri, root)
    store.open_sweep(experiment.name)
    store.start(left[0])
    store.log(records(left[0]))
    store.close_sweep("FINISHED")
    found["resume, nothing to do"] = seconds(
        lambda: run.run_sweep(experiment, root=root, tracking_uri=uri, quiet=True))
    found["status"] = seconds(lambda: status.as_text([status.read(Reader(uri, root), experiment.name, experiment)]))

    def read() -> None:
        reader = Reader(uri, root)
        reader.attach(experiment.name)
        frame_of(reader.runs(), experiment.trials)

    found["load_runs"] = seconds(read)
    found["report"] = seconds(lambda: analysis.report.report.write(experiment, Store(uri, root), folder / "report"))
    return found


def table(found: dict[int, dict[str, float]]) -> str:
    """A row for each command, with its quotient of 16,000 and 1,000 trials where both were measured."""
    sizes, rows = sorted(found), []
    compared = 1000 in found and sizes[-1] > 1000
    for command in found[sizes[0]]:
        unit = 1e3 if command == "a trial" else 1.0
        last = [found[sizes[-1]][command] / found[1000][command]] if compared else []
        rows.append((f"{command}, {'ms' if unit > 1 else 's'}", *(unit * found[n][command] for n in sizes), *last))
    header = ("CPU time", *(f"{n:,} trials" for n in sizes), *([f"{sizes[-1]:,} over 1,000"] if compared else []))
    return markdown(header, rows)


def main(arguments: list[str] | None = None) -> int:
    """Measure, print and write; `--trials 250 1000` for less."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, nargs="+", default=list(TRIALS))
    parser.add_argument("--out", type=Path, default=Path("reports/growth.json"))
    options = parser.parse_args(arguments)
    facts = {"machine": machine(), "aims": {"16,000 over 1,000": AIM, "a trial": AIM_OF_A_TRIAL}}
    print(f"{facts['machine']['cpu']}, load average {facts['machine']['load_average']}\n", flush=True)
    found: dict[int, dict[str, float]] = {}
    for n in options.trials:
        with tempfile.TemporaryDirectory() as folder:
            found[n] = costs(f"sqlite:///{folder}/mlruns/mlflow.db", n, Path(folder))
        print(f"{n} trials: done", file=sys.stderr, flush=True)
    print(table(found), flush=True)
    facts |= {"seconds": found, "load average at the end": machine()["load_average"]}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(facts, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
