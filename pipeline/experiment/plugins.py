"""Plugins: modules that register extensions when they are imported (docs/extending.md).

An experiment file names its plugins, so that every reader and every worker of its sweep imports them first.
"""

from __future__ import annotations

import hashlib
import importlib
import sys
from collections.abc import Sequence
from pathlib import Path

from pipeline.trials.fields import ConfigError

LOADED: dict[str, str] = {}  # of loaded plugins: name -> 16 hexadecimal digits of its source's SHA-256


def load_plugins(names: Sequence[str], folder: Path) -> None:
    """Import plugins, modules with extensions, each once in a process; record their digests in `LOADED`.

    Args:
        names: names of modules, without `.py`; a dot separates folders.
        folder: folder of the experiment file; modules that are not installed must be here. Other hosts of a cluster
            need them at the same path, or installed.

    Raises:
        ConfigError: for a module that is not found, or that fails when it is imported.
    """
    if names and str(folder.absolute()) not in sys.path:
        sys.path.append(str(folder.absolute()))
    importlib.invalidate_caches()  # a file may have just been written
    for name in names:
        if name in LOADED:  # a reload could record a newer digest than that of the code that runs
            continue
        try:
            source = importlib.import_module(name).__file__
            LOADED[name] = hashlib.sha256(Path(source or "").read_bytes()).hexdigest()[:16]
        except Exception as error:  # a module may raise anything when it is imported
            raise ConfigError(f"plugins: '{name}' cannot be imported ({type(error).__name__}: {error}); it must be a "
                              f"module in {folder.absolute()}, or one that is installed") from error
