"""The tracking store: the records of all trials, in MLflow. Only `backend` imports MLflow.

`Reader` reads a store and changes nothing; `Store` is a reader that also writes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipeline.package import lazy

if TYPE_CHECKING:
    from pipeline.tracking.backend import TrackingError
    from pipeline.tracking.reader import Reader
    from pipeline.tracking.store import Store

__all__ = ["Reader", "Store", "TrackingError"]

__getattr__, __dir__ = lazy(__name__, {"Reader": "reader", "Store": "store", "TrackingError": "backend"})
