"""Accuracy, label epsilon and effective sigma against photons per pixel, on the physical processor."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.typing import LineStyleType

from analysis import style
from analysis.exhibits.catalogue import exhibit
from analysis.exhibits.envelope import cells
from analysis.exhibits.exhibit import Exhibit, Texts
from analysis.exhibits.frontier.points import tightest
from analysis.exhibits.metrics import METRICS
from analysis.runs import NON_PRIVATE, ReportError, common_value, such, trials_of
from analysis.statistics import SUMMARY
from analysis.text import BARS, epsilon_text, means_text
from pipeline.accounting.label import RELATION
from pipeline.trials.camera import SETTINGS, camera_of

TITLES = {"light": "Accuracy and label ε by photons", "effective_sigma": "Effective sigma by photons"}
SIGMA = "optics.effective_sigma"  # tag of a trial
TARGET = 8.0  # label epsilon marked in figures
NAMES = {"reference_ratio": "reference ratio {:g}", "dark_counts": "{:g} dark counts",
         "read_noise": "read noise {:g} e", "full_well": "full well {:g} e", "adc_bits": "{:g} bits"}
PARTS: dict[str, tuple[str, LineStyleType]] = {"shot_sigma": ("light alone", ":"),
                                               "floor_sigma": ("camera's floor", "--")}
COLUMNS = ["algorithm", "camera", *SETTINGS, "feedback_std", "photons", *SUMMARY, "epsilon", "effective_sigma",
           *PARTS, "relation", "sampler", "delta", "chosen", "choices"]
OPEN = "osDv"  # markers of further cameras
POINTS = 200  # points of a curve with a closed form


@exhibit(*TITLES)
def draw(runs: pd.DataFrame, *, name: str) -> Exhibit:
    """Make one of the exhibits in `TITLES`; errors as in `tabulate`."""
    table = tabulate(runs)
    if name == "effective_sigma":
        columns = ["camera", *SETTINGS, "feedback_std", "photons", "effective_sigma", *PARTS]
        texts = Texts((SIGMA_CAPTION,), notes=tuple(_sigma_notes(table)))
        return Exhibit(name, title=TITLES[name], texts=texts, rows=table[columns], figure=plot_sigma(table))
    noiseless = runs.loc[runs["setting"] == NON_PRIVATE]  # without the photonic mechanism
    caption = ("Test accuracy and, below, label ε (largest over seeds) of PDFA on the physical optical processor "
               f"against photo-electrons per pixel and exposure: {means_text(table['n'], BARS)}")
    return Exhibit.of_means(name, title=TITLES[name], caption=caption, rows=table, figure=plot(table, noiseless),
                            notes=_notes(table, runs, noiseless))


def tabulate(runs: pd.DataFrame) -> pd.DataFrame:
    """Return a row for every camera and light, from trials with projector `opu_physical` and the photonic mechanism.

    Accuracies are in percent; label epsilon is the largest over seeds, empty if infinite. There must be such trials;
    other errors as in `cells`.
    """
    physical_runs = such(runs, lambda trial: trial.physical and trial.parts.mechanism.optical)
    if physical_runs.empty:
        raise ReportError("light: needs trials with projector 'opu_physical' and mechanism 'photonic', found none")
    cameras = [camera_of(trial) for trial in trials_of(physical_runs)]
    physical_runs = physical_runs.assign(
        camera=labels(physical_runs), epsilon=tightest(physical_runs, "label"), relation=RELATION,
        effective_sigma=physical_runs[SIGMA].astype(float),
        **{part: [getattr(camera, part) for camera in cameras] for part in PARTS})
    carry = ("camera", "feedback_std", "effective_sigma", *PARTS, "relation", "sampler", "delta")
    return cells(physical_runs, ["algorithm", *SETTINGS, "photons"], "accuracy", carry, ["epsilon"])[COLUMNS]


def labels(runs: pd.DataFrame) -> list[str]:
    """Return each run's camera in words, by settings that differ between cameras: `read noise 0.9 e, 16 bits`.

    It is `ideal camera` if these settings are 0, and empty if there is only one camera.
    """
    varied = [name for name in SETTINGS if runs[name].nunique() > 1]
    of_none = "ideal camera" if varied else ""
    return [", ".join(NAMES[name].format(run[name]) for name in varied if run[name]) or of_none
            for run in runs.to_dict("records")]


class Light(NamedTuple):
    """The photons at which label epsilon has some value, and those of the points below and above it."""

    photons: float
    photons_below: float
    photons_above: float


def light_for(points: pd.DataFrame, epsilon: float) -> Light:
    """Return the light at which label epsilon has this value, interpolated between two points on logarithmic axes.

    All photons are NaN if no two points enclose the value, or if epsilon does not grow with light.
    """
    finite = points.dropna(subset="epsilon").sort_values("photons")
    below, above = finite[finite["epsilon"] <= epsilon], finite[finite["epsilon"] > epsilon]
    if below.empty or above.empty or below["photons"].max() > above["photons"].min():
        return Light(np.nan, np.nan, np.nan)
    enclosing = pd.concat([below.iloc[-1:], above.iloc[:1]])  # most light below, and least light above
    photons = np.exp(np.interp(np.log(epsilon), np.log(enclosing["epsilon"]), np.log(enclosing["photons"])))
    photons_below, photons_above = enclosing["photons"].tolist()
    return Light(float(photons), photons_below, photons_above)


def _notes(table: pd.DataFrame, runs: pd.DataFrame, noiseless: pd.DataFrame) -> list[str]:
    """Return notes on the camera, the light for the target epsilon, and the assumptions of epsilon."""
    common = [NAMES[name].format(common_value(table[name])) for name in SETTINGS
              if table[name].nunique() == 1 and common_value(table[name])]  # of all cameras
    notes = [f"Reference and all mirrors are on, with {', '.join(common)}."]
    if len(noiseless):
        mean = METRICS["accuracy"].of(noiseless).mean()
        notes.append(f"Grey: the mean without noise and photonic mechanism, {mean:.1f}%.")
    notes += _target_notes(table)
    epsilon = epsilon_text("label", runs[tightest(runs, "label").notna()], table)
    notes.append(f"The lower panel is of {epsilon}, which follows from counted photons: read noise, full well and ADC "
                 "come after the counts, and change accuracy alone.")
    return notes


def _target_notes(table: pd.DataFrame) -> list[str]:
    """Return sentences on the light for label epsilon `TARGET`; cameras that agree share one."""
    sentences = []
    for light, cameras in _target_lights(table).items():
        accuracies = []
        for points in cameras:
            means = points.set_index("photons")["mean"]
            accuracies.append(f"{means[light.photons_below]:.1f} and {means[light.photons_above]:.1f}%"
                              f"{_in_parentheses(points)}")
        sentences.append(f"Label ε {TARGET:g} takes some {light.photons:.2g} photons, interpolated on logarithmic axes "
                         f"between the points at {light.photons_below:g} and {light.photons_above:g}, where test "
                         f"accuracy is {', '.join(accuracies)}.")
    return sentences


def _target_lights(table: pd.DataFrame) -> dict[Light, list[pd.DataFrame]]:
    """Return the light that gives label epsilon `TARGET` -> points of each camera that needs this light.

    Cameras whose points do not enclose the target are left out.
    """
    cameras_by_light: dict[Light, list[pd.DataFrame]] = {}
    for *_, points in _cameras(table):
        light = light_for(points, TARGET)
        if not np.isnan(light.photons):
            cameras_by_light.setdefault(light, []).append(points)
    return cameras_by_light


def _in_parentheses(points: pd.DataFrame) -> str:
    """Return the camera of these points in words, ` (16 bits)`; empty if there is only one camera."""
    label = common_value(points["camera"])
    return f" ({label})" if label else ""


SIGMA_CAPTION = ("Standard deviation of the noise on a component of a projection, in units of the entries of B, by "
                 "photo-electrons per pixel and exposure: lines by formula, markers as trials tracked it; dotted light "
                 "alone, dashed the camera's floor.")


def _sigma_notes(table: pd.DataFrame) -> list[str]:
    """Return notes on the data of `plot_sigma`."""
    stds = " or ".join(f"{std:g}" for std in sorted(set(table["feedback_std"])))
    sentences = [f"The standard deviation of B is {stds}; docs/optics.md has the formula.",
                 "Counted light falls as 1/sqrt(photons), the camera's floor (dark counts, read noise, rounding) as "
                 "1/photons."]
    for *_, points in _cameras(table):
        crossing = _crossing(points)
        if crossing:  # the camera has a floor
            sentences.append(f"Below {crossing:.2g} photons the camera makes more of it than light"
                             f"{_in_parentheses(points)}.")
    if (table["full_well"] > 0).any():
        sentences.append("At the right end of a line the mean pixel is full; the formula leaves saturation out, and "
                         "pixels that are brighter than the mean saturate before.")
    return sentences


def plot(table: pd.DataFrame, noiseless: pd.DataFrame) -> Figure:
    """Plot accuracy and, below, label epsilon against photons, 4.6 x 2.5 inches each, a curve for each camera.

    A line marks the mean accuracy of trials without a mechanism, if there are any, and dotted ones label epsilon
    `TARGET` and its light.
    """
    with style.theme():
        figure, (upper, lower) = style.panels(2, per_row=1, width=4.6, height=2.5, beside=(2.0, 0.0), sharex=True)
        middle = (table["camera"].nunique() - 1) / 2
        handles = []
        for number, (look, _, points) in enumerate(_cameras(table)):
            shift = style.SHIFT * (number - middle)  # bars of several cameras at one light must not cover each other
            style.curve(upper, points, x="photons", algorithm=common_value(points["algorithm"]), shift=shift, **look)
            lower.plot(points["photons"], points["epsilon"], **look)
            handles.append(Line2D([], [], **look))
        if not noiseless.empty:
            upper.axhline(METRICS["accuracy"].of(noiseless).mean(), color="0.5", linewidth=0.9, zorder=1)
            handles.append(Line2D([], [], color="0.5", linewidth=0.9, label="no noise"))
        dotted: dict[str, Any] = {"color": "0.3", "linewidth": 0.8, "linestyle": ":", "zorder": 1}
        lights = _target_lights(table)
        for light in lights:
            for ax in (upper, lower):
                ax.axvline(light.photons, **dotted)
            lower.annotate(f"ε = {TARGET:g} at {light.photons:.2g} photons", (light.photons, TARGET), (6, -4),
                           textcoords="offset points", va="top", fontsize="small")
        if lights:
            lower.axhline(TARGET, **dotted)
        style.log_axis(lower, table["photons"])
        delta = common_value(table["delta"])
        lower.set(yscale="log", xlabel="Photo-electrons per pixel and exposure", ylabel=f"Label ε (δ = {delta:g})")
        upper.set_ylabel(METRICS["accuracy"].label)
        style.within(upper, 0, 100)
        style.legend(figure, handles, style.seeds(table["n"]))
    return figure


def plot_sigma(table: pd.DataFrame) -> Figure:
    """Plot effective sigma and its two parts against photons, 4.6 x 3.4 inches: a curve for each camera."""
    with style.theme():
        figure, (ax,) = style.panels(1, per_row=1, width=4.6, height=3.4, beside=(2.0, 0.0))
        handles = []
        for look, photons, points in _cameras(table):
            parts = _sigma_parts(points, photons)
            effective_sigma = np.hypot(*parts.values())  # the two parts are independent
            ax.plot(photons, effective_sigma, color=look["color"], linewidth=1.3)
            for part, values in parts.items():
                _, linestyle = PARTS[part]
                ax.plot(photons, values, color=look["color"], linestyle=linestyle, linewidth=0.9)
            ax.plot(points["photons"], points["effective_sigma"], **{**look, "linestyle": "none"}, zorder=3)
            handles.append(Line2D([], [], **{**look, "linestyle": "-"}))
            ends_at_full_well = common_value(points["full_well"]) > 0
            if ends_at_full_well:
                ax.annotate("full well", (photons[-1], effective_sigma[-1]), (0, -3), textcoords="offset points",
                            ha="right", va="top", fontsize="small")
        handles += [Line2D([], [], color="0.3", linestyle=linestyle, linewidth=0.9, label=label)
                    for label, linestyle in PARTS.values()]
        style.log_axis(ax, [*table["photons"], *filter(None, table["full_well"])])
        ax.set(yscale="log", xlabel="Photo-electrons per pixel and exposure", ylabel="Effective σ (units of B)")
        ax.set_ylim(bottom=table["shot_sigma"].min() / 10)  # a floor below this does not matter
        style.legend(figure, handles)
    return figure


def _cameras(table: pd.DataFrame) -> Iterator[tuple[dict[str, Any], np.ndarray, pd.DataFrame]]:
    """Yield each camera's curve style, photons along the curve (up to its full well), and rows."""
    colours = [style.PALETTE["pdfa"], "0.2", *style.PALETTE.spare]
    for number, (_, points) in enumerate(table.groupby(list(SETTINGS), sort=True)):
        camera, full_well = common_value(points["camera"]), common_value(points["full_well"])
        look = {**style.look("pdfa"), "color": colours[number % len(colours)],
                "label": camera.replace(", ", ",\n") or "PDFA"}
        if number > 0:  # open and larger markers keep equal points visible
            look |= {"marker": OPEN[(number - 1) % len(OPEN)], "markersize": 5.5 + 2 * number,
                     "markerfacecolor": "none", "linestyle": "-"}
        max_photons = full_well or table["photons"].max()  # a full well of 0 sets no limit
        yield look, np.geomspace(table["photons"].min(), max_photons, POINTS), points


def _sigma_parts(points: pd.DataFrame, photons: np.ndarray) -> dict[str, np.ndarray]:
    """Return the two parts of a camera's effective sigma at these photons, by name, scaled from its first point.

    `shot_sigma`, of counted light, falls as 1/sqrt(photons), and `floor_sigma`, of the camera, as 1/photons.
    """
    first = points.iloc[0]  # any point would do
    ratio = first["photons"] / photons
    return {"shot_sigma": first["shot_sigma"] * np.sqrt(ratio), "floor_sigma": first["floor_sigma"] * ratio}


def _crossing(points: pd.DataFrame) -> float:
    """Return the photons at which both parts of effective sigma are equal; 0 for a camera without a floor."""
    first = points.iloc[0]  # any point would do
    # shot_sigma falls as 1/sqrt(photons) and floor_sigma as 1/photons, so their ratio as 1/sqrt(photons)
    return first["photons"] * (first["floor_sigma"] / first["shot_sigma"]) ** 2
