"""The report of `photonic device`: measurements of a projector, as Markdown, CSV and one figure."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from scipy import stats

from analysis.exhibits.exhibit import save, to_csv
from analysis.exhibits.table import Table, markdown
from analysis.style import PALETTE, draw, panels, theme
from analysis.text import NO_VALUE
from pipeline.trials.camera import camera_of

if TYPE_CHECKING:
    from pipeline.auditing.device import Characterisation

SUSPICIOUS = 5.0  # standard errors from the value of an ideal device
SHOWN = 2000  # points in the scatter plot


def table(measured: Characterisation) -> pd.DataFrame:
    """Return one row per measured quantity, with columns quantity, value, standard_error, ideal and z.

    z is the distance of value and ideal in standard errors; NaN without an error.
    """
    rows = [(quantity.name, quantity.value, quantity.error, quantity.ideal,
             (quantity.value - quantity.ideal) / quantity.error if quantity.error > 0 else math.nan)
            for quantity in measured.quantities]
    return pd.DataFrame(rows, columns=["quantity", "value", "standard_error", "ideal", "z"])


def as_text(measured: Characterisation) -> str:
    """Return the report in Markdown."""
    rows = list(table(measured).itertuples(index=False))
    matrix = "known" if measured.known else "estimated from as many batches before"
    quantities = Table.of(["quantity", "value", "standard error", "ideal", "z"],
                          [[name, *(NO_VALUE if math.isnan(number) else f"{number:.4g}" for number in numbers)]
                           for name, *numbers in rows])
    parts: list[str | Table] = [
        f"# Projector `{measured.trial.projector}`",
        f"{measured.repeats} batches of {measured.records} ternary errors with one +1 and one -1, on {measured.pixels} "
        f"pixels; the matrix is {matrix}.",
        quantities]
    if not len(measured.residuals):
        parts.append("There is no noise beyond rounding, so nothing is said of its correlations and its law.")
    if measured.trial.physical:
        effective_sigma = camera_of(measured.trial).effective_sigma
        parts.append(f"Its light amounts to an effective sigma of {effective_sigma:.4g} by the formula of "
                     "docs/optics.md.")
    suspicious = ", ".join(row.quantity for row in rows if abs(row.z) > SUSPICIOUS) or "nothing"
    parts += [f"More than {SUSPICIOUS:g} standard errors from an ideal device: {suspicious}.", "![](device.svg)"]
    return markdown(*parts)


def figure(measured: Characterisation) -> Figure:
    """Plot the mean projection, the noise and the gain of a projector, side by side, 2.6 x 2.4 inches each.

    The mean is plotted against B e, the exact projection of an error e by the feedback matrix B. The noise, if there is
    any, has a normal density beside it. The gain has a point per batch.
    """
    with theme():
        has_noise = len(measured.residuals) > 0
        drawn, axes = panels(3 if has_noise else 2, per_row=3, width=2.6, height=2.4)
        colour = PALETTE["pdfa"]
        axes[0].plot(measured.target[:SHOWN], measured.mean[:SHOWN], ".", markersize=2, color=colour, rasterized=True)
        axes[0].axline((0, 0), slope=1, color="0.4", linewidth=0.8)
        axes[0].set(xlabel="$Be$ (units of $B$)", ylabel="mean projection (units of $B$)")
        axes[-1].plot(np.arange(1, len(measured.gains) + 1), measured.gains, ".", markersize=3, color=colour)
        axes[-1].set(xlabel="batch", ylabel="gain")
        if has_noise:
            bin_edges = np.linspace(-5, 5, 61)  # standard deviations
            axes[1].hist(measured.residuals, bins=bin_edges.tolist(), density=True, color=colour, alpha=0.5)
            axes[1].plot(bin_edges, stats.norm.pdf(bin_edges), color="0.2", linewidth=0.8)
            axes[1].set(xlabel="noise over its standard deviation", ylabel="density", yscale="log", ylim=(1e-5, 1))
    return drawn


def write(measured: Characterisation, folder: Path) -> list[Path]:
    """Write device.md, device.csv and device.svg to `folder`, which is created; return the files."""
    return save({"device.md": as_text(measured).encode(), "device.csv": to_csv(table(measured)).encode(),
                 "device.svg": draw(figure(measured))["svg"]}, folder)
