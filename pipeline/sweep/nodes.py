"""Watch the nodes of a cluster: a thread that probes them and reports silent ones, and waits for their tasks.

Ray declares a node dead after about a minute of silence, without a message before that. A task on a dead node may never
return.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import grpc
import ray

ASK_SECONDS = 5.0  # time between two probes of a node, and the timeout of one
TELL_SECONDS = 10.0  # silence before it is reported
REPEAT_SECONDS = 25.0  # time until a report is repeated
ANSWER_SECONDS = 20.0  # least time for a worker to send a result again after its node was silent
DEAF_SECONDS = 5.0  # after this time without reading results, a driver may have missed some
LOST_SECONDS = 120.0  # silence after which a node counts as lost here, even if Ray has not declared it dead
QUESTION = "/grpc.health.v1.Health/Check"  # the probe of Ray's own head


@dataclass(frozen=True)
class Node:
    """A node of a cluster."""

    name: str  # in messages, `worker-2 (10.0.0.12)`
    address: str  # host:port of its raylet, or of another gRPC server on it
    def answers(self) -> bool:
        """Whether a gRPC server answers at the address; a request for a token counts as an answer."""
        with grpc.insecure_channel(self.address, [("grpc.enable_http_proxy", 0)]) as channel:
            try:
                channel.unary_unary(QUESTION)(b"", timeout=ASK_SECONDS)
            except grpc.RpcError as error:
                return error.code() not in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)
        return True


class Watch:
    """A context with a thread that probes nodes, and reports silent, returned and removed nodes.

    `nodes` is called repeatedly, and may block if the head does not answer: silent nodes are reported before the call.
    """

    def __init__(self, nodes: Callable[[], Mapping[str, Node]], say: Callable[[str], None],
                 then: str = "unless it comes back, its packs start again elsewhere once Ray has given it up, in about "
                             "a minute") -> None:
        self.returned = 0.0  # `time.monotonic` when a silent node last answered again; 0 for never
        self._nodes, self.say, self._then = nodes, say, then
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._answered: dict[str, float] = {}  # `time.monotonic` of a node's last answer
        self._told: dict[str, float] = {}  # time of the last report of a silent node

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._over.set()
        self._thread.join(ASK_SECONDS)

    def lost(self, node: str) -> bool:
        """Whether a node has been silent for `LOST_SECONDS`: nobody need wait for it, even if Ray does."""
        return time.monotonic() - self._answered.get(node, time.monotonic()) > LOST_SECONDS

    def _run(self) -> None:
        """Probe all known nodes, report silent and removed ones, and look for new ones, until the watch ends.

        It is the thread's function. Nodes are probed in parallel, since each silent one takes `ASK_SECONDS`.
        """
        known: dict[str, Node] = {}
        with ThreadPoolExecutor(16) as pool:
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
                    self._answered.setdefault(key, time.monotonic())
                self._over.wait(ASK_SECONDS)

    def _note_probe(self, node_id: str, node: Node, answers: bool) -> None:
        now = time.monotonic()
        silence = now - self._answered[node_id]
        since_report = now - self._told.get(node_id, -math.inf)
        if answers:
            self._answered[node_id] = now
            if self._told.pop(node_id, None):
                self.returned = now
                self.say(f"node {node.name} answers again, after {silence:.0f} s")
        elif silence > TELL_SECONDS and since_report > REPEAT_SECONDS:
            effect = "" if node_id in self._told else f"; {self._then}"  # in the first report only
            self._told[node_id] = now
            self.say(f"node {node.name} has not answered for {silence:.0f} s{effect}")


class Overdue:
    """Finds workers with results that were lost while a node was silent: Ray waits for these results forever."""

    def __init__(self, returned: Callable[[], float]) -> None:
        self._returned, self._heard, self._slowest = returned, dict[Any, float](), 0.0
        self._asked = self._listens = 0.0  # last call of `among`; start of the current series of calls

    def note_result(self, worker: Any, seconds: float = 0.0) -> None:
        """Note that a worker started, or sent a result that took this many seconds."""
        self._heard[worker] = time.monotonic()
        self._slowest = max(self._slowest, seconds)

    def among(self, working: Iterable[Any]) -> list[Any]:
        """Return the working workers that have sent nothing since a node returned, although they had enough time.

        Enough is three times the slowest result, and at least `ANSWER_SECONDS`. Call this often: after a pause, for
        example to wait for the tracking store, the driver may have missed results, and the time starts again.
        """
        now = time.monotonic()
        returned = self._returned()
        if now - self._asked > DEAF_SECONDS:
            self._listens = now
        self._asked = now
        if not returned:  # no node was silent
            return []
        waited = now - max(returned, self._listens)
        if waited < max(ANSWER_SECONDS, 3 * self._slowest):
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
