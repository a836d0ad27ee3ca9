"""What tests register, and load as plugins."""

import contextlib
import sys

from analysis.catalogue import EXHIBITS
from pipeline.experiment import plugins
from pipeline.trials import part


@contextlib.contextmanager
def forgotten_plugins():
    """What is registered within, or loaded as a plugin, is gone after it."""
    exhibits = set(EXHIBITS)
    registries = [*part.PARTS.values(), part.SETTINGS, plugins.LOADED]
    before, path = [dict(registry) for registry in registries], list(sys.path)
    yield
    for name in plugins.LOADED.keys() - before[-1].keys():
        sys.modules.pop(name, None)
    for name in EXHIBITS.keys() - exhibits:
        del EXHIBITS[name]
    for registry, content in zip(registries, before, strict=True):
        registry.clear()
        registry.update(content)
    sys.path[:] = path
