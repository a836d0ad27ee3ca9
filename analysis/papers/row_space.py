"""Plot the results of the row space attack: residuals of members and non-members, one panel per mechanism.

The attack is `pipeline.auditing.row_space.row_space_audit`; `docs/row_space.py` runs it and draws docs/row_space.svg.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from analysis import style
from pipeline.accounting.audited import auc

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
