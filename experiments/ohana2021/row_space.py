"""Attack one step of the photonic and of a certified mechanism, and draw docs/row_space.svg.

    python experiments/ohana2021/row_space.py [FOLDER]    (default: docs; data from PHOTONIC_DATA, else downloaded)
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from analysis import style
from pipeline.accounting.audited import auc
from pipeline.auditing.row_space import row_space_audit
from pipeline.learning.data import load
from pipeline.trials import TrialConfig

COMMON: dict[str, Any] = dict(dataset="fashion_mnist", algorithm="pdfa", batch_size=256, seed=0)
PHOTONIC = [TrialConfig(mechanism="photonic", sigma=sigma, **COMMON) for sigma in (0.1, 1.0, 10.0)]
CERTIFIED = TrialConfig(mechanism="per_example", noise_multiplier=1.0, sampler="poisson", **COMMON)
CERTIFIED_STEPS = 10
Residuals = tuple[np.ndarray, np.ndarray]

MEMBERS, NON_MEMBERS = style.COLORS[3], style.COLORS[0]
BINS = 40
LOG_RANGE = 100  # the axis is logarithmic if members are this many times closer than non-members
ZERO = 1e-7  # place of residuals 0 on a logarithmic axis; the attack reports 0 for rounding errors


def plot(panels: dict[str, Residuals]) -> Figure:
    """Plot a histogram of residuals for each title -> (members, non_members), side by side.

    Members are training records. Residuals are as in `residual_histogram`. There must be a panel.
    """
    if not panels:
        raise ValueError("panels: must be at least one, got none")
    with style.theme():
        figure, axes = style.panels(len(panels))
        for ax, (title, (members, non_members)) in zip(axes, panels.items(), strict=True):
            style.name_axes(residual_histogram(members, non_members, ax), title=title)
    return figure


def residual_histogram(members: np.ndarray, non_members: np.ndarray, ax: Axes) -> Axes:
    """Plot shares of members (outlined) and non-members (filled) by residual, in %; the legend has n and the AUC.

    The axis is logarithmic if the nearest member is `LOG_RANGE` times closer than the farthest non-member. Residuals of
    0 are then at its left end, with a tick 0. A residual is ||h - P h||/||h||, in [0, 1], of a record's activation h. P
    projects on the rows of an observed update, so a member's residual is small.
    """
    members, non_members = _checked("members", members), _checked("non_members", non_members)
    is_log = members.min() * LOG_RANGE < non_members.max()
    if is_log:
        plotted = {"non-members": np.maximum(non_members, ZERO), "members": np.maximum(members, ZERO)}
        bins = np.geomspace(ZERO / 2, 1, BINS + 1)
    else:
        plotted = {"non-members": non_members, "members": members}
        bins = np.linspace(min(members.min(), non_members.min()), max(members.max(), non_members.max()), BINS + 1)
    styles: dict[str, dict[str, Any]] = {
        "non-members": {"histtype": "stepfilled", "color": NON_MEMBERS, "alpha": 0.5},
        "members": {"histtype": "step", "color": MEMBERS, "linewidth": 1.5}}
    for name, values in plotted.items():
        percent = np.full(len(values), 100 / len(values))  # share of one record
        ax.hist(values, bins=bins.tolist(), weights=percent, label=f"{name} (n = {len(values):,})", **styles[name])
    if is_log:
        ax.set_xscale("log")
        ax.set_xticks([ZERO, 1e-5, 1e-3, 1e-1, 1], ["0", "$10^{-5}$", "$10^{-3}$", "$10^{-1}$", "1"])
        ax.xaxis.set_minor_locator(NullLocator())
    # The legend is in a free area: between the two groups, or above a single one, which needs more room.
    ax.set_ylim(0, (1.02 if is_log else 1.2) * ax.get_ylim()[1])
    score = auc(-members, -non_members)  # negated: members have the smaller residuals
    ax.legend(title=f"AUC {score:.3f}", alignment="left", loc="upper center" if is_log else "upper right")
    ax.set(xlabel="Residual ‖h − Ph‖ / ‖h‖ (share of the norm)", ylabel="Share of records (%)")
    return ax


def _checked(name: str, residuals: np.ndarray) -> np.ndarray:
    """Return residuals [n] in float64; refuse none, and one that lies outside [0, 1] beyond rounding."""
    values = np.asarray(residuals, dtype=np.float64)
    if values.ndim != 1 or not len(values) or not ((values >= 0) & (values <= 1 + 1e-6)).all():
        raise ValueError(f"{name}: must be residuals [n] in [0, 1], n >= 1, got {values}")
    return values


def write(folder: Path) -> Path:
    """Print the AUC of every attack, and write `row_space.svg`: photonic at sigma = 10 beside certified."""
    data = load("fashion_mnist")
    print("mechanism    sigma    z  layer  steps  members  non-members    AUC  TPR at FPR 0.1%")
    shown = {}
    for config in (*PHOTONIC, CERTIFIED):
        for layer in (1, 2):
            steps = CERTIFIED_STEPS if config is CERTIFIED else 1
            audit = row_space_audit(config, data, layer=layer, steps=steps)
            print(f"{config.mechanism:11}  {config.sigma:5g}  {config.noise_multiplier:3g}  {layer:5}  {steps:5}  "
                  f"{len(audit.members):7}  {len(audit.non_members):11}  {audit.auc:.3f}  {audit.tpr():.4f}",
                  flush=True)
            if layer == 1:
                shown[config] = audit.members, audit.non_members
    figure = plot({"photonic, σ = 10": shown[PHOTONIC[-1]],
                   "certified (per-example clipping, z = 1)": shown[CERTIFIED]})
    path = folder / "row_space.svg"
    with style.theme():
        figure.savefig(path, metadata={"Date": None})
    return path


if __name__ == "__main__":
    write(Path(sys.argv[1] if len(sys.argv) > 1 else "docs"))
