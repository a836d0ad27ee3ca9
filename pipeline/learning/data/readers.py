"""Readers of the formats that data sets come in: idx files, CIFAR-10's binary version, SVHN's MATLAB files,
scikit-learn's digits.

A reader takes the public facts of a data set and the folder that the user gave, and returns checked arrays. Without a
folder it downloads into the cache.
"""

from __future__ import annotations

import functools
import gzip
import hashlib
import lzma
import math
import os
import struct
import sys
import tarfile
import tempfile
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from pipeline.learning.data.download import DataError, fetch, read_cached
from pipeline.package import cache_folder
from pipeline.trials import datasets
from pipeline.trials.datasets import DatasetSpec
from pipeline.trials.part import Workers

BASE_URLS = {
    "fashion_mnist": "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
    "mnist": "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "cifar10": "https://www.cs.toronto.edu/~kriz/",
    "svhn": "http://ufldl.stanford.edu/housenumbers/",
}

# SHA-256 of the decompressed files
DIGESTS = {
    "fashion_mnist": {
        "train-images-idx3-ubyte": "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
        "train-labels-idx1-ubyte": "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
        "t10k-images-idx3-ubyte": "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
        "t10k-labels-idx1-ubyte": "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
    },
    "mnist": {
        "train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        "train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    },
    "cifar10": {
        "data_batch_1.bin": "af06af7e59043022e74c1de78435bb1e540c2a69c3c48a45046f06382ff3e474",
        "data_batch_2.bin": "2b73bdf0f23211b3b6d3765662fdd17ae3a18b5a52bcc586fcab5a8a9ac4de32",
        "data_batch_3.bin": "58c7214d1aba195372afb04f9eb65926777f4611a94a91b6a7b0081219697d36",
        "data_batch_4.bin": "54594a9f40dde9ea3050c26bd522a7dd79d6272eb9eb131ee26a57b4df0dcf51",
        "data_batch_5.bin": "4eba8c9ad546591656580c4fa2f6a1c22833a8ed65b38b15d5e7842d349c2ffb",
        "test_batch.bin": "a96c53182bf9bf85d78e8877085ad442fa0bb020460c8abfa23438f79173bc84",
    },
}

IDX_FOLDERS = {"fashion_mnist": "FashionMNIST/raw", "mnist": "MNIST/raw"}
IMAGES = {"train": "train-images-idx3-ubyte", "test": "t10k-images-idx3-ubyte"}
LABELS = {"train": "train-labels-idx1-ubyte", "test": "t10k-labels-idx1-ubyte"}

CIFAR_FOLDER = "CIFAR10"
CIFAR_UNPACKED = "cifar-10-batches-bin"
CIFAR_ARCHIVE = "cifar-10-binary.tar.gz"
CIFAR_BATCHES = {"train": tuple(f"data_batch_{i}.bin" for i in range(1, 6)), "test": ("test_batch.bin",)}
# ordered by the time they take to read: none, 2 s, 10 s to decompress
CIFAR_PATHS = tuple(f"{folder}{name}" for name in (CIFAR_UNPACKED, CIFAR_ARCHIVE, "cifar-10-binary.tar.xz")
                    for folder in (f"{CIFAR_FOLDER}/", ""))

SVHN_FOLDER = "SVHN"

Arrays = tuple[np.ndarray, np.ndarray]  # x uint8 [N, n_features], y [N]: whole numbers of any type
Reader = Callable[[DatasetSpec, Path | None], tuple[Arrays, Arrays]]  # of the folder that the user gave -> train, test
READERS: Workers[Reader] = Workers()


def _locate(folder: Path, candidates: Sequence[str]) -> Path:
    """Return the path of the first of `candidates` that exists in the folder that the user gave."""
    for candidate in candidates:
        if (folder / candidate).exists():
            return folder / candidate
    raise DataError(f"{folder}: expected one of {', '.join(candidates)}, found none; nothing is downloaded while a "
                    "data folder is given")


def check_digest(path: str | Path, payload: bytes, expected: str) -> None:
    """Check that the content called `path` has the expected SHA-256, in hexadecimal."""
    digest = hashlib.sha256(payload).hexdigest()
    if digest != expected:
        raise DataError(f"{path}: expected content with SHA-256 {expected}, got {digest}")


def checked_labels(what: str, y: np.ndarray, n_classes: int) -> np.ndarray:
    """Return labels y [n], each in 0, ..., n_classes - 1, as uint8 or, with more than 256 classes, as int64."""
    if y.dtype.kind not in "iuf" or (y.dtype.kind != "f" and np.iinfo(y.dtype).max < n_classes - 1):
        raise DataError(f"{what}: expected labels 0..{n_classes - 1} as numbers of a type that holds them all, got "
                        f"{y.dtype}")
    right = (y >= 0) & (y < n_classes) & (np.floor(y) == y)  # false for nan
    if not right.all():
        row = int(right.argmin())
        raise DataError(f"{what}: expected labels 0..{n_classes - 1}, got {y[row]} in row {row}", of_record=True)
    return y.astype(np.uint8 if n_classes <= 256 else np.int64)


@READERS.of(datasets.Digits)
def digits(spec: DatasetSpec, folder: Path | None) -> tuple[Arrays, Arrays]:
    """Return the 8 x 8 digits of scikit-learn, split into training and test records by a fixed permutation."""
    from sklearn.datasets import load_digits  # takes a second to import, and only this dataset needs it

    bunch = load_digits()
    order = np.random.default_rng(0).permutation(len(bunch.target))
    x, y = bunch.data[order].astype(np.uint8), bunch.target[order].astype(np.uint8)
    return (x[:spec.n_train], y[:spec.n_train]), (x[spec.n_train:], y[spec.n_train:])


def _idx_dataset(name: str, spec: DatasetSpec, folder: Path | None) -> tuple[Arrays, Arrays]:
    """Return training and test records of MNIST or Fashion-MNIST, from their four idx files."""

    def array(file: str, shape: tuple[int, ...]) -> np.ndarray:
        def read(path: Path) -> np.ndarray:
            return _read_idx(path, shape, DIGESTS[name][file])

        if folder is not None:
            return read(_locate(folder, [f"{IDX_FOLDERS[name]}/{file}", f"{IDX_FOLDERS[name]}/{file}.gz"]))
        return fetch(f"{BASE_URLS[name]}{file}.gz", cache_folder() / IDX_FOLDERS[name] / f"{file}.gz", read)

    def split(part: str, n: int) -> Arrays:
        y = array(LABELS[part], (n,))  # first, as it is the smaller file
        return array(IMAGES[part], (n, *spec.shape[1:])).reshape(n, spec.n_features), y

    return split("train", spec.n_train), split("test", spec.n_test)


def _read_idx(path: Path, shape: tuple[int, ...], digest: str) -> np.ndarray:
    """Return a verified idx file of unsigned bytes, gzipped or not, as a writable array of `shape`."""
    try:
        payload = path.read_bytes()
        if payload[:2] == b"\x1f\x8b":
            payload = gzip.decompress(payload)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: expected a readable, complete idx or gzip file, got: {error}") from error
    # magic number: two zero bytes, 8 for unsigned bytes, the number of dimensions; then the sizes, big-endian
    header = struct.pack(f">HBB{len(shape)}I", 0, 8, len(shape), *shape)
    if payload[:len(header)] != header:
        got = payload[:len(header)].hex(" ", 4) or "of an empty file"
        raise DataError(f"{path}: expected an idx file of unsigned bytes of shape {shape}, "
                        f"header {header.hex(' ', 4)}, got header {got}")
    n_bytes = len(header) + math.prod(shape)
    if len(payload) != n_bytes:
        raise DataError(f"{path}: expected {n_bytes} bytes of decompressed content, got {len(payload)}")
    check_digest(path, payload, digest)
    return np.frombuffer(payload, np.uint8, offset=len(header)).reshape(shape).copy()


@READERS.of(datasets.Cifar10)
def cifar10(spec: DatasetSpec, folder: Path | None) -> tuple[Arrays, Arrays]:
    """Return training and test records of CIFAR-10's binary version.

    They come from the first of these: the given unpacked folder, the cache's, the given archive, a download.
    An archive takes seconds to decompress, so the cache keeps it unpacked.
    """
    unpacked = cache_folder() / CIFAR_FOLDER / CIFAR_UNPACKED
    given = None if folder is None else _locate(folder, CIFAR_PATHS)
    if given is not None and given.is_dir():
        return _cifar10_arrays(given, spec, _read_members(given, spec))
    if unpacked.is_dir():  # before a given archive, from which it cannot differ: both have the digests of `DIGESTS`
        return _cifar10_arrays(unpacked, spec, read_cached(unpacked, lambda path: _read_members(path, spec)))
    if given is not None:
        archive, members = given, _read_archive(given, spec)
    else:
        archive = cache_folder() / CIFAR_FOLDER / CIFAR_ARCHIVE
        members = fetch(f"{BASE_URLS['cifar10']}{CIFAR_ARCHIVE}", archive, lambda path: _read_archive(path, spec))
    arrays = _cifar10_arrays(archive, spec, members)
    _keep_unpacked(members, unpacked)
    return arrays


def _read_members(folder: Path, spec: DatasetSpec) -> dict[str, bytes]:
    """Return the verified `.bin` files of an unpacked folder, by name."""
    members = {}
    for name in DIGESTS["cifar10"]:
        try:
            members[name] = (folder / name).read_bytes()
        except OSError as error:
            raise DataError(f"{folder / name}: expected a readable file, got: {error}") from error
        _check_member(folder / name, name, members[name], spec)
    return members


def _read_archive(path: Path, spec: DatasetSpec) -> dict[str, bytes]:
    """Return the verified `.bin` members of a tar archive, by name."""
    members = {}
    try:
        with tarfile.open(path) as archive:
            for member in archive:
                name = Path(member.name).name
                if not member.isfile() or name not in DIGESTS["cifar10"]:
                    continue
                if file := archive.extractfile(member):
                    members[name] = file.read()
                    _check_member(f"{path}, member {member.name}", name, members[name], spec)
    except (OSError, EOFError, tarfile.TarError, zlib.error, lzma.LZMAError) as error:
        raise DataError(f"{path}: expected a readable, complete tar archive, got: {error}") from error
    missing = [name for name in DIGESTS["cifar10"] if name not in members]
    if missing:
        raise DataError(f"{path}: expected the members {', '.join(DIGESTS['cifar10'])}, got none named "
                        f"{', '.join(missing)}")
    return members


def _check_member(path: str | Path, name: str, payload: bytes, spec: DatasetSpec) -> None:
    """Check the size and digest of the file `name` of CIFAR-10, found at `path`.

    It is a sequence of records: one byte of label, then the pixels (1 + 3 * 32 * 32 = 3073 bytes).
    """
    n = spec.n_test if name in CIFAR_BATCHES["test"] else spec.n_train // len(CIFAR_BATCHES["train"])
    n_bytes = n * (1 + spec.n_features)
    if len(payload) != n_bytes:
        raise DataError(f"{path}: expected {n_bytes} bytes ({n} records of {1 + spec.n_features}), got {len(payload)}")
    check_digest(path, payload, DIGESTS["cifar10"][name])


def _cifar10_arrays(source: Path, spec: DatasetSpec, members: dict[str, bytes]) -> tuple[Arrays, Arrays]:
    """Return training and test records from CIFAR-10's files (name: content), after checks of labels and counts."""

    def split(part: str) -> Arrays:
        records = [np.frombuffer(members[name], np.uint8).reshape(-1, 1 + spec.n_features)
                   for name in CIFAR_BATCHES[part]]
        y = np.concatenate([batch[:, 0] for batch in records])
        counts = np.bincount(y, minlength=spec.n_classes).tolist()
        if counts != [len(y) // spec.n_classes] * spec.n_classes:
            raise DataError(f"{source}, {part}: expected {len(y) // spec.n_classes} records per class, got {counts}")
        return np.concatenate([batch[:, 1:] for batch in records]), y

    return split("train"), split("test")


@READERS.of(datasets.Svhn)
def svhn(spec: DatasetSpec, folder: Path | None) -> tuple[Arrays, Arrays]:
    """Return training and test records of SVHN's cropped digits (Netzer et al. 2011); no digest of them is known."""

    def split(part: str, n: int) -> Arrays:
        """Return (x, y) of the n training or test records, from the given folder or the download."""
        file = f"{part}_32x32.mat"
        if folder is not None:
            return _read_svhn(_locate(folder, [f"{SVHN_FOLDER}/{file}", file]), spec, n)
        return fetch(f"{BASE_URLS['svhn']}{file}", cache_folder() / SVHN_FOLDER / file,
                     lambda path: _read_svhn(path, spec, n))

    return split("train", spec.n_train), split("test", spec.n_test)


def _read_svhn(path: Path, spec: DatasetSpec, n: int) -> Arrays:
    """Return (x, y) of a MATLAB 5 file of SVHN with n records, checked.

    It has X uint8 [rows, columns, channels, n] and y [n, 1] with labels 1..10, where 10 is the digit 0.
    """
    from scipy.io import loadmat

    try:
        arrays = loadmat(path, variable_names=["X", "y"])
    except Exception as error:  # for a broken file, scipy raises errors of any type
        raise DataError(f"{path}: expected a readable, complete MATLAB 5 file, got: {error}") from error
    channels, rows, columns = spec.shape
    for name, shape in (("X", (rows, columns, channels, n)), ("y", (n, 1))):
        array = arrays.get(name)
        if array is None or array.dtype != np.uint8 or array.shape != shape:
            got = "none of that name" if array is None else f"{array.dtype} of shape {array.shape}"
            raise DataError(f"{path}, {name}: expected uint8 of shape {shape}, got {got}")
    y = arrays["y"][:, 0]
    if not (1 <= y.min() and y.max() <= spec.n_classes):
        raise DataError(f"{path}, y: expected labels 1..{spec.n_classes}, got {y.min()}..{y.max()}")
    return arrays["X"].transpose(3, 2, 0, 1).reshape(n, spec.n_features), y % spec.n_classes


def _keep_unpacked(members: dict[str, bytes], unpacked: Path) -> None:
    """Write the files of an archive to the folder `unpacked`, which appears whole or not at all by a rename.

    A failure costs only time, so it is reported and not raised.
    """
    try:
        unpacked.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".unpacking-", dir=unpacked.parent) as scratch:
            batches = Path(scratch) / CIFAR_UNPACKED
            batches.mkdir()
            for name, payload in members.items():
                (batches / name).write_bytes(payload)
            os.rename(batches, unpacked)
    except OSError as error:
        if not unpacked.is_dir():  # else another process wrote the same verified bytes first
            print(f"{unpacked}: no unpacked copy could be kept ({error}); every load decompresses the archive anew",
                  file=sys.stderr)


READERS.of(datasets.FashionMnist)(functools.partial(_idx_dataset, "fashion_mnist"))
READERS.of(datasets.Mnist)(functools.partial(_idx_dataset, "mnist"))
