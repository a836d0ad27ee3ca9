"""The ways to a cluster of docs/cluster.md, by the files of experiments/cluster; each must end as on one machine."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from fault_tools import Damage, damage

from lab.hosts import CHECKOUT, ROOT
from lab.laboratory import WORKERS, Laboratory
from lab.programs import LabError, Program, until
from lab.services import TRACKING, data, experiment, ray_by_hand, slurm, ssh, sweep, write_token
from pipeline.experiment.experiment import load_experiment

FILES = ROOT / "experiments" / "cluster"


@dataclasses.dataclass
class Way:
    """How a sweep went, that was started in one of the ways.

    Attributes:
        found: how it differs from training on one machine.
        log: what was said.
    """

    name: str
    seconds: float
    found: Damage
    log: str

    @property
    def good(self) -> bool:
        return self.found == Damage(self.found.trials)


def way(lab: Laboratory, name: str, start: Callable[[Path], Program], server: str | None = TRACKING) -> Way:
    """Sweep, and compare.

    Args:
        start: starts the sweep of a file.
        server: the tracking server that has the runs; None for the driver's mlruns.

    Raises:
        LabError: it failed.
    """
    began = time.monotonic()
    file = experiment(lab, name)
    program = start(file)
    if code := program.wait():
        raise LabError(f"{name}: {program.name} ended with {code}:\n{program.text}")
    found = damage(lab.folder / ("reader" if server else "shared/mlruns"), load_experiment(file), server)
    return Way(name, time.monotonic() - began, found, program.text)


def by_hand(lab: Laboratory) -> Iterator[Way]:
    """`ray start` on every host, and the sweep on the head."""
    lab.restart()
    for name in WORKERS:
        ray_by_hand(lab, lab[name]).wait_for("Ray runtime started")
    yield way(lab, "by-hand", lambda file: sweep(lab["n1"], file, "auto"))


def by_ray_up(lab: Laboratory) -> Iterator[Way]:
    """`ray up`, then a sweep on the head, and one as a job from `laptop`, which is killed on the way; `ray down`."""
    lab.restart()
    ssh(lab)
    laptop, file = lab["laptop"], Path("/srv/shared/launch.yaml")
    text = (FILES / "launch.yaml").read_text()
    for what, ours in (("192.0.2.10", lab["n1"].address), ("192.0.2.11", lab["n2"].address),
                       ("192.0.2.12", lab["n3"].address), ("researcher", "root"), ("=/data", "=/srv/data")):
        assert what in text  # what the file says is to be put there
        text = text.replace(what, ours)
    (lab.folder / "shared" / "launch.yaml").write_text(text)
    write_token(lab, laptop)
    up = laptop.start("ray", "up", "--yes", "--no-config-cache", file, cwd=ROOT)
    if up.wait():
        raise LabError(f"ray up:\n{up.text}")
    on_head = ["ray", "exec", "--no-config-cache", file]
    ray = f"cd {CHECKOUT} && export PATH=$PWD/.venv/bin:$PATH RAY_AUTH_MODE=token MLFLOW_TRACKING_URI={TRACKING} &&"
    until(lambda: all("raylet" in _ray(lab, name) for name in WORKERS), "all nodes", 180)
    one = way(lab, "ray-up", lambda sweep: laptop.start(
        *on_head, f"{ray} photonic sweep {sweep} --address auto --mlruns /srv/shared/mlruns", cwd=ROOT))
    yield dataclasses.replace(one, log=f"{up.text}\n{one.log}")
    forward = laptop.start(*on_head, "--port-forward", "8265", "sleep 900", cwd=ROOT)
    until(lambda: "8265" in laptop.run("ss", "-ltn"), "a forwarded port")

    def follow_again(file: Path) -> Program:
        first = sweep(laptop, file, "http://127.0.0.1:8265")
        first.wait_for("[1/5]", 300)
        laptop.run("pkill", "-KILL", "-f", file.name)
        return sweep(laptop, file, "http://127.0.0.1:8265")

    again = way(lab, "ray-job", follow_again)
    if "runs this sweep" not in again.log:
        raise LabError(f"ray-job: the job did not outlive the command:\n{again.log}")
    yield again
    forward.signal()
    laptop.run("ray", "down", "--yes", file, cwd=ROOT)


def by_slurm(lab: Laboratory) -> Iterator[Way]:
    """A Slurm job with GPUs and the OPU on its second node; and one without, that is cancelled while it trains.

    Nothing may be left of that one. No job has a tracking server.
    """
    lab.restart()
    environment, head = slurm(lab), lab["n1"]

    def submit(file: Path, *options: str, **more: str) -> Program:
        return head.start("sbatch", "--parsable", "--nodes=3", *options, f"--output=/srv/shared/{file.stem}.log",
                          FILES / "sweep.slurm", file, cwd=ROOT, **environment, **data(lab), **more)

    done = way(lab, "slurm", lambda file: submit(file, "--wait", "--gpus-per-node=2", OPU_NODE="n2"), None)
    log = (lab.folder / "shared" / "slurm.log").read_text()
    if "6 GPUs of the nodes train nothing" not in log:
        raise LabError(f"slurm: Ray was not told of the six GPUs:\n{log}")
    yield dataclasses.replace(done, log=log)
    job = submit(experiment(lab, "slurm-cancelled"))
    job.wait()
    log = lab.folder / "shared" / "slurm-cancelled.log"
    until(lambda: log.exists() and "[1/5]" in log.read_text(), "a first trial", 180)
    head.run("scancel", job.text.strip(), **environment)
    until(lambda: not head.run("squeue", "-h", **environment).strip(), "the job to end")
    until(lambda: not any(_ray(lab, name) for name in WORKERS), "Ray to end with its job", 60)
    yield way(lab, "slurm-cancelled", lambda file: submit(file, "--wait"), None)  # and it goes on


def _ray(lab: Laboratory, name: str) -> str:
    """Processes of Ray on a host."""
    return lab[name].run("bash", "-c", "ps -eo comm= | grep -E '^(gcs_server|raylet|ray::)' || true").strip()
