"""Resources of packs, and whether any node of the cluster offers them."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from pipeline.trials.config import TrialConfig
from pipeline.trials.fields import UserError
from pipeline.trials.packs import Resources

Bundle = Mapping[str, float]  # resource -> amount, in Ray's names: CPU, GPU, OPU
SAY_SECONDS = 20.0  # time between two messages about missing resources

ADVICE = {
    "OPU": "lower resources.opu, start a node with --resources='{\"OPU\": 1}', or leave out the trials that take one",
    "GPU": "lower resources.gpu (0 trains on the CPU), or start a node with a GPU",
    "CPU": "lower resources.cpu, or offer more cores",
}


class ResourceError(UserError, RuntimeError):
    """No node offers the resources of a trial; Ray itself would wait forever."""


def bundle(resources: Resources, needs_opu: bool) -> dict[str, float]:
    """Return the resources of one pack, all on one node."""
    amounts = {"CPU": resources.cpu, "GPU": resources.gpu, "OPU": resources.opu if needs_opu else 0}
    return {name: amount for name, amount in amounts.items() if amount}


def fits(node: Bundle, asked: Bundle) -> bool:
    """Whether a node with `node` in total can run a pack that needs `asked`."""
    return all(node.get(name, 0) >= amount for name, amount in asked.items())


def check_resources(trials: Iterable[TrialConfig], resources: Resources, nodes: Sequence[Bundle]) -> None:
    """Check that some node offers the resources of each kind of pack."""
    who = {config.needs_opu: config.algorithm for config in trials}
    for needs_opu, algorithm in sorted(who.items()):
        asked = bundle(resources, needs_opu)
        if any(fits(node, asked) for node in nodes):
            continue
        lacking = [name for name, amount in asked.items() if all(node.get(name, 0) < amount for node in nodes)]
        advice = "; ".join(ADVICE[name] for name in lacking) or "start a node that offers all of it at once"
        raise ResourceError(f"resources: no node offers {_text(lacking or asked, asked)} for {algorithm}; the nodes "
                            f"offer {' and '.join(_text(ADVICE, node) for node in nodes) or 'nothing'}; {advice}")


def local_offer(workers: int | None) -> dict[str, float]:
    """Return the resources of a Ray that a sweep starts on this machine; only Ray knows the number of GPUs."""
    return {"CPU": workers or os.cpu_count() or 1, "OPU": 1, "GPU": math.inf}


def slots(asked: Bundle, offered: Bundle) -> int:
    """Return the number of packs of one bundle that a cluster can train at the same time, at least 1."""
    return max(1, int(min(offered.get(name, 0) / amount for name, amount in asked.items())))


class Watchdog:
    """Calls `check` when packs have waited `idle_seconds` without a running one; until then, `say` gets its error."""

    def __init__(self, check: Callable[[], None], idle_seconds: float, say: Callable[[str], None]) -> None:
        self._check, self._idle_seconds, self._say = check, idle_seconds, say
        self._last_run = self._last_said = time.monotonic()

    def look(self, statuses: Sequence[str]) -> None:
        """Look at Ray Tune's status of each pack."""
        now = time.monotonic()
        if "RUNNING" in statuses or "PENDING" not in statuses:
            self._last_run = self._last_said = now
        elif now - self._last_run > self._idle_seconds:
            self._check()
            self._last_run = self._last_said = now
        elif now - self._last_said > SAY_SECONDS:
            self._last_said = now
            try:
                self._check()
            except ResourceError as error:
                self._say(f"{error}; waiting for {self._idle_seconds - (now - self._last_run):.0f} s more")


def _text(names: Iterable[str], amounts: Bundle) -> str:
    return ", ".join(f"{name}: {amounts.get(name, 0):g}" for name in sorted(names) if amounts.get(name) != math.inf)
