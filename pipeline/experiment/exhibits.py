"""All exhibits by name, with the trials that each can show. `analysis.exhibits.catalogue` draws them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pipeline.experiment import frontiers, needs
from pipeline.experiment.factors import differing
from pipeline.experiment.frontiers import FRONTIERS
from pipeline.experiment.needs import BY, HEATMAPS, SWEPT
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


def names() -> str:
    """Return the names of exhibits, for messages."""
    return f"{', '.join(NEEDS)}, or of {BY}SETTING for a setting that is a number"


def is_known(exhibit: object) -> bool:
    """Whether there is an exhibit of this name."""
    return isinstance(exhibit, str) and (exhibit in NEEDS or bool(needs.swept(exhibit)))


def mismatch(exhibit: str, configs: Sequence[TrialConfig]) -> str:
    """Return why an exhibit cannot show these trials; empty if it can."""
    return (NEEDS.get(exhibit) or _one(needs.sweep, needs.swept(exhibit)))(configs)


def fitting(configs: Sequence[TrialConfig]) -> tuple[str, ...]:
    """Return the exhibits that can show these trials, except those that a file must list."""
    has_exhibit = {*SWEPT.values(), "target_epsilon", "target_label_epsilon"}  # of targets it is the frontier
    over = [f"{BY}{name}" for name in differing(configs, lambda _: None) if name not in has_exhibit]
    return tuple(name for name in (*NEEDS, *filter(needs.swept, over))
                 if configs and name not in LISTED_ONLY and not mismatch(name, configs))


def undrawn(configs: Sequence[TrialConfig], report: Sequence[str]) -> list[tuple[str, str]]:
    """Return every exhibit that a report does not draw, with the reason."""
    return [(exhibit, mismatch(exhibit, configs) or "the `report` of the experiment file does not list it")
            for exhibit in NEEDS if exhibit not in report]
