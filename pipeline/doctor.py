"""What `photonic doctor` prints: what this program finds on a machine, for a question or an issue.

Others will read it, so it has no path and no password.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from pipeline import machine
from pipeline.learning.integers.products import by_int8
from pipeline.package import cache_folder
from pipeline.tracking.backend import NoStore, TrackingError, redacted
from pipeline.tracking.database import database
from pipeline.tracking.reader import Reader

GIGABYTE = 1e9
INT8_SHAPE = (256, 784, 128)  # records, inputs, units


def lines(mlruns: Path) -> Iterator[str]:
    """Yield a line for each fact, and one for each setting that ends a command or is often not meant."""
    for name, fact in _facts(mlruns):
        yield f"{name:<10} {fact}"
    yield from (f"ends a command: {line}" for line in ends())
    yield from (f"note: {line}" for line in machine.slows())


def ends() -> list[str]:
    """Return a line for each setting of the environment that ends a command."""
    return [*machine.ends_commands(), *machine.ends_ray()]


def _facts(mlruns: Path) -> Iterator[tuple[str, str]]:
    yield "photonic", _version("photonic-dfa")
    yield "python", f"{platform.python_version()}, {platform.system()} {platform.machine()}"
    yield "torch", f"{torch.__version__}, {torch.backends.cpu.get_cpu_capability()}"
    for library in ("ray", "mlflow", "numpy", "lightonml"):
        yield library, _version(library)
    threads = os.environ.get("OMP_NUM_THREADS", "unset")
    yield "cores", f"{machine.cores()} of {os.cpu_count()}, OMP_NUM_THREADS {threads}"
    yield "memory", f"{os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE') / GIGABYTE:.1f} GB"
    yield "GPUs", ", ".join(map(torch.cuda.get_device_name, range(torch.cuda.device_count()))) or "none"
    yield "int8", "products of integers in int8" if by_int8(torch.device("cpu"), *INT8_SHAPE) else "in float32"
    yield "Ray", redacted(os.environ.get("RAY_ADDRESS", "")) or "a sweep starts it here"
    uri = os.environ.get("MLFLOW_TRACKING_URI", "")
    yield "MLflow", f"{_without_path(uri)}: {_sweeps(mlruns)}"
    cached = [file.stat().st_size for file in cache_folder().rglob("*") if file.is_file()]
    yield "cache", f"{_place('PHOTONIC_CACHE')}: {len(cached)} files, {sum(cached) / GIGABYTE:.1f} GB"
    yield "data", _place("PHOTONIC_DATA")


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _without_path(uri: str) -> str:
    """Return where a store is: a server by its address, a database on this machine by its kind."""
    if not uri:
        return "a database in --mlruns"
    return uri.partition(":")[0] if database(uri) else redacted(uri)


def _sweeps(mlruns: Path) -> str:
    if machine.ends_commands():
        return "not opened"  # MLflow imports what would raise
    try:
        return f"{len(Reader(root=mlruns).sweeps())} sweeps"
    except NoStore:
        return "no sweep yet"
    except TrackingError:  # its text has paths
        return "cannot be opened; `photonic status` says why"


def _place(variable: str) -> str:
    return f"the folder of {variable}" if os.environ.get(variable) else f"by default ({variable} unset)"
