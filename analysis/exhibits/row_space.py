"""Plot the results of the row space attack: residuals of members and non-members, one panel per mechanism.

The attack is `pipeline.auditing.row_space.row_space_audit`; `docs/row_space.py` runs it and draws docs/row_space.svg.
"""

from __future__ import annotations

import numpy as np
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from analysis.style import theme
from pipeline.accounting.audited import auc

Residuals = tuple[np.ndarray, np.ndarray]

MEMBERS, NON_MEMBERS = sns.color_palette("colorblind")[3], sns.color_palette("colorblind")[0]
BINS = 40
LOG_RANGE = 100  # the axis is logarithmic if members are this many times closer than non-members
ZERO = 1e-7  # place of residuals 0 on a logarithmic axis; the attack reports 0 for rounding errors


def plot(panels: dict[str, Residuals]) -> Figure:
    """Plot a histogram of residuals for each title -> (members, non_members), side by side, 4.5 x 3 inches each.

    Members are training records. Residuals are as in `residual_histogram`.

    Raises:
        ValueError: without panels, and as `residual_histogram`.
    """
    if not panels:
        raise ValueError("panels: must be at least one, got none")
    with theme():
        figure = Figure(figsize=(4.5 * len(panels), 3), layout="constrained")
        axes = figure.subplots(1, len(panels), squeeze=False)[0]
        for ax, (title, (members, non_members)) in zip(axes, panels.items(), strict=True):
            residual_histogram(members, non_members, ax).set_title(title)
    return figure


def residual_histogram(members: np.ndarray, non_members: np.ndarray, ax: Axes) -> Axes:
    """Plot shares of members (outlined) and non-members (filled) by residual, in %; the legend has n and the AUC.

    The axis is logarithmic if the nearest member is `LOG_RANGE` times closer than the farthest non-member. Residuals of
    0 are then at its left end, with a tick 0.

    Args:
        members, non_members: ||h - P h||/||h|| [n], in [0, 1].
        ax: the axes.

    Raises:
        ValueError: for residuals out of range, or no residuals.
    """
    residuals = []
    for name, values in (("members", members), ("non_members", non_members)):
        values = np.asarray(values, dtype=np.float64)
        if values.ndim != 1 or not len(values) or not ((values >= 0) & (values <= 1 + 1e-6)).all():
            raise ValueError(f"{name}: must be residuals [n] in [0, 1], n >= 1, got {values}")
        residuals.append(values)
    near, far = residuals
    logarithmic = near.min() * LOG_RANGE < far.max()
    if logarithmic:
        near, far = np.maximum(near, ZERO), np.maximum(far, ZERO)
        bins = np.geomspace(ZERO / 2, 1, BINS + 1)
    else:
        bins = np.linspace(min(near.min(), far.min()), max(near.max(), far.max()), BINS + 1)
    for values, name, style in ((far, "non-members", dict(histtype="stepfilled", color=NON_MEMBERS, alpha=0.5)),
                                (near, "members", dict(histtype="step", color=MEMBERS, linewidth=1.5))):
        ax.hist(values, bins=bins.tolist(), weights=np.full(len(values), 100 / len(values)),
                label=f"{name} (n = {len(values):,})", **style)
    if logarithmic:
        ax.set_xscale("log")
        ax.set_xticks([ZERO, 1e-5, 1e-3, 1e-1, 1], ["0", "$10^{-5}$", "$10^{-3}$", "$10^{-1}$", "1"])
        ax.xaxis.set_minor_locator(NullLocator())
    ax.set_ylim(0, (1.02 if logarithmic else 1.2) * ax.get_ylim()[1])
    # The legend is in a free area: between the two groups, or beside a single one.
    ax.legend(title=f"AUC {auc(-residuals[0], -residuals[1]):.3f}", alignment="left",
              loc="upper center" if logarithmic else "upper right")
    ax.set(xlabel="Residual ‖h − Ph‖ / ‖h‖ (share of the norm)", ylabel="Share of records (%)")
    sns.despine(ax=ax)
    return ax
