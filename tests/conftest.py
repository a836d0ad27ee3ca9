import contextlib
import functools
import gc
import logging
import os
import shutil
import sqlite3
import sys
from pathlib import Path

import objects
import pytest
import torch
from hypothesis import HealthCheck, settings
from registries import forgotten_plugins

import pipeline.sweep  # noqa: F401  sets what Ray reads when it is imported
from pipeline.experiment.plugins import load_plugins
from pipeline.learning.data import load
from pipeline.learning.data.maps import dead_leaves, patches
from pipeline.tracking import backend, store
from pipeline.tracking.database import database

# Files that take longest, the longest first: two processes that take file by file then end at the same time.
LONGEST = ("test_sealed", "test_chaos", "test_faults", "test_sweep", "test_reuse", "test_results",
           "test_page", "test_tracking", "test_api", "test_cli", "test_integers", "test_docs",
           "test_search", "test_budget", "test_certified", "test_grid_exhibits", "test_readings", "test_unfinished",
           "test_features", "test_accounting_gaussian", "test_analysis", "test_own_network", "test_isolation",
           "test_honest_networks", "test_shipped", "test_projection")

# Torch, Ray and MLflow are half a million objects: looking at them as often as Python does took a tenth of the time.
gc.set_threshold(100_000, 20, 20)

# What hypothesis generates is the same in every run, and nothing of it is kept. Fixtures may be shared by examples.
settings.register_profile("fixed", derandomize=True, database=None, deadline=None, max_examples=50,
                          suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
settings.load_profile("fixed")


def pytest_collection_modifyitems(items):
    place = {name: n for n, name in enumerate(LONGEST)}
    items.sort(key=lambda item: place.get(item.path.stem, len(place)))


@pytest.fixture(autouse=True, scope="session")
def one_thread():
    """One core per test process: the products here are small, and threads that wait for each other only cost."""
    torch.set_num_threads(1)


@pytest.fixture(autouse=True, scope="module")
def nothing_stays_patched():
    """No file of tests leaves a function or class of the packages replaced: the next file would meet it, or not."""
    def names():
        return {(module, name): value for module in list(sys.modules) if module.startswith(("pipeline.", "analysis."))
                for name, value in vars(sys.modules[module]).items() if not name.startswith("_")}

    before = names()
    yield
    after = names()
    left = [".".join(key) for key, value in before.items() if after.get(key) is not value]
    assert not left, f"still replaced: {', '.join(left)}"


@pytest.fixture(autouse=True, scope="session")
def no_server():
    """Stores are databases, whatever tracking server whoever runs the tests has."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        yield


@pytest.fixture(autouse=True, scope="session")
def cache_of_the_tests(tmp_path_factory):
    """No test reads or writes the cache of whoever runs the tests: their processes share another one."""
    own = tmp_path_factory.getbasetemp()
    shared = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PHOTONIC_CACHE", str(shared / "cache"))
        yield


@pytest.fixture(scope="module")
def lee_kifer():
    """The plugin of Lee & Kifer's readings, for one file of tests."""
    load_plugins(["readings"], Path(__file__).parents[1] / "experiments" / "leekifer2020")


@pytest.fixture(scope="session")
def digits():
    return load("digits")


@pytest.fixture
def cached(tmp_path, monkeypatch):
    """The digits, with a cache of the test's own for what is made of them."""
    monkeypatch.setenv("PHOTONIC_CACHE", str(tmp_path / "cache"))
    return load("digits")


@pytest.fixture(autouse=True, scope="session")
def leaves_are_drawn_once():
    """Synthetic images of one size are drawn once in a process. Test modules draw their own."""
    drawn = functools.cache(dead_leaves.dead_leaves)
    with pytest.MonkeyPatch.context() as patch:
        for module in (dead_leaves, objects, patches):
            patch.setattr(module, "dead_leaves", lambda *size: drawn(*size).clone())
        yield


@pytest.fixture(autouse=True, scope="session")
def databases_are_copied(tmp_path_factory):
    """A tracking database that is not there is copied from one: MLflow takes twenty times as long to create it.

    What creates one is tested in processes of their own, to which this does not reach.
    """

    @functools.cache
    def new():
        path = tmp_path_factory.mktemp("new") / "mlflow.db"
        logging.disable()  # MLflow says on the standard error that it creates tables
        backend.connect(f"sqlite:///{path}", contextlib.nullcontext())
        logging.disable(logging.NOTSET)
        with contextlib.closing(sqlite3.connect(path)) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        return path

    def connect(uri, lock):
        path = database(uri)
        with lock or contextlib.nullcontext():
            if lock and path is not None and not path.exists():
                path.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(new(), path)
            return backend.connect(uri, lock)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, "connect", connect)
        yield


@pytest.fixture(scope="module")
def two_cores(request):
    """A Ray with two cores, and as many OPUs as the module's OPUS says (1), as a caller would have initialised it."""
    import ray

    ray.init("local", num_cpus=2, resources={"OPU": getattr(request.module, "OPUS", 1)}, include_dashboard=False,
             logging_level="ERROR", log_to_driver=False)
    yield
    ray.shutdown()


@pytest.fixture(scope="module")
def nodes(tmp_path_factory):
    """A Ray cluster of two nodes, with an OPU at one."""
    from ray_nodes import two_nodes

    with two_nodes(tmp_path_factory.mktemp("nodes")) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """An MLflow server."""
    from fault_tools import Server

    folder = tmp_path_factory.mktemp("server")
    store.Store(root=folder)
    server = Server(folder)
    yield server
    server.kill()


@pytest.fixture
def in_process(monkeypatch):
    """Sweeps train in this process, without Ray."""
    from in_process import without_ray

    with without_ray(monkeypatch):
        yield


@pytest.fixture
def said(monkeypatch):
    """The lines that sweeps say."""
    from pipeline.sweep.progress import SweepProgress

    lines = []
    monkeypatch.setattr(SweepProgress, "say", lambda self, text: lines.append(text))
    return lines


@pytest.fixture
def only_svg(monkeypatch):
    """Figures are written in one format, which takes a third of the time."""
    from analysis import style  # here, as most tests draw nothing

    monkeypatch.setattr(style, "_files", style.FigureFiles(("svg",)))


@pytest.fixture(scope="module", autouse=True)
def extensions_of_a_module():
    """What the tests of a file register, or load as plugins, is gone after them."""
    with forgotten_plugins():
        yield


@pytest.fixture
def extensions():
    """What a test registers, or loads as a plugin, is gone after it."""
    with forgotten_plugins():
        yield
