"""Trials: what can be configured, and what each reports of itself.

All other rooms speak in these terms; nothing here knows how a trial is trained, accounted for or kept.
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
