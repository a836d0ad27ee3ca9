"""What two experiments differ by: trials are matched by all settings that do not differ between the experiments."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from analysis.exhibits.exhibit import Texts
from analysis.exhibits.table import Table
from analysis.labels import DATASETS, NO_VALUE, algorithm_labels, is_missing, setting_label, value_text
from analysis.runs import ReportError, ask, require_seeds_alone, setting_names
from analysis.statistics import PAIRED, WELCH, difference_of
from analysis.text import n_seeds
from pipeline.experiment.experiment import Experiment
from pipeline.trials.naming import counted
from pipeline.trials.ranking import is_difference

ACCURACY = "test/accuracy"
MAX_EXAMPLES = 3  # differences in a headline
PERCENT = ("test/accuracy", "validation/accuracy", "test/worst_class_accuracy")


@dataclass(frozen=True)
class Side:
    """One of the two experiments: its name, and its trials from `load_runs`."""

    label: str
    experiment: Experiment
    runs: pd.DataFrame


@dataclass(frozen=True)
class Comparison:
    """Differences of B from A.

    `table` has a row per metric and pair of settings: `algorithm_a`, `algorithm_b`, `setting_a`, `setting_b`, the
    fields `shown`, metric, a_mean, b_mean, difference, low, high, n_a, n_b, interval; accuracies in percent.
    """

    a: Side
    b: Side
    table: pd.DataFrame
    shown: tuple[str, ...]  # further fields that distinguish the matched settings
    differs: dict[str, tuple[str, str]]  # field -> its values in A and in B, for fields without a common value
    unmatched: tuple[int, int]  # numbers of trials of A and of B without a counterpart


def compare(a: Side, b: Side) -> Comparison:
    """Return the difference of seed means, in every metric, for all matched settings of two experiments.

    Trials without privacy are matched separately, as references often have their own settings. If both sides have the
    same seeds, the interval is Student's for the differences by seed, otherwise Welch's. It covers only the variation
    between seeds. Refused are sides without a match (`ReportError`), and trials of one side that match the same trial
    but differ in more than their seed (`MixedTrials`).
    """
    pairs: list[tuple[pd.DataFrame, pd.DataFrame]] = []
    differs: dict[str, tuple[str, str]] = {}
    for is_private in (False, True):
        runs_a, runs_b = (side.runs[ask(side.runs, lambda trial: trial.parts.mechanism.private) == is_private]
                          for side in (a, b))
        matched, different = _match(runs_a, runs_b)
        pairs += matched
        if matched:
            differs |= {name: (_values(runs_a[name]), _values(runs_b[name])) for name in different}
    if not pairs:
        raise ReportError(f"{a.label} and {b.label}: no trial of one matches a trial of the other; the comparison is "
                          "over fields without a common value, and all other fields except the seed must be equal")

    rows: list[dict[str, Any]] = []
    for group_a, group_b in pairs:
        require_seeds_alone(group_a, a.label, "match the same trials")
        require_seeds_alone(group_b, b.label, "match the same trials")
        rows += _rows(group_a, group_b)
    table = pd.DataFrame(rows)
    varied = dict.fromkeys((*a.experiment.varied, *b.experiment.varied, "dataset"))
    shown = tuple(name for name in varied if name not in differs and table[name].map(_comparable).nunique() > 1)
    order = ["metric", "algorithm_a", "algorithm_b", "setting_a", "setting_b", *shown, "a_mean", "b_mean", "difference",
             "low", "high", "n_a", "n_b", "interval"]
    n_matched_a, n_matched_b = (sum(map(len, groups)) for groups in zip(*pairs, strict=True))
    return Comparison(a, b, table[order], shown, differs, (len(a.runs) - n_matched_a, len(b.runs) - n_matched_b))


def _match(a: pd.DataFrame, b: pd.DataFrame) -> tuple[list[tuple[pd.DataFrame, pd.DataFrame]], list[str]]:
    """Return pairs of matching groups of runs, and the fields in which A differs from B: no value is in both.

    The runs of a pair are equal in all other fields except the seed.
    """
    fields = [name for name in setting_names() if name != "seed"]
    settings_a, settings_b = (runs[fields].map(_comparable) for runs in (a, b))
    different = [name for name in settings_a if not set(settings_a[name]) & set(settings_b[name])]
    shared = [name for name in fields if name not in different]
    if not shared:  # as where one side has no runs
        return [], different
    groups_a = dict(list(a.groupby([settings_a[name] for name in shared], sort=False)))
    groups_b = dict(list(b.groupby([settings_b[name] for name in shared], sort=False)))
    return [(groups_a[values], groups_b[values]) for values in groups_a if values in groups_b], different


def texts(comparison: Comparison) -> Texts:
    """Return a caption, and a table of test accuracies of both sides and their differences."""
    header = ["algorithm", "noise", *comparison.shown, f"{comparison.a.label} %", f"{comparison.b.label} %",
              "difference", "95% interval", "n"]
    rows = []
    for row in accuracies(comparison).to_dict("records"):
        n = str(row["n_a"]) if row["n_a"] == row["n_b"] else f"{row['n_a']}, {row['n_b']}"
        interval = NO_VALUE if math.isnan(row["low"]) else f"{row['low']:+.2f} to {row['high']:+.2f}"
        values = [DATASETS[row[name]].label if name == "dataset" and row[name] in DATASETS else value_text(row[name])
                  for name in comparison.shown]
        difference = f"{row['difference']:+.2f}" if is_difference(row["difference"]) else "0.00"
        rows.append([*names_of(row), *values, f"{row['a_mean']:.2f}", f"{row['b_mean']:.2f}", difference, interval, n])
    n_text_columns = 2 + len(comparison.shown)  # algorithm, noise and the settings
    table = Table.of(header, rows, text_columns=range(n_text_columns))
    return Texts((caption(comparison), table), notes=(_differs(comparison), *_notes(comparison)))


def accuracies(comparison: Comparison) -> pd.DataFrame:
    """Return the rows of a comparison's table that are on test accuracy."""
    return comparison.table[comparison.table["metric"] == ACCURACY]


def names_of(row: Mapping[str, Any]) -> tuple[str, str]:
    """Return the names of a row's algorithm and noise; `DFA → BP` if they differ between the experiments."""
    algorithms = [algorithm_labels()[row[f"algorithm_{side}"]] for side in "ab"]
    settings = [setting_label(row[f"setting_{side}"]) for side in "ab"]
    return " → ".join(dict.fromkeys(algorithms)), " → ".join(dict.fromkeys(settings))


def caption(comparison: Comparison) -> str:
    """Return the caption: quantity, n and interval."""
    shown = accuracies(comparison)
    kinds = [kind for kind in (PAIRED, WELCH) if kind in set(shown["interval"])]
    interval = f"95% t intervals over seeds ({' or '.join(kinds)})" if kinds else "no interval, as n = 1"
    n = n_seeds(pd.concat([shown["n_a"], shown["n_b"]]))
    return (f"Test accuracy (%) at the last epoch, mean over {n}; difference is {comparison.b.label} less "
            f"{comparison.a.label}, in points; {interval}.")


def headline(comparison: Comparison) -> list[str]:
    """Return sentences on the differing settings, and on differences in test accuracy that seeds do not explain."""
    rows = accuracies(comparison)
    excludes_0 = (rows["low"] > 0) | (rows["high"] < 0)
    significant = rows[excludes_0 & rows["difference"].map(is_difference)]
    hidden = int(excludes_0.sum()) - len(significant)
    by_size = significant["difference"].abs().sort_values(ascending=False).index
    largest = "; ".join(f"{', '.join(names_of(row))}: {row['difference']:+.2f}"
                        for row in significant.reindex(by_size)[:MAX_EXAMPLES].to_dict("records"))
    examples = f" (largest: {largest})" if largest else ""
    more = f", and {hidden} more that are no difference at two decimals" if hidden else ""
    return [_differs(comparison),
            f"{counted(len(rows), 'difference')} in test accuracy, {comparison.b.label} less {comparison.a.label}, in "
            f"points: {len(significant)} with a 95% interval that excludes 0{examples}{more}."]


def _differs(comparison: Comparison) -> str:
    if not comparison.differs:
        return "The settings of matched trials are equal."
    differences = "; ".join(f"`{name}`: {values_a} against {values_b}"
                            for name, (values_a, values_b) in comparison.differs.items())
    return f"What differs: {differences}."


def _notes(comparison: Comparison) -> list[str]:
    a, b, rows = comparison.a, comparison.b, accuracies(comparison)
    sentences = []
    if (rows["interval"] != "").any():
        sentences.append(f"Of {counted(len(rows), 'interval')} about {0.05 * len(rows):.1f} would miss 0 by chance "
                         "alone.")
    diverged_a, diverged_b = (int((side.runs["status"] == "diverged").sum()) for side in (a, b))
    if diverged_a or diverged_b:
        sentences.append(f"Diverged, and counted with the weights they ended with: "
                         f"{counted(diverged_a, 'trial')} of {a.label}, {diverged_b} of {b.label}.")
    unmatched_a, unmatched_b = comparison.unmatched
    if unmatched_a or unmatched_b:
        sentences.append(f"Without a counterpart and left out: {counted(unmatched_a, 'trial')} of {a.label}, "
                         f"{unmatched_b} of {b.label}.")
    return sentences


def _rows(a: pd.DataFrame, b: pd.DataFrame) -> list[dict[str, Any]]:
    """Return a row of `Comparison.table` for each metric that all trials of two matched groups have.

    A group has the trials of one setting, a row per seed.
    """
    settings = {name: a[name].iloc[0] for name in setting_names() if name != "seed"}
    for side, group in (("a", a), ("b", b)):
        settings |= {f"algorithm_{side}": group["algorithm"].iloc[0], f"setting_{side}": group["setting"].iloc[0]}
    candidates = [name for name in a.columns if name.startswith(("alignment/", *PERCENT)) and name in b.columns]
    metrics = [name for name in candidates if a[name].notna().all() and b[name].notna().all()]
    if ACCURACY not in metrics:
        raise ReportError(f"{ACCURACY}: missing for a trial of {settings['algorithm_a']} {settings['setting_a']}")
    rows = []
    for name in metrics:
        factor = 100 if name in PERCENT else 1
        values_a, values_b = (group.set_index("seed")[name].sort_index() * factor for group in (a, b))
        difference, method = difference_of(values_a, values_b)
        interval = "" if math.isnan(difference.low) else method
        rows.append({**settings, "metric": name, "a_mean": values_a.mean(), "b_mean": values_b.mean(),
                     "difference": difference.mean, "low": difference.low, "high": difference.high,
                     "n_a": len(a), "n_b": len(b), "interval": interval})
    return rows


def _values(column: pd.Series) -> str:
    return ", ".join(dict.fromkeys(map(value_text, column)))


def _comparable(value: object) -> object:
    """Return a setting's value, or `NO_VALUE` for None and nan: nan does not equal itself, so it could not match."""
    return NO_VALUE if is_missing(value) else value
