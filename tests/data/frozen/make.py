"""How the frozen store was made, by commit 38d0955, with that commit's own package first on the path.

    PYTHONPATH=<checkout of 38d0955>:<its tests> python make.py FOLDER

leaves `store.tar.xz` and `trials.json` in FOLDER. What names a host or a folder is taken out of the store.

Afterwards the trials of `budget`, whose sums were in floating point, were made those of arithmetic `integer`: in its
file, their params and their keys. Secret noise with sums in floating point is no trial any more.
"""

import contextlib
import functools
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tarfile
import time
from pathlib import Path

NAMES = ("finished", "interrupted", "budget", "features", "plugin")
SLOW = """
import functools, sys
from pathlib import Path
import fault_trainer
from ray import cloudpickle
from pipeline.sweep.run import run_sweep
from pipeline.experiment.experiment import load_experiment
cloudpickle.register_pickle_by_value(fault_trainer)
root, name = Path(sys.argv[1]), sys.argv[2]
trainer = functools.partial(fault_trainer.train, root=root, name=name, pause=0.3)
run_sweep(load_experiment(f"{name}.yaml"), root=root, workers=2, trainer=trainer)
"""
run = functools.partial(subprocess.run, check=True)


def interrupted(root, name):
    """Train slowly, and kill everything once epochs of every trial are published and checkpoints were saved."""
    process = subprocess.Popen([sys.executable, "-c", SLOW, str(root), name], start_new_session=True)
    while len(list((root / "checkpoints" / name).glob("*.safetensors"))) < 2 or min(published(root, name)) < 3:
        time.sleep(0.1)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    run(["pkill", "-9", "-f", "ray::"], check=False)


def published(root, name):
    from pipeline.tracking.reader import Reader

    store = Reader(root=root)
    epochs = [len(store.history(run.run_id, "time/epoch_seconds")) for run in store.runs()] if store.find(name) else []
    return epochs if len(epochs) == 2 else [0]


def sweep(name, root, **options):
    run([sys.executable, "-m", "pipeline.cli", "sweep", f"{name}.yaml", "--mlruns", str(root)], **options)


def facts(root):
    """What must stay: of every sweep its trials by key, what became of them, and the epsilon spent."""
    from pipeline.accounting.budget import begun
    from pipeline.experiment.experiment import load_experiment
    from pipeline.tracking.artifacts import config_of
    from pipeline.tracking.reader import Reader

    store, found = Reader(root=root), {}
    for name in NAMES:
        experiment = load_experiment(f"{name}.yaml")
        store.attach(name)
        found[name] = {"keys": [trial.trial_key for trial in store.as_swept(experiment).trials],
                       "status": {run.trial_key: run.status for run in store.runs()},
                       "metrics": {run.trial_key: run.metrics for run in store.runs()},
                       "settings": {run.trial_key: config_of(run).used() for run in store.runs()},
                       "released": sorted([r.trial.trial_key, r.epochs, r.deleted] for r in store.released())}
        if store.budget():
            filter = begun(store.budget())
            found[name]["spent"] = filter.epsilon(filter.spent(store.released()))
    for settings in found["features"]["settings"].values():
        settings.pop("feature_file", None)
    return found


def scrubbed(root):
    """No host and no folder of the machine: artifacts lie in file:///STORE."""
    with contextlib.closing(sqlite3.connect(root / "mlflow.db", isolation_level=None)) as database:
        for table, column in (("experiments", "artifact_location"), ("runs", "artifact_uri")):
            for folder in (root.as_uri(), str(root)):
                database.execute(f"UPDATE {table} SET {column} = replace({column}, ?, 'file:///STORE')", [folder])
        database.execute("UPDATE runs SET user_id = 'somebody', source_name = ''")
        database.execute("UPDATE tags SET value = 'somebody' WHERE key = 'mlflow.user'")
        database.execute("UPDATE tags SET value = '' WHERE key = 'mlflow.source.name'")
        database.execute("UPDATE tags SET value = substr(value, 1, 32) || '@host:/store' WHERE key = 'driver'")
        database.execute("DELETE FROM tags WHERE key = 'driver.nodes'")
        database.execute("PRAGMA journal_mode = DELETE")
        database.execute("VACUUM")


def sweeps(root, folder):
    """Run them all, and write down what they came to."""
    import numpy as np
    from safetensors.numpy import save_file

    from pipeline.learning.data.dataset import load
    from pipeline.tracking.store import Store

    data, basis = load("digits"), np.random.default_rng(0).standard_normal((64, 12)).astype(np.float32) / 64
    save_file({name: (x.numpy() @ basis).astype(np.float16) for name, x in
               (("train", data.train_x), ("test", data.test_x))}, "features.safetensors")
    for name in ("finished", "budget", "features", "plugin"):
        sweep(name, root)
    store = Store(root=root)
    store.attach("budget")
    store._client.delete_run(store.runs()[0].run_id)  # a second draw of a trial: the first lies in the trash
    sweep("budget", root, check=False)  # that commit said of such a search that it was interrupted
    interrupted(root, "interrupted")
    (folder / "trials.json").write_text(json.dumps(facts(root), indent=1, sort_keys=True) + "\n")


def main(folder, part=""):
    root, folder = Path("mlruns").absolute(), Path(folder).absolute()
    if part:
        return sweeps(root, folder)
    run([sys.executable, __file__, str(folder), "sweeps"])  # whose connections to the database are closed by its end
    for rest in [*root.glob(".*"), root / "ray", root / "failures"]:
        shutil.rmtree(rest) if rest.is_dir() else rest.unlink(missing_ok=True)
    scrubbed(root)
    with tarfile.open(folder / "store.tar.xz", "w:xz") as archive:
        archive.add(root, "mlruns", filter=lambda entry: entry.replace(uid=0, gid=0, uname="", gname="", deep=False))
        archive.add("features.safetensors")


if __name__ == "__main__":
    main(*sys.argv[1:])
