"""What the row space attack sees: residuals of members and non-members, one panel per mechanism.

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
LOG_RANGE = 100  # members so many times closer than non-members get a logarithmic axis
ZERO = 1e-7  # where a logarithmic axis shows residuals of exactly 0, which the attack reports for rounding


def plot(panels: dict[str, Residuals]) -> Figure:
    """One panel for each (members, non_members), side by side under its title, 9 x 3 inches for two.

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
    """Shares of members (outlined) and non-members (filled) by residual, in %; n and the attack's AUC in the legend.

    The axis is logarithmic where the nearest member is `LOG_RANGE` times closer than the farthest non-member; residuals
    of 0 then stand at its left end, over a tick that says 0.

    Args:
        members, non_members: ||h - P h||/||h|| [n], in [0, 1].

    Raises:
        ValueError: for residuals out of range, or none.
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
    # Where no data are: between the two groups, or beside the only one.
    ax.legend(title=f"AUC {auc(-residuals[0], -residuals[1]):.3f}", alignment="left",
              loc="upper center" if logarithmic else "upper right")
    ax.set(xlabel="Residual ‖h − Ph‖ / ‖h‖ (share of the norm)", ylabel="Share of records (%)")
    sns.despine(ax=ax)
    return ax
