"""From tracked runs to tables and figures. Knows the tracking store and the configuration, not how trials train.

For notebooks and scripts:

    load_runs        the trials of a sweep, one row each
    load_history     one metric of them by epoch
    best             the best trial within an epsilon, and the price of having chosen it
    frontier         accuracy against epsilon: the points of a privacy-utility frontier
    frontier_axes    those points, drawn

Importing this package imports no pandas, matplotlib or MLflow; what needs them is imported when it is first asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from analysis.api import best, load_history, load_runs
    from analysis.exhibits.frontier.figure import frontier_axes
    from analysis.exhibits.frontier.points import frontier

__all__ = ["best", "frontier", "frontier_axes", "load_history", "load_runs"]

_HOMES = {"best": "analysis.api", "frontier": "analysis.exhibits.frontier.points",
          "frontier_axes": "analysis.exhibits.frontier.figure", "load_history": "analysis.api",
          "load_runs": "analysis.api"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'analysis' has no attribute '{name}'")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
