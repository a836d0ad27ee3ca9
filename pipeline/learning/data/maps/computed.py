"""Features of all records of a data set: computed once per setting, kept in the cache, and shared by all processes.

A feature map is a function of one record alone, and no private record has a part in choosing it, so that it costs no
privacy. A statistic of several records would cost privacy: none is computed here. The statistics that standardise and
decorrelate channels come from synthetic images.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import json
import math
import os
import sys
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import torch
from filelock import FileLock
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from pipeline.learning.data.dataset import Dataset, MappedFeatures
from pipeline.learning.data.download import DataError, write_errors_named
from pipeline.learning.data.inputs import LARGEST_FEATURE, Inputs, largest_sizes, representable
from pipeline.learning.data.maps.dead_leaves import LEAST_DEVIATION, decorrelated, standardised
from pipeline.learning.data.maps.registered import MAPS, Apply
from pipeline.package import cache_folder
from pipeline.trials.config import TrialConfig
from pipeline.trials.feature_file import FeatureFile, file_of
from pipeline.trials.fields import ConfigError
from pipeline.trials.records import Computing

VERSION = 1  # of the computation; files of another version are not read
LEAST_VARIANCE = 1e-5  # added to the variance of a group: equal values become zeros
SILENT_SECONDS = 5.0  # what takes less time prints no line of progress

TENSORS = ("train", "test", "train_sizes", "test_sizes")  # features, and the largest size of each record's

Steps = Generator[Computing, None, list[torch.Tensor]]  # yields how far it is; returns features by part


def features(data: Dataset, config: TrialConfig) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a network's inputs of all training and test records: uint8 pixels or bfloat16 features, each [N, n_0].

    Features come from memory, from the cache, or are computed now. Without private metrics, features that are not
    finite are a `DataError`.
    """
    if config.parts.features.raw:
        return data.train_x, data.test_x
    for computing in steps(data, config):
        if computing.seconds >= SILENT_SECONDS:
            print(computing, file=sys.stderr)
    mapped = data.mapped[key_of(config)]
    # With private metrics such a record contributes nothing: an error about it would reveal the record.
    for sizes in mapped.sizes if config.disclosure == "plain" else ():
        usable = representable(sizes, config)
        if not usable.all():
            limit = f" and smaller than {LARGEST_FEATURE:.1e} with arithmetic 'integer'" if config.exact else ""
            raise DataError(f"features: '{config.features}' must be finite{limit}, which those of record "
                            f"{int(usable.int().argmin())} of {len(sizes)} are not")
    return mapped.parts


def inputs(data: Dataset, config: TrialConfig, make: type[Inputs]) -> tuple[Inputs, Inputs]:
    """Return a network's inputs of all training and test records.

    Those made of features last are kept for the next pack: integers of wide ones take seconds to compute.
    """
    parts = features(data, config)
    if config.parts.features.raw:
        train, test = (make(records, config, data) for records in parts)
        return train, test
    key = make, key_of(config), *make.depends_on(config)
    if key not in data.inputs or data.inputs[key][0].records is not parts[0]:
        data.inputs.clear()  # before new ones take memory
        train, test = (make(records, config, data, sizes)
                       for records, sizes in zip(parts, data.mapped[key_of(config)].sizes, strict=True))
        data.inputs[key] = train, test
    train, test = (copy.copy(kept) for kept in data.inputs[key])  # a batch's memory is the pack's own
    return train, test


def steps(data: Dataset, config: TrialConfig) -> Iterator[Computing]:
    """Put a trial's features into `data.mapped`, if it has any; yield how far they are, if they are computed."""
    if config.parts.features.raw or (key := key_of(config)) in data.mapped:
        return
    is_cached = MAPS[config.parts.features].is_cached
    train, test, *sizes = yield from (_cached if is_cached else _computed)(data, config)
    data.mapped[key] = MappedFeatures((train, test), (sizes[0], sizes[1]))


def public(data: Dataset, config: TrialConfig) -> Dataset:
    """Return a data set whose training records are its test records, over and over: a trial can be rehearsed on it."""
    places = torch.arange(len(data.train_y), device=data.test_y.device) % len(data.test_y)
    test, mapped = features(data, config)[1], {}
    if not config.parts.features.raw:
        sizes = data.mapped[key_of(config)].sizes[1]
        mapped[key_of(config)] = MappedFeatures((test[places], test), (sizes[places], sizes))
    return replace(data, train_x=data.test_x[places], train_y=data.test_y[places], mapped=mapped, inputs={})


def key_of(config: TrialConfig) -> tuple[object, ...]:
    """Return the key of a trial's features in `Dataset.mapped`."""
    key = config.parts.features.key(config)
    if config.feature_file:
        key = *key, _file_of(config).sha256  # a file's content may change under the same name
    return key


def compute(parts: Sequence[torch.Tensor],  # each [n, n_features]: uint8 pixels, or features from a file
            data: Dataset, config: TrialConfig) -> list[torch.Tensor]:
    """Return the features of each part, bfloat16 [n, n_0]; all are NaN for a record with one that is not finite."""
    computing = _compute(parts, data, config)
    try:
        while True:
            next(computing)
    except StopIteration as end:
        return list(end.value)


def _compute(parts: Sequence[torch.Tensor], data: Dataset, config: TrialConfig) -> Steps:
    blocks = config.parts.features.blocks(config) or [(1.0, config)]
    progress = Computing(f"{config.features} of {config.dataset}", len(blocks) * sum(map(len, parts)))
    by_map = []
    for _, alone in blocks:
        by_map.append((yield from _one_map(parts, data, alone, progress)))
    if len(by_map) == 1:
        return by_map[0]
    weights = [weight for weight, _ in blocks]
    return [_side_by_side(features, weights) for features in zip(*by_map, strict=True)]


def _one_map(parts: Sequence[torch.Tensor], data: Dataset, config: TrialConfig, progress: Computing) -> Steps:
    """Compute the features of a map that stands alone."""
    settings, device = config.parts.features, data.train_x.device
    feature_map, width = MAPS[settings], math.prod(settings.shape(config))
    apply = feature_map.make(data.spec, config, device)
    if settings.feature_power != 1:
        apply = _with_power(apply, settings.feature_power)
    if settings.standardised:
        apply = standardised(apply, data.spec, device, feature_map.chunk_size)
    if settings.feature_mirrored:
        apply = _averaged_with_mirror(apply, data.spec.shape)
    if settings.feature_decorrelation:
        apply = decorrelated(apply, data.spec, device, feature_map.chunk_size, settings.feature_decorrelation)
    features = [torch.empty(len(part), width, dtype=torch.bfloat16, device=part.device) for part in parts]
    for part, mapped in zip(parts, features, strict=True):
        for begin in range(0, len(part), feature_map.chunk_size):
            chunk = slice(begin, begin + feature_map.chunk_size)
            _map_chunk(part[chunk], mapped[chunk], apply, config)
            if progress.add(len(part[chunk])):
                yield progress
    return features


def _side_by_side(blocks: Sequence[torch.Tensor],  # by map [n, width]; NaN for an unusable record
                  weights: Sequence[float],  # norm of a record's features by map, in units that the maps share
                  ) -> torch.Tensor:
    """Return several maps' features side by side, weighted, bfloat16 [n, sum of widths]; a record's variance is 1."""
    total = sum(block.shape[1] for block in blocks)
    norm = math.hypot(*weights)
    joined = torch.cat([block * (weight / norm * math.sqrt(total / block.shape[1]))
                        for block, weight in zip(blocks, weights, strict=True)], dim=1)
    joined[~joined.isfinite().all(1)] = math.nan  # marks the whole record as unusable
    return joined


def _with_power(apply: Apply, power: float) -> Apply:
    """Return the map `apply`, with every feature x replaced by sign(x) |x|^power."""
    def apply_with_power(records: torch.Tensor) -> torch.Tensor:
        maps = apply(records)
        return maps.abs().pow(power).copysign(maps)

    return apply_with_power


def _averaged_with_mirror(apply: Apply, shape: tuple[int, ...]) -> Apply:  # shape: channels, rows, columns
    """Return the map to the mean of the features that `apply` gives for an image and for its mirror image."""
    def average(records: torch.Tensor) -> torch.Tensor:
        mirrored = records.view(-1, *shape).flip(-1).flatten(1)
        return (apply(records) + apply(mirrored)) / 2

    return average


def _map_chunk(records: torch.Tensor, features: torch.Tensor, apply: Apply, config: TrialConfig) -> None:
    """Compute the features of some records [n, n_features], check them, and write them to `features` [n, n_0]."""
    computed, shape = apply(records), (len(records), *config.parts.features.shape(config))
    if computed.shape != shape or not computed.is_floating_point():
        raise DataError(f"features: '{config.features}' must give floating point numbers of shape {shape}, got "
                        f"{computed.dtype} of shape {tuple(computed.shape)}")
    features.copy_(normalised(computed, config).flatten(1))
    features[~features.isfinite().all(1)] = math.nan  # marks the whole record as unusable


def normalised(features: torch.Tensor, config: TrialConfig) -> torch.Tensor:
    """Return features [n, *shape], normalised in the trial's groups; without groups they are unchanged."""
    if not config.feature_groups:
        return features
    return torch.nn.functional.group_norm(features.float(), config.feature_groups, eps=LEAST_VARIANCE)


def check_file(config: TrialConfig, digests: Mapping[str, str] = MappingProxyType({})) -> None:
    """Check that the trial's file of features exists, and has the content and width that the trial states.

    The trial names the content by its SHA-256, or by a `feature_name` that stands for one in `digests`, which messages
    do not show.
    """
    if not config.feature_file:
        which = f"called {config.feature_name}" if config.feature_name else f"with SHA-256 {config.feature_sha256}"
        raise DataError(f"feature_file: must name the file {which}, got ''")
    file, path, name = _file_of(config), config.feature_file, config.feature_name
    known_digest = digests.get(name, file.sha256)  # a new name stands for this file
    if name and (file.sha256, file.width) != (known_digest, config.feature_width):
        raise DataError(f"feature_file: {path} must be the file that feature_name '{name}' has stood for, and is "
                        "another; give that file, or the other one a name of its own")
    if not name and (file.sha256, file.width) != (config.feature_sha256, config.feature_width):
        got = f", got {file.sha256} and {file.width}" if config.disclosure == "plain" else ""
        raise DataError(f"feature_file: {path} must have SHA-256 {config.feature_sha256} and width "
                        f"{config.feature_width}{got}")


def _file_of(config: TrialConfig) -> FeatureFile:
    """Return the trial's file of features with its digest and width; a file that does not fit is a `DataError`."""
    try:
        return file_of(Path(config.feature_file), config.dataset)
    except ConfigError as error:
        raise DataError(str(error)) from None


def _computed(data: Dataset, config: TrialConfig) -> Steps:
    """Compute the tensors `TENSORS` now: from pixels, or from the rows of a file."""
    records = [data.train_x, data.test_x]
    if config.parts.features.of_file:
        check_file(config)
        with safe_open(config.feature_file, "pt", str(data.train_x.device)) as file:
            records = [file.get_tensor("train"), file.get_tensor("test")]
    features = yield from _compute(records, data, config)
    return [*features, *map(largest_sizes, features)]


def _cached(data: Dataset, config: TrialConfig) -> Steps:
    """Read the tensors `TENSORS` from the cache; one process computes missing ones, others wait."""
    path = cache_folder() / "features" / f"{_digest(data, config)}.safetensors"
    device = data.train_x.device
    with contextlib.ExitStack() as lock:  # held to the end; only errors of the cache are named after its file
        with write_errors_named(path):
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)  # as private as the records
            lock.enter_context(FileLock(f"{path}.lock"))
        found = _read(path)
        if not found:
            computed = yield from _computed(data, config)
            found = [tensor.cpu() for tensor in computed]
            with write_errors_named(path):
                unfinished = path.with_suffix(".part")
                save_file(dict(zip(TENSORS, found, strict=True)), unfinished, metadata={"sha256": _checksum(found)})
                os.replace(unfinished, path)
    return [tensor.to(device) for tensor in found]


def _read(path: Path) -> list[torch.Tensor]:
    """Return the cached tensors in the order of `TENSORS`; none if there is no file, or if it is damaged.

    Damage is reported on stderr without the file's name, which is a digest of records.
    """
    if not path.exists():
        return []
    damage = "its content has another SHA-256 than was written"
    try:
        with safe_open(path, "pt") as file:
            found = [file.get_tensor(name) for name in TENSORS]
            if (file.metadata() or {}).get("sha256") == _checksum(found):
                return found
    except SafetensorError as error:
        damage = str(error)
    print(f"{path.parent}: a file is damaged ({damage}); computed anew", file=sys.stderr)
    return []


def _checksum(tensors: Sequence[torch.Tensor]) -> str:
    """Return the SHA-256 of the tensors of a cache file, which it holds to detect damage."""
    content = hashlib.sha256()
    for tensor in tensors:
        content.update(tensor.view(torch.uint8).numpy().data)
    return content.hexdigest()


def _digest(data: Dataset, config: TrialConfig) -> str:
    """Return the name of the cache file: a digest of the records, the map's settings and the version of its code."""
    settings, code = config.parts.features, MAPS[config.parts.features].code
    identity = [VERSION, *settings.key(config), data.spec.shape]
    if code:
        identity.append(code)
    if settings.standardised:
        identity.append(LEAST_DEVIATION)
    content = hashlib.sha256(json.dumps(identity).encode())
    for records in (data.train_x, data.test_x):
        content.update(records.cpu().numpy().data)
    return content.hexdigest()[:32]
