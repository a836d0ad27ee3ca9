"""The answer first: which algorithm is best at which epsilon, by how much, and whether seeds could have done it."""

from __future__ import annotations

import numpy as np
import pandas as pd

from analysis.exhibits.frontier.points import GUARANTEED, PROTECTED, asked, shown, summarized, tightest
from analysis.exhibits.metrics import METRICS
from analysis.exhibits.selection import Choice
from analysis.runs import ALGORITHM_LABELS, DATASET_LABELS, MixedTrials, ReportError
from analysis.statistics import difference_of

MOST = 3  # epsilons of one kind that get a sentence of their own


def compose(runs: pd.DataFrame) -> list[str]:
    """Sentences on test accuracy, per data set and kind of epsilon that guarantees anything: who has the highest mean
    at which epsilon and, at up to three of them, the lead over the next with its 95% t interval over seeds
    (`analysis.statistics.difference_of`).

    A kind whose trials make no one frontier, for they differ in relation or delta, or lack what one chooses by, has a
    sentence that says so.
    """
    sentences = []
    for dataset, part in runs.groupby("dataset", sort=False):
        place = f" on {DATASET_LABELS[dataset]}" if runs["dataset"].nunique() > 1 else ""
        for kind in (kind for kind in GUARANTEED if tightest(part, kind).notna().any()):
            try:
                sentences += _of_kind(part, kind, place)
            except (MixedTrials, ReportError) as error:
                sentences.append(f"No frontier of {kind} ε{place}: {error}.")
    return sentences or ["No trial has an ε that guarantees anything; what noise there is, is a noise level."]


def published(choice: Choice) -> str:
    """A sentence on what a search publishes within its budget, which single trials would be cheaper than."""
    paid = choice.selected
    return (f"For ε = {paid.value:g} at δ = {paid.delta:g}, of all that it released ({PROTECTED['certified']}; "
            f"{choice.standing}), the search publishes {choice.name}: test accuracy {100 * choice.test:.2f}%, chosen "
            f"by its validation accuracy of {100 * choice.validation:.2f}%.")


def _of_kind(runs: pd.DataFrame, kind: str, place: str) -> list[str]:
    behind = shown(runs, kind)
    points = summarized(behind, kind)
    points = points.assign(asked=asked(points)).sort_values("mean", ascending=False, kind="stable")
    what = f"{kind} ε ({PROTECTED[kind]})"
    compared = {epsilon: group for epsilon, group in points.groupby("asked") if group["algorithm"].nunique() > 1}
    if not compared:
        best = points.iloc[0]
        return [f"The highest mean test accuracy{place} under {what} is {_score(best)}, of {_label(best)} at "
                f"ε = {best['epsilon']:.3g}."]
    winners: dict[str, list[str]] = {}
    for epsilon, group in compared.items():
        winners.setdefault(_label(group.iloc[0]), []).append(f"{epsilon:.3g}")
    names = "; ".join(f"{name} at {', '.join(epsilons)}" for name, epsilons in winners.items())
    most = points["choices"].max()
    chosen = f", each at the best of up to {most} settings by validation" if most > 1 else ""
    told = sorted(compared)
    if len(told) > MOST:
        told = [told[0], min(told[1:-1], key=lambda e: abs(np.log(e / 3))), told[-1]]
    return [f"Highest mean test accuracy{place} by {what}{chosen}: {names}.",
            *(_lead(compared[epsilon], epsilon, behind) for epsilon in told)]


def _lead(group: pd.DataFrame, epsilon: float, behind: pd.DataFrame) -> str:
    """`At ε ≤ 3: BP 85.69 ± 0.26, ahead of DFA by 0.49 (95% interval -0.1 to 1.1: seeds alone could do that).`"""
    first, second = group.drop_duplicates("algorithm").iloc[:2].to_dict("records")
    a, b = (behind[(behind["algorithm"] == row["algorithm"]) & (behind["setting"] == row["setting"])
                   & (behind["chosen"] == row["chosen"])].set_index("seed")["value"] for row in (second, first))
    difference, how = difference_of(a, b)
    if np.isnan(difference.low):
        verdict = "one seed, so nobody knows how far seeds differ"
    else:
        low, high = (f"{end:+.2f}".replace("-", "−") for end in (difference.low, difference.high))
        held = "beyond what seeds explain" if difference.low > 0 else "within what seeds explain"
        verdict = f"95% interval {low} to {high}, n = {difference.n} seeds, {how}: {held}"
    return (f"At ε ≤ {epsilon:.3g}: {_label(first)} {_score(first)}, ahead of {_label(second)} by "
            f"{difference.mean:.2f} points ({verdict}).")


def _label(row: pd.Series | dict) -> str:
    return ALGORITHM_LABELS[row["algorithm"]]


def _score(row: pd.Series | dict) -> str:
    return f"{METRICS['accuracy'].text(row['mean'], row['half_width'])}%"
