"""How settings for a data set are chosen on the others: the table of analysis/results/left_out, from its trials.

    python docs/left_out.py

A setting is a map of images with a step size, and its regret on a data set is its distance from the best one there, in
points of validation accuracy. For each data set the setting with the least mean regret on the others is taken.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd

FOLDER = Path(__file__).parent.parent / "analysis" / "results" / "left_out"
EPSILON = 3
LABELS = {"cifar10": "CIFAR-10", "fashion_mnist": "Fashion-MNIST", "mnist": "MNIST"}


def candidates(trials: pd.DataFrame) -> pd.DataFrame:
    """Validation accuracy in %, a row per setting that was tried on every data set, a column per data set."""
    at = trials[(trials["epsilon"] == EPSILON) & (trials["epochs"] == trials["epochs"].min())]
    table = at.pivot_table(index=["map", "learning_rate"], columns="dataset", values="validation/accuracy")
    return 100 * table.dropna()


def chosen(table: pd.DataFrame) -> pd.DataFrame:
    """For every data set, the setting chosen on the others and the one chosen on itself, as labels of `table`."""
    regret = table.max() - table
    rows = {name: {"left out": regret.drop(columns=name).mean(axis=1).idxmin(), "tuned": regret[name].idxmin()}
            for name in table}
    return pd.DataFrame.from_dict(rows, orient="index")


def page(trials: pd.DataFrame) -> str:
    """The settings with their accuracies, and the choices, in Markdown."""
    table = candidates(trials)
    lines = ["| map | step size | " + " | ".join(LABELS[name] for name in table) + " |",
             "| --- | ---: | " + " | ".join("---:" for _ in table) + " |"]
    lines += [f"| {setting[0]} | {setting[1]:g} | " + " | ".join(f"{value:.2f}" for value in row) + " |"
              for setting, row in zip(table.index, table.to_numpy(), strict=True)]
    lines += ["", "| data set | chosen on the others | tuned |", "| --- | --- | --- |"]
    lines += [f"| {LABELS[str(name)]} | " + " | ".join(f"{which[0]}, {which[1]:g}" for which in row) + " |"
              for name, row in zip(chosen(table).index, chosen(table).to_numpy(), strict=True)]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    (FOLDER / "choices.md").write_text(page(pd.read_csv(FOLDER / "validation.csv")), encoding="utf-8")
