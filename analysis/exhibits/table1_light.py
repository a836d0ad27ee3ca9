"""The PDFA row of Table 1 of Ohana et al. 2021 with counted photons, at the light that gives each published sigma."""

from __future__ import annotations

import math
from collections.abc import Iterable

import pandas as pd

from analysis.exhibits import paper
from analysis.exhibits.envelope import best, cells
from analysis.exhibits.exhibit import ENVELOPE, Exhibit, Texts
from analysis.exhibits.frontier.points import tightest
from analysis.exhibits.light import SIGMA
from analysis.exhibits.means import assumptions
from analysis.exhibits.metrics import METRICS
from analysis.exhibits.table import Table
from analysis.runs import ReportError, such
from analysis.statistics import SUMMARY
from analysis.text import NO_VALUE, best_of, means_text
from pipeline.experiment.exhibits import column_of

GAUSSIAN, PHYSICAL = "opu_simulated", "opu_physical"
LABELS = {GAUSSIAN: "Gaussian", PHYSICAL: "counted photons"}
COLUMNS = ["projector", "sigma", "photons", "effective_sigma", *SUMMARY, "epsilon", "paper", "chosen", "choices"]


def draw(runs: pd.DataFrame) -> Exhibit:
    """Make the exhibit of the table; errors as in `tabulate`."""
    table = tabulate(runs)
    return Exhibit("table1_light", title="PDFA at the published sigmas by counted photons", texts=texts(table, runs),
                   rows=table.round(dict.fromkeys(SUMMARY, 4)))


def tabulate(runs: pd.DataFrame) -> pd.DataFrame:
    """Return accuracies under Gaussian noise and under counted light, a row per projector and sigma.

    Gaussian noise is of `opu_simulated`, light of `opu_physical`. A trial with light goes to the sigma of Gaussian
    noise that is within 1% of its effective sigma. If several settings share a cell, the best in validation is taken:
    `chosen` names it, out of `choices`.

    Columns: test accuracy at the last epoch over seeds (`SUMMARY`, percent), `epsilon` (label; the largest over seeds),
    `photons` and `effective_sigma` of light, and `paper` if trials have its data set, network, batch size and epochs.
    An effective sigma of light must be a sigma of Gaussian noise (`ReportError`).
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
    carry = ("photons", "effective_sigma", "chosen", "choices")
    table = cells(opu_runs.assign(epsilon=tightest(opu_runs, "label")), ["projector", "sigma"], "accuracy", carry,
                  ["epsilon"])
    published = paper.TABLE1 if paper.is_setting(opu_runs) else {}
    return table.assign(paper=[published.get(("pdfa", f"{sigma:g}"), math.nan) for sigma in table["sigma"]])[COLUMNS]


def texts(table: pd.DataFrame, runs: pd.DataFrame) -> Texts:
    """Return a caption, and a table with a column per sigma.

    Its rows are the published accuracy, the accuracies under either kind of noise, the photons of the light, and the
    label epsilon under either kind.
    """
    noise_kinds = {projector: table[table["projector"] == projector].set_index("sigma") for projector in LABELS}
    sigmas = sorted(set(table["sigma"]))
    rows = []
    if table["paper"].notna().any():
        rows.append([paper.SOURCE, *(_value(noise_kinds.values(), sigma, "paper", ".2f") for sigma in sigmas)])
    for projector, means in noise_kinds.items():
        rows.append([f"{LABELS[projector]}, test %", *(_accuracy(means, sigma) for sigma in sigmas)])
    rows.append(["photons per pixel and exposure",
                 *(_value([noise_kinds[PHYSICAL]], sigma, "photons", ".3g") for sigma in sigmas)])
    for projector, means in noise_kinds.items():
        rows.append([f"{LABELS[projector]}, label ε", *(_value([means], sigma, "epsilon", ".4g") for sigma in sigmas)])
    comparison = Table.of(["PDFA", *(f"σ = {sigma:g}" for sigma in sigmas)], rows)
    return Texts((caption(table), comparison), notes=tuple(_notes(table, runs)))


def caption(table: pd.DataFrame) -> str:
    """Return the caption: quantity, n and interval."""
    return ("Test accuracy and label ε of PDFA with the Gaussian of a published σ, and with counted photons whose "
            f"effective σ is that: {means_text(table['n'])}{best_of(table['choices'].max())}.")


def _notes(table: pd.DataFrame, runs: pd.DataFrame) -> list[str]:
    """Return notes on light and epsilon."""
    notes = ["Photons are per pixel and exposure, with reference and all mirrors on.",
             "The Gaussian and light are released in the same way.",
             "σ is a noise level and not a privacy level."]
    if table["paper"].notna().any():
        notes.append(f"{paper.SOURCE}, is of an optical processor with Gaussian noise of that σ.")
    if tightest(runs, "label").notna().any():
        notes.append(assumptions("label", runs))
    if table["choices"].max() > 1:
        notes.append(ENVELOPE)
    return notes


def _accuracy(means: pd.DataFrame, sigma: float) -> str:
    """Return the mean accuracy at a sigma with its interval, as text; a dash if the table, by sigma, lacks it."""
    if sigma not in means.index:
        return NO_VALUE
    return METRICS["accuracy"].text(means.loc[sigma, "mean"], means.loc[sigma, "half_width"])


def _value(tables: Iterable[pd.DataFrame], sigma: float, column: str, number_format: str) -> str:
    """Return the value in one cell as text, from the first table that has it; a dash if none has."""
    for table in tables:
        if sigma in table.index and pd.notna(table.loc[sigma, column]):
            return format(table.loc[sigma, column], number_format)
    return NO_VALUE
