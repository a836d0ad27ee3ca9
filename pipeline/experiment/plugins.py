"""Plugins: modules that register extensions when they are imported (docs/extending.md).

An experiment file names them, so that whoever reads it, and every worker of its sweep, imports them first.
"""

from __future__ import annotations

import hashlib
import importlib
import sys
from collections.abc import Sequence
from pathlib import Path

from pipeline.trials.fields import ConfigError

LOADED: dict[str, str] = {}  # name -> 16 hexadecimal digits of the SHA-256 of its source, of those loaded here


def load_plugins(names: Sequence[str], folder: Path) -> None:
    """Import modules, each once in a process.

    Args:
        names: of modules, without `.py`; a dot is a folder.
        folder: where they may lie if they are not installed: that of the experiment file. Other hosts of a cluster
            need them at the same place, or installed.

    Raises:
        ConfigError: for a module that is not found, or that fails when it is imported.
    """
    if names and str(folder.absolute()) not in sys.path:
        sys.path.append(str(folder.absolute()))
    importlib.invalidate_caches()  # a file may have been written a moment ago
    for name in (name for name in names if name not in LOADED):  # or a file that was changed since would pass for it
        try:
            source = importlib.import_module(name).__file__
            LOADED[name] = hashlib.sha256(Path(source or "").read_bytes()).hexdigest()[:16]
        except Exception as error:  # whatever a module raises while it is imported
            raise ConfigError(f"plugins: '{name}' cannot be imported ({type(error).__name__}: {error}); it must be a "
                              f"module in {folder.absolute()}, or one that is installed") from error
