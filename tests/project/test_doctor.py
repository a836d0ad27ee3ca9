"""`photonic doctor`, and settings of the environment that end a command with one line in place of a traceback."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline import machine

ROOT = Path(__file__).parents[2]
TINY = "name: tiny\nbase: {dataset: digits, hidden: [8], batch_size: 64, epochs: 1}\n"
LIST, WORD = (f"OMP_NUM_THREADS: must be one whole number, got '{got}', at which numexpr ends; set it to {use}"
              for got, use in (("4,2", 4), ("abc", 1)))


def photonic(folder, *words, before="", **environment):
    """The exit code and what a command prints, run in a folder by a shell that first does `before`."""
    inherited = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    command = f"{before} exec {sys.executable} -m pipeline {' '.join(words)}"
    run = subprocess.run(["bash", "-c", command], cwd=folder, capture_output=True, text=True,
                         env={**inherited, "PYTHONPATH": str(ROOT), "PHOTONIC_CACHE": str(folder / "cache"),
                              "MLFLOW_TRACKING_URI": "", **environment})
    return run.returncode, run.stdout + run.stderr


def test_doctor_tells_what_is_here_without_paths_or_passwords(tmp_path):
    code, told = photonic(tmp_path, "doctor", RAY_ADDRESS="10.1.2.3:6379", PHOTONIC_DATA=str(tmp_path / "secret"))
    facts = dict(line.split(maxsplit=1) for line in told.splitlines())
    assert code == 0 and len(facts) == 15 and facts["python"].startswith(sys.version.split()[0])
    assert facts["cores"].startswith(f"{machine.cores()} of {os.cpu_count()},") and facts["Ray"] == "10.1.2.3:6379"
    assert facts["MLflow"] == "a database in --mlruns: no sweep yet"
    assert facts["data"] == "the folder of PHOTONIC_DATA"
    assert facts["cache"] == "the folder of PHOTONIC_CACHE: 0 files, 0.0 GB"
    assert str(tmp_path) not in told and str(Path.home()) not in told and not (tmp_path / "mlruns").exists()


def test_doctor_names_every_trap_and_opens_nothing_that_would_raise(tmp_path):
    code, told = photonic(tmp_path, "doctor", before="ulimit -v 9000000;", OMP_NUM_THREADS="4,2",
                          http_proxy="http://me:word@10.9.9.9:3", MLFLOW_TRACKING_URI="http://me:word@store.lab:5000")
    assert code == 1 and "word" not in told
    assert WORD in photonic(tmp_path, "doctor", OMP_NUM_THREADS="abc")[1]
    assert "\nMLflow     http://***@store.lab:5000: not opened\n" in told and f"\nends a command: {LIST}\n" in told
    assert "\nends a command: ulimit -v: must be unlimited or at least 16000000, got 9000000" in told
    assert "\nnote: http_proxy: requests to store.lab go through a proxy; if it is in your own network, add" in told


@pytest.mark.parametrize("use", ["import photonic", "from pipeline.tracking.store import Store; Store()"])
def test_python_is_refused_with_the_same_line(tmp_path, use):
    run = subprocess.run([sys.executable, "-c", use], cwd=tmp_path, capture_output=True, text=True,
                         env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "4,2"})
    assert run.stderr.endswith(f"MachineError: {LIST}\n")


@pytest.mark.slow
@pytest.mark.parametrize(("before", "environment", "says"), [
    ("", {"OMP_NUM_THREADS": "4,2"}, LIST),
    ("", {"PYTHONOPTIMIZE": "2"}, "PYTHONOPTIMIZE: must be 0 or 1, got 2, which takes away docstrings that Ray reads"),
    ("ulimit -v 9000000;", {}, "ulimit -v: must be unlimited or at least 16000000, got 9000000"),
    ("", {"http_proxy": "http://127.0.0.1:9", "MLFLOW_TRACKING_URI": "http://127.0.0.1:5999"},
     "(http_proxy: requests to 127.0.0.1 go through a proxy; if it is in your own network, add it to no_proxy)")])
def test_a_sweep_is_refused_with_the_setting_that_would_end_it(tmp_path, before, environment, says):
    (tmp_path / "tiny.yaml").write_text(TINY)
    code, told = photonic(tmp_path, "sweep", "tiny.yaml", before=before, **environment)
    assert code == 2 and says in told.splitlines()[-1] and "Traceback" not in told


@pytest.mark.parametrize(("quota", "expected"), [("max 100000", 3), ("250000 100000", 3), ("150000 100000", 2)])
def test_cores_are_those_of_the_affinity_and_the_quota(tmp_path, monkeypatch, quota, expected):
    (tmp_path / "cpu.max").write_text(quota)
    monkeypatch.setattr(machine, "QUOTA", tmp_path / "cpu.max")
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 2, 5})
    assert machine.cores() == expected


def test_what_is_often_not_meant_is_noted(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0})
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    monkeypatch.setattr(machine, "LEAST_SHARED", 2**60)
    shared, cores = machine.slows()
    assert shared.startswith("/dev/shm: has ") and cores.startswith("cores: this process may use 1 of 4, ")
