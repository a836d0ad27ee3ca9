"""experiments/cluster and docs/cluster.md, as far as they can be checked without a cluster, Kubernetes or Slurm."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest
import yaml
from commands import parsed
from ray.autoscaler._private.util import prepare_config, validate_config
from ray.scripts.scripts import cli as ray_cli

from pipeline.experiment.experiment import load_experiment
from pipeline.sweep.checks import RESOURCES

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "experiments" / "cluster"
DOCS = (ROOT / "docs" / "cluster.md").read_text()
CONSTRAINTS = (ROOT / "constraints.txt").read_text()
RAY_VERSION = re.search(r"^ray==(\S+)$", CONSTRAINTS, re.MULTILINE)[1]


def ray_options(command: str) -> dict:
    """What Ray's own parser makes of `... ray start --head ...; ...`."""
    words = shlex.split(command)
    words = words[next(n for n, word in enumerate(words) if Path(word).name == "ray") + 1:]
    found = ray_cli
    while isinstance(found, click.Group):  # `ray start`
        found = found.commands[words.pop(0)]
    return found.make_context("ray", words).params


def sweep_options(command: str) -> dict:
    program, subcommand, *words = shlex.split(command)
    assert program == "photonic", command
    return parsed(subcommand, words)


def opus(resources: str) -> float:
    offered = json.loads(resources)
    assert set(offered) <= set(RESOURCES)
    return offered.get("OPU", 0)


def test_launcher_file_is_one_that_ray_up_takes():
    config = yaml.safe_load((FOLDER / "launch.yaml").read_text())
    validate_config(prepare_config(config))
    with pytest.raises(Exception, match="colour"):
        validate_config(prepare_config({**config, "colour": "red"}))
    head, worker = (ray_options(config[f"{who}_start_ray_commands"][-1]) for who in ("head", "worker"))
    assert head["head"] and opus(head["resources"]) == 1
    assert worker["address"] == f"$RAY_HEAD_IP:{head['port']}" and opus(worker["resources"]) == 0
    for who in ("head", "worker"):
        command = config[f"{who}_start_ray_commands"][-1]
        assert "RAY_AUTH_MODE=token PHOTONIC_DATA=" in command
        # Jobs have the environment of `ray start`, and find `photonic` there.
        assert command.index("export PATH=~/photonic-dfa/.venv/bin:$PATH;") < command.index("ray start")
    assert config["setup_commands"] == ["make -C ~/photonic-dfa install"], "which has what takes jobs"
    assert {".git", ".venv", "mlruns"} <= set(config["rsync_exclude"])


def test_rayjob_has_one_optical_group_and_a_command_that_parses():
    job = yaml.safe_load((FOLDER / "rayjob.yaml").read_text())
    assert (job["apiVersion"], job["kind"]) == ("ray.io/v1", "RayJob")
    options = sweep_options(job["spec"]["entrypoint"])
    assert options["address"] == "auto" and load_experiment(ROOT / options["target"]).trials
    cluster = job["spec"]["rayClusterSpec"]
    assert cluster["rayVersion"] == RAY_VERSION and cluster["authOptions"] == {"mode": "token"}
    groups = {group["groupName"]: group for group in cluster["workerGroupSpecs"]}
    # KubeRay puts the value into a shell's command line as it stands, quotes included.
    (resources,) = shlex.split(groups["optical"]["rayStartParams"]["resources"])
    assert opus(resources) == 1 and "nodeSelector" in groups["optical"]["template"]["spec"]
    assert not any("resources" in groups[name]["rayStartParams"] for name in ("plain", "gpu"))
    assert (groups["gpu"]["minReplicas"], groups["gpu"]["maxReplicas"]) == (0, 0), "who has none leaves it as it is"
    (container,) = groups["gpu"]["template"]["spec"]["containers"]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == 1
    assert cluster["headGroupSpec"]["rayStartParams"] == {"num-cpus": "0"}, "the head only drives"
    for group in (cluster["headGroupSpec"], *groups.values()):
        pod = group["template"]["spec"]
        (container,) = pod["containers"]
        mounted = {mount["mountPath"] for mount in container["volumeMounts"]}
        env = {entry["name"]: entry["value"] for entry in container["env"]}
        assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}
        assert all(any(path.startswith(folder) for folder in mounted)
                   for path in (env["PHOTONIC_DATA"], str(options["mlruns"])))


def test_image_has_the_pinned_ray_and_all_that_is_installed():
    text = (FOLDER / "Dockerfile").read_text()
    assert f"FROM rayproject/ray:{RAY_VERSION}-py3" in text
    copied = [word for line in text.splitlines() if line.startswith("COPY") for word in line.split()[2:-1]]
    assert {"pyproject.toml", "constraints.txt", "pipeline", "analysis", "experiments"} <= set(copied)
    assert all((ROOT / name).exists() for name in copied)


STUB = """#!/bin/bash
printf '%s\\n' "$(basename "$0") $(printf '%q ' "$@")" >> "$CALLS"
[ "$(basename "$0")" = photonic ] && printf 'data %s\\n' "${PHOTONIC_DATA-none}" >> "$CALLS"
if [ "$(basename "$0") $1 $2" = "ray start --head" ]; then
    echo $$ > "$CALLS.head"
    exec python -c "import socket, time; head = socket.create_server(('127.0.0.1', 24711)); time.sleep($HEAD_SECONDS)"
fi
[ "$(basename "$0")" = srun ] || exit 0
while [[ $1 == --* ]]; do shift; done
SLURMD_NODENAME=n2 "$@"
sleep "$SRUN_SECONDS" & pid=$!
trap 'kill $pid' TERM
echo $$ > "$CALLS.srun"
wait
"""
RAY = """
import itertools, os
joined = itertools.count(int(os.environ["FIRST"]))

class util:
    get_node_ip_address = staticmethod(lambda: "127.0.0.1")

def init(address):
    pass

def nodes():  # a node more at every call
    return [{"Alive": True}] * min(next(joined), int(os.environ["JOINING"]))
"""


@pytest.fixture
def submit(tmp_path):
    """Runs the Slurm script, with programs in place of Ray, Slurm and the sweep that write down how they are called."""
    stubs = tmp_path / ".venv" / "bin"
    stubs.mkdir(parents=True)
    for name in ("ray", "srun", "photonic"):
        (stubs / name).write_text(STUB)
        (stubs / name).chmod(0o755)
    (stubs / "python").symlink_to(sys.executable)
    (tmp_path / "ray.py").write_text(RAY)
    environment = {"PATH": os.environ["PATH"], "CALLS": str(tmp_path / "calls"), "SLURM_JOB_ID": "4711",
                   "SLURM_JOB_NUM_NODES": "3", "SLURM_CPUS_ON_NODE": "8", "SLURMD_NODENAME": "n1",
                   "PYTHONPATH": str(tmp_path), "FIRST": "1", "JOINING": "3", "SRUN_SECONDS": "60",
                   "HEAD_SECONDS": "60"}

    def run(*arguments: str, **more: str) -> subprocess.CompletedProcess:
        with (tmp_path / "out").open("w+") as out, (tmp_path / "err").open("w+") as err:  # srun's stub outlives the job
            done = subprocess.run(["bash", FOLDER / "sweep.slurm", *arguments], cwd=tmp_path,
                                  env={**environment, **more}, stdout=out, stderr=err, timeout=50)
        for started in tmp_path.glob("calls.*"):
            assert not Path("/proc", started.read_text().strip()).exists(), f"{started.suffix} outlived the job"
        texts = ((tmp_path / name).read_text() for name in ("out", "err"))
        return subprocess.CompletedProcess(done.args, done.returncode, *texts)

    return run


@pytest.mark.parametrize(("given", "gpus", "opu_on_head", "data"), [
    ({}, 0, 1, "none"), ({"SLURM_GPUS_ON_NODE": "4", "FIRST": "3"}, 4, 1, "{folder}/data"),
    ({"OPU_NODE": "n2", "PHOTONIC_DATA": "/elsewhere", "FIRST": "3"}, 0, 0, "/elsewhere")])
def test_slurm_script_starts_the_nodes_and_then_the_sweep(given, gpus, opu_on_head, data, submit, tmp_path):
    """With a data folder only if there is one; and alone where there is one node."""
    if data != "none":
        (tmp_path / "data").mkdir()
    else:
        assert "usage: sbatch" in submit().stderr and not (tmp_path / "calls").exists()
        assert submit("mine.yaml", SLURM_JOB_NUM_NODES="1").returncode == 0
        calls = (tmp_path / "calls").read_text().splitlines()
        assert [call.split()[0] for call in calls] == ["ray", "photonic", "data"]
        (tmp_path / "calls").unlink()
    done = submit("experiments/ohana2021/table1.yaml", **given)
    assert done.returncode == 0, done.stderr
    calls = (tmp_path / "calls").read_text().splitlines()
    head, worker = (ray_options(next(call for call in calls if call.startswith(f"ray start {option}")))
                    for option in ("--head", "--address"))
    assert head["port"] == 24711 and (head["num_cpus"], head["num_gpus"]) == (8, gpus)
    assert (worker["num_cpus"], worker["num_gpus"]) == (8, gpus)
    assert (opus(head["resources"]), opus(worker["resources"])) == (opu_on_head, 1 - opu_on_head)
    (sweep,) = (sweep_options(call) for call in calls if call.startswith("photonic "))
    assert sweep["target"] == "experiments/ohana2021/table1.yaml" and sweep["address"] == worker["address"]
    assert sweep["address"] == "127.0.0.1:24711", "a name would need a DNS that answers"
    (srun,) = (call for call in calls if call.startswith("srun "))
    assert srun.startswith("srun --nodes=2 --ntasks=2 --exclude=n1 --whole ")
    assert f"data {data.format(folder=tmp_path)}" in calls


@pytest.mark.parametrize(("settings", "message"), [
    ({"JOINING": "2", "JOIN_SECONDS": "1"}, "2 of 3 nodes joined within 1 s (JOIN_SECONDS)"),
    ({"HEAD_SECONDS": "-1"}, "Ray's head ended; its messages say why"),
    ({"JOINING": "1", "SRUN_SECONDS": "0"}, "srun ended when 1 of 3 nodes had joined; its messages say why")])
def test_slurm_script_ends_if_a_node_does_not_join(settings, message, submit, tmp_path):
    done = submit("experiments/ohana2021/table1.yaml", **settings)
    assert done.returncode == 1 and message in done.stderr, done.stderr
    assert not any(call.startswith("photonic ") for call in (tmp_path / "calls").read_text().splitlines())


def test_commands_of_the_walk_through_parse():
    """Indented commands of docs/cluster.md; of those of `photonic`, test_site.py says so."""
    lines = re.sub(r"\\\n\s+", "", DOCS).splitlines()
    rays = [match[1] for line in lines if (match := re.match(r"    (?:[A-Z_]+=\S+ )*(ray [^#]*)", line))]
    assert len(rays) >= 4
    for command in rays:
        ray_options(command)
