"""The maps of single records by name: what computes each, and how an extension adds one."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import Field, dataclass
from pathlib import Path
from typing import Any

import torch

from pipeline.learning.data.encoder import Encoder
from pipeline.learning.data.optical import optical
from pipeline.learning.data.patches import Patches
from pipeline.learning.data.scattering import scattering
from pipeline.trials.config import TrialConfig
from pipeline.trials.datasets import DatasetSpec
from pipeline.trials.features import stated
from pipeline.trials.fields import ConfigError
from pipeline.trials.part import extension

PACK = 256  # records at a time
Apply = Callable[[torch.Tensor], torch.Tensor]  # uint8 records [n, n_features] -> features [n, *shape], floating


@dataclass(frozen=True)
class Map:
    """What computes the features of records.

    Attributes:
        opened: from facts of a data set, a trial and a device to what maps records, as long as it is held.
        pack: records at a time.
        code: digest of what computes it, which a cache is named by; empty for this package's own maps.
        kept: whether the cache keeps what was computed.
        function: of an extension.
    """

    opened: Callable[[DatasetSpec, TrialConfig, torch.device], AbstractContextManager[Apply]]
    pack: int
    code: str = ""
    kept: bool = True
    function: Callable[[torch.Tensor, TrialConfig], torch.Tensor] | None = None


def _images(records: torch.Tensor, spec: DatasetSpec) -> torch.Tensor:
    """Return records [n, n_features] as images of floats on [0, 1], [n, *shape of the data set]."""
    return records.view(-1, *spec.shape).to(torch.float32) / spec.scale


@contextlib.contextmanager
def _scattering(spec: DatasetSpec, config: TrialConfig, device: torch.device) -> Iterator[Apply]:
    """Yield the map of records to their scattering coefficients, of each colour by itself."""
    channels = spec.shape[0]

    def apply(records: torch.Tensor) -> torch.Tensor:
        images = _images(records, spec).flatten(0, 1)  # each colour by itself
        maps = scattering(images, config.scattering_scales, config.scattering_angles)
        return maps.view(-1, channels * maps.shape[1], *maps.shape[2:])

    yield apply


@contextlib.contextmanager
def _patches(spec: DatasetSpec, config: TrialConfig, device: torch.device) -> Iterator[Apply]:
    """Yield the map of records to the responses of patch filters, followed by the encoder's features if asked for.

    Args:
        spec: facts of the data set.
        config: a trial, with the filters' settings.
        device: device of the records.
    """
    channels, size, *_ = spec.shape
    maps = Patches(channels, size, config.patch_filters, config.patch_size, config.patch_threshold, config.patch_pools,
                   device)
    if config.patch_beside == "none":
        yield lambda records: maps(_images(records, spec))
        return
    beside = Encoder(config.patch_pools, device)
    yield lambda records: torch.cat([of(_images(records, spec)) for of in (maps, beside)], dim=1)


@contextlib.contextmanager
def _encoder(spec: DatasetSpec, config: TrialConfig, device: torch.device) -> Iterator[Apply]:
    maps = Encoder(config.encoder_pools, device)
    yield lambda records: maps(_images(records, spec))


@contextlib.contextmanager
def _as_they_are(spec: DatasetSpec, config: TrialConfig, device: torch.device) -> Iterator[Apply]:
    yield lambda rows: rows


SCATTERING = Map(_scattering, 64)  # which stay in a processor's cache
PATCHES = Map(_patches, PACK)
ENCODER = Map(_encoder, PACK)
OPTICAL = Map(optical, 1024)
FILE = Map(_as_they_are, 4096, kept=False)  # it is a file already


def register_features(name: str, function: Callable[[torch.Tensor, TrialConfig], torch.Tensor], *,
                      shape: Callable[[TrialConfig], tuple[int, ...]] | tuple[int, ...], public_because: str,
                      settings: Sequence[str] | Mapping[str, Field[Any] | None] = (), groups: int = 0) -> None:
    """Add a map of single records: `features: <name>` is accepted from then on (docs/add_data.md).

    Args:
        name: of the setting `features`.
        function: from records [n, *shape of the data set], float32 on [0, 1], and a trial, to features [n, *shape],
            floating point, row by row: the features of a record must not depend on the others of the pack.
        shape: of one record's features, channels first, or a function of the trial.
        public_because: why the map is public and depends on no private record. The sentence stands in the tag
            `privacy.notes` of every trial with these features.
        settings: fields that it uses, and new ones, as of `register_feedback`; they become part of its trials'
            identity. `feature_groups` always is.
        groups: in which the features are normalised where `feature_groups` does not say.

    Raises:
        ConfigError: for a name that is taken, a field that does not exist, or without `public_because`.
    """
    if not public_because.strip() or "\n" in public_because:
        raise ConfigError(f"public_because: must say in one line why '{name}' is a public map of single records, got "
                          f"{public_because!r}; without it no epsilon of its trials would hold")
    entries = dict(settings if isinstance(settings, Mapping) else dict.fromkeys(settings))
    old = [known for known, entry in entries.items() if entry is None]  # first, as the cache names what is computed
    entries = {**dict.fromkeys((*old, "feature_groups")), **entries}
    code = _code(function)
    works = Map(_extension(function), PACK, code=code, kept=bool(code), function=function)
    extension("features", name, stated(shape, public_because), entries, works=works, groups=groups)


def _extension(function: Callable[[torch.Tensor, TrialConfig], torch.Tensor]
               ) -> Callable[[DatasetSpec, TrialConfig, torch.device], AbstractContextManager[Apply]]:
    """Return the function that opens an extension's feature map (`Map.opened`).

    Args:
        function: the extension: maps images [n, *shape] on [0, 1] and a trial to features. It holds nothing open, so
            the context ends without any work.
    """

    @contextlib.contextmanager
    def opened(spec: DatasetSpec, config: TrialConfig, device: torch.device) -> Iterator[Apply]:
        yield lambda records: function(_images(records, spec), config)
    return opened


def _code(function: Any) -> str:
    """Return the digest of the module that defines a function; empty if there is no file.

    A cell of a notebook has none, and may change under the same name, so its features are not cached.
    """
    code = getattr(getattr(function, "func", function), "__code__", None)
    path = Path(code.co_filename) if code else None
    return hashlib.sha256(path.read_bytes()).hexdigest() if path and path.is_file() else ""
