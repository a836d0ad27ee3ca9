"""Accuracy and alignment against one setting, a curve per algorithm and a row of panels per noise."""

from __future__ import annotations

from itertools import product

import pandas as pd
from matplotlib.figure import Figure

from analysis import style
from analysis.exhibits.catalogue import exhibit
from analysis.exhibits.envelope import cells
from analysis.exhibits.exhibit import Exhibit
from analysis.exhibits.metrics import METRICS
from analysis.runs import NON_PRIVATE, ReportError, by_noise, setting_label, trials_of
from analysis.text import BARS, epsilon_text, means_text
from pipeline.accounting.label import RELATION as LABEL_RELATION
from pipeline.experiment.exhibits import NOISE, SWEPT, swept, without_alignment

# By setting: its name at an axis, in titles and in captions; others have the name of the setting in all three.
LABELS = {"batch_size": ("Batch size m", "batch size", "batch size at a fixed number of epochs"),
          "tau_h": ("$\\tau_h$ (bound on activations)", "activation bound", "the bound τ_h on the activations"),
          "clipping_norm": ("Clipping norm C", "clipping norm", "the clipping norm C"),
          "sigma": ("σ (noise level)", "noise level", "the noise level σ"),
          "noise_multiplier": ("Noise multiplier z", "noise multiplier", "the noise multiplier z")}
TARGETS = {"epsilon": "certified", "label_epsilon": "label"}
KIND_OF_TARGET = {**TARGETS, "label_epsilon": "label (features public)"}
LOG_RATIO = 3  # of the largest to the smallest value, from which on an axis is logarithmic


@exhibit(*SWEPT)
def draw(runs: pd.DataFrame, *, name: str) -> Exhibit:
    """Make the exhibit of the setting that its name has; errors as in `tabulate`."""
    field = swept(name)
    table = tabulate(runs, field)
    _, title, against = LABELS.get(field, (field,) * 3)
    alignment = " and alignment" if "alignment" in set(table["metric"]) else ""
    of_layers = f"{alignment} of the hidden layers" if alignment else ""
    rows = "" if field in NOISE else ", a row for each noise"
    notes = []
    for target, kind in TARGETS.items():
        points = table[table["setting"].str.startswith(f"{target}=")]
        if len(points):
            of_target = runs[runs["setting"].isin(points["setting"])]
            notes.append(f"Targets are of {epsilon_text(kind, of_target, points)}.")
    return Exhibit.of_means(
        name, title=f"Accuracy{alignment} by {title}", rows=table, figure=plot(table, field), notes=notes,
        caption=f"Test accuracy{of_layers} against {against}{rows}: {means_text(table['n'], BARS)}")


def tabulate(runs: pd.DataFrame, field: str) -> pd.DataFrame:
    """Return `cells` of accuracy and, if all trials measure it, of alignment, by algorithm, noise and a setting.

    The column `setting`, the noise, is empty along a setting of the noise. Trials without the field are left out; there
    must be trials that have it.
    """
    swept_runs = runs.dropna(subset=field)
    if swept_runs.empty:
        raise ReportError(f"{field}: needs trials that have it, found none")
    of_labels = swept_runs["setting"].str.startswith("label_epsilon")
    swept_runs = swept_runs.assign(relation=swept_runs["privacy.relation"].mask(of_labels, LABEL_RELATION))
    if field in NOISE:
        swept_runs = swept_runs.assign(setting="")
    shown = ("accuracy",) if without_alignment(trials_of(swept_runs)) else ("accuracy", "alignment")
    by = ["algorithm", "setting", field]
    return pd.concat([cells(swept_runs, by, metric, ("relation", "sampler", "delta")) for metric in shown],
                     ignore_index=True)


def plot(table: pd.DataFrame, field: str) -> Figure:
    """Plot a row per noise setting, accuracy on the left and alignment on the right, 3.6 x 2.9 inches each."""
    metrics, settings = list(dict.fromkeys(table["metric"])), by_noise(table["setting"])
    is_log = table[field].min() > 0 and table[field].max() >= LOG_RATIO * table[field].min()
    with style.theme():
        figure, axes = style.panels(len(metrics) * len(settings), len(metrics), width=3.6, height=2.9,
                                    beside=(1.6, 0.0), between=0.1, sharex=True, sharey="col")
        for (setting, metric), ax in zip(product(settings, metrics), axes, strict=True):
            points = table[(table["setting"] == setting) & (table["metric"] == metric)]
            style.curves(ax, points, field)
            ax.set(title=noise_title(points), ylabel=METRICS[metric].label)
            if is_log:
                style.log_axis(ax, table[field])
        for metric, ax in zip(metrics, axes[-len(metrics):], strict=True):
            ax.set_xlabel(LABELS.get(field, (field,))[0])
            style.within(ax, METRICS[metric].low, METRICS[metric].high)  # panels of a column share the axis
        style.legend(figure, style.handles(table), style.seeds(table["n"]))
    return figure


def noise_title(points: pd.DataFrame) -> str:
    """Return `certified ε ≤ 3, add/remove, δ = 1e-05`, `label (features public) ε ≤ 3, ...`, or a noise level.

    A noise level alone has no guarantee. Along a setting of the noise the title is empty.
    """
    first = points.iloc[0]  # all points have one noise setting
    setting = first["setting"]
    label = setting_label(setting) if setting else ""
    if setting in ("", NON_PRIVATE):
        return label
    kind = KIND_OF_TARGET.get(setting.rpartition("=")[0])
    if kind is None:
        return f"{label} (a noise level)"
    return f"{kind} {label.removeprefix('label ')}, {first['relation']}, δ = {first['delta']:g}"
