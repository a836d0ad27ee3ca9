"""Sweeps on clusters: two real Ray nodes, one with an OPU, that share no code, data, cache or home with the driver."""

import os
import re
import socket
from collections import Counter
from contextlib import nullcontext
from pathlib import Path
from unittest.mock import Mock

import pytest
from cluster_driver import EXPERIMENT
from commands import output, written
from fault_tools import Damage, damage
from stored import attached

from pipeline.learning.data.dataset import DataError
from pipeline.sweep import cluster
from pipeline.sweep.checks import ResourceError
from pipeline.sweep.cluster import ADDRESSES, read_address
from pipeline.sweep.run import run_sweep
from pipeline.sweep.worker import _dataset
from pipeline.trials.config import ConfigError

TESTS = Path(__file__).parents[1]
DRIVER = TESTS / "tools" / "cluster_driver.py"
DIGITS = "base: {dataset: digits, algorithm: bp, hidden: []}"
BROUGHT = """
from torch import nn

from pipeline import network
from pipeline.learning.data import load, register_dataset
from pipeline.trials.datasets import DATASETS


def read(spec, folder):
    digits = load("digits")
    return tuple((x.numpy(), y.numpy().astype("uint8")) for x, y in (
        (digits.train_x, digits.train_y), (digits.test_x, digits.test_y)))


register_dataset("other_digits", DATASETS["digits"].spec, read)


@network("line", version=1)
def line(trial, shape, n_classes):
    return nn.Sequential(nn.Sequential(nn.Flatten(), nn.Linear(64, n_classes)))
"""


@pytest.mark.slow
def test_sweep_trains_pdfa_at_the_opu_and_the_others_on_both_nodes(nodes, tmp_path):
    done = nodes.python(DRIVER, "sweep", nodes.address, tmp_path, cwd=tmp_path)
    assert done.returncode == 0 and "finished=6" in done.stdout, done.stdout + done.stderr
    assert damage(tmp_path / "mlruns", EXPERIMENT) == Damage(len(EXPERIMENT.trials))
    where = Counter((run.params["algorithm"], run.tags["node"])
                    for run in attached("cluster", tmp_path / "mlruns").runs())
    assert where["pdfa", "optical"] == 2 and where["pdfa", "plain"] == 0
    assert where["dfa", "plain"] and where["dfa", "optical"]


@pytest.mark.slow
def test_node_that_lacks_a_library_or_data_is_named_before_anything_is_trained(nodes, tmp_path):
    home, data = nodes.folder / "optical", os.environ.get("PHOTONIC_DATA", "")
    done = nodes.python(DRIVER, "prepare", nodes.address, home, data, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    without_library, without_data, with_both = done.stdout.splitlines()
    assert without_library.startswith("node optical (") and "No module named 'safetensors'" in without_library
    assert without_data.startswith("node optical (") and f"DataError: {home}/data: must be a folder" in without_data
    assert with_both == ("ready" if data else without_data)


@pytest.mark.slow
def test_nodes_that_know_no_plugin_train_what_it_brings(nodes, tmp_path):
    """A network and a data set."""
    (tmp_path / "brought.py").write_text(BROUGHT)
    (tmp_path / "brought.yaml").write_text("""
    plugins: [brought]
    base: {dataset: other_digits, batch_size: 64, epochs: 2, mechanism: per_example, noise_multiplier: 1}
    cases: [{base: {network: line, algorithm: bp}, grid: {seed: [0, 1, 2]}}, {base: {network: mlp}}]
    """)
    done = nodes.python(DRIVER, "plugin", nodes.address, nodes.folder, "brought.yaml", cwd=tmp_path,
                        PHOTONIC_DATA=str(tmp_path))
    assert done.returncode == 0 and "finished=4" in done.stdout, done.stdout + done.stderr


def swept(capsys, folder, *options):
    """What a sweep that is refused prints."""
    file = written(folder / "e.yaml", DIGITS)
    return output(capsys, "sweep", str(file), "--mlruns", str(folder / "runs"), *options, code=2)


def test_a_head_that_takes_jobs_is_no_address_in_python(tmp_path):
    with pytest.raises(ConfigError, match="^address: must be auto or host:port, as `photonic sweep` alone"):
        run_sweep(EXPERIMENT, root=tmp_path, address="http://head:8265")
    assert list(tmp_path.iterdir()) == []


def test_data_that_a_node_lacks_while_it_trains_name_the_host(tmp_path):
    with pytest.raises(DataError, match=f"on {socket.gethostname()}: {tmp_path}/none: must be a folder"):
        _dataset("mnist", tmp_path / "none", "cpu")


@pytest.mark.parametrize(("given", "environment", "found"), [
    (None, "", "local"), ("auto", "", "auto"), ("", "auto", "auto"), ("auto", "10.0.0.1:6379", "10.0.0.1:6379"),
    ("http://h:8265", "x", "http://h:8265"), ("https://h/ray", "", "https://h/ray"), (None, "http://h", "http://h"),
    ("[::1]:6379", "", "[::1]:6379"), (" h:1 ", "", "h:1"),
    ("local", "h:1", "local")])
def test_an_address_is_read_as_ray_reads_it(monkeypatch, given, environment, found):
    monkeypatch.setenv("RAY_ADDRESS", environment)
    assert read_address(given) == found


@pytest.mark.parametrize("wrong", ["10.0.0.1", "host", "host:", ":6379", "host:port", "host:0", "host:70000", "host:²",
                                   "http://", "http://host:port", "http://me:secret@host:8265", "ray://host:10001",
                                   "Auto", "host:-1", " host "])
@pytest.mark.parametrize("by", ["address", "RAY_ADDRESS"])
def test_what_is_no_address_is_refused_in_one_line_before_anything_else(tmp_path, monkeypatch, capsys, wrong, by):
    monkeypatch.setenv("RAY_ADDRESS", wrong if by == "RAY_ADDRESS" else "")
    assert swept(capsys, tmp_path, *(["--address", wrong] if by == "address" else [])) == (
        f"error: {by}: must be auto, host:port, or http://host:8265, which hands the sweep to the head as a job, with "
        f"a port from 1 to 65535, got '{wrong.strip()}'; {ADDRESSES}\n")
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("address", ["auto", "h:1"])
@pytest.mark.parametrize("error", [RuntimeError("Version mismatch: the cluster has Ray 1\nand more"), ConnectionError(),
                                   ValueError("no")])
def test_a_cluster_that_cannot_be_used_is_one_line(tmp_path, monkeypatch, capsys, error, address):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    asked = Mock()
    monkeypatch.setattr(cluster, "check_address", asked)
    monkeypatch.setattr(cluster.ray, "is_initialized", lambda: False)  # by another test
    monkeypatch.setattr(cluster.ray, "init", Mock(side_effect=error))
    last = swept(capsys, tmp_path, "--address", address).splitlines()[-1]
    assert last.startswith(f"error: address: no Ray cluster that can be used at '{address}' ({type(error).__name__}: ")
    assert asked.call_count == (address != "auto")


@pytest.mark.slow
@pytest.mark.parametrize("access", [{}, {"RAY_AUTH_MODE": "token"},
                                    {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0123456789abcdef" * 4}])
def test_a_cluster_that_asks_for_a_token_says_so_in_one_line(nodes, tmp_path, access):
    own = {"RAY_AUTH_MODE": "", "RAY_AUTH_TOKEN": "", "HOME": str(tmp_path), **access}
    file = written(tmp_path / "e.yaml", DIGITS)
    program = "import sys; from pipeline.cli import main; sys.exit(main())"
    done = nodes.python("-c", program, "sweep", file, "--address", nodes.address, cwd=tmp_path, **own)
    assert done.returncode == 2, done.stderr
    assert re.fullmatch(f"error: address: the Ray cluster at '{nodes.address}' asks for a token, .* set "
                        "RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN .*", done.stderr.splitlines()[-1]), done.stderr


@pytest.mark.parametrize(("chosen", "address", "refused"), [
    ("0", "10.0.0.1", True), ("0", "127.0.0.1", False), ("0", "::1", False), ("1", "10.0.0.1", False)])
def test_a_ray_of_this_machine_that_others_reach_is_refused(monkeypatch, chosen, address, refused):
    """As if ray was imported before the variable was set."""
    ended = []
    monkeypatch.setenv(cluster.LOOPBACK, chosen)
    monkeypatch.setattr(cluster.ray, "shutdown", lambda: ended.append("ray"))
    with (pytest.raises(ResourceError, match=f"^{cluster.LOOPBACK}: must be 0 before ray is imported, .* {address} ")
          if refused else nullcontext()):
        cluster.check_listening(address)
    assert ended == ["ray"] * refused
