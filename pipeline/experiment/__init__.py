"""Experiments: from a file to its trials, with the rules of search, cost and report."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipeline.package import lazy

if TYPE_CHECKING:
    from pipeline.experiment.experiment import load_experiment, parse_experiment

__all__ = ["load_experiment", "parse_experiment"]

__getattr__, __dir__ = lazy(__name__, {"load_experiment": "experiment", "parse_experiment": "experiment"})
