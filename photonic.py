"""All public names of this software, for scripts and notebooks: those of the packages `pipeline` and `analysis`.

    import photonic

    experiment = photonic.load_experiment("quickstart.yaml")
    photonic.run_sweep(experiment)
    runs = photonic.load_runs(experiment)

A project may have folders of its own that are called `pipeline` or `analysis`: this module finds the packages that lie
beside it, and not those. It must be imported before them.
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from analysis import *  # noqa: F403
    from pipeline import *  # noqa: F403

FOLDER = Path(__file__).resolve().parent
PACKAGES = ("pipeline", "analysis")

for _name in PACKAGES:
    _file = getattr(sys.modules.get(_name), "__file__", None)
    if _name in sys.modules and (not _file or Path(_file).resolve().parent.parent != FOLDER):
        raise ImportError(f"photonic: its package '{_name}' cannot be loaded, as another one is loaded already, got "
                          f"{_file or 'a folder without __init__.py'}; import photonic first, or rename that folder")
sys.path.insert(0, str(FOLDER))
try:
    _homes = {name: module for module in map(import_module, PACKAGES) for name in module.__all__}
finally:
    sys.path.remove(str(FOLDER))

__all__ = sorted(_homes)


def __getattr__(name: str) -> Any:
    """Return a name of the packages; what needs torch, Ray or MLflow imports them now."""
    if name not in _homes:
        raise AttributeError(f"module 'photonic' has no attribute '{name}'")
    return getattr(_homes[name], name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_homes})
