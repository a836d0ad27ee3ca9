"""The PDFA row of Table 1 of Ohana et al. 2021 with counted photons, at the light that gives each published sigma."""

from __future__ import annotations

import math
from collections.abc import Iterable

import pandas as pd

from analysis.exhibits.catalogue import exhibit
from analysis.exhibits.envelope import averaged, best
from analysis.exhibits.exhibit import Exhibit
from analysis.exhibits.frontier.points import tightest
from analysis.exhibits.means import assumptions
from analysis.exhibits.metrics import METRICS
from analysis.exhibits.table import Table
from analysis.papers.light import SIGMA
from analysis.papers.table1 import SOURCE, published
from analysis.runs import ReportError, such
from analysis.statistics import SUMMARY
from analysis.text import NO_VALUE, means_text
from pipeline.experiment.exhibits import column_of

GAUSSIAN, PHYSICAL = "opu_simulated", "opu_physical"
LABELS = {GAUSSIAN: "Gaussian", PHYSICAL: "counted photons"}
COLUMNS = ["projector", "sigma", "photons", "effective_sigma", *SUMMARY, "epsilon", "paper", "chosen", "choices"]


@exhibit("table1_light")
def draw(runs: pd.DataFrame) -> Exhibit:
    """Make the exhibit, a table with a column per sigma; errors as in `tabulate`."""
    table = tabulate(runs)
    sigmas = sorted(set(table["sigma"]))
    accuracies = [METRICS["accuracy"].text(row.mean, row.half_width) for row in table.itertuples()]

    def row(heading: str, column: str, number_format: str = "", projectors: Iterable[str] = LABELS) -> list[str]:
        """Return the cells of a column of the table for these projectors, by sigma; a dash where it is empty."""
        known = table.assign(accuracy=accuracies)[table["projector"].isin(list(projectors))].dropna(subset=column)
        texts = {sigma: format(value, number_format) for sigma, value in known.set_index("sigma")[column].items()}
        return [heading, *(texts.get(sigma, NO_VALUE) for sigma in sigmas)]

    has_published = table["paper"].notna().any()
    rows = [row(SOURCE, "paper", ".2f")] if has_published else []
    rows += [row(f"{label}, test %", "accuracy", projectors=[name]) for name, label in LABELS.items()]
    rows.append(row("photons per pixel and exposure", "photons", ".3g", [PHYSICAL]))
    rows += [row(f"{label}, label ε", "epsilon", ".4g", [name]) for name, label in LABELS.items()]
    notes = ["Photons are per pixel and exposure, with reference and all mirrors on.",
             "The Gaussian and light are released in the same way.",
             "σ is a noise level and not a privacy level."]
    if has_published:
        notes.append(f"{SOURCE}, is of an optical processor with Gaussian noise of that σ.")
    if tightest(runs, "label").notna().any():
        notes.append(assumptions("label", runs))
    caption = ("Test accuracy and label ε of PDFA with the Gaussian of a published σ, and with counted photons whose "
               f"effective σ is that: {means_text(table['n'])}")
    return Exhibit.of_means("table1_light", title="PDFA at the published sigmas by counted photons", caption=caption,
                            rows=table, notes=notes,
                            tables=[Table.of(["PDFA", *(f"σ = {sigma:g}" for sigma in sigmas)], rows)])


def tabulate(runs: pd.DataFrame) -> pd.DataFrame:
    """Return test accuracies at the last epoch (percent) and label epsilon, a row per projector and sigma.

    A trial with light goes to the sigma of Gaussian noise that is within 1% of its effective sigma; there must be one
    (`ReportError`). If several settings share a cell, the best in validation is taken.
    """
    opu_runs = such(runs, lambda trial: trial.parts.mechanism.optical and trial.projector in LABELS)
    is_gaussian = opu_runs["projector"] == GAUSSIAN
    gaussian_sigmas = sorted(opu_runs.loc[is_gaussian, "sigma"].unique())  # one column of the table each
    # Gaussian noise has its sigma as a setting; the effective sigma of light was tracked.
    effective_sigmas = opu_runs["sigma"].where(is_gaussian, opu_runs.get(SIGMA, math.nan)).astype(float)
    column_sigmas = effective_sigmas.map(lambda sigma: column_of(sigma, gaussian_sigmas))
    if opu_runs.empty or column_sigmas.isna().any():
        values = ", ".join(f"{sigma:.4g}" for sigma in sorted(set(effective_sigmas)))
        raise ReportError("table1_light: needs light whose effective sigma is, to 1%, a sigma of projector "
                          f"'opu_simulated', got {values}")
    opu_runs = opu_runs.assign(sigma=column_sigmas, effective_sigma=effective_sigmas)
    opu_runs = best(opu_runs, ["projector", "sigma", "photons"])
    opu_runs = opu_runs.assign(epsilon=tightest(opu_runs, "label"))
    table = averaged(opu_runs, ["projector", "sigma"], "accuracy", ("photons", "effective_sigma", "chosen", "choices"),
                     ["epsilon"])
    paper = published(opu_runs)
    return table.assign(paper=[paper.get(("pdfa", f"{sigma:g}"), math.nan) for sigma in table["sigma"]])[COLUMNS]
