"""Accuracy and alignment against one setting: batch size, tau_h or the clipping norm, a curve per algorithm."""

from __future__ import annotations

import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis import style
from analysis.exhibits.envelope import best_cells
from analysis.exhibits.exhibit import Exhibit
from analysis.exhibits.metrics import METRICS
from analysis.runs import NON_PRIVATE, ReportError, by_noise, noise_sources, setting_label
from analysis.text import BARS, epsilon_text, means_text
from pipeline.accounting.label import RELATION as LABEL_RELATION
from pipeline.accounting.noise import standing
from pipeline.experiment.exhibits import SWEPT

FIELD_LABELS = {"batch_size": "Batch size m", "tau_h": "$\\tau_h$ (bound on activations)",
                "clipping_norm": "Clipping norm C"}
SHOWN = ("accuracy", "alignment")
TARGETS = {"epsilon": "certified", "label_epsilon": "label"}
KIND_OF_TARGET = {**TARGETS, "label_epsilon": "label (features public)"}
TITLES = {"tau_h_sweep": "Accuracy and alignment by activation bound",
          "batch_size_sweep": "Accuracy and alignment by batch size",
          "clipping_norm_sweep": "Accuracy and alignment by clipping norm"}
AGAINST = {"tau_h_sweep": "the bound τ_h on the activations",
           "batch_size_sweep": "batch size at a fixed number of epochs",
           "clipping_norm_sweep": "the clipping norm C"}


def draw(runs: pd.DataFrame, *, name: str) -> Exhibit:
    """Make one of the exhibits in `TITLES`; errors as in `tabulate`."""
    table = tabulate(runs, SWEPT[name])
    caption = (f"Test accuracy and alignment of the hidden layers against {AGAINST[name]}, a row for each noise: "
               f"{means_text(table['n'], BARS)}")
    return Exhibit.of_means(name, title=TITLES[name], caption=caption, rows=table, figure=plot(table, SWEPT[name]),
                            notes=target_notes(runs, table))


def target_notes(runs: pd.DataFrame, table: pd.DataFrame) -> list[str]:
    """Return a sentence for every kind of target epsilon in the table: relation, sampler, delta, and its standing."""
    sentences = []
    for target, kind in TARGETS.items():
        rows = table[table["setting"].str.startswith(f"{target}=")]
        if len(rows):
            trials = runs[runs["setting"].isin(rows["setting"])]
            epsilon = epsilon_text(kind, rows["relation"], rows["sampler"], rows["delta"],
                                   standing(noise_sources(trials)))
            sentences.append(f"Targets are of {epsilon}.")
    return sentences


def tabulate(runs: pd.DataFrame, field: str) -> pd.DataFrame:
    """Return accuracy and alignment at the last epoch along a field, over seeds, a row per mean.

    Columns: algorithm, setting, the field, metric and `SUMMARY`, relation, sampler, delta, and `chosen` and `choices`
    (`envelope.best_cells`). Trials without the field are left out. There must be trials that have the field; other
    errors as in `best_cells`.
    """
    swept_runs = runs.dropna(subset=field)
    if swept_runs.empty:
        raise ReportError(f"{field}_sweep: needs trials that have a {field}, found none")
    of_labels = swept_runs["setting"].str.startswith("label_epsilon")
    swept_runs = swept_runs.assign(relation=swept_runs["privacy.relation"].mask(of_labels, LABEL_RELATION))
    by = ["algorithm", "setting", field]
    return pd.concat([best_cells(swept_runs, by, metric, ("relation", "sampler", "delta")) for metric in SHOWN],
                     ignore_index=True)


def plot(table: pd.DataFrame, field: str) -> Figure:
    """Plot a row per noise setting, accuracy on the left and alignment on the right, 3.6 x 2.9 inches each."""
    settings = by_noise(table["setting"])
    with style.theme():
        figure = Figure(figsize=(3.6 * len(SHOWN) + 1.6, 2.9 * len(settings)), layout="constrained")
        style.widen_columns(figure)
        axes = figure.subplots(len(settings), len(SHOWN), squeeze=False, sharex=True, sharey="col")
        for setting, row in zip(settings, axes, strict=True):
            for metric, ax in zip(SHOWN, row, strict=True):
                panel(table[(table["setting"] == setting) & (table["metric"] == metric)], field, ax)
                ax.set_ylabel(METRICS[metric].label)
                style.log_axis(ax, table[field])
        for metric, ax in zip(SHOWN, axes[-1], strict=True):
            ax.set_xlabel(FIELD_LABELS[field])
            style.within(ax, METRICS[metric].low, METRICS[metric].high)  # panels of a column share the axis
        figure.legend(handles=style.handles(table), loc="outside right center", alignment="left",
                      title=style.seeds(table["n"]))
    return figure


def panel(points: pd.DataFrame, field: str, ax: Axes) -> Axes:
    """Plot one metric along the field at one noise setting, from rows of `tabulate`; the title has the guarantee."""
    for algorithm, shift in style.shifts(points).items():
        curve_points = points[points["algorithm"] == algorithm]
        style.curve(ax, curve_points, x=field, algorithm=algorithm, shift=shift)
    ax.set_title(noise_title(points))
    sns.despine(ax=ax)
    return ax


def noise_title(points: pd.DataFrame) -> str:
    """Return `certified ε ≤ 3, add/remove, δ = 1e-05`, `label (features public) ε ≤ 3, ...`, or a noise level.

    A noise level alone has no guarantee.
    """
    first = points.iloc[0]  # all points have one noise setting
    setting = first["setting"]
    label = setting_label(setting)
    if setting == NON_PRIVATE:
        return label
    kind = KIND_OF_TARGET.get(setting.rpartition("=")[0])
    if kind is None:
        return f"{label} (a noise level)"
    return f"{kind} {label.removeprefix('label ')}, {first['relation']}, δ = {first['delta']:g}"
