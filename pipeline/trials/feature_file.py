"""The identity of a safetensors file of features, [N, d] for training and [M, d] for test records.

A trial is identified by the file's SHA-256, not by its path. So a moved file stays the same, and a changed file is
another. If private records must not leak, a declared name replaces the digest (`feature_name`), and the digest stays in
the private folder.
"""

from __future__ import annotations

import hashlib
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.trials.datasets import DATASETS
from pipeline.trials.fields import ConfigError

if TYPE_CHECKING:
    from pipeline.trials.config import TrialConfig

FLOATING = ("F16", "BF16", "F32", "F64")  # types of safetensors
RECENT_SECONDS = 3.0  # a file this young may change again with the same size and time
MAX_SOURCE_LENGTH = 500  # characters; tags and params of every run repeat the statement

DESCRIBED: dict[Path, tuple[tuple[int, int], FeatureFile]] = {}  # (size, change time) and description


@dataclass(frozen=True)
class FeatureFile:
    """The header and the digest of a file.

    Attributes:
        shapes: of the tensors `train` and `test`.
        sha256: 64 hexadecimal digits.
    """

    shapes: dict[str, tuple[int, ...]]
    sha256: str

    @property
    def width(self) -> int:
        """Return d."""
        return self.shapes["train"][1]


def with_located_features(values: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Return an experiment file's settings; a relative path in `feature_file` is taken from the file's folder."""
    path = values.get("feature_file")
    if not path or not isinstance(path, str):
        return values
    return {**values, "feature_file": str(folder / Path(path).expanduser())}


def describe(path: Path) -> FeatureFile:
    """Return the shapes and the digest of a file with features, from a cache if the file has not changed.

    Raises:
        ConfigError: for a file that is missing, has another format, or has no floating-point matrices `train` and
            `test` with equally many columns.
    """
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
    """Return the shapes and the digest of a safetensors file with features.

    Raises:
        ConfigError: unless it has floating-point matrices `train` and `test` of one width.
    """
    from safetensors import SafetensorError, safe_open

    shapes: dict[str, tuple[int, ...]] = {}
    try:
        with safe_open(path, "numpy") as file:
            for name in ("train", "test"):
                if name not in file.keys():  # noqa: SIM118  (it is no mapping)
                    raise ConfigError(f"feature_file: {path} must have the tensors train and test, got "
                                      f"{', '.join(sorted(file.keys())) or 'none'}")
                tensor = file.get_slice(name)
                dtype, shape = tensor.get_dtype(), tuple(tensor.get_shape())
                if dtype not in FLOATING or len(shape) != 2 or not shape[1]:
                    raise ConfigError(f"feature_file: {path}, tensor {name}, must be [records, features] of type "
                                      f"{' or '.join(FLOATING)}, got {dtype} of shape {shape}")
                shapes[name] = shape
    except SafetensorError as error:
        raise ConfigError(f"feature_file: {path} must be a safetensors file ({error})") from None
    if shapes["train"][1] != shapes["test"][1]:
        raise ConfigError(f"feature_file: {path} must have as many features of test as of training records, got "
                          f"train {shapes['train']} and test {shapes['test']}")
    with path.open("rb") as content:
        return FeatureFile(shapes, hashlib.file_digest(content, "sha256").hexdigest())


def file_of(path: Path, dataset: str) -> FeatureFile:
    """Return the shapes and the digest of a file with the features of a data set.

    Raises:
        ConfigError: as `describe`, and if the file has more or fewer rows than the data set has records.
    """
    file, spec = describe(path), DATASETS[dataset]
    for name, n in (("train", spec.n_train), ("test", spec.n_test)):
        if file.shapes[name][0] != n:
            raise ConfigError(f"feature_file: {path}, tensor {name}, must have a row for each of the {n} records of "
                              f"{dataset}, got shape {file.shapes[name]}")
    return file


def file_settings(trial: TrialConfig) -> dict[str, Any]:
    """Return the settings that identify a trial's feature file: absolute path, width, and the digest.

    A name that the user gave (`feature_name`) replaces the digest. If digest (or name) and width are given, the file
    may be absent, for example for trials from a tracking store.

    Raises:
        ConfigError: for a file that does not fit the data set, or with a digest or width other than the given one.
    """
    path = Path(trial.feature_file).expanduser().absolute() if trial.feature_file else None
    is_identified = (trial.feature_sha256 or trial.feature_name) and trial.feature_width
    if is_identified and not (path and path.exists()):
        return {"feature_file": str(path or "")}
    if path is None:
        raise ConfigError("feature_file: must name a safetensors file with features 'file', got ''")
    if not path.exists():
        raise ConfigError(f"feature_file: {path} cannot be read (no such file); to do without it, feature_sha256 and "
                          "feature_width say which it was")
    file = file_of(path, trial.dataset)
    if trial.feature_name:
        if trial.feature_width not in (0, file.width):
            raise ConfigError(f"feature_width: must be {file.width}, which {path} has, got {trial.feature_width}")
        return {"feature_file": str(path), "feature_width": file.width}
    for name, given, found in (("feature_sha256", trial.feature_sha256, file.sha256),
                               ("feature_width", trial.feature_width, file.width)):
        if given and given != found:
            raise ConfigError(f"{name}: must be {found}, which {path} has, got {given}; leave it out, or name the file "
                              "that was meant")
    return {"feature_file": str(path), "feature_sha256": file.sha256, "feature_width": file.width}


def check_feature_file(trial: TrialConfig) -> None:
    """Refuse a trial without a statement on the encoder, or with a malformed name or digest.

    Raises:
        ConfigError: naming the setting.
    """
    source = trial.feature_source
    if not source.strip() or "\n" in source or len(source) > MAX_SOURCE_LENGTH:
        raise ConfigError("feature_source: must say in one line, of at most "
                          f"{MAX_SOURCE_LENGTH} characters, which encoder gave the features and why it is public, as "
                          f"'CLIP ViT-B/32, trained on public data'; it stands in privacy.notes, got {source!r}")
    if trial.feature_name:
        if trial.feature_sha256:
            raise ConfigError("feature_sha256: must be left out with feature_name, which stands for the file in its "
                              f"place, got {trial.feature_sha256}")
        if not re.fullmatch(r"[A-Za-z0-9][\w.-]{0,99}", trial.feature_name):
            raise ConfigError("feature_name: must be letters, digits, '_', '-' and '.', at most 100, and begin with a "
                              f"letter or digit, got {trial.feature_name!r}")
    elif not re.fullmatch("[0-9a-f]{64}", trial.feature_sha256):
        raise ConfigError(f"feature_sha256: must be 64 hexadecimal digits, got '{trial.feature_sha256}'")
