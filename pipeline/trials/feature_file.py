"""The identity of a safetensors file of features, [N, d] for training and [M, d] for test records.

A trial is identified by the file's SHA-256, not by its path. So a moved file stays the same, and a changed file is
another. If private records must not leak, a declared name replaces the digest (`feature_name`), and the digest stays in
the private folder.
"""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.trials.datasets import DATASETS
from pipeline.trials.fields import ConfigError, refuse

FLOATING = ("F16", "BF16", "F32", "F64")  # types of safetensors
RECENT_SECONDS = 3.0  # a file this young may change again with the same size and time

DESCRIBED: dict[Path, tuple[tuple[int, int], FeatureFile]] = {}  # path -> (size, change time in ns) and description


@dataclass(frozen=True)
class FeatureFile:
    """The header and the digest of a file."""

    shapes: dict[str, tuple[int, ...]]  # of the tensors `train` and `test`
    sha256: str  # 64 hexadecimal digits

    @property
    def width(self) -> int:
        """Return d, the features of a record."""
        return self.shapes["train"][1]


def with_located_features(values: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Return the settings, with a relative path in `feature_file` taken from `folder`, that of the experiment file."""
    path = values.get("feature_file")
    if not path or not isinstance(path, str):
        return values
    return {**values, "feature_file": str(folder / Path(path).expanduser())}


def describe(path: Path) -> FeatureFile:
    """Return the shapes and the digest of a file with features, cached while size and time stay the same."""
    try:
        status = path.stat()
        version = status.st_size, status.st_mtime_ns
        cached_version, file = DESCRIBED.get(path, (None, None))
        if file is None or cached_version != version:
            file = _read_description(path)
            if time.time() - status.st_mtime >= RECENT_SECONDS:  # else it may change again with the same version
                DESCRIBED[path] = version, file
        return file
    except OSError as error:
        raise ConfigError(f"feature_file: {path} cannot be read ({error.strerror or error})") from None


def _read_description(path: Path) -> FeatureFile:
    """Read a file's description, and refuse one without floating-point matrices `train` and `test` of one width."""
    from safetensors import SafetensorError, safe_open

    shapes: dict[str, tuple[int, ...]] = {}
    try:
        with safe_open(path, "numpy") as file:
            names = sorted(file.keys())
            for name in ("train", "test"):
                refuse(name not in names, "feature_file", f"{path} must have the tensors train and test",
                       ", ".join(names) or "none")
                tensor = file.get_slice(name)
                dtype, shape = tensor.get_dtype(), tuple(tensor.get_shape())
                refuse(dtype not in FLOATING or len(shape) != 2 or not shape[1], "feature_file", f"{path}, tensor "
                       f"{name}, must be [records, features] of type {' or '.join(FLOATING)}",
                       f"{dtype} of shape {shape}")
                shapes[name] = shape
    except SafetensorError as error:
        raise ConfigError(f"feature_file: {path} must be a safetensors file ({error})") from None
    refuse(shapes["train"][1] != shapes["test"][1], "feature_file", f"{path} must have as many features of test as of "
           "training records", f"train {shapes['train']} and test {shapes['test']}")
    with path.open("rb") as content:
        return FeatureFile(shapes, hashlib.file_digest(content, "sha256").hexdigest())


def file_of(path: Path, dataset: str) -> FeatureFile:
    """Return `describe(path)`, and refuse a file without a row for each official record of the data set."""
    file, spec = describe(path), DATASETS[dataset].spec
    for name, n in (("train", spec.n_train), ("test", spec.n_test)):
        refuse(file.shapes[name][0] != n, "feature_file", f"{path}, tensor {name}, must have a row for each of the {n} "
               f"records of {dataset}", f"shape {file.shapes[name]}")
    return file
