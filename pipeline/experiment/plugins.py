"""Plugins: modules that register extensions when they are imported (docs/extending.md).

An experiment file names its plugins, so that every reader and every worker of its sweep imports them first.
"""

from __future__ import annotations

import hashlib
import importlib
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeline.experiment.yaml_text import located, parse_yaml
from pipeline.trials import declared_table
from pipeline.trials.fields import ConfigError, suggestion
from pipeline.trials.guard import INSTALLED, guarded

LOADED: dict[str, str] = {}  # of loaded plugins: name -> digest of its source, or of what a table's file declares


def read_plugins(top: Mapping[str, Any], folder: Path, stored: bool) -> tuple[str, ...]:
    """Return the plugins that a file in this folder lists, now imported; a `stored` file's must be loaded already."""
    names = top.get("plugins", [])
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ConfigError(f"plugins: must be a list of names of modules, got {names!r}")
    not_loaded = set(names) - set(LOADED)
    if stored and not_loaded:
        raise ConfigError(f"plugins: must be none, as nothing that a store names is imported, got "
                          f"{', '.join(sorted(not_loaded))}; name the experiment file itself")
    load_plugins(names, folder)
    return tuple(names)


def load_plugins(names: Sequence[str], folder: Path) -> None:
    """Import plugins, modules with extensions, each once in a process; record their digests in `LOADED`.

    A name that ends in .yaml is of a table's declaration. A module's is without `.py`, and a dot separates folders.
    What is not installed must be in the file's folder; other hosts of a cluster need it at the same path, or installed.
    """
    if names and str(folder.absolute()) not in sys.path:
        sys.path.append(str(folder.absolute()))
    importlib.invalidate_caches()  # a file may have just been written
    for name in names:
        if name.endswith(".yaml"):  # read again: another one of the name is refused
            LOADED[name] = _register_table(folder / name)
        elif name not in LOADED:  # a reload could record a newer digest than that of the code that runs
            LOADED[name] = _import(name, folder)
        _refuse_other(name, folder)


def _import(name: str, folder: Path) -> str:
    def refused(line: str) -> ConfigError:
        is_missing = line.startswith(f"ModuleNotFoundError: No module named '{name.partition('.')[0]}")
        near = suggestion(name.removesuffix(".py"), [file.stem for file in folder.glob("*.py")])
        remedy = f"; {near}it must be a module in {folder.absolute()}, or one that is installed" if is_missing else ""
        return ConfigError(f"plugins: '{name}' cannot be imported ({line}){remedy}")

    with guarded(refused):
        file = importlib.import_module(name).__file__ or ""
        INSTALLED.add(file)
        return source_digest(file)


def _refuse_other(name: str, folder: Path) -> None:
    """Refuse a module beside the file if Python has another one by its name."""
    stem, taken = folder.absolute() / name.replace(".", "/"), getattr(sys.modules.get(name), "__file__", None)
    for beside in (stem / "__init__.py", stem.with_name(f"{stem.name}.py")):
        if taken and beside.is_file() and source_digest(str(beside)) != source_digest(taken):
            raise ConfigError(f"plugins: '{name}' must be one module, got {beside} and {taken}, which Python loads; "
                              "rename one, or start Python in the folder of the experiment file")


def source_digest(file: str) -> str:
    """Return the digest of a plugin's source, as its file is now."""
    return hashlib.sha256(Path(file).read_bytes()).hexdigest()[:16]


def _register_table(path: Path) -> str:
    """Register the data set that a file declares; return the digest of what is public of it."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"plugins: '{path.name}' cannot be read ({error}); it must be the declaration of a table in "
                          f"{path.parent.absolute()}") from error
    content = parse_yaml(text, path)
    with located(path, content):
        return declared_table.enter(content, path)
