"""Make tables and figures from tracked runs. Depends on the tracking store and the configuration, not on training.

For notebooks and scripts:

    load_runs        the trials of a sweep, one row each
    load_history     one metric of these trials by epoch
    best             the best trial within an epsilon, and the privacy cost of choosing it
    frontier         accuracy against epsilon: the points of a privacy-utility frontier
    frontier_axes    a plot of these points
    cells            means over seeds, a row per cell of any columns
    exhibit          registers an exhibit of your own for reports, an Exhibit

Importing this package does not import pandas, matplotlib or MLflow; the first use of a function does.
"""

from __future__ import annotations

import os
from importlib.util import find_spec
from typing import TYPE_CHECKING

from pipeline import machine
from pipeline.package import lazy

if TYPE_CHECKING:
    from analysis.catalogue import exhibit
    from analysis.exhibits.envelope import cells
    from analysis.exhibits.exhibit import Exhibit
    from analysis.exhibits.frontier.figure import frontier_axes
    from analysis.exhibits.frontier.points import frontier
    from analysis.exhibits.selection import best
    from analysis.runs import load_history, load_runs

machine.refuse(machine.ends_commands())  # pandas imports what would raise
_backend = os.environ.get("MPLBACKEND", "").partition("module://")[2]
if _backend and not find_spec(_backend.partition(".")[0]):  # that of a notebook, inherited by a process without it
    del os.environ["MPLBACKEND"]

__all__ = ["Exhibit", "best", "cells", "exhibit", "frontier", "frontier_axes", "load_history", "load_runs"]

__getattr__, __dir__ = lazy(__name__, {
    "Exhibit": "exhibits.exhibit", "best": "exhibits.selection", "cells": "exhibits.envelope", "exhibit": "catalogue",
    "frontier": "exhibits.frontier.points", "frontier_axes": "exhibits.frontier.figure", "load_history": "runs",
    "load_runs": "runs"})
