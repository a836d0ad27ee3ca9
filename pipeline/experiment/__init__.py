"""Experiments: from a file to its trials, and by which rule they are searched, stopped, paid for and shown."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipeline.package import lazy

if TYPE_CHECKING:
    from pipeline.experiment.experiment import Experiment, load_experiment, parse_experiment
    from pipeline.experiment.plugins import load_plugins
    from pipeline.experiment.stopping import Selection

__all__ = ["Experiment", "Selection", "load_experiment", "load_plugins", "parse_experiment"]

__getattr__, __dir__ = lazy(__name__, {"Experiment": "experiment", "Selection": "stopping",
                                       "load_experiment": "experiment", "load_plugins": "plugins",
                                       "parse_experiment": "experiment"})
