"""All exhibits by name, with the trials that each can show. `analysis.exhibits.catalogue` draws them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pipeline.experiment import frontiers, needs
from pipeline.experiment.frontiers import FRONTIERS
from pipeline.experiment.needs import HEATMAPS, SWEPT
from pipeline.trials.config import TrialConfig

_one = needs.of_one_dataset

# By exhibit: returns why it cannot show these trials, as the end of a sentence that begins with its name, else "".
NEEDS: dict[str, Callable[[Sequence[TrialConfig]], str]] = {
    "table1": _one(needs.table1),
    "figure2": _one(needs.figure2),
    **{name: _one(frontiers.frontier, metric) for name, metric in FRONTIERS.items()},
    "frontier_slices": frontiers.slices,
    "frontier_claimed": _one(frontiers.claimed),
    **{name: _one(needs.heatmap, metric) for name, metric in HEATMAPS.items()},
    **{name: _one(needs.sweep, field) for name, field in SWEPT.items()},
    **dict.fromkeys(("light", "effective_sigma"), _one(needs.light)),
    "table1_light": _one(needs.table1_light),
    "main_effects": needs.main_effects,
    "parallel_coordinates": needs.parallel_coordinates,
    "means": needs.means,
    "training_time": _one(needs.training_time),
    "leekifer": needs.leekifer,
}
LISTED_ONLY = ("training_time",)  # a file without a list of exhibits gets all others that fit


def mismatch(exhibit: str, configs: Sequence[TrialConfig]) -> str:
    """Return why an exhibit cannot show these trials; empty if it can."""
    if exhibit not in NEEDS:
        raise ValueError(f"exhibit: must be one of {', '.join(NEEDS)}, got {exhibit!r}")
    return NEEDS[exhibit](configs)


def fitting(configs: Sequence[TrialConfig]) -> tuple[str, ...]:
    """Return the exhibits that can show these trials, except those that a file must list."""
    return tuple(name for name in NEEDS if configs and name not in LISTED_ONLY and not mismatch(name, configs))


def undrawn(configs: Sequence[TrialConfig], report: Sequence[str]) -> list[tuple[str, str]]:
    """Return every exhibit that a report does not draw, with the reason."""
    return [(exhibit, mismatch(exhibit, configs) or "the `report` of the experiment file does not list it")
            for exhibit in NEEDS if exhibit not in report]
