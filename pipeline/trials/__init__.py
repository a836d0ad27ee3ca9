"""Trials: what can be configured, which trials an experiment has, and what each reports of itself.

All other rooms speak in these terms; nothing here knows how a trial is trained, accounted for or kept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipeline.package import lazy

if TYPE_CHECKING:
    from pipeline.trials.config import ConfigError, TrialConfig
    from pipeline.trials.experiment import Experiment, Resources, load_experiment
    from pipeline.trials.packs import Pack, plan
    from pipeline.trials.plugins import load_plugins
    from pipeline.trials.records import EpochRecord, Outcome
    from pipeline.trials.stopping import Selection

__all__ = ["ConfigError", "EpochRecord", "Experiment", "Outcome", "Pack", "Resources", "Selection", "TrialConfig",
           "load_experiment", "load_plugins", "plan"]

__getattr__, __dir__ = lazy(__name__, {"ConfigError": "config", "EpochRecord": "records", "Experiment": "experiment",
                                       "Outcome": "records", "Pack": "packs", "Resources": "experiment",
                                       "Selection": "stopping", "TrialConfig": "config",
                                       "load_experiment": "experiment", "load_plugins": "plugins", "plan": "packs"})
