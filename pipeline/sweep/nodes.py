"""Whether the nodes of a cluster answer: a thread that asks them and says which does not, and the one wait for them.

Ray gives a node up after about a minute without a sign of it, and says nothing until then. What was asked of a node
that was given up may never return.
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

ASK_SECONDS = 5.0  # between two questions to a node, and that one may take
TELL_SECONDS = 10.0  # of silence before it is said
REPEAT_SECONDS = 25.0  # until it is said again what is waited for
ANSWER_SECONDS = 20.0  # that a worker has, after its node was silent, to hand in what it may have handed in meanwhile
DEAF_SECONDS = 5.0  # without a look at what workers handed in, after which a driver may have missed it
LOST_SECONDS = 120.0  # of silence after which a node is given up here, should Ray not have done so
QUESTION = "/grpc.health.v1.Health/Check"  # that Ray's own head asks every node


@dataclass(frozen=True)
class Node:
    """A node of a cluster.

    Attributes:
        name: for people, `worker-2 (10.0.0.12)`.
        address: host:port of its raylet, or of what else answers for it.
    """

    name: str
    address: str

    def answers(self) -> bool:
        """Whether anything that speaks gRPC answers there; that it wants a token is an answer, too."""
        with grpc.insecure_channel(self.address, [("grpc.enable_http_proxy", 0)]) as channel:
            try:
                channel.unary_unary(QUESTION)(b"", timeout=ASK_SECONDS)
            except grpc.RpcError as error:
                return error.code() not in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)
        return True


class Watch:
    """A context in which a thread asks nodes, and says which does not answer, and what became of it.

    Args:
        nodes: the nodes that are to be asked, by their ids; asked for again and again. It may block, as it does where
            the head does not answer: who is silent was said before.
        say: takes a line for people.
        then: what happens if a node stays away, for people.

    Attributes:
        returned: when a node last answered again that was missed, by `time.monotonic`; 0 for never.
    """

    def __init__(self, nodes: Callable[[], Mapping[str, Node]], say: Callable[[str], None],
                 then: str = "unless it comes back, its packs start again elsewhere once Ray has given it up, in about "
                             "a minute") -> None:
        self.returned = 0.0
        self._nodes, self.say, self._then = nodes, say, then
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._answered: dict[str, float] = {}  # when, by `time.monotonic`
        self._told: dict[str, float] = {}  # when it was last said that a node does not answer

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._over.set()
        self._thread.join(ASK_SECONDS)

    def lost(self, node: str) -> bool:
        """Whether a node has not answered for so long that nobody need wait for it, whatever Ray thinks of it."""
        return time.monotonic() - self._answered.get(node, time.monotonic()) > LOST_SECONDS

    def _run(self) -> None:
        known: dict[str, Node] = {}
        with ThreadPoolExecutor(16) as pool:
            while not self._over.is_set():
                found = dict(zip(known, pool.map(lambda node: node.answers(), known.values()), strict=True))
                for node, answers in found.items() if not self._over.is_set() else ():
                    self._take(node, known[node], answers)
                try:
                    there = self._nodes()
                except Exception:  # of a head that does not answer, whatever Ray makes of it; who needs it will say so
                    there = known
                for node in known.keys() - there.keys():
                    self.say(f"node {known[node].name} is no longer part of the cluster")
                    self._told.pop(node, None)
                    del self._answered[node]
                known = dict(there)
                for node in known:
                    self._answered.setdefault(node, time.monotonic())
                self._over.wait(ASK_SECONDS)

    def _take(self, node: str, its: Node, answers: bool) -> None:
        """What came of a question to a node."""
        now = time.monotonic()
        silence = now - self._answered[node]
        if answers:
            self._answered[node] = now
            if self._told.pop(node, None):
                self.returned = now
                self.say(f"node {its.name} answers again, after {silence:.0f} s")
        elif silence > TELL_SECONDS and now - self._told.get(node, -math.inf) > REPEAT_SECONDS:
            again = f"; {self._then}" if node not in self._told else ""
            self._told[node] = now
            self.say(f"node {its.name} has not answered for {silence:.0f} s{again}")


class Overdue:
    """Whose answers were lost while a node was silent: Ray waits for them for ever, though the node is back.

    Args:
        returned: when a node last came back, as `Watch.returned`.
    """

    def __init__(self, returned: Callable[[], float]) -> None:
        self._returned, self._heard, self._slowest = returned, dict[Any, float](), 0.0
        self._asked = self._listens = 0.0  # last call of `among`, and since when they follow one another

    def hear(self, worker: Any, seconds: float = 0.0) -> None:
        """A worker started, or handed in what took it so many seconds."""
        self._heard[worker] = time.monotonic()
        self._slowest = max(self._slowest, seconds)

    def among(self, working: Iterable[Any]) -> list[Any]:
        """Of those that work, who has handed in nothing since a node came back, though there was time for it: three
        times what the slowest took, and `ANSWER_SECONDS` at least. To be called often: a driver that did not, as it
        waited for the tracking store, has not heard what they handed in meanwhile, and the time begins anew."""
        now, back = time.monotonic(), self._returned()
        if now - self._asked > DEAF_SECONDS:
            self._listens = now
        self._asked = now
        if not back or now - max(back, self._listens) < max(ANSWER_SECONDS, 3 * self._slowest):
            return []
        return [worker for worker in working if self._heard.get(worker, back) < back]


def others() -> dict[str, Node]:
    """The nodes of the cluster that are alive, but that on which this process is."""
    here = ray.get_runtime_context().get_node_id()
    return {node["NodeID"]: Node(called(node), f"{node['NodeManagerAddress']}:{node['NodeManagerPort']}")
            for node in alive() if node["NodeID"] != here}


def alive() -> list[dict[str, Any]]:
    """The nodes that are alive, as Ray describes them."""
    return [node for node in ray.nodes() if node["Alive"]]


def called(node: Mapping[str, Any]) -> str:
    """What to call a node that Ray describes."""
    return f"{node['NodeName']} ({node['NodeManagerHostname']})"


def ended(tasks: Mapping[str, Any], watch: Watch) -> Iterator[tuple[str, Any]]:
    """Wait for tasks, one on each of some nodes, as long as their nodes live.

    Args:
        tasks: a task of Ray by the id of its node.
        watch: of these nodes; says whom this waits for.

    Yields:
        (node, its task) as they end; (node, None) if the node was lost before.
    """
    waiting, said = dict(tasks), time.monotonic()
    while waiting:
        done, _ = ray.wait(list(waiting.values()), timeout=1.0)
        there = {node["NodeID"]: called(node) for node in alive()}
        for node, task in list(waiting.items()):
            if task in done:
                yield node, waiting.pop(node)
            elif node not in there or watch.lost(node):
                del waiting[node]
                yield node, None
        if waiting and time.monotonic() - said > REPEAT_SECONDS:
            said = time.monotonic()
            watch.say(f"waiting for {', '.join(there[node] for node in waiting)}")
