"""The suggestions of a search: their scores, and the privacy budget spent so far."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from analysis import style
from analysis.exhibits.exhibit import Exhibit, Texts
from analysis.exhibits.selection import SCORE
from analysis.exhibits.table import Table
from analysis.runs import ReportError
from analysis.text import NO_VALUE
from pipeline.accounting.budget import Filter, restored_filter, scope
from pipeline.accounting.epsilon import Epsilon
from pipeline.accounting.noise import standing
from pipeline.experiment.experiment import Experiment
from pipeline.experiment.search import Search
from pipeline.tracking.reader import Reader
from pipeline.trials.kinds import certified_trials
from pipeline.trials.naming import counted, run_name
from pipeline.trials.records import Release

GREY = "0.4"
PASSED_OVER = "passed over"  # status of a suggestion that was not trained, or trained before


def budget_epsilon(store: Reader) -> Epsilon:
    """Return the budget of the store's open sweep, as the epsilon that covers the choice of its best trial."""
    return _privacy_filter(store).stated(store.released())


def _privacy_filter(store: Reader) -> Filter:
    """Return the privacy filter with which the store's open sweep began: its budget and the Renyi order."""
    initial_state = store.budget()
    if initial_state is None:
        raise ReportError("budget: must be the one that the sweep began with, and it began without one")
    return restored_filter(initial_state)


def draw(experiment: Experiment, runs: pd.DataFrame, store: Reader) -> Exhibit:
    """Make the exhibit of suggestions in order, with scores and, under a budget, the epsilon spent."""
    privacy_filter = _privacy_filter(store) if experiment.plan.budget else None
    rows = table(experiment, runs, store, privacy_filter)
    formats = {"number": "", "trial": "", "status": "", "epochs": "", "validation %": ".2f", "ε spent": ".4g"}
    header = [column for column in formats if column in rows.columns]  # without a budget there is no ε
    cells = [[format(row[name], formats[name]) if pd.notna(row[name]) else NO_VALUE for name in header]
             for row in rows.to_dict("records")]
    notes = scope(experiment.name, experiment.plan, store.certified)
    if privacy_filter:
        notes = ["ε spent is that of all epochs released until then, by a Renyi filter of order "
                 f"{privacy_filter.order} that was fixed beforehand; no trial started whose whole cost did not fit.",
                 *notes]
    if n_passed_over := (rows["status"] == PASSED_OVER).sum():
        notes = [f"{counted(n_passed_over, 'suggestion')} passed over: beyond the budget, or asked for before.", *notes]
    return Exhibit("search", title="What the search asked for", rows=rows, figure=plot(rows, privacy_filter),
                   texts=Texts((caption(experiment, privacy_filter), Table.of(header, cells, text_columns=(1, 2))),
                               notes=tuple(notes)))


def table(experiment: Experiment, runs: pd.DataFrame, store: Reader, privacy_filter: Filter | None) -> pd.DataFrame:
    """Return a row per suggestion.

    Columns: number, trial, trial_key, algorithm, status (`passed over` if it was not trained, or trained before),
    released epochs, validation in %, and epsilon spent. Epsilon is of this and all earlier suggestions, as if there
    were no later ones. Without a privacy filter there is no column of epsilon spent.
    """
    releases: dict[str, list[Release]] = {}  # trial key -> of its runs
    for release in store.released():
        releases.setdefault(release.trial.trial_key, []).append(release)
    suggestions = store.suggestions()
    suggested_keys = {suggestion.trial.trial_key for suggestion in suggestions}
    # Trials of earlier files that this search did not suggest have spent their epsilon before it began.
    spent = [release for key, of_trial in releases.items() if key not in suggested_keys for release in of_trial]
    statuses = dict.fromkeys((trial.trial_key for trial in experiment.past.lost), "lost")
    statuses |= dict(zip(runs["trial_key"], runs["status"], strict=True))
    scores = dict(zip(runs["trial_key"], 100 * runs[SCORE], strict=True))
    rows, seen = [], set()
    for number, suggestion in enumerate(suggestions, start=1):
        trial, key = suggestion.trial, suggestion.trial.trial_key
        status = statuses.get(key, PASSED_OVER) if suggestion.started and key not in seen else PASSED_OVER
        spent += releases.get(key, []) if key not in seen else []
        seen.add(key)
        is_trained = status not in (PASSED_OVER, "lost")
        epochs = max((release.epochs for release in releases.get(key, [])), default=0) if is_trained else 0
        row = {"number": number, "trial": run_name(trial, experiment.varied), "trial_key": key,
               "algorithm": trial.algorithm, "status": status, "epochs": epochs,
               "validation %": scores[key] if is_trained else np.nan}
        rows.append({**row, "ε spent": privacy_filter.epsilon(privacy_filter.spent(spent))} if privacy_filter else row)
    return pd.DataFrame(rows)


def caption(experiment: Experiment, privacy_filter: Filter | None) -> str:
    """Return the caption: scores and, under a budget, the epsilon spent."""
    algorithm = experiment.plan.algorithm if isinstance(experiment.plan, Search) else "a"
    text = (f"Validation accuracy (n = 1) at the last epoch of the trials that {algorithm} search asked for, in its "
            "order; the line is the best so far")
    if privacy_filter is None:
        return f"{text}. No budget covers the search."
    budget = privacy_filter.budget
    return (f"{text}. Below, ε spent of the budget, {budget.epsilon:g} at δ = {budget.delta:g} "
            f"({standing(trial.noise for trial in certified_trials(experiment.trials))}).")


def plot(rows: pd.DataFrame, privacy_filter: Filter | None) -> Figure:
    """Plot scores by suggestion and, under a budget, the epsilon spent below."""
    with style.theme():
        figure, axes = style.panels(2 if privacy_filter else 1, per_row=1, height=2.0, sharex=True)
        trained = rows[rows["validation %"].notna()]
        looks = style.markers(trained)
        for (algorithm, *_), look in looks.items():
            group = trained[trained["algorithm"] == algorithm]
            axes[0].plot(group["number"], group["validation %"], **look)
        best = rows["validation %"].cummax().ffill()
        axes[0].step(rows["number"], best, where="post", color=GREY, linewidth=1)
        style.name_axes(axes[0], y="Validation accuracy (%)")
        if privacy_filter:
            budget = privacy_filter.budget.epsilon
            axes[1].step([0, *rows["number"]], [0, *rows["ε spent"]], where="post", color=GREY)
            axes[1].axhline(budget, color="0", linestyle=(0, (4, 2)), linewidth=1)
            axes[1].annotate(f"budget {budget:g}", (1, budget), xycoords=("axes fraction", "data"), ha="right",
                             va="bottom")
            axes[1].set(ylabel="ε spent", ylim=(0, 1.15 * budget))
        axes[-1].set_xlabel("Suggestion")
        axes[-1].xaxis.set_major_locator(MaxNLocator(integer=True))
        style.legend(figure, style.handles(looks))
    return figure
