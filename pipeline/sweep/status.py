"""The status of a sweep: the state of every trial, its reason, and the command to resume. Changes nothing."""

from __future__ import annotations

import dataclasses
import json
import shlex
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.experiment.experiment import Experiment
from pipeline.experiment.search import nothing_fits
from pipeline.sweep.checkpoints import Checkpoints
from pipeline.sweep.clock import SECONDS
from pipeline.sweep.lock import MISSED_BEATS, job_of, local_driver, place, remote_lease
from pipeline.sweep.private import PrivateFolder
from pipeline.tracking.artifacts import DONE, ENDED, STATUSES, TrackedRun, changed_networks, reused_text
from pipeline.tracking.backend import OtherFormat
from pipeline.tracking.reader import Reader
from pipeline.trials.config import ConfigError
from pipeline.trials.kinds import standing
from pipeline.trials.naming import counted, duration, run_name

BEAT_SECONDS = SECONDS["heartbeat"]
SHOWN = ("diverged", "lost", "failed", "interrupted", "running", "missing")  # their trials get a line each
MOST_LINES = 20  # per status
WORDS = {"missing": "waiting"}  # for people: a trial that has not begun is no error
IN_TRASH = "it was released and lies in MLflow's trash, where it counts; restore its run"
DEFAULT_COMMAND = ["photonic", "sweep", "FILE"]  # if no file was named


@dataclass(frozen=True)
class TrialState:
    """The state of one trial."""

    trial_key: str
    name: str  # for people
    status: str  # one of `STATUSES`, or `missing`
    epoch: int  # the last in the store; 0 for none
    epochs: int  # of the whole trial
    checkpoint: int  # epoch from which it resumes; 0 if it starts again
    reason: str = ""  # why it failed or is not running, in one line


@dataclass(frozen=True)
class SweepState:
    """The state of a sweep."""

    name: str
    running: bool  # by a process: certain for this host and folder, elsewhere as a shared store reports
    trials: tuple[TrialState, ...]  # in the store or in the experiment file
    unknown: int  # number of trials without a run, whose settings are not known without the experiment file
    refused: tuple[str, ...]  # unusable checkpoints, with reasons
    go_on: str  # the command that resumes the sweep; empty if nothing is left, or while a process runs it
    elsewhere: str = ""  # host and folder of the process that runs it, if different from these
    job: str = ""  # id of the job of Ray that this process is; empty if it is none
    beat: str = ""  # that process's last heartbeat in the store: a count, empty for none yet
    search: str = ""  # progress of a search; empty for a grid
    budget: dict[str, Any] | None = None  # as `_budget` returns it
    nodes: list[dict[str, Any]] | None = None  # of a running sweep, if known: each with its CPU, GPU, OPU
    in_use: dict[str, list[float]] | None = None  # of all nodes: CPU, GPU, OPU -> [used, total]
    left_seconds: float | None = None  # of a running sweep, about, from its driver's epochs; None before the first
    taken_over: str = ""  # trials that were, by the sweep that trained them; empty for none
    on_cluster: bool = False  # whether it last ran on several nodes
    past: tuple[str, ...] = ()  # lines on trials of this name that the file does not have

    @property
    def counts(self) -> dict[str, int]:
        counts = Counter(trial.status for trial in self.trials)
        return {"done": sum(counts[s] for s in DONE), **{s: counts[s] for s in STATUSES},
                "missing": counts["missing"] + self.unknown}


def read_all(store: Reader, private: Path | None = None) -> tuple[list[SweepState], list[str]]:
    """Return the states of a store's sweeps, and a line for each sweep that another version began."""
    states, refusals = [], []
    for name in store.sweeps():
        try:
            states.append(read(store, name, private=private))
        except OtherFormat as refusal:
            refusals.append(str(refusal))
    return states, refusals


def read(store: Reader, name: str, experiment: Experiment | None = None, words: Sequence[str] = (),
         private: Path | None = None) -> SweepState:
    """Return the state of the sweep `name`; if its experiment file is given, of the trials that the file has.

    `words` name the file and its changes in a command, `private` is the private folder.
    """
    local = local_driver(store.root, name)
    lease = None if local else remote_lease(store, name)
    driver, beat = lease or (local, "")  # of the process that runs the sweep, empty for none
    listed = store.runs() if store.find(name) else []
    runs = {run.trial_key: run for run in listed}
    decisions = store.decisions() if store.is_open else []
    checkpoints = Checkpoints(PrivateFolder(store.root, private).checkpoints(name), 0.0).found()
    epochs = {key: checkpoint.epoch for checkpoint in checkpoints if not checkpoint.problem
              for key in checkpoint.trial_keys}

    if experiment:
        experiment = store.as_swept(experiment, listed) if store.is_open else experiment
        trials = _states_in_file(experiment, store, listed, driver, epochs)
        # suggestions that a search has not asked for yet
        unknown = n_open = experiment.planned - len(decisions) if experiment.plan.asks else 0
        command = ["photonic", "sweep", *(words or [str(experiment.source)])]
    else:
        trials = [_state(run, run.tags.get("mlflow.runName", run.trial_key), driver, epochs)
                  for run in runs.values()]
        planned = store.planned() or 0
        n_open = planned - len(decisions)
        unknown = max(0, planned - _n_passed_over(decisions) - len(trials))
        command = DEFAULT_COMMAND

    refused = _refused_budget(experiment, store) if experiment and store.is_open else ()
    past: tuple[str, ...] = ()
    if experiment:
        past = (*refused, *experiment.past.lines(experiment.trials),
                *changed_networks(runs.values(), experiment.possible))
    last = store.nodes(driver) if store.is_open else {}
    noted = last if driver else {}
    has_work_left = unknown or any(trial.status not in ENDED for trial in trials)
    runs_of_driver = [run for run in runs.values() if run.tags.get("driver") == driver]
    return SweepState(name=name, running=bool(driver), trials=tuple(trials), unknown=unknown,
                      refused=tuple(f"{found.path.name}: {found.problem}" for found in checkpoints if found.problem),
                      go_on=shlex.join(command) if has_work_left and not driver and not refused else "",
                      elsewhere=place(driver) if lease else "", beat=beat, job=job_of(driver),
                      search=_search(decisions, max(0, n_open), len(runs)) if decisions else "",
                      budget=_budget(store) if store.is_open else None,
                      on_cluster=len(last.get("nodes", ())) > 1, nodes=noted.get("nodes"), in_use=noted.get("in_use"),
                      past=past,
                      taken_over=reused_text(run for run in runs.values() if run.status in DONE),
                      left_seconds=_left_seconds(runs_of_driver, trials, unknown) if driver else None)


def _left_seconds(runs: Sequence[TrackedRun], trials: Sequence[TrialState], unknown: int) -> float | None:
    """Return about how long a driver still trains, from the pace of its runs; None before its first epoch.

    The `unknown` trials, whose settings are not known, count as the mean of the others.
    """
    done = sum(run.epoch for run in runs)
    if not done or not trials:
        return None
    left: float = sum(trial.epochs - trial.epoch for trial in trials if trial.status not in ENDED)
    left += unknown * sum(trial.epochs for trial in trials) / len(trials)
    seconds = time.time() - min(run.start_ms for run in runs) / 1000
    return seconds * left / done


def _search(decisions: Sequence[tuple[str, bool]], n_open: int, n_runs: int) -> str:
    """Return the progress of a search as text; `n_runs` counts the trials of its name, in this space or another."""
    n_asked = len(decisions)
    n_passed_over = _n_passed_over(decisions)
    text = f"{n_asked} of {n_asked + n_open} suggestions asked for"
    if n_passed_over == n_asked:
        text += f"; {nothing_fits(n_asked, n_runs)}"
    elif n_passed_over:
        text += f", {n_passed_over} passed over (beyond the budget, or asked for before)"
    return text


def _n_passed_over(decisions: Sequence[tuple[str, bool]]) -> int:
    """Return the number of suggestions without a trial of their own."""
    return len(decisions) - len({key for key, was_started in decisions if was_started})


def _budget(store: Reader) -> dict[str, Any] | None:
    """Return a sweep's budget: `epsilon`, `delta`, the epsilon `spent`, and `standing` in words; None without a budget.

    `standing` is `simulated` with noise from a seed. `spent` is None if trials need an extension that is not imported.
    """
    initial_state = store.budget()
    if not initial_state:
        return None
    from pipeline.accounting.budget import restored_filter  # imported here: few sweeps need it, and it takes a second

    privacy_filter = restored_filter(initial_state)
    budget = {"epsilon": privacy_filter.budget.epsilon, "delta": privacy_filter.budget.delta}
    try:
        released = store.released()
    except ConfigError as error:  # a trial uses an extension that is not imported here
        return {**budget, "spent": None, "standing": f"not known from the store without its experiment file ({error})"}
    return {**budget, "spent": privacy_filter.epsilon(privacy_filter.spent(released)),
            "standing": standing(release.trial.noise for release in released)}


def _refused_budget(experiment: Experiment, store: Reader) -> tuple[str, ...]:
    """Return why `photonic sweep` refuses the file's budget, if it is not the one that the sweep began with."""
    if not (initial_state := store.budget()):
        return ()
    from pipeline.accounting.budget import require_unchanged  # as in `_budget`

    try:
        require_unchanged(experiment.plan.budget, initial_state)
    except ConfigError as error:
        return (str(error),)
    return ()


def _states_in_file(experiment: Experiment, store: Reader, listed: Sequence[TrackedRun], driver: str,
                    checkpoints: Mapping[str, int]) -> list[TrialState]:
    """Return the states of the file's trials; a trial with secret noise whose run lies in the trash is `lost`."""
    runs = {run.trial_key: run for run in listed}
    is_secure = any(trial.secure for trial in experiment.trials)
    gone = store.gone(listed) if store.is_open and is_secure else ()
    states = []
    for trial in experiment.trials:
        key, name = trial.trial_key, run_name(trial, experiment.varied)
        if key in runs:
            states.append(_state(runs[key], name, driver, checkpoints))
        else:
            status, reason = ("lost", IN_TRASH) if key in gone else ("missing", "")
            states.append(TrialState(key, name, status, 0, trial.epochs, checkpoints.get(key, 0), reason))
    return states


def _state(run: TrackedRun, name: str, driver: str, checkpoints: Mapping[str, int]) -> TrialState:
    """Return the state of a trial from its run in the store; only the present driver's runs can be `running`."""
    epochs = int(run.params["epochs"]) if "epochs" in run.params else 0
    epoch = epochs if run.status == "finished" else run.epoch
    checkpoint = 0 if run.status in ENDED else checkpoints.get(run.trial_key, 0)
    status = run.status
    reason = ""
    if status == "running" and run.tags.get("driver") != driver:
        status = "interrupted"
        reason = ("its sweep ended, and the one that runs now has not come to it" if driver else
                  "no process on this host runs its sweep")
    elif status in ("failed", "lost", "interrupted"):
        reason = run.tags.get("failure", "")
    elif status == "diverged":
        reason = "a weight stopped being finite"
    return TrialState(run.trial_key, name, status, epoch, epochs, checkpoint, reason)


def as_json(states: Sequence[SweepState]) -> str:
    """Return the states as JSON for scripts: a list of sweeps, with all their trials."""
    return json.dumps([{**dataclasses.asdict(state), "counts": state.counts} for state in states], indent=2)


def as_text(states: Sequence[SweepState], refusals: Sequence[str] = ()) -> str:
    """Return the states as text for people: one line per sweep, and one per trial that is not finished."""
    return "\n\n".join([*map(_text, states), *refusals]) or "no sweep in the store"


def _text(state: SweepState) -> str:
    counts = [f"{count} {WORDS.get(status, status)}" for status, count in state.counts.items()
              if count and status != "done"]
    total = counted(len(state.trials) + state.unknown, "trial")
    where = "not running here"
    if state.running:
        where = f"running on {state.elsewhere}" if state.elsewhere else "running"
        where += f" as job {state.job}" if state.job else ""
    left = "" if state.left_seconds is None else f", about {duration(state.left_seconds)} left"
    lines = [f"{state.name}: {total}: {', '.join(counts) or 'none'}; {where}{left}", *_driver_lines(state)]
    if state.search:
        lines.append(f"  search: {state.search}")
    if state.budget:
        epsilon, delta, spent = (state.budget[name] for name in ("epsilon", "delta", "spent"))
        spent_text = "an unknown part" if spent is None else f"{spent:.4g}"
        lines.append(f"  budget: epsilon {spent_text} of {epsilon:g} spent at delta {delta:g}, "
                     f"{state.budget['standing']}")
    if state.taken_over:
        lines.append(f"  taken over: {state.taken_over}")
    lines += [f"  {line}" for line in (*state.past, *_trial_lines(state.trials))]
    lines += [f"  checkpoint that cannot be used: {text}" for text in state.refused]
    if state.go_on:
        options = ", with --address and --private as before" if state.on_cluster else ""
        lines.append(f"  to go on: {state.go_on}{options}")
    return "\n".join(lines)


def _driver_lines(state: SweepState) -> Iterator[str]:
    """Yield lines on the process that runs a sweep, and on the nodes of its cluster; none if no process does."""
    if state.elsewhere:
        yield (f"  last sign of life in the store: {state.beat or 'none yet'}; one is due every {BEAT_SECONDS:g} s, "
               f"and after {MISSED_BEATS * BEAT_SECONDS:g} s without one `photonic sweep` takes over")
    if not state.running:
        return
    if state.in_use:
        in_use = (f"{name} {used:g} of {total:g}" for name, (used, total) in state.in_use.items())
        yield f"  in use: {', '.join(in_use)}"
    for node in state.nodes or ():
        offers = ", ".join(f"{name} {amount:g}" for name, amount in node.items() if name != "node")
        yield f"  node {node['node']}: {offers or 'nothing that packs take'}"
    if not state.nodes:
        yield f"  nodes: unknown; the driver notes them every {BEAT_SECONDS:g} s while packs train"


def _trial_lines(trials: Sequence[TrialState]) -> list[str]:
    """Return a line for each trial that is not finished, by status, and then how many more each status has."""
    lines, more = [], []
    for status in SHOWN:
        word = WORDS.get(status, status)
        shown = [trial for trial in trials if trial.status == status]
        for trial in shown[:MOST_LINES]:
            epoch = f", epoch {trial.epoch} of {trial.epochs}" if trial.epoch else ""
            checkpoint = f", checkpoint of epoch {trial.checkpoint}" if trial.checkpoint else ""
            reason = f": {trial.reason}" if trial.reason else ""
            lines.append(f"{word:<11} {trial.name} ({trial.trial_key}){epoch}{checkpoint}{reason}")
        if len(shown) > MOST_LINES:
            more.append(f"{word:<11} {len(shown) - MOST_LINES} more, which --json lists")
    return lines + more
