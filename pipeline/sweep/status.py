"""The status of a sweep: the state of every trial, its reason, and the command to resume. Changes nothing."""

from __future__ import annotations

import dataclasses
import json
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.accounting.noise import standing
from pipeline.experiment.experiment import Experiment, with_trials
from pipeline.sweep.checkpoints import Checkpoints, Found
from pipeline.sweep.lock import BEAT_SECONDS, MISSED_BEATS, local_driver, place, remote_lease
from pipeline.sweep.private import PrivateFolder
from pipeline.tracking.artifacts import DONE, STATUSES, TrackedRun
from pipeline.tracking.reader import Reader
from pipeline.trials.config import ConfigError
from pipeline.trials.naming import counted, run_name
from pipeline.trials.promises import sums_in_floating_point

SHOWN = ("diverged", "failed", "interrupted", "running", "missing")  # trials with these statuses get a line each
MOST_LINES = 20  # per status
GO_ON = ["photonic", "sweep", "FILE"]  # the command if no file was named


@dataclass(frozen=True)
class TrialState:
    """The state of one trial.

    Attributes:
        trial_key: identity of the trial.
        name: its name for people.
        status: one of `STATUSES`, or `missing`.
        epoch: last epoch in the store; 0 for none.
        epochs: number of epochs of the whole trial.
        checkpoint: epoch from which it resumes; 0 if it starts again.
        reason: why it failed or is not running, in one line.
    """

    trial_key: str
    name: str
    status: str
    epoch: int
    epochs: int
    checkpoint: int
    reason: str = ""


@dataclass(frozen=True)
class SweepState:
    """The state of a sweep.

    Attributes:
        name: its name.
        running: whether a process runs it: certain for this host and folder, elsewhere as a shared store reports.
        trials: trials in the store or in the experiment file.
        unknown: number of trials without a run; their settings are not known without the experiment file.
        refused: unusable checkpoints, with reasons.
        go_on: the command that resumes the sweep; empty if nothing is left, or while a process runs it.
        elsewhere: host and folder of the process that runs it, if different from these.
        beat: that process's last heartbeat in the store: a count, empty for none yet.
        search: progress of a search; empty for a grid.
        budget: None without a privacy budget. Otherwise `epsilon` and `delta`, the epsilon `spent` by epochs in the
            store (None if trials need an extension that is not imported), and the `standing` of the guarantee
            (`simulated` with noise from a recorded seed).
        nodes: for a running sweep, used and total CPU, GPU and OPU of each node; None if unknown.
        stopped: whether trials are left that cannot train any more, because their secret noise is in floating point.
    """

    name: str
    running: bool
    trials: tuple[TrialState, ...]
    unknown: int
    refused: tuple[str, ...]
    go_on: str
    elsewhere: str = ""
    beat: str = ""
    search: str = ""
    budget: dict[str, Any] | None = None
    nodes: list[dict[str, Any]] | None = None
    stopped: bool = False

    @property
    def counts(self) -> dict[str, int]:
        """Number of trials by status."""
        counts = Counter(trial.status for trial in self.trials)
        return {"done": sum(counts[s] for s in DONE), **{s: counts[s] for s in STATUSES},
                "missing": counts["missing"] + self.unknown}


def read(store: Reader, name: str, experiment: Experiment | None = None, words: Sequence[str] = (),
         private: Path | None = None) -> SweepState:
    """Return the state of the sweep `name`, from the store, its checkpoints and, if given, its experiment file.

    Trials in the store that are no longer in the file are left out.

    Args:
        store: the store.
        name: name of the sweep.
        experiment: the experiment, if its file is given.
        words: the user's words for the experiment, for the resume command; by default its file.
        private: the private folder, if it is not the store's default.
    """
    driver, beat, elsewhere = local_driver(store.root, name), "", ""
    if not driver and (holder := remote_lease(store, name)):
        driver, beat = holder
        elsewhere = place(driver)
    found_it = store.find(name)
    runs = {run.trial_key: run for run in store.runs()} if found_it else {}
    decisions = store.decisions() if found_it else []
    if experiment and experiment.search:
        experiment = store.as_swept(experiment) if found_it else with_trials(experiment, ())
    found = Checkpoints(PrivateFolder(store.root, private).checkpoints(name), 0.0).found()
    epochs = {key: checkpoint.epoch for checkpoint in found if not checkpoint.problem
              for key in checkpoint.trial_keys}
    if experiment:
        trials = _planned(experiment, runs, driver, epochs)
        later = unknown = experiment.search.trials - len(decisions) if experiment.search else 0
    else:
        trials = [_state(run, run.tags.get("mlflow.runName", run.trial_key), driver, epochs)
                  for run in runs.values()]
        planned = (store.planned() or 0) if found_it else 0
        later, unknown = planned - len(decisions), max(0, planned - _passed_over(decisions) - len(trials))
    left = unknown or any(trial.status not in DONE for trial in trials)
    command = ["photonic", "sweep", *(words or [str(experiment.source)])] if experiment else GO_ON
    go_on = shlex.join(command)
    stopped = experiment is not None and any(
        sums_in_floating_point(t) for t in experiment.trials
        if t.trial_key not in runs or runs[t.trial_key].status not in DONE)
    refused = tuple(_refusal(f) for f in found if f.problem)
    nodes = store.nodes(driver) if driver and found_it else None
    can_resume = left and not driver and not stopped
    return SweepState(name=name, running=bool(driver), trials=tuple(trials), unknown=unknown, refused=refused,
                      go_on=go_on if can_resume else "", elsewhere=elsewhere, beat=beat,
                      search=_search(decisions, max(0, later)) if decisions else "",
                      budget=_budget(store) if found_it else None, nodes=nodes, stopped=stopped)


def _planned(experiment: Experiment, runs: Mapping[str, TrackedRun], driver: str,
             checkpoints: Mapping[str, int]) -> list[TrialState]:
    """Return the state of every trial of the experiment; trials without a run are `missing`.

    Args:
        experiment: the experiment.
        runs: the sweep's runs, by trial_key.
        driver: the driver that runs the sweep now; empty for none.
        checkpoints: trial_key -> epoch of its checkpoint.
    """
    states = []
    for trial in experiment.trials:
        key, name = trial.trial_key, run_name(trial, experiment.varied)
        if key in runs:
            states.append(_state(runs[key], name, driver, checkpoints))
        else:
            states.append(TrialState(key, name, "missing", 0, trial.epochs, checkpoints.get(key, 0)))
    return states


def _search(decisions: Sequence[tuple[str, bool]], later: int) -> str:
    asked, passed = len(decisions), _passed_over(decisions)
    more = f", {passed} passed over (beyond the budget, or asked for before)" if passed else ""
    return f"{asked} of {asked + later} suggestions asked for{more}"


def _passed_over(decisions: Sequence[tuple[str, bool]]) -> int:
    """Return the number of suggestions without a trial of their own."""
    return len(decisions) - len({key for key, was_started in decisions if was_started})


def _budget(store: Reader) -> dict[str, Any] | None:
    """Return the budget and the epsilon spent by the events in the store; None without a budget."""
    if not (kept := store.budget()):
        return None
    from pipeline.accounting.budget import begun  # imported here: few sweeps need it, and it takes a second

    filter = begun(kept)
    known = {"epsilon": filter.budget.epsilon, "delta": filter.budget.delta}
    try:
        released = store.released()
    except ConfigError as error:  # of an extension that is not imported here
        return {**known, "spent": None, "standing": f"not known from the store without its experiment file ({error})"}
    return {**known, "spent": filter.epsilon(filter.spent(released)),
            "standing": standing(release.trial.noise for release in released)}


def _state(run: TrackedRun, name: str, driver: str, checkpoints: Mapping[str, int]) -> TrialState:
    """Return the state of a run. Only trials of `driver`, which runs the sweep now (empty for none), are running."""
    epochs = int(run.params["epochs"]) if "epochs" in run.params else 0
    seen, state, reason = run.epoch, run.status, ""
    if state == "finished":
        seen = epochs
    if state == "running" and run.tags.get("driver") != driver:
        state, reason = "interrupted", ("its sweep ended, and the one that runs now has not come to it" if driver else
                                        "no process on this host runs its sweep")
    elif state == "failed":
        reason = run.tags.get("failure", "")
    elif state == "diverged":
        reason = "a weight stopped being finite"
    return TrialState(run.trial_key, name, state, seen, epochs,
                      0 if state in DONE else checkpoints.get(run.trial_key, 0), reason)


def _taken(node: Mapping[str, Any]) -> str:
    """Return the resources of a node in use as text: `CPU 2 of 4 in use`."""
    amounts = [f"{name} {amount[0]:g} of {amount[1]:g} in use" for name, amount in node.items() if name != "node"]
    return ", ".join(amounts) or "nothing that packs take"


def _refusal(found: Found) -> str:
    return f"{found.path.name}: {found.problem}"


def as_json(states: Sequence[SweepState]) -> str:
    """Return the states as JSON for scripts: a list of sweeps, with all their trials."""
    return json.dumps([{**dataclasses.asdict(state), "counts": state.counts} for state in states], indent=2)


def as_text(states: Sequence[SweepState]) -> str:
    """Return the states as text for people: one line per sweep, and one per trial that is not finished."""
    return "\n\n".join(_text(state) for state in states) or "no sweep in the store"


def _listed(trials: Sequence[TrialState]) -> list[TrialState]:
    """Return the trials with a line of their own: the first few of every status."""
    return [trial for what in SHOWN for trial in [t for t in trials if t.status == what][:MOST_LINES]]


def _text(state: SweepState) -> str:
    """Return the state of one sweep as lines of text: trials by status, nodes, search, budget, then single trials."""
    counts = {name: n for name, n in state.counts.items() if n and name != "done"}
    total = len(state.trials) + state.unknown
    told = ", ".join(f"{n} {name}" for name, n in counts.items()) or "none"
    where = "not running here"
    if state.running:
        where = f"running on {state.elsewhere}" if state.elsewhere else "running"
    lines = [f"{state.name}: {counted(total, 'trial')}: {told}; {where}"]
    if state.elsewhere:
        lines.append(f"  last sign of life in the store: {state.beat or 'none yet'}; one is due every "
                     f"{BEAT_SECONDS:g} s, and after {MISSED_BEATS * BEAT_SECONDS:g} s without one `photonic sweep` "
                     "takes over")
    if state.running:
        lines += [f"  node {node['node']}: {_taken(node)}" for node in state.nodes or ()] or [
            f"  nodes: unknown; the driver notes them every {BEAT_SECONDS:g} s while packs train"]
    if state.search:
        lines.append(f"  search: {state.search}")
    if state.budget:
        spent = "an unknown part" if state.budget["spent"] is None else f"{state.budget['spent']:.4g}"
        lines.append("  budget: epsilon {spent} of {epsilon:g} spent at delta {delta:g}, {standing}".format(
            **{**state.budget, "spent": spent}))
    for trial in _listed(state.trials):
        seen = f", epoch {trial.epoch} of {trial.epochs}" if trial.epoch else ""
        saved = f", checkpoint of epoch {trial.checkpoint}" if trial.checkpoint else ""
        lines.append(f"  {trial.status:<11} {trial.name} ({trial.trial_key}){seen}{saved}"
                     + (f": {trial.reason}" if trial.reason else ""))
    for what in SHOWN:
        if (more := sum(trial.status == what for trial in state.trials) - MOST_LINES) > 0:
            lines.append(f"  {what:<11} {more} more, which --json lists")
    lines += [f"  checkpoint that cannot be used: {text}" for text in state.refused]
    if state.stopped:
        lines.append("  to go on: trials with noise 'secure' in floating point train no more; copy the file, and give "
                     "it another name and arithmetic 'integer'")
    if state.go_on:
        lines.append(f"  to go on: {state.go_on}")
    return "\n".join(lines)
