"""What tests register, and load as plugins."""

import contextlib
import sys

from analysis.exhibits.catalogue import DRAWS
from pipeline.experiment import plugins
from pipeline.experiment.exhibits import NEEDS
from pipeline.trials import part


@contextlib.contextmanager
def forgotten_plugins():
    """What is registered within, or loaded as a plugin, is gone after it."""
    exhibits = set(NEEDS)
    registries = [*part.PARTS.values(), part.SETTINGS, plugins.LOADED]
    before, path = [dict(registry) for registry in registries], list(sys.path)
    yield
    for name in plugins.LOADED.keys() - before[-1].keys():
        sys.modules.pop(name, None)
    for name in NEEDS.keys() - exhibits:  # those of this package are registered when their modules are imported
        del NEEDS[name], DRAWS[name]
    for registry, content in zip(registries, before, strict=True):
        registry.clear()
        registry.update(content)
    sys.path[:] = path
