"""All exhibits by name: the function that draws each, and the trials that it fits.

A new exhibit is a line here and a module beside it. Drawing functions are given by name and imported on first use:
`pipeline.experiment` checks here, before a sweep, whether a file's trials fit its exhibits, without importing pandas or
matplotlib.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from analysis.exhibits import fit
from analysis.exhibits.frontier import fit as frontier_fit
from pipeline.trials.config import TrialConfig
from pipeline.trials.part import load

if TYPE_CHECKING:
    import pandas as pd

    from analysis.exhibits.exhibit import Exhibit
    from pipeline.experiment.experiment import Experiment
    from pipeline.tracking.reader import Reader


@dataclass(frozen=True)
class Entry:
    """One exhibit.

    Attributes:
        draws: `module:function` in `analysis.exhibits`. The function takes the last epoch of every trial (`load_runs`)
            and returns the `Exhibit`.
        mismatch: returns why the exhibit cannot show these trials, as the end of a sentence that begins with its name;
            empty if it can.
        takes: further keyword arguments of the function: `name`, `store` (has every epoch), `experiment`.
        by_default: whether a file without a list of exhibits gets it if it fits.
    """

    draws: str
    mismatch: Callable[[Sequence[TrialConfig]], str]
    takes: tuple[str, ...] = ()
    by_default: bool = True


_one, _named = fit.of_one_dataset, ("name",)
EXHIBITS = {
    "table1": Entry("table1:draw", _one(fit.table1)),
    "figure2": Entry("figure2:draw", _one(fit.figure2), ("store",)),
    **{name: Entry("frontier.exhibit:of_experiment", _one(frontier_fit.frontier, metric),
                   ("name", "experiment", "store"))
       for name, metric in frontier_fit.FRONTIERS.items()},
    "frontier_slices": Entry("frontier.slices:draw", frontier_fit.slices),
    "frontier_claimed": Entry("frontier.exhibit:of_experiment", _one(frontier_fit.claimed),
                              ("name", "experiment", "store")),
    **{name: Entry("heatmaps:draw", _one(fit.heatmap, metric), _named) for name, metric in fit.HEATMAPS.items()},
    **{name: Entry("sweeps:draw", _one(fit.sweep, field), _named) for name, field in fit.SWEPT.items()},
    **{name: Entry("light:draw", _one(fit.light), _named) for name in ("light", "effective_sigma")},
    "table1_light": Entry("table1_light:draw", _one(fit.table1_light)),
    "main_effects": Entry("main_effects:draw", fit.main_effects),
    "parallel_coordinates": Entry("parallel_coordinates:draw", fit.parallel_coordinates),
    "means": Entry("means:draw", fit.means),
    "training_time": Entry("training_time:draw", _one(fit.training_time), ("store",), by_default=False),
    "leekifer": Entry("leekifer:draw", fit.leekifer, ("store",)),
}


def mismatch(exhibit: str, configs: Sequence[TrialConfig]) -> str:
    """Return why an exhibit cannot show these trials; empty if it can."""
    if exhibit not in EXHIBITS:
        raise ValueError(f"exhibit: must be one of {', '.join(EXHIBITS)}, got {exhibit!r}")
    return EXHIBITS[exhibit].mismatch(configs)


def fitting(configs: Sequence[TrialConfig]) -> tuple[str, ...]:
    """Return the exhibits that can show these trials, except those that a file must list."""
    if not configs:
        return ()
    return tuple(name for name, entry in EXHIBITS.items() if entry.by_default and not entry.mismatch(configs))


def left_out(configs: Sequence[TrialConfig], report: Sequence[str]) -> list[tuple[str, str]]:
    """Return every exhibit that a report does not draw, with the reason."""
    return [(exhibit, mismatch(exhibit, configs) or "the `report` of the experiment file does not list it")
            for exhibit in EXHIBITS if exhibit not in report]


def draw(exhibit: str, experiment: Experiment | None, runs: pd.DataFrame, store: Reader | None) -> Exhibit:
    """Draw an exhibit of an experiment.

    Args:
        exhibit: its name.
        experiment: the experiment.
        runs: the last epoch of its trials (`load_runs`).
        store: the store with their other epochs.

    Raises:
        ReportError: if the runs lack data for it.
    """
    entry = EXHIBITS[exhibit]
    available = {"name": exhibit, "experiment": experiment, "store": store}
    draw_function = load(f"analysis.exhibits.{entry.draws}")
    return draw_function(runs, **{name: available[name] for name in entry.takes})
