"""The maps of single records by name: what computes each, and how an extension adds one."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import Field, dataclass
from pathlib import Path
from typing import Any

import torch

from pipeline.learning.data.maps.encoder import EncoderMap
from pipeline.learning.data.maps.patches import PatchMap
from pipeline.learning.data.maps.scattering import scattering
from pipeline.trials import features
from pipeline.trials.config import TrialConfig
from pipeline.trials.datasets import DatasetSpec
from pipeline.trials.fields import ConfigError
from pipeline.trials.part import Workers, extension

CHUNK_SIZE = 256  # records at a time
Apply = Callable[[torch.Tensor], torch.Tensor]  # uint8 records [n, n_features] -> features [n, *shape], floating


@dataclass(frozen=True)
class Map:
    """A feature map, and how it is applied."""

    make: Callable[[DatasetSpec, TrialConfig, torch.device], Apply]
    chunk_size: int  # records at a time
    code: str = ""  # digest of the defining module, part of a cache file's name; empty for this package's own maps
    is_cached: bool = True  # whether the cache stores the features


MAPS: Workers[Map] = Workers()


def _images(records: torch.Tensor, spec: DatasetSpec) -> torch.Tensor:
    """Return records [n, n_features] as images of floats on [0, 1], [n, *shape of the data set]."""
    return records.view(-1, *spec.shape).to(torch.float32) / spec.scale


def _scattering(spec: DatasetSpec, config: TrialConfig, device: torch.device) -> Apply:
    """Return the map of records to scattering coefficients, computed for each colour channel on its own."""
    channels = spec.shape[0]

    def apply(records: torch.Tensor) -> torch.Tensor:
        images = _images(records, spec).flatten(0, 1)  # [n channels, rows, columns]
        maps = scattering(images, config.scattering_scales, config.scattering_angles)
        return maps.view(-1, channels * maps.shape[1], *maps.shape[2:])

    return apply


def _patches(spec: DatasetSpec, config: TrialConfig, device: torch.device) -> Apply:
    """Return the map of records to responses of patch filters; with `patch_beside`, encoder features follow."""
    channels, size, *_ = spec.shape
    patches = PatchMap(channels, size, config.patch_filters, config.patch_size, config.patch_threshold,
                      config.patch_pools, device)
    encoder = None if config.patch_beside == "none" else EncoderMap(config.patch_pools, device)

    def apply(records: torch.Tensor) -> torch.Tensor:
        images = _images(records, spec)
        responses = patches(images)
        return responses if encoder is None else torch.cat([responses, encoder(images)], dim=1)

    return apply


def _encoder(spec: DatasetSpec, config: TrialConfig, device: torch.device) -> Apply:
    encoder = EncoderMap(config.encoder_pools, device)
    return lambda records: encoder(_images(records, spec))


def _identity(spec: DatasetSpec, config: TrialConfig, device: torch.device) -> Apply:
    return lambda rows: rows


MAPS.of(features.Scattering)(Map(_scattering, 64))  # so few stay in a processor's cache
MAPS.of(features.Patches)(Map(_patches, CHUNK_SIZE))
MAPS.of(features.Encoder)(Map(_encoder, CHUNK_SIZE))
MAPS.of(features.File)(Map(_identity, 4096, is_cached=False))  # it is a file already


def register_features(name: str, function: Callable[[torch.Tensor, TrialConfig], torch.Tensor], *,
                      shape: Callable[[TrialConfig], tuple[int, ...]] | tuple[int, ...], public_because: str,
                      settings: Sequence[str] | Mapping[str, Field[Any] | None] = (), groups: int = 0) -> None:
    """Add a feature map of single records: `features: <name>` is accepted after this call (docs/extending.md).

    Args:
        name: value of the setting `features`.
        function: maps images [n, *shape of the data set], float32 on [0, 1], and a trial to floating-point features
            [n, *shape]. The features of a record must not depend on the other records.
        shape: shape of one record's features, channels first, or a function of the trial that returns it.
        public_because: why the map is public and depends on no private record. The tag `privacy.notes` of every trial
            with these features has this sentence.
        settings: fields that it uses, and new ones, as in `register_feedback`; they become part of its trials'
            identity. `feature_groups` always is.
        groups: number of groups in which features are normalised, unless `feature_groups` sets it.

    Raises:
        ConfigError: for a name in use, an unknown field, or without `public_because`.
    """
    if not public_because.strip() or "\n" in public_because:
        raise ConfigError(f"public_because: must say in one line why '{name}' is a public map of single records, got "
                          f"{public_because!r}; without it no epsilon of its trials would hold")
    entries = dict(settings if isinstance(settings, Mapping) else dict.fromkeys(settings))
    existing = [field for field, definition in entries.items() if definition is None]
    # Existing fields come first: the order is part of a cache file's name.
    entries = {**dict.fromkeys((*existing, "feature_groups")), **entries}

    def make(spec: DatasetSpec, config: TrialConfig, device: torch.device) -> Apply:
        return lambda records: function(_images(records, spec), config)

    compiled = getattr(getattr(function, "func", function), "__code__", None)  # `func`: of a `functools.partial`
    path = Path(compiled.co_filename) if compiled else None
    # Empty in a notebook, whose code may change unseen.
    code = hashlib.sha256(path.read_bytes()).hexdigest() if path and path.is_file() else ""
    entered = extension("features", name, features.stated(shape, public_because), entries, function, groups=groups)
    MAPS.of(entered)(Map(make, CHUNK_SIZE, code=code, is_cached=bool(code)))
