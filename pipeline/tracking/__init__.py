"""The tracking store: what is kept of every trial, in MLflow, of which `backend` alone knows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipeline.package import lazy

if TYPE_CHECKING:
    from pipeline.tracking.artifacts import TrackedRun
    from pipeline.tracking.store import Store, TrackingError

__all__ = ["Store", "TrackedRun", "TrackingError"]

__getattr__, __dir__ = lazy(__name__, {"Store": "store", "TrackedRun": "artifacts", "TrackingError": "store"})
