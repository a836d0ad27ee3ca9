"""Figures 2 to 4 of Lee & Kifer 2020: accuracy by epoch for each method and reading of the algorithm.

There is a panel per noise, with the paper's epsilon on its top axis and every curve's epsilon in its legend.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import product

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from analysis import style
from analysis.exhibits.exhibit import Exhibit, Texts
from analysis.exhibits.needs import readings, update_sigma
from analysis.exhibits.table import Table
from analysis.labels import DATASETS, NO_VALUE, NON_PRIVATE, algorithm_labels
from analysis.runs import ReportError, ask, common_value, load_history, noise_sources, require_replicates
from analysis.text import means_text, under_assumptions
from pipeline.tracking.reader import Reader
from pipeline.trials.config import settings
from pipeline.trials.kinds import standing
from pipeline.trials.records import ACCURACY
from pipeline.trials.sampler import relation_of

ACCURACIES = (ACCURACY, "test/accuracy")  # the first that all trials have by epoch is used
PUBLISHED = "epsilon/certified/rdp/classic"  # the paper's accounting
TIGHT = ("epsilon/certified/pld", "epsilon/certified/rdp/improved")  # the first that a trial has is used
CURVES = ["dataset", "algorithm", "reading", "sigma"]
STYLES = ("-", (0, (5, 1.5)), (0, (1.5, 1)), (0, (5, 1.5, 1, 1.5)), (0, (9, 2)))  # of readings, in turn
TICKS = 4  # ticks of epsilon
MARKERS = 12  # some markers along a curve


def draw(runs: pd.DataFrame, store: Reader) -> Exhibit:
    """Make the exhibit of runs with histories in the store; errors as in `tabulate` and `plot`."""
    table = tabulate(runs, store)
    return Exhibit("leekifer", title="Accuracy by epoch, and ε spent", texts=texts(table), rows=table.round(6),
                   figure=plot(table))


def tabulate(runs: pd.DataFrame, store: Reader) -> pd.DataFrame:
    """Return accuracy (%) and epsilons by epoch, a row per trial and epoch.

    sigma is the standard deviation of the noise on each coordinate of the mean update (Algorithm 1). Without privacy it
    is 0, and `noise` and the epsilons are empty. The epsilons are for the largest contribution of a record under the
    reading. Trials of one curve may differ only in their seed (`MixedTrials`). Every trial needs accuracy of several
    epochs, and a private one an epsilon of the published accounting (`ReportError`).
    """
    runs = runs.assign(reading=reading_of(runs))
    for _, dataset_runs in runs.groupby("dataset"):
        require_replicates(dataset_runs, ["reading"])
    by_epoch = accuracy_by_epoch(runs, store)
    for column, metrics in (("epsilon_published", (PUBLISHED,)), ("epsilon_tight", TIGHT)):
        histories = [load_history(runs, metric, store)[["trial_key", "epoch", "value"]] for metric in metrics]
        # The first metric that a trial has is kept.
        history = pd.concat(histories).drop_duplicates(["trial_key", "epoch"]).rename(columns={"value": column})
        by_epoch = by_epoch.merge(history, how="left", on=["trial_key", "epoch"])
    trials = runs.assign(sigma=ask(runs, update_sigma).astype(float), noise=noise_sources(runs))
    table = trials[["trial_key", *CURVES, "seed", "delta", "noise"]].merge(by_epoch, on="trial_key")
    without_epsilon = table[(table["sigma"] > 0) & table["epsilon_published"].isna()]
    if len(without_epsilon):
        first_key = without_epsilon["trial_key"].iloc[0]
        raise ReportError(f"leekifer: needs {PUBLISHED} of every private trial (sampler without_replacement), trial "
                            f"{first_key} has none")
    return table.drop(columns="trial_key").sort_values([*CURVES, "seed", "epoch"], ignore_index=True)


def accuracy_by_epoch(runs: pd.DataFrame, store: Reader) -> pd.DataFrame:
    """Return trial_key, epoch, accuracy in percent, and `accuracy_of`, which is `validation` or `test`."""
    for metric in ACCURACIES:
        history = load_history(runs, metric, store)
        if set(history["trial_key"]) == set(runs["trial_key"]) and history["epoch"].nunique() > 1:
            split, _, _ = metric.partition("/")
            return history[["trial_key", "epoch"]].assign(accuracy=100 * history["value"], accuracy_of=split)
    raise ReportError(f"leekifer: needs {' or '.join(ACCURACIES)} of every trial by epoch")


def reading_of(runs: pd.DataFrame) -> pd.Series:
    """Return each run's reading of Lee and Kifer's algorithm as text, for example `bounding scale`; empty for defaults.

    It names the `readings` fields that vary within an algorithm. If activations vary, all are named, as the paper's
    is not the default.
    """
    parts_by_run: list[list[str]] = [[] for _ in range(len(runs))]
    names = readings()
    for field in (field for field in settings() if field.name in names):
        default = str(field.default).lower()
        values = runs[field.name].map(lambda value: str(value).lower()).where(runs[field.name].notna(), default)
        if values.groupby(runs["algorithm"]).nunique().max() == 1:
            continue
        for parts, value in zip(parts_by_run, values, strict=True):
            if field.name == "activation" or value != default:
                parts.append(f"{field.name} {value}")
    return pd.Series([", ".join(parts) for parts in parts_by_run], index=runs.index, dtype=str)


def plot(table: pd.DataFrame) -> Figure:
    """Plot the table of `tabulate`: a panel for each data set and sigma, with one legend."""
    datasets = [dataset for dataset in DATASETS if dataset in set(table["dataset"])]
    sigmas = sorted(sigma for sigma in table["sigma"].unique() if sigma > 0)
    if not sigmas:
        raise ReportError("leekifer: needs private trials, found none")
    with style.theme():
        figure, axes = style.panels(len(datasets) * len(sigmas), height=2.9, per_row=len(sigmas))
        lines: dict[str, Line2D] = {}  # by name
        for (dataset, sigma), ax in zip(product(datasets, sigmas), axes, strict=True):
            # Trials without privacy (sigma 0) are in every panel, for comparison.
            lines |= panel(table[(table["dataset"] == dataset) & table["sigma"].isin([0, sigma])], ax)
            style.name_axes(ax, "Epoch", f"{common_value(table['accuracy_of']).capitalize()} accuracy (%)",
                            f"{DATASETS[dataset].label}, σ = {sigma:.3g}")
        style.name_once(axes)
        n_seeds = table.groupby(CURVES)["seed"].nunique()
        for line, spent in zip(lines.values(), tight(table, lines), strict=True):
            line.set_label(f"{line.get_label()}{spent}")
        style.legend(figure, [*lines.values()], f"{style.seeds(n_seeds, 'least to greatest')}; tight ε, by panel")
    return figure


def tight(table: pd.DataFrame, names: Iterable[str]) -> list[str]:
    """Return each line's tight epsilon after the last epoch, in every panel: `: ε = 19.95, 1.07`."""
    last = table[table["epoch"] == table.groupby(CURVES)["epoch"].transform("max")].dropna(subset="epsilon_tight")
    spent = last.groupby([last.apply(lambda row: method(row["algorithm"], row["sigma"], row["reading"]), axis=1),
                          "dataset", "sigma"])["epsilon_tight"].max()
    return [f": ε = {', '.join(map(number, spent[name]))}" if name in spent else "" for name in names]


def panel(table: pd.DataFrame, ax: Axes) -> dict[str, Line2D]:
    """Plot accuracy by epoch of one data set at one sigma, non-private references (sigma 0) dashed; return the lines.

    The top axis has the published epsilon of every epoch, the smallest of all curves.
    """
    lines: dict[str, Line2D] = {}
    names = ["", *sorted(set(table["reading"]) - {""})]  # of readings, that of the defaults first
    for (algorithm, reading, sigma), cell in table.groupby(["algorithm", "reading", "sigma"]):
        by_epoch = cell.groupby("epoch")["accuracy"].agg(["mean", "min", "max"])
        label = method(algorithm, sigma, reading)
        linestyle = STYLES[names.index(reading) % len(STYLES)] if sigma else "--"
        color = style.PALETTE[algorithm]
        (lines[label],) = ax.plot(
            by_epoch.index, by_epoch["mean"], color=color, marker=style.look(algorithm)["marker"], markersize=3,
            markeredgewidth=0, markevery=max(1, len(by_epoch) // MARKERS), linestyle=linestyle, label=label)
        if cell["seed"].nunique() > 1:
            ax.fill_between(by_epoch.index, by_epoch["min"], by_epoch["max"], color=color, alpha=0.15, linewidth=0)
    ax.xaxis.set_major_locator(MaxNLocator(nbins=TICKS + 1, integer=True))
    published = table.dropna(subset="epsilon_published").groupby("epoch")["epsilon_published"].min()
    places = np.linspace(0, len(published) - 1, TICKS + 1).round().astype(int)[1:]  # evenly spaced, without the first
    ticks = published.iloc[np.unique(places)]
    top = ax.secondary_xaxis("top")
    top.set_xticks(ticks.index, [f"{epsilon:.2f}" for epsilon in ticks])
    top.set_xlabel("ε by the published accounting")
    return lines


def method(algorithm: str, sigma: float, reading: str = "") -> str:
    """Return a curve's name: `DP-DFA`, `DP-DFA, bounding scale`, or `BP, non-private`."""
    label = algorithm_labels()[algorithm]
    parts = [f"DP-{label}"] if sigma else [label, NON_PRIVATE]
    if reading:
        parts.append(reading)
    return ", ".join(parts)


def number(epsilon: float) -> str:
    """Return an epsilon as text: `12.34`; from 1000 on without decimals, `1,234`; from 1e5 on `1.23e+05`."""
    if math.isnan(epsilon):
        return NO_VALUE
    if epsilon < 1000:
        return f"{epsilon:.2f}"
    if epsilon < 1e5:
        return f"{epsilon:,.0f}"
    return f"{epsilon:.2e}"


def texts(table: pd.DataFrame) -> Texts:
    """Return a caption, and a table of accuracy after the last epoch with both epsilons; the best method first."""
    last = table[table["epoch"] == table.groupby(CURVES)["epoch"].transform("max")]
    cells = last.groupby(CURVES, as_index=False).agg(
        accuracy=("accuracy", "mean"), n=("seed", "nunique"), epochs=("epoch", "max"),
        published=("epsilon_published", "max"), tight=("epsilon_tight", "max"))
    cells = cells.sort_values(["dataset", "sigma", "accuracy"], ascending=[True, True, False])
    split = common_value(table["accuracy_of"])  # validation or test
    trials = last[last["sigma"] > 0].drop_duplicates([*CURVES, "seed"])
    header = ("data set", "σ", "method", f"{split} accuracy (%)", "n", "epochs", "ε published", "ε tight")
    rows = []
    for row in cells.itertuples():
        rows.append([DATASETS[row.dataset].label, f"{row.sigma:.3g}", method(row.algorithm, row.sigma, row.reading),
                     f"{row.accuracy:.2f}", f"{row.n}", f"{row.epochs}", number(row.published), number(row.tight)])
    epsilon = under_assumptions("certified", [relation_of("without_replacement")], ["without_replacement"],
                                trials["delta"], standing(trials["noise"]))
    caption = (f"{split.capitalize()} accuracy (%) by epoch and, in the table, after the last: "
               f"{means_text(cells['n'], 'from least to greatest')}; {epsilon}, `published` by Lee & Kifer's "
               "accounting, `tight` by the tightest.")
    notes = ("`published` is by the RDP bound and classic conversion of Lee & Kifer 2020; `tight` by privacy loss "
             "distributions or, where there is too little noise for them, by the improved conversion.",
             "Both are of the most that a record can contribute, which under some readings is more than the paper's "
             "formula takes.")
    return Texts((caption, Table.of(header, rows, text_columns=(0, 2))), notes=notes)
