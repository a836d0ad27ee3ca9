"""Compatibility: the names of `pipeline.experiment.experiment` under their former module."""

from __future__ import annotations

import importlib
from typing import Any


def __getattr__(name: str) -> Any:
    return getattr(importlib.import_module("pipeline.experiment.experiment"), name)
