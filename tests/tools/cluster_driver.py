"""Drivers of the tests of clusters, run as
`python cluster_driver.py sweep|prepare|plugin ADDRESS HOME [DATA|FILE]`."""

from __future__ import annotations

import dataclasses
import functools
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from prepared import prepared

from pipeline.experiment.experiment import Experiment, load_experiment
from pipeline.sweep.checkpoints import Checkpoints
from pipeline.sweep.checks import ResourceError
from pipeline.sweep.cluster import prepare_nodes, running_ray
from pipeline.sweep.run import run_sweep
from pipeline.sweep.worker import train_pack
from pipeline.trials.config import TrialConfig
from pipeline.trials.packs import Pack, Resources
from pipeline.trials.records import EpochRecord

TRIALS = tuple(TrialConfig(dataset="digits", hidden=(16,), batch_size=64, epochs=4, algorithm=algorithm, seed=seed)
               for algorithm, seeds in (("pdfa", 2), ("dfa", 4)) for seed in range(seeds))
EXPERIMENT = Experiment("cluster", "", TRIALS, Resources(pack_size=1), (), Path("cluster.yaml"))


def train_and_name_the_node(pack: Pack, checkpoints: Checkpoints, nodes: int) -> Iterator[list[EpochRecord]]:
    """Train; a pack that needs no OPU waits until `nodes` nodes train such packs, which otherwise end too soon."""
    if not pack.needs_opu:
        (checkpoints.folder / f"{os.environ['NODE']}.here").touch()
        deadline = time.monotonic() + 100
        while len(list(checkpoints.folder.glob("*.here"))) < nodes and time.monotonic() < deadline:
            time.sleep(0.05)
    for records in train_pack(pack, device="cpu", threads=1, data_folder=None, checkpoints=checkpoints):
        yield [dataclasses.replace(record, tags={**record.tags, "node": os.environ["NODE"]}) for record in records]


def sweep(address: str, home: Path) -> None:
    """The experiment, in the folder `mlruns`, and with the name of the node as a tag of every trial.

    Args:
        home: of Ray's user on the node that drives.
    """
    checkpoints = Checkpoints(home / "mlruns" / "private" / "checkpoints" / "cluster", 30)
    checkpoints.folder.mkdir(parents=True)
    trainer = functools.partial(train_and_name_the_node, checkpoints=checkpoints, nodes=2)
    print(run_sweep(EXPERIMENT, address=address, trainer=trainer))
    for marker in checkpoints.folder.glob("*.here"):
        marker.unlink()


def prepare(address: str, home: Path, data: str = "") -> None:
    """What `prepare_nodes` says of the node with an OPU: without a library, without data, with both (if there are)."""
    trials = [dataclasses.replace(TRIALS[0], dataset="mnist")]
    library, folder = home / "modules" / "safetensors.py", home / "data"
    sweep = prepared(trials, home)
    sweep.folder.path.mkdir(exist_ok=True)
    with running_ray(sweep, address, None, lambda: None) as watch:
        for change in (lambda: library.write_text('raise ModuleNotFoundError("No module named \'safetensors\'")'),
                       library.unlink, lambda: data and folder.symlink_to(data)):
            change()
            try:
                prepare_nodes(sweep, False, watch)
                print("ready")
            except ResourceError as error:
                print(error)


def plugin(address: str, home: Path, file: str) -> None:
    """A file whose plugin lies beside it."""
    print(run_sweep(load_experiment(Path(file)), address=address, data_folder=Path(file).absolute().parent))


if __name__ == "__main__":
    drivers = {"sweep": sweep, "prepare": prepare, "plugin": plugin}
    drivers[sys.argv[1]](sys.argv[2], Path(sys.argv[3]), *sys.argv[4:])
