"""What a search says of its settings: the importance of each for the score, and the score against each."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from analysis import style
from analysis.exhibits.exhibit import Exhibit, Texts
from analysis.exhibits.selection import SCORE
from analysis.exhibits.table import Table
from analysis.labels import axis_name
from analysis.runs import ALGORITHM_LABELS, ReportError, trials_of
from analysis.text import NO_VALUE, value_text
from pipeline.experiment.search import Domain, Search
from pipeline.trials.config import TrialConfig
from pipeline.trials.fields import plain
from pipeline.trials.ranking import joined, leaders

LEAST_TRIALS = 4  # from which on a share of their variance means something
PER_ROW, TICKS = 3, 4  # panels in a row; values named at a logarithmic axis
CAPTION = ("Validation accuracy (n = 1) of {} trials of a search against every setting of its space; in titles the "
           "share of its variance that the setting explains (fANOVA, Hutter et al. 2014)")
NOTE = ("Trials lie where the search asked for them, so a share is of where it looked. A setting that not all trials "
        "use has none.")


def draw(search: Search, runs: pd.DataFrame) -> Exhibit:
    """Make the exhibit of a search; errors as in `tabulate`."""
    table = tabulate(search, runs)
    shares = table.drop_duplicates("setting").set_index("setting")["importance"]
    rows = [[name, NO_VALUE if pd.isna(share) else f"{100 * share:.0f}",
             best_values(name, table[table["setting"] == name])] for name, share in shares.items()]
    header = ["setting", "variance explained %", "of the best trial"]
    caption = f"{CAPTION.format(table['trial_key'].nunique())}."
    return Exhibit("search_space", title="Which setting of the search matters", rows=table,
                   texts=Texts((caption, Table.of(header, rows, text_columns=(0, 2))), notes=(NOTE,)),
                   figure=plot(search.space, table))


def best_values(name: str, rows: pd.DataFrame) -> str:
    """Return the value of a setting in the trial with the best score, as text, or in several if none is ahead."""
    scores = rows.groupby(rows["value"].map(partial(_text, name)), sort=False)["validation %"].max()
    return joined(leaders(scores.to_dict()), "or")


def tabulate(search: Search, runs: pd.DataFrame) -> pd.DataFrame:
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
    rows = [{"setting": name, "trial_key": trial.trial_key, "algorithm": trial.algorithm,
             "value": _text(name, getattr(trial, name)) if domain.kind == "choice" else getattr(trial, name),
             "validation %": score, "importance": shares.get(name)}
            for name, domain in sorted(search.space.items(), key=lambda item: -shares.get(item[0], -1.0))
            for trial, score in zip(trials, scores, strict=True) if name in trial.canonical()]
    return pd.DataFrame(rows).astype({"importance": float})


def importances(search: Search, trials: Sequence[TrialConfig], scores: Sequence[float]) -> dict[str, float]:
    """Return the share of the scores' variance that each setting explains which all trials use, by Optuna's fANOVA."""
    import optuna  # imported here, as few reports need it
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    common = {name: domain for name, domain in search.space.items() if all(name in t.canonical() for t in trials)}
    distributions: dict[str, Any] = {}
    for name, domain in common.items():
        low, high = domain.ends[0], domain.ends[-1]
        distributions[name] = (
            CategoricalDistribution(range(len(domain.values))) if domain.kind == "choice" else
            IntDistribution(low, high) if domain.kind == "randint" else
            FloatDistribution(low, high, log=domain.kind == "loguniform"))
    study = optuna.create_study(direction="maximize")
    for trial, score in zip(trials, scores, strict=True):
        values = {name: [*map(plain, domain.values)].index(plain(getattr(trial, name))) if domain.kind == "choice"
                  else getattr(trial, name) for name, domain in common.items()}
        study.add_trial(optuna.trial.create_trial(params=values, distributions=distributions, value=score))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        return optuna.importance.get_param_importances(
            study, evaluator=optuna.importance.FanovaImportanceEvaluator(seed=0))


def _text(name: str, value: Any) -> str:
    """Return a value of a setting as text."""
    return ALGORITHM_LABELS[value] if name == "algorithm" else value_text(value)


def plot(space: Mapping[str, Domain], table: pd.DataFrame) -> Figure:
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
