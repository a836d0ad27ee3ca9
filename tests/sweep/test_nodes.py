"""What is said of nodes that do not answer, and who is waited for; tests/lab has hosts whose links are really cut."""

from __future__ import annotations

import contextlib
import math
import re
import socket
import sys
import threading
from types import SimpleNamespace

import pytest
from fault_tools import wait_for
from prepared import prepared

from pipeline.sweep import cluster, nodes
from pipeline.sweep.checks import ResourceError
from pipeline.sweep.clock import Clock
from pipeline.sweep.nodes import Node, Watch, ended
from pipeline.trials.config import TrialConfig

NODES = ["1" * 56, "2" * 56, "3" * 56]  # ids, as Ray has them


@pytest.fixture
def soon(monkeypatch):
    """Seconds become hundredths."""
    for name in ("ASK", "TELL", "REPEAT"):
        monkeypatch.setattr(nodes, f"{name}_SECONDS", getattr(nodes, f"{name}_SECONDS") / 100)


class Worker(Node):
    """A node that answers, or not, as a test wants."""

    silent: set[str] = set()

    def answers(self) -> bool:
        return self.name not in self.silent


def test_a_node_that_does_not_answer_is_named_again_and_again_until_it_answers_or_is_given_up(soon, monkeypatch):
    there, said = {"2": Worker("n2", ""), "3": Worker("n3", "")}, []
    monkeypatch.setattr(Worker, "silent", {"n3"})
    with Watch(lambda: dict(there), said.append, Clock()) as watch:
        wait_for(lambda: len(said) > 1)
        assert re.fullmatch(r"node n3 has not answered for \d+ s; unless it comes back, its packs .*", said[0])
        assert re.fullmatch(r"node n3 has not answered for \d+ s", said[1])
        assert not watch.lost("3")
        monkeypatch.setattr(nodes, "LOST_SECONDS", 0.1)
        assert watch.lost("3") and not watch.lost("another")
        monkeypatch.setattr(Worker, "silent", set())
        wait_for(lambda: "answers again" in said[-1])
        del there["2"]
        wait_for(lambda: said[-1] == "node n2 is no longer part of the cluster")
    assert not any("n2" in line for line in said[:-1])
    watch._thread.join(5)
    assert not watch._thread.is_alive()


def test_a_port_on_which_a_process_listens_answers_and_another_does_not():
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        assert Node("", address).answers()
    assert not Node("", address).answers()


def not_retried(task):
    """In the place of `ray.remote`: Ray would start a driver that was killed three times more."""
    def remote(*, max_retries, **_):
        assert max_retries == 0
        return lambda function: task

    return remote


@pytest.fixture
def three(monkeypatch):
    """Three nodes; the task of one never ends, as it may once its node was lost."""
    there = [{"NodeID": n, "NodeName": f"n{n[0]}", "NodeManagerHostname": "host", "Alive": True,
              "Resources": {"CPU": 1.0}} for n in NODES]
    results = {f"task {n}": None for n in NODES[:2]}
    monkeypatch.setattr(nodes, "ray", SimpleNamespace(
        nodes=lambda: there, wait=lambda tasks, timeout: ([task for task in tasks if task in results], [])))
    return SimpleNamespace(there=there, results=results, tasks={n: f"task {n}" for n in NODES})


def test_a_task_is_waited_for_as_long_as_its_node_lives(soon, three, monkeypatch):
    said, watch = [], SimpleNamespace(lost=lambda node: False)
    watch.say = lambda line: (said.append(line), len(said) > 2 and three.there.pop())
    one, two, last = NODES
    assert list(ended(three.tasks, watch)) == [(one, f"task {one}"), (two, f"task {two}"), (last, None)]
    assert said == ["waiting for n3 (host)"] * 3
    monkeypatch.setattr(watch, "lost", lambda node: node == two)  # and Ray still has it
    three.results.pop(f"task {two}")
    assert list(ended({two: f"task {two}"}, watch)) == [(two, None)]


def test_a_node_lost_while_it_is_prepared_is_done_without_if_others_can_train(three, monkeypatch, tmp_path):
    sweep, said = prepared([TrialConfig(dataset="digits")], tmp_path), []
    watch = SimpleNamespace(lost=lambda node: node == NODES[2], say=said.append)
    remote = SimpleNamespace(options=lambda **_: SimpleNamespace(remote=lambda *_: three.tasks[next(order)]))
    order = iter(NODES)
    monkeypatch.setattr(cluster, "ray", SimpleNamespace(
        remote=not_retried(remote), get=three.results.__getitem__, nodes=lambda: three.there))
    cluster.prepare_nodes(sweep, False, watch)
    assert said == ["node n3 (host) was lost while it was prepared; going on without it"]
    order = iter(NODES[2:])
    three.there[:] = three.there[2:]
    monkeypatch.setattr(nodes, "alive", lambda: [])
    monkeypatch.setattr(cluster, "node_resources", lambda: [])
    with pytest.raises(ResourceError, match="no node offers CPU: 1"):
        cluster.prepare_nodes(sweep, False, watch)


def test_a_worker_whose_answer_was_lost_with_the_link_is_found_once_it_had_time_to_answer():
    """Of a node that came back at `back`, on a clock that stands still but where it is set."""
    class Still(Watch):
        now, back = 100.0, -math.inf

        def overdue(self, working):
            self._returned = self.back
            return super().overdue(working)

        def at(self, now, *workers):
            while self.now < now:
                self.now += 1.0
                found = self.overdue(workers)
            return found

    watch = Still(dict, print, Clock(now=lambda: watch.now))
    watch.note_result("lost")
    watch.note_result("slow", 10.0)
    assert watch.at(1000.0, "lost", "slow") == [], "no node was ever missed: an epoch may take its time"
    watch.back = 1000.0
    assert watch.at(1029.0, "lost", "slow") == [], "an epoch takes 10 s"
    watch.note_result("slow", 12.0)
    assert watch.at(1035.0, "lost", "slow") == [], "of 12 s"
    assert watch.at(1037.0, "lost", "slow", "started since") == ["lost"]
    watch.note_result("waits for the driver")
    watch.back = 1050.0
    watch.now = 1100.0  # it waited for the tracking store
    assert watch.overdue(["waits for the driver"]) == [], "what it sent may be here, unread"
    assert watch.at(1140.0, "waits for the driver") == ["waits for the driver"]


def test_what_threads_of_ray_print_is_in_a_log_and_one_line_names_it(capsys, tmp_path):
    """Threads that were there before, as this one, print as always."""
    said, waiting = [], threading.Event()
    older = threading.Thread(target=lambda: waiting.wait() and print("older"))
    older.start()
    with contextlib.redirect_stdout(cluster.RayMessages(tmp_path / "ray.log", said.append)):
        for text in ("(raylet) node 1 was marked dead", "(raylet) 1 worker was killed"):
            ray_thread = threading.Thread(target=print, args=(text,))
            ray_thread.start()
            ray_thread.join()
        print("this one", sys.stdout.isatty())
        waiting.set()
        older.join()
    lines = (tmp_path / "ray.log").read_text().splitlines()
    assert [line.split(" ", 2)[2] for line in lines] == ["(raylet) node 1 was marked dead",
                                                         "(raylet) 1 worker was killed"]
    assert said == [f"Ray's own messages are in {tmp_path / 'ray.log'}"]
    assert capsys.readouterr() == ("this one False\nolder\n", "")
