"""Nodes of a cluster: whether its head answers, which ones are silent, and waiting for their tasks and workers.

Ray declares a node dead after about a minute of silence, without a message before that. A task on a dead node may never
return.
"""

from __future__ import annotations

import math
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import ray

from pipeline.sweep.checks import ResourceError
from pipeline.sweep.clock import Clock

ASK_SECONDS = 5.0  # time between two probes of a node, and the timeout of one
TELL_SECONDS = 10.0  # silence before it is reported
REPEAT_SECONDS = 25.0  # time until a report is repeated
THEN = "unless it comes back, its packs start again elsewhere once Ray has given it up, in about a minute"
LOST_SECONDS = 120.0  # silence after which a node counts as lost here, even if Ray has not declared it dead


@dataclass(frozen=True)
class Node:
    """A node of a cluster."""

    name: str  # in messages, `worker-2 (10.0.0.12)`
    address: str  # host:port of its raylet

    def answers(self) -> bool:
        """Whether a process listens at the address, even if it stands still."""
        try:
            connect(self.address)
        except OSError:
            return False
        return True


class Watch:
    """A context with a thread that probes nodes, and reports silent, returned and removed nodes.

    It also finds workers with results that were lost while a node was silent: Ray waits for these results forever.
    `nodes` is called repeatedly, and may block if the head does not answer: silent nodes are reported before the call.
    """

    def __init__(self, nodes: Callable[[], Mapping[str, Node]], say: Callable[[str], None], clock: Clock,
                 ray_of: str = "sweep") -> None:  # who started Ray: this `sweep`, a `cluster`, or the `caller`
        self._nodes, self.say, self._clock, self.ray_of = nodes, say, clock, ray_of
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        # Times of the clock. Only the thread writes these, and only the driver's loop writes `_heard` below.
        self._answered: dict[str, float] = {}  # last answer, by node
        self._told: dict[str, float] = {}  # last report, by silent node
        self._returned = -math.inf  # when a silent node last answered again
        self._heard: dict[str, float] = {}  # last result, by worker
        self._slowest = 0.0  # seconds of the slowest result

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._over.set()
        self._thread.join(ASK_SECONDS)

    def lost(self, node: str) -> bool:
        """Whether a node has been silent for `LOST_SECONDS`: nobody need wait for it, even if Ray does."""
        now = self._clock.now()
        return now - self._answered.get(node, now) > LOST_SECONDS

    def _run(self) -> None:
        """Probe all known nodes, report silent and removed ones, and look for new ones, until the watch ends."""
        known: dict[str, Node] = {}
        with ThreadPoolExecutor(16) as pool:  # each silent node takes `ASK_SECONDS`
            while not self._over.is_set():
                answers = list(pool.map(lambda node: node.answers(), known.values()))
                if not self._over.is_set():  # probes may take a while
                    for (key, node), answer in zip(known.items(), answers, strict=True):
                        self._note_probe(key, node, answer)
                try:
                    present = self._nodes()
                except Exception:  # the head does not answer; code that needs it raises its own error
                    present = known
                for key in known.keys() - present.keys():
                    self.say(f"node {known[key].name} is no longer part of the cluster")
                    self._told.pop(key, None)
                    del self._answered[key]
                known = dict(present)
                for key in known:
                    self._answered.setdefault(key, self._clock.now())
                self._over.wait(ASK_SECONDS)

    def _note_probe(self, node_id: str, node: Node, answers: bool) -> None:
        now = self._clock.now()
        silence = now - self._answered[node_id]
        if answers:
            self._answered[node_id] = now
            if self._told.pop(node_id, None):
                self._returned = now
                self.say(f"node {node.name} answers again, after {silence:.0f} s")
        elif silence > TELL_SECONDS and now - self._told.get(node_id, -math.inf) > REPEAT_SECONDS:
            effect = "" if node_id in self._told else f"; {THEN}"  # in the first report only
            self._told[node_id] = now
            self.say(f"node {node.name} has not answered for {silence:.0f} s{effect}")

    def note_result(self, worker: str, seconds: float = 0.0) -> None:
        """Note that a worker started, or sent a result that took this many seconds."""
        self._heard[worker] = self._clock.now()
        self._slowest = max(self._slowest, seconds)

    def overdue(self, working: Iterable[str]) -> list[str]:
        """Return the working workers that have sent nothing since a node returned, although they had enough time.

        Enough is three times the slowest result, and at least the time to answer. Call this often: after a pause, for
        example to wait for the tracking store, the driver may have missed results, and the time starts again.
        """
        if self._clock.is_due("listening"):
            self._clock.restart("answer")
        self._clock.restart("listening")
        returned = self._returned  # read once, as the thread may change it
        waited = min(self._clock.elapsed("answer"), self._clock.now() - returned)
        if returned == -math.inf or waited < max(self._clock.seconds["answer"], 3 * self._slowest):
            return []
        return [worker for worker in working if self._heard.get(worker, returned) < returned]


def others() -> dict[str, Node]:
    """Return the live nodes of the cluster, except this process's own node."""
    here = ray.get_runtime_context().get_node_id()
    return {node["NodeID"]: Node(called(node), f"{node['NodeManagerAddress']}:{node['NodeManagerPort']}")
            for node in alive() if node["NodeID"] != here}


def alive() -> list[dict[str, Any]]:
    """Return the live nodes, as Ray describes them."""
    return [node for node in ray.nodes() if node["Alive"]]


def called(node: Mapping[str, Any]) -> str:
    """Return a node's name for messages, from Ray's description."""
    return f"{node['NodeName']} ({node['NodeManagerHostname']})"


def ended(tasks: Mapping[str, Any], watch: Watch) -> Iterator[tuple[str, Any]]:
    """Wait for one task per node; yield (node id, its task) when the task ends, or None if the node was lost."""
    waiting = dict(tasks)
    reported = time.monotonic()
    while waiting:
        done, _ = ray.wait(list(waiting.values()), timeout=1.0)
        names = {node["NodeID"]: called(node) for node in alive()}
        for node_id, task in list(waiting.items()):
            if task in done:
                yield node_id, waiting.pop(node_id)
            elif node_id not in names or watch.lost(node_id):
                del waiting[node_id]
                yield node_id, None
        if waiting and time.monotonic() - reported > REPEAT_SECONDS:
            reported = time.monotonic()
            watch.say(f"waiting for {', '.join(names[node_id] for node_id in waiting)}")


def check_address(address: str) -> None:
    """Check that something listens at `host:port`; otherwise raise `ResourceError`."""
    try:
        connect(address)
    except OSError as error:
        raise ResourceError(f"address: no Ray cluster answers at '{address}' ({error}); start one with "
                            "`ray start --head`, or leave --address out to use this machine alone") from None


def connect(address: str) -> None:
    """Open a TCP connection to `host:port`, and close it."""
    host, _, port = address.rpartition(":")
    socket.create_connection((host.strip("[]"), int(port)), timeout=ASK_SECONDS).close()
