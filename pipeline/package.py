"""The package: its folders, and lazy package faces that import a name's module on first use."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

# The whole package is shipped to other nodes, and a checkpoint's digest covers it.
ROOT = Path(__file__).parent
JOB = "PHOTONIC_JOB"  # environment variable with the id of the job of Ray that this process is, if it is one


def cache_folder() -> Path:
    """Return the folder of downloads, features and calibrated noise: PHOTONIC_CACHE, by default ~/.cache/photonic."""
    return Path(os.environ.get("PHOTONIC_CACHE") or "~/.cache/photonic").expanduser()


def wheel_version() -> str:
    """Return `photonic-dfa VERSION` if this code was installed from a wheel; empty for a checkout or a copy of it."""
    installed = ROOT.parent.glob("photonic_dfa-*.dist-info")
    return "".join(f"photonic-dfa {folder.stem.partition('-')[2]}" for folder in installed)


def lazy(package: str, homes: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return (`__getattr__`, `__dir__`) for a package whose names are imported from their modules on first use.

    Args:
        package: its name.
        homes: name -> module, relative to the package, or `module:attribute` where the name differs.
    """

    def find(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module '{package}' has no attribute '{name}'")
        module, _, attribute = homes[name].partition(":")
        return getattr(import_module(f"{package}.{module}"), attribute or name)

    return find, lambda: sorted({*vars(import_module(package)), *homes})
