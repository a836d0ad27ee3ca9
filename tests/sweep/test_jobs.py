"""Sweeps as jobs of Ray: on a real head and a second node, which have nothing of this checkout but what is sent."""

from __future__ import annotations

import http.server
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections import Counter
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from commands import load, output, written
from fault_tools import Damage, damage
from ray.job_submission import JobStatus
from ray_nodes import ROOT, clean, free_port
from stored import attached

from pipeline.experiment.experiment import load_experiment
from pipeline.experiment.plugins import LOADED
from pipeline.sweep import jobs
from pipeline.sweep.checks import ResourceError
from pipeline.sweep.jobs import Follower, Head, Order, experiment_of
from pipeline.sweep.run import git_commit
from pipeline.trials.config import ConfigError

PATIENCE = 180  # seconds
DIGITS = "base: {dataset: digits, algorithm: bp, hidden: []}"
FILE = """
name: {name}
plugins: [{plugin}]
resources: {{pack_size: 1}}
base: {{dataset: digits, batch_size: 64, epochs: 3, hidden: [16]}}
cases:
  - base: {{algorithm: pdfa}}
    grid: {{seed: [0, 1]}}
  - base: {{algorithm: dfa}}
    grid: {{seed: [0, 1]}}
  - base: {{algorithm: bp, network: {plugin}_line}}
"""
# Beside the file, with a module that it imports; while the file `hold` exists, no worker trains its network.
PLUGIN = """
from {plugin}_helper import line
from pipeline import network

network("{plugin}_line", version=1)(line)
"""
HELPER = """
import pathlib, time
import ray
from torch import nn


def line(trial, shape, n_classes):
    while ray.is_initialized() and ray.get_runtime_context().get_actor_id() and pathlib.Path("{hold}").exists():
        time.sleep(0.05)
    return nn.Sequential(nn.Sequential(nn.Flatten(), nn.Linear(64, n_classes)))
"""


@pytest.fixture
def laptop(tmp_path, nodes, server, request):
    """What is on the machine that submits: a file, its plugin, and a way to run commands there."""
    name = f"{request.node.name[5:25]}".replace("_", "-").strip("-")
    plugin, hold = f"job_{abs(hash(name))}", tmp_path / "hold"
    written(tmp_path / "file.yaml", FILE.format(name=name, plugin=plugin))
    (tmp_path / f"{plugin}.py").write_text(PLUGIN.format(plugin=plugin))
    (tmp_path / f"{plugin}_helper.py").write_text(HELPER.format(hold=hold))
    environment = {**clean(), **nodes.access, "PYTHONPATH": str(ROOT), "MLFLOW_TRACKING_URI": server.uri}

    def start(*words: str) -> subprocess.Popen:
        return subprocess.Popen([sys.executable, "-m", "pipeline", *words], cwd=tmp_path, env=environment, text=True,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)

    def run(*words: str) -> tuple[int, str]:
        process = start(*words)
        lines, errors = process.communicate(timeout=PATIENCE)
        return process.returncode, lines + errors

    def swept() -> Damage:
        """What is tracked, against plain training in this process."""
        sys.path.insert(0, str(tmp_path))
        return damage(tmp_path / "reader", load_experiment(tmp_path / "file.yaml"), server.uri)

    return SimpleNamespace(folder=tmp_path, hold=hold, start=start, run=run, swept=swept,
                           sweep=("sweep", "file.yaml", "--address", nodes.jobs),
                           runs=lambda: attached(name, tmp_path / "reader", server.uri).runs())


def lines_until(process: subprocess.Popen, text: str) -> str:
    """What a process has written to stderr, up to a line with `text`; one that takes too long is killed."""
    said, patience = "", threading.Timer(PATIENCE, process.kill)
    patience.start()
    for line in process.stderr:
        said += line
        if text in line:
            patience.cancel()
            return said
    raise AssertionError(f"no line with {text!r} in {said}")


@pytest.mark.slow
def test_job_trains_as_one_machine_does_and_ends_with_its_lines_and_code(laptop, nodes):
    code, said = laptop.run(*laptop.sweep)
    assert code == 0 and "[5/5] " in said and "5 trials: 5 finished" in said, said
    assert laptop.swept() == Damage(5)
    assert {run.tags["git_commit"] for run in laptop.runs()} == {git_commit()}
    assert not (laptop.folder / "mlruns").exists() and (nodes.folder / "plain" / "mlruns").exists()
    code, said = laptop.run(*laptop.sweep)
    assert code == 0 and "nothing to do: all 5 trials are done" in said


@pytest.mark.slow
def test_job_outlives_the_command_that_submitted_it_which_then_follows_it(laptop, nodes):
    laptop.hold.touch()
    process = laptop.start(*laptop.sweep)
    lines_until(process, "[4/5] ")
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    code, said = laptop.run("status", "file.yaml")
    assert code == 0 and "as job photonic-job-outlives-" in said and "running on plain" not in said, said
    code, said = laptop.run(*laptop.sweep, "--lost", "--detach")
    assert code == 2 and "another file, plugin, commit or option; wait for its end" in said, said
    code, said = laptop.run(*laptop.sweep, "--detach")
    assert code == 0 and "runs this sweep" in said and "the same command follows it" in said, said
    process = laptop.start(*laptop.sweep)
    said = lines_until(process, "[4/5] ")
    assert "runs this sweep" in said
    laptop.hold.unlink()
    said += process.communicate(timeout=PATIENCE)[1]
    assert process.returncode == 0 and "[5/5] " in said, said
    assert laptop.swept() == Damage(5)


@pytest.mark.slow
def test_ctrl_c_closes_the_sweep_on_the_head_and_the_same_command_goes_on(laptop):
    laptop.hold.touch()
    process = laptop.start(*laptop.sweep)
    lines_until(process, "[4/5] ")
    os.killpg(process.pid, signal.SIGINT)
    said = process.communicate(timeout=PATIENCE)[1]
    assert process.returncode == 130 and "interrupted with 1 left" in said, said
    assert Counter(run.status for run in laptop.runs()) == {"finished": 4, "interrupted": 1}
    laptop.hold.unlink()
    assert laptop.run(*laptop.sweep)[0] == 0
    assert laptop.swept() == Damage(5)


BROKEN = """
import pathlib, sys
from pipeline.sweep import jobs

jobs.PACKAGE = {"conda": "no-environment-of-this-name"}
head = jobs.Head(sys.argv[1])
job = head.submit(pathlib.Path("empty"), {"sweep": "none", "store": "http://h", "digest": ""})
try:
    jobs.Follower(head, job).follow_to_the_end()
except jobs.ResourceError as error:
    print(error)
"""


@pytest.mark.slow
def test_job_that_cannot_begin_is_one_line(nodes, tmp_path):
    (tmp_path / "empty").mkdir()
    done = nodes.python("-c", BROKEN, nodes.jobs, cwd=tmp_path)
    assert re.fullmatch(r"address: job photonic-none-\w+ on '.*' ended without a result \(FAILED: .*\); what is "
                        r"tracked stays; run the same command again to go on\n", done.stdout), done.stdout + done.stderr


@pytest.mark.parametrize(("first", "runs"), [("shims", "of ray"), ("nothing", "of ray"), ("of ray", "of ray")])
def test_the_job_runs_by_the_python_beside_the_heads_ray(tmp_path, first, runs):
    for folder, programs in {"shims": ["python"], "of ray": ["ray", "python"], "nothing": []}.items():
        (tmp_path / folder).mkdir()
        for program in programs:
            written(tmp_path / folder / program, f"#!/bin/sh\necho {folder}: $*\n").chmod(0o755)
    path = os.pathsep.join([str(tmp_path / first), str(tmp_path / "of ray"), os.environ["PATH"]])
    done = subprocess.run(jobs.RUN, shell=True, capture_output=True, text=True, env={"PATH": path}, check=True)
    assert done.stdout == f"{runs}: -m pipeline run-job order.json\n"


def fake(**answers):
    """A head with a client that answers so."""
    head = Head.__new__(Head)
    head.address, head.client = "http://head:8265", SimpleNamespace(**answers)
    return head


def ended(code: int | None, message: str = "", status: JobStatus = JobStatus.FAILED) -> SimpleNamespace:
    return SimpleNamespace(driver_exit_code=code, message=message, status=status)


async def logs(*texts: str):
    for text in texts:
        yield text


@pytest.mark.parametrize(("code", "here"), [(0, 0), (3, 1), (2, 2), (130, 130)])
def test_the_code_of_the_job_becomes_that_of_the_command(capsys, code, here):
    head = fake(tail_job_logs=lambda job: logs("job j: process 12 on h\n", "li"), get_job_info=lambda job: ended(code),
                get_job_logs=lambda job: "job j: process 12 on h\nline\n")
    assert Follower(head, "j").follow_to_the_end() == here
    assert capsys.readouterr().err == "job j: process 12 on h\nline\n"


@pytest.mark.parametrize(("code", "message", "says"), [
    (None, "Runtime env failed:\nNo module named 'torch'", "(FAILED: No module named 'torch')"),
    (1, "Job entrypoint command failed\nwith 1", "(FAILED: with 1)"), (-9, "", "(FAILED: no message)")])
def test_a_job_that_ends_without_a_sweeps_code_is_one_line(code, message, says):
    head = fake(tail_job_logs=lambda job: logs(), get_job_info=lambda job: ended(code, message),
                get_job_logs=lambda job: "")
    with pytest.raises(ResourceError) as error:
        Follower(head, "j").follow_to_the_end()
    assert str(error.value) == (f"address: job j on 'http://head:8265' ended without a result {says}; what is tracked "
                                "stays; run the same command again to go on")


def test_after_a_lost_link_a_log_is_printed_where_it_was_left(capsys, monkeypatch):
    monkeypatch.setattr(jobs, "PAUSE_SECONDS", 0.0)

    async def cut():
        yield "one\n"
        yield "tw"
        raise RuntimeError("closed")

    whole = "one\ntwo\nthree\n"
    head = fake(tail_job_logs=Mock(side_effect=[cut(), logs(whole), logs(whole)]), get_job_logs=lambda job: whole,
                get_job_info=Mock(side_effect=[ConnectionError("no route"), ended(None, status=JobStatus.RUNNING),
                                               ended(0)]))
    assert Follower(head, "j").follow_to_the_end() == 0
    assert capsys.readouterr().err == (
        "one\ntw'http://head:8265' does not answer; job j goes on; trying again\no\nthree\n")


def test_a_head_that_stays_away_ends_the_command_and_not_the_job(monkeypatch):
    monkeypatch.setattr(jobs, "PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(jobs, "LOST_SECONDS", 0.0)
    head = fake(tail_job_logs=lambda job: logs(), get_job_info=Mock(side_effect=ConnectionError("no route")))
    with pytest.raises(ResourceError, match="job j goes on if the head does, and the same command follows it$"):
        Follower(head, "j").follow_to_the_end()


@pytest.mark.parametrize(("pid", "asked"), [("12", ["submit kill -TERM 12"]), ("", ["stop j"])])
def test_ctrl_c_ends_the_process_of_a_sweep_that_has_begun_and_else_the_job(pid, asked):
    calls: list[str] = []
    head = fake(submit_job=lambda entrypoint: calls.append(f"submit {entrypoint}"),
                stop_job=lambda job: calls.append(f"stop {job}"))
    head.interrupt("j", pid)
    assert calls == asked


class Silent(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(self.server.status)
        self.end_headers()
        self.wfile.write(b"<html>something else</html>")

    def log_message(self, *_):
        pass


@pytest.mark.parametrize("status", [200, 404, 500, None])
def test_an_address_that_takes_no_jobs_is_one_line(tmp_path, monkeypatch, capsys, status):
    """Another server, a head without `ray[default]`, and nothing at all."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://tracking:5000")
    monkeypatch.setattr(jobs, "ASK_SECONDS", 60.0)
    file = written(tmp_path / "e.yaml", DIGITS)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Silent) as other:
        other.status = status
        if status:
            threading.Thread(target=other.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{other.server_port if status else free_port()}"
        said = output(capsys, "sweep", str(file), "--mlruns", str(tmp_path / "runs"), "--address", address, code=2)
        if status:
            other.shutdown()
    assert said.startswith(f"error: address: no Ray that takes jobs answers at '{address}' (") and said.count("\n") == 1
    assert not (tmp_path / "runs").exists()


def test_an_address_in_the_environment_does_not_replace_the_one_that_is_given(monkeypatch):
    seen = []
    monkeypatch.setenv("RAY_ADDRESS", "http://other:1")
    monkeypatch.setattr(jobs, "JobSubmissionClient",
                        lambda address: seen.append((address, os.environ.get("RAY_ADDRESS"))))
    Head("http://head:8265")
    assert seen == [("http://head:8265", None)] and os.environ["RAY_ADDRESS"] == "http://other:1"


TABLE = """dataset: job_patients
data_file: {file}
label: outcome
classes: [well, ill]
columns: {{age: {{range: [0, 120]}}}}
records: {{train: 360, test: 40}}
test: {{share: 0.1, seed: 0}}
confirmed: true
"""


TO_HEAD = ["--address", "http://h:8265"]


@pytest.mark.parametrize(("text", "options", "store", "says"), [
    (DIGITS, TO_HEAD, "", "MLFLOW_TRACKING_URI: must name a tracking server"),
    (DIGITS, TO_HEAD, "http://u:secret@h/?token=secret", "MLFLOW_TRACKING_URI: must have no query"),
    (DIGITS, [*TO_HEAD, "--workers", "2"], "http://h",
     "workers: the cluster's nodes say how many packs they take, got 2"),
    (DIGITS, ["--detach"], "", "--detach: must go with --address http://host:8265"),
    ("base: {dataset: digits, mechanism: per_example, noise_multiplier: 1}\n"
     "selection: {rule: random_stopping, mean: 3, shape: 1, seed: 0}\n",
     TO_HEAD, "http://h", "selection: random stopping must keep the number of its trials secret"),
    ("plugins: [table.yaml]\nbase: {dataset: job_patients, algorithm: bp, hidden: []}", TO_HEAD, "http://h",
     "data_file: must be an absolute path in the declaration of job_patients"),
])
def test_what_a_job_cannot_do_as_it_is_done_here_is_refused_before_anything_is_sent(
        tmp_path, monkeypatch, capsys, text, options, store, says):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store)
    monkeypatch.setattr(jobs, "JobSubmissionClient", lambda address: pytest.fail("something was asked for"))
    (tmp_path / "table.yaml").write_text(TABLE.format(file="patients.csv"))
    file = written(tmp_path / "e.yaml", text)
    said = output(capsys, "sweep", str(file), "--mlruns", str(tmp_path / "runs"), *options, code=2)
    assert says in said and said.count("\n") == 1 and "secret@" not in said and "token=secret" not in said


def test_a_table_whose_files_are_named_by_absolute_paths_may_be_sent(tmp_path):
    text = TABLE.replace("job_patients", "job_patients_there").format(file="/data/patients.csv")
    (tmp_path / "table.yaml").write_text(text)
    experiment = load(tmp_path, "plugins: [table.yaml]\nbase: {dataset: job_patients_there}")
    jobs._check(experiment, None)
    (tmp_path / "sent").mkdir()
    jobs._copy_plugins(experiment, tmp_path / "sent")
    assert [path.name for path in (tmp_path / "sent").iterdir()] == ["table.yaml"]


def order_of(experiment, **changes) -> Order:
    plugins = {name: LOADED[name] for name in experiment.plugins}
    return Order(**{"name": experiment.name, "text": experiment.text, "plugins": plugins, "checkpoint_seconds": 5.0,
                    "commit": "c", "mlruns": "mlruns", "data": "", "private": "", "lost": False, **changes})


def test_an_order_has_the_trials_of_the_file_with_changes_and_without_its_references(tmp_path):
    (tmp_path / "papers.csv").write_text("dataset,method,epsilon,delta,relation,seed,accuracy,source\n"
                                         "digits,m,3,1e-5,add/remove,,0.9,Paper\n")
    file = written(tmp_path / "e.yaml", "references: papers.csv\nbase: {dataset: digits, epochs: 3}\n"
                                        "grid: {algorithm: [bp, dfa]}\n")
    experiment = load_experiment(file, {"epochs": 7, "name": "other"})
    order = Order(**json.loads(order_of(experiment).as_json()))
    sent = experiment_of(order, tmp_path / "elsewhere")
    assert sent.trials == experiment.trials and sent.name == "other" and sent.trials[0].epochs == 7
    assert sent.resources.checkpoint_seconds == 5
    assert order.digest == order_of(experiment).digest != order_of(experiment, lost=True).digest


def test_another_version_of_a_plugin_on_the_head_is_refused(tmp_path):
    (tmp_path / "job_elsewhere.py").write_text("")
    experiment = load(tmp_path, "plugins: [job_elsewhere]\nbase: {dataset: digits}")
    order = order_of(experiment, plugins={"job_elsewhere": "0123"})
    with pytest.raises(ConfigError, match=f"plugins: job_elsewhere must be on {socket.gethostname()} what it is where"):
        experiment_of(order, tmp_path)


def test_a_plugin_that_cannot_be_read_is_named(tmp_path, monkeypatch):
    (tmp_path / "job_unreadable.py").write_text("")
    experiment = load(tmp_path, "plugins: [job_unreadable]\nbase: {dataset: digits}")
    monkeypatch.setattr(jobs.shutil, "copyfile", Mock(side_effect=PermissionError(13, "Permission denied")))
    with pytest.raises(ConfigError, match=r"^plugins: .*job_unreadable.py cannot be sent \(Permission denied\)$"):
        jobs._copy_plugins(experiment, tmp_path / "sent")


@pytest.mark.parametrize(("store", "sent"), [
    ("http://me:secret@h:5000/x", "http://h:5000/x"), ("sqlite:////home/x/mlflow.db", "sqlite:////home/x/mlflow.db"),
    ("postgresql+psycopg2://me:se%40cret@h/db", "postgresql+psycopg2://h/db")])
def test_user_and_password_of_the_store_are_not_sent(monkeypatch, store, sent):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store)
    assert jobs._public_store() == sent
