"""Faults, each at each phase of a sweep on three hosts, and what came of them."""

from __future__ import annotations

import dataclasses
import itertools
import json
import re
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fault_tools import Damage, damage
from stored import attached

from lab.hosts import Host
from lab.laboratory import WORKERS, Laboratory
from lab.programs import LabError, Line, Program, until
from lab.services import JOBS, TRACKING, experiment, ray_by_hand, sweep, write_token
from pipeline.accounting.budget import restored_filter
from pipeline.experiment.experiment import Experiment, load_experiment
from pipeline.sweep import status

PHASES = ("joining", "preparing", "training", "last trial", "writing")
LIMIT = 420  # seconds without a line, after which a driver is taken to wait for ever; it may take four times as long
FAILED = "the laboratory failed"
ORDINARY = re.compile(r"(\x1b\S+ pid=\d+\)\x1b\S+ )?(\[\d+/\d+\]|connecting to|looking for|training \d"
                      r"|reading the trials|\d+ trials: )")


@dataclass(frozen=True)
class Fault:
    """What happens to a host, and for how long.

    Attributes:
        victim: of the hosts; `worker` is one that trains, and in the last trial the one that trains it. If it is
            `laptop`, the sweep is handed over from there, as a job.
        seconds: until `heal`; None if it lasts.
        shared: whether the hosts share the folder of checkpoints.
        file: what is swept.
        phases: in which it happens.
    """

    what: str
    victim: str
    strike: Callable[[Host], object]
    heal: Callable[[Host], object] | None = None
    seconds: float | None = None
    shared: bool = True
    file: str = "lab.yaml"
    phases: Sequence[str] = PHASES


def full(host: Host) -> None:
    """Fill its own disk."""
    host.start("bash", "-c", "dd if=/dev/zero of=/srv/own/ballast bs=64k 2>/dev/null; true").wait()


FAULTS = (
    Fault("link of a worker cut for 20 s", "worker", Host.cut, Host.mend, 20),
    Fault("link of a worker cut for ever", "worker", Host.cut),
    Fault("link of the driver cut for 20 s", "n1", Host.cut, Host.mend, 20),
    Fault("link of the driver cut for 90 s", "n1", Host.cut, Host.mend, 90),
    Fault("tracking server away for 2 min", "tracking", Host.cut, Host.mend, 120),
    Fault("100 ms delay and 2% loss", "worker", Host.slow),
    Fault("worker's host killed", "worker", Host.off, shared=False),
    Fault("worker's disk full", "worker", full, shared=False),
    Fault("worker's host paused for 80 s", "worker", Host.pause, Host.resume, 80),
    Fault("worker's host paused for 80 s, secret noise", "worker", Host.pause, Host.resume, 80, False, "secure.yaml",
          ("training",)),
    Fault("link of a laptop cut for 20 s, a job", "laptop", Host.cut, Host.mend, 20, phases=("training",)),
    Fault("laptop killed, a job", "laptop", Host.off, phases=("training",)),
)


@dataclass
class Outcome:
    """What came of a fault in a phase.

    Attributes:
        code: exit status of the driver; None if it was ended here, as it waited for ever.
        told: seconds from the fault to the first line that is no ordinary one, and `line`, its text.
        silence: the longest time without a line, from the fault to the driver's end.
        again: whether the same command was needed once more, and went on to the end.
        lost, duplicated, unequal: against training on one machine, as `fault_tools.Damage` has them.
    """

    fault: str
    phase: str
    code: int | None = None
    told: float | None = None
    line: str = ""
    silence: float = 0.0
    seconds: float = 0.0
    again: bool = False
    lost: int = 0
    duplicated: int = 0
    unequal: int = 0
    log: list[str] = field(default_factory=list)

    @property
    def good(self) -> bool:
        return self.code is not None and not (self.lost or self.duplicated or self.unequal)


def inject(lab: Laboratory, server: Program, fault: Fault, phase: str, name: str) -> Outcome:
    """One fault in one phase of a sweep of its own, on a Ray that was just started."""
    file = experiment(lab, name, fault.file)
    private = [] if fault.shared else ["--private", "/srv/own/private"]
    hosts, opu = [lab[n] for n in WORKERS], '--resources={"OPU": 1}'

    def start() -> Program:
        if fault.victim != "laptop":
            return sweep(hosts[0], file, f"{hosts[0].address}:6379", *private)
        write_token(lab, lab["laptop"])
        return sweep(lab["laptop"], file, JOBS, *private)

    lab.restart()
    ray_by_hand(lab, hosts[0], cores=0).wait_for("Ray runtime started")
    nodes = [ray_by_hand(lab, host, opu) for host in hosts[1:]]
    for node in nodes:
        node.wait_for("Local node IP" if phase == "joining" and node is nodes[1] else "Ray runtime started")
    driver = start()
    victim = lab["n3"] if fault.victim == "worker" else lab[fault.victim]
    driver.wait_for("looking for" if fault.victim == "laptop" else "connecting")
    if phase == "preparing":
        driver.wait_for("looking for data sets")
        time.sleep(0.5)
    elif phase == "training":
        driver.wait_for("[1/5]", LIMIT)
        until(lambda: _training(lab, name) == len(nodes), "every host to train", LIMIT)
    elif phase == "last trial":
        driver.wait_for("[4/5]", LIMIT)
        time.sleep(1)
        if fault.victim == "worker":
            victim = max(hosts[1:], key=_work)
    elif phase == "writing":
        driver.wait_for("[1/5]", LIMIT)
        server.wait_for("runs/log-batch", start=len(server.lines))
    struck = time.monotonic()
    fault.strike(victim)
    healer = threading.Timer(fault.seconds or 0, fault.heal, (victim,)) if fault.heal else None
    if healer:
        healer.start()
    outcome = Outcome(fault.what, phase)
    try:
        outcome.code = driver.wait_while_it_talks(LIMIT, 4 * LIMIT)
    except LabError:
        driver.signal()
    ended = time.monotonic()
    if healer:
        healer.join()
    lines = [Line(struck, ""), *(line for line in driver.lines if line.at > struck), Line(ended, "")]
    outcome.silence = max(b.at - a.at for a, b in itertools.pairwise(lines))
    said = next((line for line in lines if line.text and not ORDINARY.match(line.text)), None)
    if said:
        outcome.told, outcome.line = said.at - struck, said.text
    outcome.seconds = ended - struck
    outcome.log = [f"{line.at - struck:.1f} {line.text}" for line in driver.lines]
    if outcome.code != 0:
        outcome.again = True
        if fault.victim == "laptop":  # the job goes on without it
            victim.off()
            victim.boot()
        else:
            lab.restart()
            ray_by_hand(lab, hosts[0], opu).wait_for("Ray runtime started")
        again = start()
        if again.wait(4 * LIMIT):
            outcome.log += ["again:", *(line.text for line in again.lines)]
    if fault.strike is Host.slow:
        victim.off()  # with its link
        victim.boot()
    found = (damage if fault.file == "lab.yaml" else charged)(lab.folder / "reader", load_experiment(file), TRACKING)
    outcome.lost, outcome.duplicated, outcome.unequal = found.lost, found.duplicated, len(found.unequal)
    return outcome


def charged(root: Path, experiment: Experiment, uri: str) -> Damage:
    """Of a search with secret noise, which comes out otherwise every time: a second draw of a trial that was released
    counts as duplicated, and as unequal that the odometer does not show all that was released."""
    store = attached(experiment.name, root, uri)
    runs, released = store.runs(), store.released()
    found = Damage(len(runs), duplicated=len(released) - len({run.trial_key for run in runs}))
    found.lost = experiment.planned - sum(run.status == "finished" for run in runs)
    filter = restored_filter(store.budget())
    if filter.epsilon(filter.spent(released)) != status.read(store, experiment.name).budget["spent"]:
        found.unequal.append("what the odometer shows")
    return found


def _training(lab: Laboratory, name: str) -> int:
    """How many trials train: the store has epochs of them, which those with secret noise publish at their end alone."""
    runs = attached(name, lab.folder / "reader", TRACKING).runs()
    return sum(run.status == "running" and (bool(run.metrics) or run.trial.secure) for run in runs)


def _work(host: Host) -> float:
    """Processor time that its processes took in half a second."""
    before = _ticks(host)
    time.sleep(0.5)
    return _ticks(host) - before


def _ticks(host: Host) -> int:
    total = 0
    for pid in host._pids():
        try:
            total += sum(map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]))
        except OSError:
            continue
    return total


def table(outcomes: list[Outcome]) -> str:
    """Markdown: a row per fault and phase."""
    rows = ["| fault | phase | outcome | told after | longest silence | lost, doubled, changed |",
            "| --- | --- | --- | ---: | ---: | --- |"]
    for o in outcomes:
        how = "went on to the end"
        if o.line == FAILED:
            how = f"not run: {o.log[-1]}"
        elif o.code != 0:
            how = "waits for ever" if o.code is None else f"ended ({o.code})"
        how += ", and the same command went on" if o.again and not o.lost else ""
        told = "–" if o.told is None else f"{o.told:.0f} s"
        rows.append(f"| {o.fault} | {o.phase} | {how} | {told} | {o.silence:.0f} s | {o.lost}, {o.duplicated}, "
                    f"{o.unequal} |")
    return "\n".join(rows) + "\n"


def run(lab: Laboratory, server: Program, out: Path, only: str = "") -> list[Outcome]:
    """All faults in all phases, or those whose name and phase match `only`; `out` gets a line of JSON for each."""
    outcomes = []
    for f, fault in enumerate(FAULTS):
        for p, phase in enumerate(PHASES):
            if phase not in fault.phases or not re.search(only, f"{fault.what}, {phase}"):
                continue
            try:
                outcome = inject(lab, server, fault, phase, f"lab{f}{p}")
            except LabError as error:
                outcome = Outcome(fault.what, phase, log=str(error).splitlines(), line=FAILED)
            outcomes.append(outcome)
            print(table([outcome]).splitlines()[-1], flush=True)
            with out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(dataclasses.asdict(outcome)) + "\n")
    return outcomes
