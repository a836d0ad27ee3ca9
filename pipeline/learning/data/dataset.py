"""Datasets: found or downloaded, verified, and resident on the device as uint8.

Where the records come from (`pipeline.learning.data.readers`):
    - `digits` is bundled with scikit-learn;
    - a folder given by the user (argument, or environment variable PHOTONIC_DATA) is only ever read, and what is
      missing there is an error;
    - otherwise the official hosts, once, into the cache (PHOTONIC_CACHE, by default ~/.cache/photonic).

Whatever the source, the decompressed bytes must have the SHA-256 recorded in `pipeline.trials.datasets`. Of `svhn` none
is recorded: sizes, types and labels are all that is checked.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pipeline.learning.data.download import UNREAD, DataError
from pipeline.learning.data.readers import READERS, Arrays, Reader, check_digest, checked_labels
from pipeline.learning.data.table_reader import read as read  # enters itself
from pipeline.trials.config import TrialConfig
from pipeline.trials.datasets import DATASETS, Data, DatasetSpec
from pipeline.trials.fields import ConfigError, UserError
from pipeline.trials.guard import OF_WHO_RUNS_IT, is_of_users, without_message
from pipeline.trials.part import PARTS, extension, origin

__all__ = ["DataError", "Dataset", "load", "load_for", "register_dataset"]


@dataclass(frozen=True)
class MappedFeatures:
    """Features of a data set's records.

    Attributes:
        parts: of training and test records, bfloat16 [N, n_0].
        sizes: the largest size of each record's features [N], float32; nan if one is nan.
    """

    parts: tuple[torch.Tensor, torch.Tensor]
    sizes: tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True)
class Dataset:
    """One dataset on one device.

    Attributes:
        spec: its public facts.
        train_x, test_x: uint8 [N, n_features], 0..spec.scale, images channels first, then rows, then columns.
        train_y, test_y: int64 [N], labels 0..n_classes - 1.
        mapped: features of the records that were computed or read so far (`pipeline.learning.data.maps.computed`).
        inputs: inputs of networks that were made of such features last, and what they depend on.
    """

    spec: DatasetSpec
    train_x: torch.Tensor
    train_y: torch.Tensor
    test_x: torch.Tensor
    test_y: torch.Tensor
    mapped: dict[tuple[Any, ...], MappedFeatures] = field(default_factory=dict, compare=False, repr=False)
    inputs: dict[tuple[Any, ...], tuple[Any, Any]] = field(default_factory=dict, compare=False, repr=False)


def load(name: str, folder: str | os.PathLike[str] | None = None, device: str | torch.device = "cpu") -> Dataset:
    """Return the verified dataset `name`, resident on `device`.

    Args:
        name: one of `DATASETS`.
        folder: read-only folder with the files; None uses PHOTONIC_DATA. If that is unset or empty, files come from
            the official hosts and the cache. The folder may have `MNIST/raw` and `FashionMNIST/raw` (idx files,
            gzipped or not), CIFAR-10's binary version as `cifar-10-binary.tar.gz`, `.tar.xz` or
            `cifar-10-batches-bin`, in `CIFAR10` or at the top, and SVHN's `train_32x32.mat` and `test_32x32.mat`, in
            `SVHN` or at the top.

    Raises:
        DataError: for an unknown name; a missing, corrupt or truncated file, or one that differs from the official
            file; a failed download; records that differ from the data set's public facts.

    Example:
        >>> load_dataset("digits").train_x.shape
        torch.Size([1437, 64])
    """
    if name not in DATASETS:
        raise DataError(f"dataset: must be one of {', '.join(DATASETS)}, got {name!r}")
    spec = DATASETS[name].spec
    origin = "--data, or the argument folder"
    if folder is None:
        folder, origin = os.environ.get("PHOTONIC_DATA") or None, "PHOTONIC_DATA"
    # `digits` is bundled with scikit-learn
    source = None if folder is None or name == "digits" else Path(folder).expanduser()
    if source and not source.is_dir():
        raise DataError(f"{source}: must be a folder that holds the data (from {origin}), it is not")
    train, test = _read(name, spec, source)
    train_x, train_y, test_x, test_y = (torch.from_numpy(array).to(device) for array in (*train, *test))
    return Dataset(spec, train_x, train_y.long(), test_x, test_y.long())


def _not_kept(message: str) -> str:
    return "`photonic sweep` writes to its private folder which one"


def load_for(trials: Sequence[TrialConfig], folder: str | os.PathLike[str] | None = None,
             device: str | torch.device = "cpu", keep: Callable[[str], str] = _not_kept) -> dict[str, Dataset]:
    """Return the data sets of trials by name; an error shows no record if one of the trials hides its errors.

    Its message goes to `keep`, which returns where people find it, as the end of a sentence.
    """
    names = dict.fromkeys(trial.dataset for trial in trials)
    try:
        return {name: load(name, folder, device) for name in names}
    except UserError as error:
        if not error.of_record or not any(trial.hides_errors for trial in trials):
            raise
        public, where = getattr(error, "public", UNREAD), keep(str(error))
    said = "a record of the data set cannot be used" if public == UNREAD else public
    raise UserError(f"{said}; {where}")  # not in the block above, whose error a traceback would show


def _read(name: str, spec: DatasetSpec, source: Path | None) -> list[Arrays]:
    """Return the checked records of a data set. What a user's reader says of an error may show a private record."""
    reader = READERS[PARTS["dataset"][name]]
    cannot = f"dataset: '{name}' cannot be read by {origin(reader)}"
    try:
        return _checked(name, spec, reader(spec, source))
    except OF_WHO_RUNS_IT:
        raise
    except BaseException as error:
        if isinstance(error, UserError) and not is_of_users(error):
            raise
        said = " ".join(str(error).split())
        message = said if isinstance(error, UserError) else f"{cannot} ({type(error).__name__}: {said})"
        raise DataError(message, f"{cannot} ({without_message(error)})", of_record=True) from error


def register_dataset(name: str, spec: DatasetSpec, read: Reader, *, label: str = "") -> None:
    """Add a data set: `dataset: <name>` is accepted after this call (docs/extending.md).

    Args:
        name: value of the setting `dataset`.
        spec: its public facts; with `sha256` every load is verified.
        read: maps the spec and the user's folder (None without one) to (x, y) for training and (x, y) for test:
            x uint8 [N, n_features], 0..spec.scale, images channels first, then rows, then columns; y [N], whole numbers
            0..n_classes - 1 of any numeric type.
        label: name in tables and figures; by default `name`.

    Raises:
        ConfigError: for a name in use, or facts that contradict each other.
    """
    if spec.n_classes < 2 or len(spec.mean) != len(spec.std) or spec.n_features % max(1, len(spec.mean)):
        raise ConfigError(f"dataset: '{name}' must have at least two classes, and one mean and one std for each "
                          f"channel of its shape, got {spec}")
    READERS.of(extension("dataset", name, Data, (), read, spec=spec, label=label))(read)


def _checked(name: str, spec: DatasetSpec, parts: tuple[Arrays, Arrays]) -> list[Arrays]:
    """Return the records of a reader with integer labels, after checks of size, type, labels and digest."""
    checked = []
    for part, n, (x, y) in zip(("train", "test"), (spec.n_train, spec.n_test), parts, strict=True):
        if x.dtype != np.uint8 or x.shape != (n, spec.n_features):
            raise DataError(f"{name}, {part} x: expected uint8 of shape {(n, spec.n_features)}, got {x.dtype} of shape "
                            f"{x.shape}")
        if y.shape != (n,):
            raise DataError(f"{name}, {part} y: expected shape {(n,)}, got {y.shape}")
        checked.append((x, checked_labels(f"{name}, {part}", y, spec.n_classes)))
    if spec.sha256:
        content = b"".join(array.tobytes() for part in checked for array in part)
        check_digest(name, content, spec.sha256)
    return checked
