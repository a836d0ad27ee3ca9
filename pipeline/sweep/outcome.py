"""Summary of a sweep for its parent run: trials by status, best accuracy by algorithm and noise."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence

from pipeline.experiment.budget import Budget
from pipeline.experiment.experiment import Experiment
from pipeline.experiment.factors import differing
from pipeline.tracking.artifacts import STATUSES, TrackedRun
from pipeline.tracking.store import Store
from pipeline.trials.naming import counted, noise_setting
from pipeline.trials.records import ACCURACY

GUARANTEE = ("dataset", "mechanism", "sampler", "delta")  # trials that differ in these fields are not compared


def contents(experiment: Experiment) -> dict[str, str]:
    """Return an experiment's tags: its data sets, algorithms and mechanisms."""
    trials = experiment.possible
    return {f"{field}s": ", ".join(dict.fromkeys(getattr(trial, field) for trial in trials))
            for field in ("dataset", "algorithm", "mechanism")}


def closed(store: Store, experiment: Experiment, status: str) -> None:
    """Close the sweep with its summary; with random stopping it gets none, not even the number of trials.

    Args:
        store: the store with the sweep open.
        experiment: the experiment with its trials.
        status: MLflow's status of the sweep: FINISHED, FAILED or KILLED.
    """
    runs = {run.trial_key: run for run in store.close_sweep(status)}
    if experiment.candidates:
        return
    best = best_accuracies(experiment, runs)
    store.log_sweep({f"best/{algorithm}/{noise.replace('=', '_')}": value
                     for (algorithm, noise), value in best.items()}, {})
    counts = Counter(runs[t.trial_key].status if t.trial_key in runs else "missing" for t in experiment.trials)
    told = ", ".join(f"{counts[s]} {s}" for s in (*STATUSES, "missing") if counts[s])
    trials = counted(len(experiment.trials), "trial")
    store.describe(experiment.description, f"{headline(best, experiment.budget)}\n\n{trials}: {told}.".strip())


def best_accuracies(experiment: Experiment, runs: Mapping[str, TrackedRun]) -> dict[tuple[str, str], float]:
    """Return (algorithm, noise) -> the best setting's validation accuracy at the last epoch, as a mean over seeds.

    A setting counts only if every seed is finished and has a validation accuracy. If trials differ in data set or
    guarantee, the key's noise includes the difference: `epsilon=3 sampler=poisson`.
    """
    all_fields = [trial.canonical() for trial in experiment.trials]
    cells = differing(all_fields, lambda fields: (fields["algorithm"], noise_setting(fields)), ("seed",))
    apart = [field for field in GUARANTEE if field in cells]
    settings: dict[tuple[str, str, str], list[float | None]] = {}
    for trial in experiment.trials:
        own, run = trial.canonical(), runs.get(trial.trial_key)
        noise = " ".join([noise_setting(own), *(f"{field}={own[field]}" for field in apart if field in own)])
        setting = str({name: value for name, value in own.items() if name != "seed"})
        value = run.metrics.get(ACCURACY) if run and run.status == "finished" else None
        settings.setdefault((trial.algorithm, noise, setting), []).append(value)
    best: dict[tuple[str, str], float] = {}
    for (algorithm, noise, _), values in settings.items():
        known = [value for value in values if value is not None]
        if len(known) == len(values):
            best[algorithm, noise] = max(sum(known) / len(known), best.get((algorithm, noise), -math.inf))
    return best


def headline(best: Mapping[tuple[str, str], float], budget: Budget | None = None) -> str:
    """Return Markdown: the best algorithm for each noise, and a table with a row per noise; empty without results.

    Args:
        best: the result of `best_accuracies`.
        budget: the sweep's budget, if it has one; it covers the choice of the best setting.
    """
    if not best:
        return ""
    algorithms, noises = (list(dict.fromkeys(key)) for key in zip(*best, strict=True))
    rows: list[Sequence[str]] = [["", *algorithms], ["---", *("---:" for _ in algorithms)]]
    rows += [[noise, *(f"{100 * best[a, noise]:.2f}" if (a, noise) in best else "" for a in algorithms)]
             for noise in noises]
    winners: dict[str, list[str]] = {}
    for noise in noises:
        algorithm = max((a for a in algorithms if (a, noise) in best), key=lambda a: best[a, noise])
        winners.setdefault(algorithm, []).append(noise)
    first = "; ".join(f"{algorithm} at {', '.join(of)}" for algorithm, of in winners.items())
    covered = f"the budget of epsilon {budget.epsilon:g} covers" if budget else "no epsilon covers"
    return "\n".join([f"Highest validation accuracy: {first}.", "", "In %, mean over seeds, of each algorithm's best "
                      f"setting; {covered} that choice:", "", *(f"| {' | '.join(row)} |" for row in rows)])
