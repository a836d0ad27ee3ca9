"""Trials: their settings, and the records that each reports.

All other packages use these types. Nothing here knows how a trial is trained, accounted for or stored.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipeline.package import lazy

if TYPE_CHECKING:
    from pipeline.trials.config import ConfigError, TrialConfig
    from pipeline.trials.packs import Pack, Resources, plan
    from pipeline.trials.records import EpochRecord, Outcome

__all__ = ["ConfigError", "EpochRecord", "Outcome", "Pack", "Resources", "TrialConfig", "plan"]

__getattr__, __dir__ = lazy(__name__, {"ConfigError": "config", "EpochRecord": "records", "Outcome": "records",
                                       "Pack": "packs", "Resources": "packs", "TrialConfig": "config",
                                       "plan": "packs"})
