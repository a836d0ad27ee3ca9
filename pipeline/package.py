"""The package itself: where it lies, and faces of rooms that import a name's module when it is first asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

# Of the whole package: what is shipped to other nodes, and what a checkpoint's digest covers.
ROOT = Path(__file__).parent


def lazy(package: str, homes: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of a package whose names lie in its modules.

    Args:
        package: its name.
        homes: name -> module, from the package.
    """

    def find(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module '{package}' has no attribute '{name}'")
        return getattr(import_module(f"{package}.{homes[name]}"), name)

    return find, lambda: sorted({*vars(import_module(package)), *homes})
