"""How settings for a data set are chosen on the others: the table of analysis/results/left_out, from its trials.

    python experiments/left_out/left_out.py

A setting is a map of images with a step size, and its regret on a data set is its distance from the best one there, in
points of validation accuracy. For each data set the setting with the least mean regret on the others is taken, among
those that were tried on all of the others. `pilots.py` takes the rule of its last trial in the same way.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from analysis.statistics import mean_interval, plus_minus

RESULTS = Path(__file__).parents[2] / "analysis" / "results"
FOLDER = RESULTS / "left_out"
EPSILON, EPOCHS = 3, 20  # of the trials by which settings are compared
RULE = ["learning_rate", "output_std", "denoise", "epochs"]  # settings that one rule of step sizes fixes
METHODS = {"dfa": "DFA", "softmax": "softmax regression", "bp": "BP", "pdfa": "PDFA"}
LABELS = {"cifar10": "CIFAR-10", "fashion_mnist": "Fashion-MNIST", "mnist": "MNIST"}
# sweeps, by how their settings were chosen
WAYS = {"cifar10": {"joint map": ["joint_cifar10", "joint_cifar10_ends"],
                    "earlier maps": ["left_out_cifar10"], "tuned": ["tuned_cifar10"]},
        "fashion_mnist": {"joint map": ["joint_fashion", "joint_fashion_ends"],
                          "earlier maps": ["left_out_fashion"], "tuned": ["beside_fashion"]},
        "mnist": {"joint map": ["joint_mnist", "joint_mnist_ends"],
                  "earlier maps": ["left_out_mnist"], "tuned": ["tuned_mnist"]}}


def candidates(trials: pd.DataFrame, method: str) -> pd.DataFrame:
    """Validation accuracy of a method in %, a row per map, step size and threshold (0 without one), a column per data
    set; NaN where not tried."""
    at = trials.fillna({"threshold": 0}).query("algorithm == @method and epsilon == @EPSILON and epochs == @EPOCHS")
    return 100 * at.pivot(index=["map", "learning_rate", "threshold"], columns="dataset", values="validation/accuracy")


def rules(trials: pd.DataFrame) -> pd.DataFrame:
    """Validation accuracy in %, mean over seeds, a row per rule of step sizes (see `RULE`), a column per data set."""
    return 100 * trials.groupby([*RULE, "dataset"])["validation/accuracy"].mean().unstack()


def chosen(table: pd.DataFrame) -> dict[str, tuple[tuple[Any, ...], tuple[Any, ...]]]:
    """For every data set, the setting chosen on the others, of all that were tried on each of these, and the best one
    on itself, as labels of `table`."""
    regret = table.max() - table
    return {str(name): (regret.drop(columns=name).dropna().mean(axis=1).idxmin(), regret[name].idxmin())
            for name in table}


def accuracies(sweeps: Sequence[str]) -> pd.Series:
    """Return test accuracies in % of trials in `analysis/results`, by (total, seed)."""
    runs = pd.concat([pd.read_csv(*RESULTS.glob(f"*/{sweep}.csv")) for sweep in sweeps])
    return 100 * runs.rename(columns={"target_epsilon": "total"}).set_index(["total", "seed"])["test/accuracy"]


def three_ways(pilots: pd.DataFrame) -> list[str]:
    """Return test accuracies of settings chosen on the other data sets, on the same one, and there within the budget;
    then their distance from those of the same one, paired by seed; two tables in Markdown.

    Args:
        pilots: a row per search: the data set, the `total` epsilon, the seed, the test accuracy as a fraction.
    """
    align = "| --- | --- | ---: | ---: | ---: |"
    means = ["| data set | settings | ε ≤ 1 | ε ≤ 3 | ε ≤ 8 |", align]
    gains = ["| data set | points more than tuned | ε ≤ 1 | ε ≤ 3 | ε ≤ 8 |", align]
    for dataset, label in LABELS.items():
        paid = pilots[pilots["dataset"] == dataset].set_index(["total", "seed"])["test/accuracy"]
        ways = {way: accuracies(sweeps) for way, sweeps in WAYS[dataset].items()} | {"pilots": 100 * paid}
        for way, reached in ways.items():
            start = f"| {label} | {way} | "
            means.append(start + " | ".join(_accuracy(reached[total]) for total in (1, 3, 8)) + " |")
            if way != "tuned":
                differences = [mean_interval(reached[total] - ways["tuned"][total]) for total in (1, 3, 8)]
                gains.append(start + " | ".join(plus_minus(difference.mean, half_width=difference.half_width)
                                                for difference in differences) + " |")
    return [*means, "", *gains]


def _accuracy(values: pd.Series) -> str:
    """Return the mean of accuracies in %, with its interval, as text."""
    accuracy = mean_interval(values)
    return plus_minus(accuracy.mean, half_width=accuracy.half_width, minimum=0, maximum=100)


def paid_lines(ways: Mapping[str, pd.DataFrame]) -> list[str]:
    """Return a table of the test accuracy of choices that an epsilon covers, in Markdown.

    Args:
        ways: way of choosing -> a row per sweep: the data set, the test accuracy as a fraction, the `total` epsilon and
            what is spent of it, `selected_epsilon`.
    """
    lines = ["| data set | chosen within the budget by | budget | test accuracy | epsilon of the choice |",
             "| --- | --- | ---: | ---: | ---: |"]
    for name, label in LABELS.items():
        for way, sweeps in ways.items():
            for total, alike in sweeps[sweeps["dataset"] == name].groupby("total"):
                cell = _accuracy(100 * alike["test/accuracy"])
                lines.append(f"| {label} | {way} | {total:g} | {cell} | {alike['selected_epsilon'].max():.3f} |")
    return lines


def comparison(table: pd.DataFrame, head: str, align: str, cells: Mapping[Any, Sequence[str]],
               chosen_head: str) -> list[str]:
    """Return the settings of `table` with their accuracies, and the choice for each data set, in Markdown.

    Args:
        table: from `candidates` or `rules`.
        head, align: the first line of the table and its alignment, of the columns that name a setting.
        cells: label of a setting in `table` -> its cells in these columns.
        chosen_head: heading of the choices.
    """
    lines = [f"| {head} | " + " | ".join(LABELS[name] for name in table) + " |",
             f"| {align} | " + " | ".join("---:" for _ in table) + " |"]
    for label, row in zip(table.index, table.to_numpy(), strict=True):
        values = " | ".join("" if math.isnan(value) else f"{value:.2f}" for value in row)
        lines.append(f"| {' | '.join(cells[label])} | {values} |")
    lines += ["", f"| data set | {chosen_head} | best on itself |", "| --- | --- | --- |"]
    return lines + [f"| {LABELS[name]} | " + " | ".join(", ".join(cells[label]) for label in both) + " |"
                    for name, both in chosen(table).items()]


def page(trials: pd.DataFrame, rule_trials: pd.DataFrame, ways: Mapping[str, pd.DataFrame]) -> str:
    """Return the settings with their accuracies, the choices, and what paid choices reach, in Markdown."""
    steps, lines = rules(rule_trials), []
    for method, name in METHODS.items():
        maps = candidates(trials, method)
        map_names = {(kind, step, bound): [kind, f"{step:g}{f', threshold {bound:g}' if bound else ''}"]
                     for kind, step, bound in maps.index}
        lines += [*comparison(maps, f"map ({name}) | step size", "--- | ---:", map_names, "chosen on the others"), ""]
    rule_names = {rule: [f"{rule[0]:g}, `output_std` {rule[1]:g}{', `denoise`' if rule[2] else ''}, {rule[3]} epochs"]
                  for rule in steps.index}
    return "\n".join([
        *lines,
        *comparison(steps, "rule of the last trial after pilots", "---", rule_names, "rule chosen on the others"), "",
        *paid_lines(ways), "",
        *three_ways(ways["three cheap pilots"])]) + "\n"


if __name__ == "__main__":
    ways = {"two full trials": pd.read_csv(FOLDER / "paid.csv"),
            "three cheap pilots": pd.read_csv(FOLDER / "pilots.csv")}
    text = page(pd.read_csv(FOLDER / "validation.csv"), pd.read_csv(FOLDER / "rules.csv"), ways)
    (FOLDER / "choices.md").write_text(text, encoding="utf-8")
