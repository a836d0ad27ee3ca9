"""The function that draws each exhibit of `pipeline.experiment.exhibits`, imported on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipeline.experiment.exhibits import FRONTIERS, HEATMAPS, SWEPT
from pipeline.trials.part import load

if TYPE_CHECKING:
    import pandas as pd

    from analysis.exhibits.exhibit import Exhibit
    from pipeline.experiment.experiment import Experiment
    from pipeline.tracking.reader import Reader

# By exhibit: `module:function`, which takes the last epoch of every trial (`load_runs`) and these keyword arguments.
_FRONTIER = "frontier.exhibit:of_experiment", ("name", "experiment", "results")
DRAWS: dict[str, tuple[str, tuple[str, ...]]] = {
    "table1": ("table1:draw", ()),
    "figure2": ("figure2:draw", ("store",)),
    **dict.fromkeys((*FRONTIERS, "frontier_claimed"), _FRONTIER),
    "frontier_slices": ("frontier.slices:draw", ()),
    **dict.fromkeys(HEATMAPS, ("heatmaps:draw", ("name",))),
    **dict.fromkeys(SWEPT, ("sweeps:draw", ("name",))),
    **dict.fromkeys(("light", "effective_sigma"), ("light:draw", ("name",))),
    "table1_light": ("table1_light:draw", ()),
    "main_effects": ("main_effects:draw", ()),
    "parallel_coordinates": ("parallel_coordinates:draw", ()),
    "means": ("means:draw", ()),
    "training_time": ("training_time:draw", ("store",)),
    "leekifer": ("leekifer:draw", ("store",)),
}


def draw(exhibit: str, experiment: Experiment | None, runs: pd.DataFrame, store: Reader | None,
         results: pd.DataFrame | None = None) -> Exhibit:
    """Draw an exhibit of an experiment. `ReportError` says what the runs lack for it."""
    draws, takes = DRAWS[exhibit]
    available = {"name": exhibit, "experiment": experiment, "store": store, "results": results}
    draw_function = load(f"analysis.exhibits.{draws}")
    return draw_function(runs, **{name: available[name] for name in takes})
