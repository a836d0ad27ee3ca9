"""Private training with direct feedback alignment: sweeps over noise, clipping, batch size and algorithm."""

from pipeline.config import ConfigError, TrialConfig

__all__ = ["ConfigError", "TrialConfig"]
