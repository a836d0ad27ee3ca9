"""Where the files of this repository's own sweeps lie: each is known by the sweep's name, whichever study it is of."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parent.parent


def file_of(sweep: str) -> Path:
    """The experiment file of a sweep."""
    return next((ROOT / "experiments").rglob(f"{sweep}.yaml"))
