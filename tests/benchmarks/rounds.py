"""Timing on a machine that others use, too: contenders take turns, and only quotients within a round are compared."""

from __future__ import annotations

import ctypes
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import torch

Times = Mapping[str, Sequence[float]]  # contender -> seconds per call, one for each round
Clock = Callable[[], float]  # seconds, since whenever


def keep_freed_memory() -> None:
    """Tell glibc to keep what is freed, as it does by itself in a worker after an epoch.

    In a process that holds many contenders it may instead hand a step's memory back to the system after every step,
    and a step then pays for thousands of page faults that it does not have in a sweep.
    """
    if sys.platform == "linux" and hasattr(libc := ctypes.CDLL(None), "mallopt"):
        libc.mallopt(-1, 2**28)  # M_TRIM_THRESHOLD
        libc.mallopt(-3, 2**25)  # M_MMAP_THRESHOLD, at its largest


def clock_of(device: torch.device | str) -> Clock:
    """CPU time of the process and not wall time, so that a core taken away for a moment does not count; on a GPU wall
    time, once it has done all that it was asked."""
    if torch.device(device).type == "cpu":
        return time.process_time

    def clock() -> float:
        torch.cuda.synchronize(device)
        return time.perf_counter()

    return clock


def take_turns(contenders: Mapping[str, Callable[[], object]], rounds: int, visit_seconds: float,
               device: torch.device | str = "cpu") -> Times:
    """Seconds per call of every contender, in each of `rounds` rounds in which every contender has one visit.

    A visit makes as many calls as take about `visit_seconds` by the clock of the device, after one that is not timed
    and warms the caches.
    """
    calls, clock = {}, clock_of(device)
    for name, call in contenders.items():
        call()
        calls[name] = max(1, round(visit_seconds / max(seconds(call, 1, clock), 1e-9)))
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, call in contenders.items():
            call()
            times[name].append(seconds(call, calls[name], clock))
    return times


def seconds(call: Callable[[], object], calls: int = 1, clock: Clock = time.process_time) -> float:
    """Seconds per call."""
    began = clock()
    for _ in range(calls):
        call()
    return (clock() - began) / calls


def quotient(times: Times, above: str, below: str) -> float:
    """Median over rounds of the time of `above` over that of `below`."""
    return statistics.median(a / b for a, b in zip(times[above], times[below], strict=True))


def milliseconds(times: Times, name: str) -> float:
    """Median of a contender, in ms."""
    return 1e3 * statistics.median(times[name])


def machine() -> dict[str, object]:
    """What numbers of this kind depend on."""
    info = Path("/proc/cpuinfo")
    lines = [line.split(":", 1) for line in info.read_text().splitlines() if ":" in line] if info.exists() else []
    first = {key.strip(): value.strip() for key, value in reversed(lines)}
    return {"cpu": first.get("model name", platform.processor()), "cpu_flags": first.get("flags", "").split(),
            "cores": os.cpu_count(), "threads": torch.get_num_threads(), "load_average": os.getloadavg(),
            "torch": torch.__version__, "cpu_capability": torch.backends.cpu.get_cpu_capability(),
            "python": platform.python_version(), "platform": platform.platform()}


def markdown(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table; numbers with three digits."""
    lines = ["| " + " | ".join(header) + " |", "| " + " | ".join("---:" for _ in header) + " |"]
    return "\n".join([*lines, *("| " + " | ".join(f"{v:.3g}" if isinstance(v, float) else str(v) for v in row) + " |"
                                for row in rows)])
