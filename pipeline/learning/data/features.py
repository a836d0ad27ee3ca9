"""Features of all records of a data set: computed once per setting, kept in the cache, and shared by all processes.

A feature map is a function of one record alone, and no private record has a part in choosing it, so that it costs no
privacy. Whatever is computed over records would have to be private, and paid for: nothing here is. What channels are
standardised and decorrelated by comes from synthetic images.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import torch
from filelock import FileLock
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from pipeline.learning.data.dataset import Dataset
from pipeline.learning.data.dead_leaves import LEAST_DEVIATION, decorrelated, standardised
from pipeline.learning.data.download import DataError
from pipeline.learning.data.maps import Apply
from pipeline.learning.data.readers import cache_folder
from pipeline.trials.config import TrialConfig
from pipeline.trials.feature_file import FeatureFile, file_of
from pipeline.trials.fields import ConfigError

VERSION = 1  # of what is computed; a cache of another is not read
LEAST_VARIANCE = 1e-5  # of a group: one of equal values has none, and becomes zeros
SAID_EVERY = 10_000  # records


def features(data: Dataset, config: TrialConfig) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a network's inputs of all training and test records: uint8 pixels or bfloat16 features, each [N, n_0].

    Features come from memory, from the cache, or are computed now.

    Args:
        data: the data set; it keeps the features in memory.
        config: a trial with the settings of the map.

    Raises:
        DataError: for a cache that cannot be written; for a file of features that is missing or has other content; for
            features of a shape other than stated; or, if `private_metrics` is plain, for features that are not finite.
        OpuUnavailable: if features of a real OPU (optical processing unit) are in no cache, and there is no OPU.
    """
    if config.parts.features.raw:
        return data.train_x, data.test_x
    key = config.parts.features.key(config)
    if config.feature_file:
        key = *key, _file_of(config).sha256  # which a name does not tell
    if key not in data.mapped:
        kept = config.parts.features.load().kept
        data.mapped[key] = _cached(data, config) if kept else _computed(data, config)
    if config.disclosure == "plain":
        for part in data.mapped[key]:
            _require_finite(part, config)
    return data.mapped[key]


def _require_finite(part: torch.Tensor, config: TrialConfig) -> None:
    """Refuse features [N, n_0] that are not finite, in a trial without privacy, with the number of the first record.

    In a private trial such a record contributes nothing instead: an error about it would reveal the record.

    Raises:
        DataError: with the first record.
    """
    if not (finite := part[:, 0].isfinite()).all():
        raise DataError(f"features: '{config.features}' must be finite, which those of record "
                        f"{int(finite.int().argmin())} of {len(part)} are not")


def compute(parts: Sequence[torch.Tensor], data: Dataset, config: TrialConfig) -> list[torch.Tensor]:
    """Return the features of each part of the records, bfloat16 [n, n_0].

    If one feature of a record is not finite, all features of this record become NaN.

    Args:
        parts: records, each part [n, n_features]: uint8 pixels, or features if they come from a file.
        data: the data set, for its facts and device.
        config: a trial with the settings of the map.

    Raises:
        DataError: for features of a shape other than stated.
    """
    part, computed_by = config.parts.features, config.parts.features.load()
    with computed_by.opened(data.spec, config, data.train_x.device) as apply:
        if part.power != 1:
            apply = _raised(apply, part.power)
        if part.standardised:
            apply = standardised(apply, data.spec, data.train_x.device, computed_by.pack)
        if part.mirrored:
            apply = _of_both(apply, data.spec.shape)
        if part.decorrelation:
            apply = decorrelated(apply, data.spec, data.train_x.device, computed_by.pack, part.decorrelation)
        return [_mapped(records, apply, config) for records in parts]


def _raised(apply: Apply, power: float) -> Apply:
    """Return the map `apply`, with every feature x replaced by sign(x) |x|^power."""
    def raised(records: torch.Tensor) -> torch.Tensor:
        maps = apply(records)
        return maps.abs().pow(power).copysign(maps)

    return raised


def _of_both(apply: Apply, shape: tuple[int, ...]) -> Apply:
    """Return a map to the mean of the features of an image and of its mirror image; `shape` is that of an image."""
    return lambda records: (apply(records) + apply(records.view(-1, *shape).flip(-1).flatten(1))) / 2


def _mapped(records: torch.Tensor, apply: Apply, config: TrialConfig) -> torch.Tensor:
    """Return the features of records, bfloat16 [n, n_0], computed pack by pack.

    Args:
        records: [n, n_features].
        apply: maps a pack of records to features [pack, *shape], each record by itself.
        config: a trial with the settings of the map; with `feature_groups`, features are normalised in groups.

    Raises:
        DataError: if `apply` returns another shape than stated, or no floating-point numbers.
    """
    shape, pack = config.parts.features.shape(config), config.parts.features.load().pack
    features = torch.empty(len(records), math.prod(shape), dtype=torch.bfloat16, device=records.device)
    for begin in range(0, len(records), pack):
        batch = records[begin:begin + pack]
        computed = apply(batch)
        if computed.shape != (len(batch), *shape) or not computed.is_floating_point():
            raise DataError(f"features: '{config.features}' must give floating point numbers of shape "
                            f"{(len(batch), *shape)}, got {computed.dtype} of shape {tuple(computed.shape)}")
        if config.feature_groups:
            computed = torch.nn.functional.group_norm(computed.float(), config.feature_groups, eps=LEAST_VARIANCE)
        rows = features[begin:begin + pack]
        rows.copy_(computed.flatten(1))
        rows[~rows.isfinite().all(1)] = math.nan  # a record by itself decides that it cannot be used
        # Report progress, once per `SAID_EVERY` records.
        if begin // SAID_EVERY < (begin + pack) // SAID_EVERY and len(records) > SAID_EVERY:
            done = min(begin + pack, len(records))
            print(f"{config.features}: {done:,} of {len(records):,} records", file=sys.stderr)
    return features


def check_file(config: TrialConfig, digests: Mapping[str, str] = MappingProxyType({})) -> None:
    """Make sure that a file of features is here, and is the one that the trial names.

    Args:
        digests: that files have which a `feature_name` stands for; they are not told.

    Raises:
        DataError: for a file that is missing, that has another digest, or not a row for every record.
    """
    if not config.feature_file:
        which = f"called {config.feature_name}" if config.feature_name else f"with SHA-256 {config.feature_sha256}"
        raise DataError(f"feature_file: must name the file {which}, got ''")
    file, path, name = _file_of(config), config.feature_file, config.feature_name
    if name and (file.sha256, file.width) != (digests.get(name, file.sha256), config.feature_width):
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


def _computed(data: Dataset, config: TrialConfig) -> tuple[torch.Tensor, torch.Tensor]:
    """Return features of training and test records, computed now: from pixels, or from the rows of a file."""
    if not config.parts.features.of_file:
        train, test = compute((data.train_x, data.test_x), data, config)
        return train, test
    check_file(config)
    with safe_open(config.feature_file, "pt", str(data.train_x.device)) as file:
        train, test = compute([file.get_tensor(name) for name in ("train", "test")], data, config)
        return train, test


def _cached(data: Dataset, config: TrialConfig) -> tuple[torch.Tensor, torch.Tensor]:
    """Return features of training and test records from the cache; compute and store them first if they are missing.

    If several processes ask at once, one computes, and the others wait and read.
    """
    path = cache_folder() / "features" / f"{_digest(data, config)}.safetensors"
    device = data.train_x.device
    with contextlib.ExitStack() as held:
        with _writing(path):
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)  # as private as the records
            held.enter_context(FileLock(f"{path}.lock"))
        found = _read(path)
        if found is None:
            computed = [part.cpu() for part in _computed(data, config)]
            found = dict(zip(("train", "test"), computed, strict=True))
            with _writing(path):
                part = path.with_suffix(".part")
                save_file(found, part, metadata={"sha256": _checksum(found)})
                os.replace(part, path)
    return found["train"].to(device), found["test"].to(device)


@contextlib.contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Turn errors of the file system within the context into a `DataError` that names the cache file."""
    try:
        yield
    except OSError as error:
        raise DataError(f"{path}: cannot be written to the cache ({error}); set PHOTONIC_CACHE to a folder with room "
                        "that can be written") from error


def _read(path: Path) -> dict[str, torch.Tensor] | None:
    """Return the cached features, by `train` and `test`; None if there are none, or if the file is damaged.

    A damaged file is reported on stderr, and computed again.
    """
    if not path.exists():
        return None
    try:
        with safe_open(path, "pt") as file:
            found = {name: file.get_tensor(name) for name in ("train", "test")}
            expected = (file.metadata() or {}).get("sha256")
    except SafetensorError as error:
        print(f"{path}: damaged ({error}); computed anew", file=sys.stderr)
        return None
    if expected != _checksum(found):
        print(f"{path}: damaged (its content has another SHA-256 than was written); computed anew", file=sys.stderr)
        return None
    return found


def _checksum(found: dict[str, torch.Tensor]) -> str:
    """Return the SHA-256 of the features of training and test records, which the cache file holds to detect damage."""
    content = hashlib.sha256()
    for name in ("train", "test"):
        content.update(found[name].view(torch.uint8).numpy().data)
    return content.hexdigest()


def _digest(data: Dataset, config: TrialConfig) -> str:
    """Return the name of the cache file: a digest of the records, the map's settings and the version of its code."""
    part, code = config.parts.features, config.parts.features.load().code
    named = [VERSION, *part.key(config), data.spec.shape, *([code] if code else []),
             *([LEAST_DEVIATION] if part.standardised else [])]
    content = hashlib.sha256(json.dumps(named).encode())
    for records in (data.train_x, data.test_x):
        content.update(records.cpu().numpy().data)
    return content.hexdigest()[:32]
