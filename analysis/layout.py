"""Which settings tell the lines of a figure apart, and which its panels.

Exhibits ask before they draw, and the commands before they train, so this module imports no drawing library. A line
joins trials that differ in its axis and their seed alone. What else may change along it was asked for by the file:
settings of which the best is taken (`report: {best_of: [...]}`, or a search), those of its preset, and those that
`zip` moves with the axis.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import combinations, compress
from typing import Any, NamedTuple

from pipeline.experiment.experiment import Experiment
from pipeline.experiment.factors import differing
from pipeline.experiment.search import Search
from pipeline.trials.config import TrialConfig
from pipeline.trials.kinds import GUARANTEED, KINDS
from pipeline.trials.naming import counted, method, noise_setting

MOST_LINES = 5  # in a panel, where more than the algorithm tells them apart
MOST_PANELS = 12
ALGORITHM, AMOUNT = "algorithm", "setting"  # factors that are no single setting: the method, and the noise as given
NOISE = tuple(name for kind in GUARANTEED for name in KINDS[kind].noise)  # settings of the amount of noise
FIRST = ("dataset", "network", AMOUNT, "mechanism")  # of several factors, the first that become panels


class Layout(NamedTuple):
    """The factors, beside the axes, that tell the lines and the panels of a figure apart."""

    lines: tuple[str, ...] = ()  # beside the algorithm
    panels: tuple[str, ...] = ()
    bound: tuple[str, ...] = ()  # settings that change with these factors or with the axis
    fault: str = ""  # why a figure cannot have them, as the end of a sentence

    @property
    def factors(self) -> tuple[str, ...]:
        """Both, panels first."""
        return self.panels + self.lines


def level(trial: TrialConfig, factor: str) -> Any:
    """Return a trial's value of a factor; None if it does not use the setting."""
    (value,) = levels(trial, (factor,))
    return value


def levels(trial: TrialConfig, factors: Iterable[str]) -> tuple[Any, ...]:
    """Return a trial's values of several factors."""
    given = {**trial.canonical(), ALGORITHM: method(trial), AMOUNT: noise_setting(trial).removeprefix("sigma=")}
    values = [given.get(factor) for factor in factors]
    return tuple(tuple(value) if isinstance(value, list) else value for value in values)


def companions(experiment: Experiment, axes: Sequence[str]) -> tuple[str, ...]:
    """Return the settings that the file's `zip` moves together with one of these."""
    found: set[str] = set()
    for places in experiment.places.values():
        # The `zip` of each: `cases[0].zip.` of `cases[0].zip.tau_h[1]`.
        blocks = {name: place[:place.index("zip.")] for name, place in places.items() if "zip." in place}
        of_axes = {blocks[axis] for axis in axes if axis in blocks}
        found |= {name for name, block in blocks.items() if block in of_axes}
    return tuple(sorted(found - {*axes}))


def loose(experiment: Experiment, axes: Sequence[str]) -> set[str]:
    """Return the settings that may change along a line, beside its axes and the seed."""
    space = experiment.plan.space if isinstance(experiment.plan, Search) else ()
    return {*experiment.report.best_of, *experiment.by_preset, *space, *companions(experiment, axes)}


def lines_of(trials: Sequence[TrialConfig], axes: Sequence[str], experiment: Experiment) -> Layout:
    """Return the layout of lines along an axis: further factors become lines, then panels; data sets always panels.

    Lines of a panel are at most `MOST_LINES`, or one for each algorithm.
    """
    factors, bound = _factors(trials, axes, experiment)
    combined = {levels(trial, (*factors, ALGORITHM)) for trial in trials}  # a line each, wherever it stands
    for number in range(len(factors) + 1):
        for panels in combinations(factors, number):
            lines = tuple(name for name in factors if name not in panels)
            names_panel = [name in panels for name in factors]
            per_panel = Counter(tuple(compress(line, names_panel)) for line in combined)  # numbers of lines
            fits = not lines or max(per_panel.values()) <= MOST_LINES
            if "dataset" not in lines and fits and len(per_panel) <= MOST_PANELS:
                return Layout(lines, panels, bound)
    return Layout(fault=_fault(trials, factors, f"{MOST_LINES} lines in each of {MOST_PANELS} panels"))


def panels_of(trials: Sequence[TrialConfig], axes: Sequence[str], experiment: Experiment) -> Layout:
    """Return the layout of a figure with two axes: a panel for each algorithm and level of further factors."""
    factors, bound = _factors(trials, axes, experiment)
    panels = (*factors, ALGORITHM)
    if len({levels(trial, panels) for trial in trials}) > MOST_PANELS:
        return Layout(fault=_fault(trials, factors, f"{MOST_PANELS} panels"))
    return Layout((), panels, bound)


def _factors(trials: Sequence[TrialConfig], axes: Sequence[str], experiment: Experiment
             ) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return what trials of one algorithm differ in, beside axes, seed and `loose` settings; and what changes with it.

    A factor that the others determine is among those that change with them, such as a setting of one network.
    """
    names = {*differing(trials, method)} - {ALGORITHM, *axes, *loose(experiment, axes)}
    if names & {*NOISE}:  # one factor in place of its settings, unless it lies along an axis
        names -= {*NOISE}
        names |= set() if {*axes} & {*NOISE, AMOUNT} else {AMOUNT}
    kept: tuple[str, ...] = ()
    bound = [*companions(experiment, axes)]
    for name in [*(name for name in FIRST if name in names), *sorted(names - {*FIRST})]:
        without = {levels(trial, (ALGORITHM, *kept)) for trial in trials}
        with_it = {levels(trial, (ALGORITHM, *kept, name)) for trial in trials}
        if len(with_it) > len(without):
            kept += (name,)
        elif all(level(trial, name) is not None for trial in trials):
            bound.append(name)
    return kept, tuple(bound)


def _fault(trials: Sequence[TrialConfig], factors: Sequence[str], most: str) -> str:
    counts = ", ".join(f"{name} ({counted(len({level(t, name) for t in trials}), 'value')})" for name in factors)
    name = next((name for name in reversed(factors) if name not in (AMOUNT, "dataset")), factors[-1])
    value = next(value for trial in trials if (value := level(trial, name)) is not None)
    text = value if isinstance(value, str) else f"{value:g}"
    return (f"has at most {most}, but trials also differ in {counts}; give --where {name}={text}, or `report: "
            f"{{best_of: [{name}]}}`, which takes the best by validation accuracy")
