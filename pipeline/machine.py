"""What this process may use of its machine, and settings of its environment that end or slow a command.

Every command checks `ends_commands` first, a sweep `ends_ray` before it starts Ray; `photonic doctor` tells all.
"""

from __future__ import annotations

import math
import os
import shutil
import sys
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from pipeline.trials.fields import UserError

QUOTA = Path("/sys/fs/cgroup/cpu.max")  # of a container: microseconds of processor time, and in how many
SHARED_MEMORY = Path("/dev/shm")  # where Ray passes objects between processes
LEAST_SHARED = 2**28  # bytes
LEAST_ADDRESSES = 16_000_000  # KiB, the unit of `ulimit -v`; with half of it Ray crashes as it starts


class MachineError(UserError, RuntimeError):
    """A setting of the environment would end the command."""


def cores() -> int:
    """Return how many cores this process may use: `taskset`, a batch manager or a container may give it fewer."""
    found = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if QUOTA.exists():
        allowed, period = QUOTA.read_text(encoding="ascii").split()
        if allowed != "max":
            found = min(found, math.ceil(int(allowed) / int(period)))
    return found


def refuse(found: list[str]) -> None:
    """Raise a `MachineError` with the lines that were found, if any."""
    if found:
        raise MachineError("; ".join(found))


def ends_commands() -> list[str]:
    """Return a line for each setting at which a library that commands import raises."""
    found = []
    threads = os.environ.get("OMP_NUM_THREADS", "1")
    first = threads.partition(",")[0].strip()
    if not threads.strip().isdigit():
        found.append(f"OMP_NUM_THREADS: must be one whole number, got '{threads}', at which numexpr ends; set it to "
                     f"{first if first.isdigit() else 1}")
    if sys.flags.optimize > 1:
        found.append("PYTHONOPTIMIZE: must be 0 or 1, got 2, which takes away docstrings that Ray reads; unset it")
    return found


def ends_ray() -> list[str]:
    """Return a line for a limit of addresses with which Ray does not start."""
    if sys.platform == "win32":
        return []
    import resource  # imported here: not on Windows

    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit == resource.RLIM_INFINITY or limit >= LEAST_ADDRESSES * 1024:
        return []
    return [f"ulimit -v: must be unlimited or at least {LEAST_ADDRESSES}, got {limit // 1024}, with which Ray crashes "
            "as it starts: it reserves far more addresses than it uses memory"]


def slows() -> list[str]:
    """Return a line for each setting that ends nothing and is often not meant."""
    found = []
    if SHARED_MEMORY.exists() and (size := shutil.disk_usage(SHARED_MEMORY).total) < LEAST_SHARED:
        found.append(f"{SHARED_MEMORY}: has {size / 2**20:.0f} MiB, so that Ray passes objects through slower files; "
                     "give a container more, as by `docker run --shm-size 2g`")
    if (mine := cores()) < (os.cpu_count() or 1):
        found.append(f"cores: this process may use {mine} of {os.cpu_count()}, by its affinity or a container's quota; "
                     "a sweep takes no more")
    found += [line for name in ("MLFLOW_TRACKING_URI", "RAY_ADDRESS")
              if (line := by_proxy(os.environ.get(name, "")))]
    return found


def by_proxy(url: str) -> str:
    """Return a line if requests to a server go through a proxy, which seldom reaches one's own network; else ''."""
    parts = urlsplit(url)
    if parts.scheme not in getproxies() or not parts.hostname or proxy_bypass(parts.hostname):
        return ""
    return (f"{parts.scheme}_proxy: requests to {parts.hostname} go through a proxy; if it is in your own network, add "
            "it to no_proxy")
