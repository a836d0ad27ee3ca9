"""Main effects of a balanced grid: the part of the accuracy's variance that each setting explains, and its means."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import combinations

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from analysis import style
from analysis.exhibits.catalogue import exhibit
from analysis.exhibits.exhibit import Exhibit, Texts
from analysis.exhibits.metrics import METRICS
from analysis.exhibits.table import Table
from analysis.runs import ReportError, common_value, trials_of
from analysis.text import NO_VALUE, level_order, level_text, without_formulas
from pipeline.experiment.factors import balanced, find_factors
from pipeline.trials.ranking import joined, leaders

COLUMNS = ["factor", "level", "mean", "trials", "explained"]
INTERACTIONS, SEEDS = "more interactions", "seeds"
PER_ROW = 4
LONG_LABEL = 6  # labels of ticks with more characters are rotated


@exhibit("main_effects")
def draw(runs: pd.DataFrame) -> Exhibit:
    """Make the exhibit of main effects, a table and a figure; errors as in `tabulate`."""
    table = tabulate(runs)
    return Exhibit("main_effects", title="Which setting matters", texts=texts(table, n_trials=len(runs)),
                   rows=table.round(6), figure=plot(table))


def tabulate(runs: pd.DataFrame) -> pd.DataFrame:
    """Return test accuracy by level of every factor: `COLUMNS`, the factor that explains most first.

    For a factor with levels l, n_l trials and mean a_l, `explained` is sum_l n_l (a_l - a)^2 over the sum of squares of
    all trials (eta squared of an analysis of variance), in [0, 1]. In a balanced grid these parts add up to 1: factors,
    pairs of factors (`a × b`: the joint part beyond each factor), `more interactions` and `seeds`. If the grid is
    balanced only with a mechanism, other trials are left out.
    """
    balanced_rows = balanced(trials_of(runs))  # numbers of the rows that make a balanced grid
    if not balanced_rows:
        raise ReportError("main_effects: needs a balanced grid of two factors or more, which these trials are not")
    runs = runs.iloc[balanced_rows]
    levels = pd.DataFrame(find_factors(trials_of(runs)), index=runs.index)
    accuracy = METRICS["accuracy"].of(runs)
    total = float(((accuracy - accuracy.mean()) ** 2).sum())
    if total == 0:
        raise ReportError(f"main_effects: needs test accuracies that differ, got {common_value(accuracy):g} in all "
                          "trials")

    def explained(factors: Iterable[str]) -> float:
        """Return the share of the variance that lies between trials with different levels of these factors."""
        means = accuracy.groupby([levels[name] for name in factors]).transform("mean")
        return float(((means - accuracy.mean()) ** 2).sum()) / total

    by_factor = {name: explained([name]) for name in levels}
    by_pair = {}
    for first, second in combinations(by_factor, 2):
        joint_share = explained([first, second]) - by_factor[first] - by_factor[second]
        by_pair[f"{first} × {second}"] = max(0.0, joint_share)  # rounding may make it negative
    by_setting = explained(levels)
    rows = []
    for name in sorted(by_factor, key=lambda name: -by_factor[name]):
        for level, cell in accuracy.groupby(levels[name]):
            rows.append((name, level, cell.mean(), len(cell), by_factor[name]))
    shares_without_levels = sorted(by_pair.items(), key=lambda item: -item[1])
    if len(by_factor) > 2:
        unexplained_by_pairs = by_setting - sum(by_factor.values()) - sum(by_pair.values())
        shares_without_levels.append((INTERACTIONS, max(0.0, unexplained_by_pairs)))
    has_seeds = len(runs) > len(levels.drop_duplicates())  # several trials of one setting
    if has_seeds:
        shares_without_levels.append((SEEDS, 1 - by_setting))
    rows += [(name, "", np.nan, len(runs), share) for name, share in shares_without_levels]
    return pd.DataFrame(rows, columns=COLUMNS)


def plot(table: pd.DataFrame) -> Figure:
    """Plot a panel per factor with the mean of every level, on a common accuracy axis; the largest effect is first."""
    with_levels = table[table["level"] != ""]
    names = list(dict.fromkeys(with_levels["factor"]))
    with style.theme():
        figure, axes = style.panels(len(names), PER_ROW, width=2.3, height=2.5, beside=(0.6, 0.0), sharey=True)
        for name, ax in zip(names, axes, strict=True):
            rows = with_levels[with_levels["factor"] == name].to_dict("records")
            rows.sort(key=lambda row: level_order(row["level"]))
            labels = [without_formulas(level_text(name, row["level"])) for row in rows]
            ax.plot(range(len(rows)), [row["mean"] for row in rows], color="0.25", marker="o", markersize=4.5)
            is_long = max(map(len, labels)) > LONG_LABEL  # long labels beside each other would overlap
            ax.set_xticks(range(len(rows)), labels, rotation=45 if is_long else 0)
            ax.margins(x=0.15)
            share = rows[0]["explained"]  # the same in all rows of a factor
            ax.set_title(f"{name}: < 1%" if share < 0.005 else f"{name}: {share:.0%}")  # instead of a rounded 0%
        for ax in axes[::PER_ROW]:
            ax.set_ylabel("Mean test accuracy (%)")
    return figure


def texts(table: pd.DataFrame, n_trials: int) -> Texts:
    """Return a caption, and a table of the variance that each factor, pair of factors and other part explains.

    `n_trials` counts the trials that `tabulate` left out, too.
    """
    rows = []
    for name, part in table.groupby("factor", sort=False):
        level_means = part["mean"]
        best_level = best_mean = mean_range = NO_VALUE  # of a part without levels, for example a pair
        if level_means.notna().any():
            levels = [level_text(name, level) for level in part["level"]]
            best = leaders(dict(zip(levels, level_means, strict=True)))
            best_level = joined(best, "or") if len(best) < len(levels) else "no difference"
            best_mean, mean_range = f"{level_means.max():.2f}", f"{level_means.max() - level_means.min():.2f}"
        share = common_value(part["explained"])
        rows.append([name, f"{100 * share:.1f}", best_level, best_mean, mean_range])
    n_used = int(table["trials"].iloc[-1])  # the last row is of a part without levels, to which all trials belong
    caption = (f"Main effects on test accuracy (%) over n = {n_used} trials of a balanced grid: variance that each "
               "setting explains, the level with the best mean, and the range of its level means, in points; no "
               "intervals.")
    notes = ["A pair, `a × b`, explains what both together do beyond each: where it is large, the better level of one "
             "depends on the other."]
    if n_used < n_trials:
        notes.append(f"{n_trials - n_used} trials without a mechanism are left out.")
    header = ["setting", "variance explained %", "best level", "mean test %", "range"]
    return Texts((caption, Table.of(header, rows, text_columns=(0, 2))), notes=tuple(notes))
