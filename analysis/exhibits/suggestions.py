"""What a search asked for: the scores of its trials, the privacy budget spent, and which of its settings mattered.

`analysis.report.report` draws both exhibits for a search, before those of the experiment file.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from analysis import style
from analysis.exhibits.envelope import SCORE
from analysis.exhibits.exhibit import Exhibit, Texts
from analysis.exhibits.table import Table
from analysis.labels import NO_VALUE, algorithm_labels, axis_name, value_text
from analysis.runs import ReportError, trials_of
from pipeline.accounting.budget import Filter, restored_filter
from pipeline.accounting.epsilon import Epsilon
from pipeline.experiment.experiment import Experiment
from pipeline.experiment.prices import scope
from pipeline.experiment.search import Domain, Search
from pipeline.tracking.reader import Reader
from pipeline.trials.config import TrialConfig
from pipeline.trials.fields import plain
from pipeline.trials.kinds import certified_trials, standing
from pipeline.trials.naming import counted, run_name
from pipeline.trials.ranking import joined, leaders
from pipeline.trials.records import Release

GREY = "0.4"
PASSED_OVER = "passed over"  # status of a suggestion that was not trained, or trained before
FORMATS = {"number": "", "trial": "", "status": "", "epochs": "", "validation %": ".2f", "ε spent": ".4g"}
LEAST_TRIALS = 4  # from which on a share of their variance means something
PER_ROW, TICKS = 3, 4  # panels in a row; values named at a logarithmic axis
CAPTION = ("Validation accuracy (n = 1) of {} trials of a search against every setting of its space; in titles the "
           "share of its variance that the setting explains (fANOVA, Hutter et al. 2014)")
NOTE = ("Trials lie where the search asked for them, so a share is of where it looked. A setting that not all trials "
        "use has none.")


def budget_epsilon(store: Reader) -> Epsilon:
    """Return the budget of the store's open sweep, as the epsilon that covers the choice of its best trial."""
    return _privacy_filter(store).stated(store.released())


def _privacy_filter(store: Reader) -> Filter:
    initial_state = store.budget()
    if initial_state is None:
        raise ReportError("budget: must be the one that the sweep began with, and it began without one")
    return restored_filter(initial_state)


def draw(experiment: Experiment, runs: pd.DataFrame, store: Reader) -> Exhibit:
    """Make the exhibit of suggestions in order, with scores and, under a budget, the epsilon spent."""
    privacy_filter = _privacy_filter(store) if experiment.plan.budget else None
    rows = tabulate(experiment, runs, store, privacy_filter)
    header = [column for column in FORMATS if column in rows.columns]  # without a budget there is no ε
    cells = [[format(row[name], FORMATS[name]) if pd.notna(row[name]) else NO_VALUE for name in header]
             for row in rows.to_dict("records")]
    notes = []
    if n_passed_over := (rows["status"] == PASSED_OVER).sum():
        notes.append(f"{counted(n_passed_over, 'suggestion')} passed over: beyond the budget, or asked for before.")
    if privacy_filter:
        notes.append("ε spent is that of all epochs released until then, by a Renyi filter of order "
                     f"{privacy_filter.order} that was fixed beforehand; no trial started whose whole cost did not "
                     "fit.")
    notes += scope(experiment.name, experiment.plan, store.certified)
    texts = Texts((caption(experiment, privacy_filter), Table.of(header, cells, text_columns=(1, 2))),
                  notes=tuple(notes))
    return Exhibit("search", "What the search asked for", texts, rows, plot(rows, privacy_filter))


def tabulate(experiment: Experiment, runs: pd.DataFrame, store: Reader, privacy_filter: Filter | None) -> pd.DataFrame:
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
    rows = []
    for number, suggestion in enumerate(suggestions, start=1):
        trial, key = suggestion.trial, suggestion.trial.trial_key
        # A trial counts where it was suggested first, so that later suggestions of it find nothing.
        of_trial, status = releases.pop(key, []), statuses.pop(key, PASSED_OVER)
        spent += of_trial
        row = {"number": number, "trial": run_name(trial, experiment.varied), "trial_key": key,
               "algorithm": trial.algorithm, "status": status if suggestion.started else PASSED_OVER, "epochs": 0,
               "validation %": np.nan}
        if row["status"] not in (PASSED_OVER, "lost"):
            row |= {"epochs": max((release.epochs for release in of_trial), default=0), "validation %": scores[key]}
        if privacy_filter:
            row["ε spent"] = privacy_filter.epsilon(privacy_filter.spent(spent))
        rows.append(row)
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


def draw_space(search: Search, runs: pd.DataFrame) -> Exhibit:
    """Make the exhibit of a search's settings; errors as in `tabulate_space`."""
    table = tabulate_space(search, runs)
    rows = []
    for name, of_setting in table.groupby("setting", sort=False):
        share = of_setting["importance"].iloc[0]
        texts = of_setting["value"].map(partial(_text, name))
        scores = of_setting.groupby(texts, sort=False)["validation %"].max()
        rows.append([name, NO_VALUE if pd.isna(share) else f"{100 * share:.0f}",
                     joined(leaders(scores.to_dict()), "or")])
    header = ["setting", "variance explained %", "of the best trial"]
    caption = f"{CAPTION.format(table['trial_key'].nunique())}."
    return Exhibit("search_space", title="Which setting of the search matters", rows=table,
                   texts=Texts((caption, Table.of(header, rows, text_columns=(0, 2))), notes=(NOTE,)),
                   figure=plot_space(search.space, table))


def tabulate_space(search: Search, runs: pd.DataFrame) -> pd.DataFrame:
    """Return a row per trial and setting that it uses: `trial_key`, `algorithm`, `value`, score, and `importance`.

    Needs `LEAST_TRIALS` trials that finished with scores that differ; `importance` is empty for a setting that not all
    of them use.
    """
    scored = runs[runs[SCORE].notna() & (runs["status"] == "finished")]
    if len(scored) < LEAST_TRIALS or scored[SCORE].nunique() < 2:
        raise ReportError(f"search_space: needs {LEAST_TRIALS} finished trials or more whose scores differ, got "
                          f"{len(scored)}")
    trials, scores = trials_of(scored), 100 * scored[SCORE]
    shares = importances(search, trials, list(scores))
    rows = []
    for name in sorted(search.space, key=lambda name: -shares.get(name, -1.0)):  # those without a share last
        is_choice = search.space[name].kind == "choice"
        for trial, score in zip(trials, scores, strict=True):
            if name in trial.canonical():
                value = getattr(trial, name)
                rows.append({"setting": name, "trial_key": trial.trial_key, "algorithm": trial.algorithm,
                             "value": _text(name, value) if is_choice else value, "validation %": score,
                             "importance": shares.get(name)})
    return pd.DataFrame(rows).astype({"importance": float})


def importances(search: Search, trials: Sequence[TrialConfig], scores: Sequence[float]) -> dict[str, float]:
    """Return the share of the scores' variance that each setting explains, by Optuna's fANOVA.

    It needs settings that all trials use, so the others have no share.
    """
    import optuna  # imported here, as few reports need it
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    common = {name: domain for name, domain in search.space.items() if all(name in t.canonical() for t in trials)}
    distributions: dict[str, Any] = {}
    for name, domain in common.items():
        low, high = domain.ends[0], domain.ends[-1]
        if domain.kind == "choice":
            distributions[name] = CategoricalDistribution(range(len(domain.values)))  # places of the choices
        elif domain.kind == "randint":
            distributions[name] = IntDistribution(low, high)
        else:
            distributions[name] = FloatDistribution(low, high, log=domain.kind == "loguniform")
    study = optuna.create_study(direction="maximize")
    for trial, score in zip(trials, scores, strict=True):
        values = {name: getattr(trial, name) for name in common}
        for name, domain in common.items():
            if domain.kind == "choice":
                values[name] = [*map(plain, domain.values)].index(plain(values[name]))
        study.add_trial(optuna.trial.create_trial(params=values, distributions=distributions, value=score))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        return optuna.importance.get_param_importances(
            study, evaluator=optuna.importance.FanovaImportanceEvaluator(seed=0))


def _text(name: object, value: Any) -> str:
    return algorithm_labels()[value] if name == "algorithm" else value_text(value)


def plot_space(space: Mapping[str, Domain], table: pd.DataFrame) -> Figure:
    """Plot a panel per setting, the most important first; choices stand in the order of the file."""
    names = list(dict.fromkeys(table["setting"]))
    with style.theme():
        figure, axes = style.panels(len(names), per_row=PER_ROW, sharey=True)
        looks = style.markers(table)
        for name, ax in zip(names, axes, strict=True):
            rows, domain = table[table["setting"] == name], space[name]
            places = {_text(name, plain(value)): place for place, value in enumerate(domain.values)}
            for (algorithm, *_), look in looks.items():
                points = rows[rows["algorithm"] == algorithm]
                x = points["value"].map(places) if domain.kind == "choice" else points["value"]
                ax.plot(x, points["validation %"], **look)
            if domain.kind == "choice":
                ax.set_xticks(range(len(places)), list(places))
                ax.margins(x=0.2)
            elif domain.kind == "loguniform":
                style.log_axis(ax, list(np.geomspace(domain.ends[0], domain.ends[-1], TICKS)))
            share = rows["importance"].iloc[0]
            title = "" if pd.isna(share) else f"{share:.0%} of the variance"
            style.name_axes(ax, axis_name(name), "Validation accuracy (%)", title)
        style.name_once(axes)
        style.legend(figure, style.handles(looks))
    return figure
