"""Datasets: tiny synthetic files with their own digests, a local server that misbehaves, and the real sets if given."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import re
import struct
import tarfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.io import savemat
from sklearn.datasets import load_digits

from pipeline.learning.data import dataset as data
from pipeline.learning.data import download, readers
from pipeline.learning.data.dataset import DataError
from pipeline.trials.datasets import DATASETS, DatasetSpec
from pipeline.trials.part import PARTS

MNIST = DatasetSpec(200, 50, (1, 28, 28), 10, (0.5,), (0.5,))
CIFAR = DatasetSpec(500, 100, (3, 32, 32), 10, (0.5,) * 3, (0.5,) * 3)
SVHN = DatasetSpec(60, 20, (3, 32, 32), 10, (0.5,) * 3, (0.5,) * 3)
IMAGES = "train-images-idx3-ubyte.gz"
CACHED = Path("MNIST/raw") / IMAGES
ARCHIVE = "cifar-10-binary.tar.gz"


def idx(array):
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes()


def flip(payload, at):
    return payload[:at] + bytes([payload[at] ^ 1]) + payload[at + 1:]


def digests(files):
    return {name: hashlib.sha256(payload).hexdigest() for name, payload in files.items()}


def write(folder, files, below=""):
    for name, payload in files.items():
        path = folder / below / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(payload)
    return folder


def tar(files, mode="w:gz"):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode) as archive:
        for name, payload in {"batches.meta.txt": b"airplane\n", **files}.items():
            member = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
            member.size = len(payload)
            archive.addfile(member, io.BytesIO(payload))
    return buffer.getvalue()


def listing(folder):
    """The files below `folder` that hold data (lock files are empty)."""
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file() and p.suffix != ".lock")


def snapshot(folder):
    return {str(p): (p.stat().st_mtime_ns, p.read_bytes() if p.is_file() else b"")
            for p in (folder, *folder.rglob("*"))}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """An empty cache, no data folder, and no official host within reach."""
    monkeypatch.setenv("PHOTONIC_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("PHOTONIC_DATA", raising=False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    for name in readers.BASE_URLS:
        monkeypatch.setitem(readers.BASE_URLS, name, "http://127.0.0.1:9/")
    return tmp_path / "cache"


class Tiny:
    """The arrays of a tiny MNIST, and its files; the `.bin` files of a tiny CIFAR-10."""

    def __init__(self):
        rng = np.random.default_rng(1)
        self.arrays = {}
        for part, n in (("train", MNIST.n_train), ("t10k", MNIST.n_test)):
            self.arrays[f"{part}-images-idx3-ubyte"] = rng.integers(0, 256, (n, 28, 28), dtype=np.uint8)
            self.arrays[f"{part}-labels-idx1-ubyte"] = rng.integers(0, 10, n, dtype=np.uint8)
        self.mnist = {f"{name}.gz": gzip.compress(idx(array)) for name, array in self.arrays.items()}
        self.cifar = {}
        for name in (*readers.CIFAR_BATCHES["train"], *readers.CIFAR_BATCHES["test"]):
            records = rng.integers(0, 256, (100, 3073), dtype=np.uint8)
            records[:, 0] = rng.permutation(np.arange(100) % 10)
            self.cifar[name] = records.tobytes()

    @staticmethod
    def same(dataset, records):
        """Whether images and labels are these, of training and test records."""
        for (images, labels), x, y in zip(records, (dataset.train_x, dataset.test_x),
                                          (dataset.train_y, dataset.test_y), strict=True):
            assert x.dtype == torch.uint8 and y.dtype == torch.int64
            np.testing.assert_array_equal(x, images.reshape(len(images), -1))
            np.testing.assert_array_equal(y, labels)

    def check_mnist(self, folder=None):
        self.same(data.load("mnist", folder), [
            (self.arrays[f"{part}-images-idx3-ubyte"], self.arrays[f"{part}-labels-idx1-ubyte"])
            for part in ("train", "t10k")])

    def check_cifar(self, folder=None):
        files = list(self.cifar.values())
        self.same(data.load("cifar10", folder), [
            (rows[:, 1:], rows[:, 0]) for rows in (np.frombuffer(b"".join(part), np.uint8).reshape(-1, 3073)
                                                   for part in (files[:5], files[5:]))])


@pytest.fixture(scope="module")
def drawn():
    return Tiny()


@pytest.fixture
def tiny(drawn, monkeypatch):
    """Its sizes and digests stand in the tables."""
    for name, spec, files in (("mnist", MNIST, {name: idx(array) for name, array in drawn.arrays.items()}),
                              ("cifar10", CIFAR, drawn.cifar)):
        monkeypatch.setattr(PARTS["dataset"][name], "spec", spec)
        monkeypatch.setitem(readers.DIGESTS, name, digests(files))
    return drawn


@pytest.fixture
def folder(tiny, tmp_path):
    return write(tmp_path / "data", tiny.mnist, "MNIST/raw")


class Server(ThreadingHTTPServer):
    """Serves `files`; `cuts` says after how many bytes the next transfers break off."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.files: dict[str, bytes] = {}
        self.cuts: dict[str, list[int]] = {}
        self.ranges = True
        self.delay = 0.0
        self.log: list[tuple[str, str | None]] = []

    def asked(self, name):
        """The Range headers of the requests for `name`."""
        return [header for path, header in self.log if path == name]


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self):
        name, header = self.path.lstrip("/"), self.headers.get("Range")
        self.server.log.append((name, header))
        time.sleep(self.server.delay)
        if name not in self.server.files:
            return self.send_error(404)
        payload = self.server.files[name]
        start = int(re.fullmatch(r"bytes=(\d+)-", header)[1]) if header and self.server.ranges else 0
        if start and start >= len(payload):
            return self.send_error(416)
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(payload) - 1}/{len(payload)}")
        self.send_header("Content-Length", str(len(payload) - start))
        self.end_headers()
        cuts = self.server.cuts.get(name)
        end = start + cuts.pop(0) if cuts else len(payload)
        self.wfile.write(payload[start:end])  # HTTP/1.0: the connection closes here

    def log_message(self, *args):
        pass


@pytest.fixture
def server(tiny, monkeypatch):
    server = Server()
    server.files = {**tiny.mnist, ARCHIVE: tar(tiny.cifar)}
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    for name in readers.BASE_URLS:
        monkeypatch.setitem(readers.BASE_URLS, name, f"http://127.0.0.1:{server.server_port}/")
    yield server
    server.shutdown()
    server.server_close()


def test_digits_are_a_fixed_split_of_the_bundled_set():
    digits = data.load("digits")
    order, bunch = np.random.default_rng(0).permutation(1797), load_digits()
    Tiny.same(digits, [(bunch.data[part], bunch.target[part]) for part in (order[:1437], order[1437:])])
    # golden: neither scikit-learn nor numpy may move a record from one side to the other
    assert digits.train_y.bincount().tolist() == [139, 145, 130, 155, 139, 150, 144, 152, 144, 139]
    assert digits.train_x.max() == 16
    mean, std = (digits.train_x / 16.0).mean(), (digits.train_x / 16.0).std()
    assert mean == pytest.approx(digits.spec.mean[0], abs=2e-3) and std == pytest.approx(digits.spec.std[0], abs=2e-3)
    with pytest.raises(DataError, match="dataset: must be one of fashion_mnist, .*, got 'imagenet'"):
        data.load("imagenet")


# a given folder

@pytest.mark.parametrize("how", ["packed, argument", "unpacked, environment"])
def test_a_given_folder_is_read_and_never_written(how, tiny, folder, cache, monkeypatch):
    write(folder, tiny.cifar, "CIFAR10/cifar-10-batches-bin")
    if how.startswith("unpacked"):
        for path in list(folder.rglob("*.gz")):
            path.with_suffix("").write_bytes(gzip.decompress(path.read_bytes()))
            path.unlink()
        monkeypatch.setenv("PHOTONIC_DATA", str(folder))
    before, given = snapshot(folder), folder if how.startswith("packed") else None
    tiny.check_mnist(given)
    tiny.check_cifar(given)
    assert snapshot(folder) == before and not cache.exists()


def test_what_a_given_folder_lacks_is_an_error_and_no_download(tiny, folder, server, cache, tmp_path, monkeypatch):
    (folder / CACHED).unlink()
    write(folder, {name: tiny.cifar[name] for name in readers.CIFAR_BATCHES["train"]}, "less/cifar-10-batches-bin")
    nowhere = tmp_path / "nowhere"
    for name, given, message in (
            ("mnist", folder, rf"expected one of MNIST/raw/{IMAGES[:-3]}, MNIST/raw/{IMAGES}, found none"),
            ("cifar10", folder, "CIFAR10/cifar-10-batches-bin, .*CIFAR10/cifar-10-binary.tar.xz"),
            ("cifar10", folder / "less", "test_batch.bin: expected a readable file"),
            ("mnist", nowhere, "nowhere: must be a folder .*from --data, or the argument"),
            ("mnist", None, "nowhere: must be a folder .*PHOTONIC")):
        monkeypatch.setenv("PHOTONIC_DATA", str(nowhere))
        with pytest.raises(DataError, match=message):
            data.load(name, given)
    assert server.log == [] and not cache.exists()


DAMAGE = {
    "truncated gzip": (lambda p: p[:len(p) // 2], "expected a readable, complete idx or gzip file"),
    "bit flip in gzip": (lambda p: flip(p, len(p) // 2), "expected a readable, complete|SHA-256"),
    "bit flip in a pixel": (lambda p: gzip.compress(flip(gzip.decompress(p), 5000)), "SHA-256 [0-9a-f]{64}, got "),
    "one record missing": (lambda p: gzip.compress(gzip.decompress(p)[:-784]), "expected 156816 bytes .*got 156032"),
    "other sizes": (lambda p: gzip.compress(idx(np.zeros((10, 28, 28), np.uint8))), r"shape \(200, 28, 28\)"),
    "a web page": (lambda p: b"<html>please log in</html>", "header 00000803 .* got header 3c68746d"),
    "empty": (lambda p: b"", "got header of an empty file")}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_file_is_refused_in_a_folder_and_as_a_download_and_never_reaches_the_cache(damage, tiny, folder,
                                                                                             server, cache):
    change, message = DAMAGE[damage]
    damaged = change(tiny.mnist[IMAGES])
    (folder / CACHED).write_bytes(damaged)
    with pytest.raises(DataError, match=f"{IMAGES}: .*({message})"):
        data.load("mnist", folder)
    server.files[IMAGES] = damaged
    with pytest.raises(DataError, match=f"{IMAGES}.part: .*({message}).*it was downloaded from http.* and is removed"):
        data.load("mnist")
    assert listing(cache) == ["MNIST/raw/train-labels-idx1-ubyte.gz"]
    server.files[IMAGES] = tiny.mnist[IMAGES]
    tiny.check_mnist()


CIFAR_DAMAGE = {
    "truncated": (lambda f: tar(f)[:400_000], "expected a readable, complete tar archive"),
    "no archive": (lambda f: b"<html>please log in</html>" * 100, "expected a readable, complete tar archive"),
    "member missing": (lambda f: tar({k: v for k, v in f.items() if k != "data_batch_3.bin"}),
                       "got none named data_batch_3.bin"),
    "record cut": (lambda f: tar(f | {"data_batch_2.bin": f["data_batch_2.bin"][:-1]}),
                   r"data_batch_2.bin: expected 307300 bytes \(100 records of 3073\), got 307299"),
    "bit flip": (lambda f: tar(f | {"test_batch.bin": flip(f["test_batch.bin"], 77)}),
                 "test_batch.bin: expected content with SHA-256")}


@pytest.mark.parametrize("damage", CIFAR_DAMAGE)
def test_damaged_cifar_archive(damage, tiny, tmp_path, cache):
    change, message = CIFAR_DAMAGE[damage]
    with pytest.raises(DataError, match=f"{ARCHIVE}.*{message}"):
        data.load("cifar10", write(tmp_path / "data", {ARCHIVE: change(tiny.cifar)}))
    assert not cache.exists()


@pytest.mark.parametrize("label", [10, 3])
def test_labels_that_a_set_does_not_have_are_refused(label, tiny, folder, monkeypatch):
    name = "t10k-labels-idx1-ubyte"
    payload = idx(np.full(MNIST.n_test, 10, np.uint8))
    monkeypatch.setitem(readers.DIGESTS["mnist"], name, hashlib.sha256(payload).hexdigest())
    write(folder, {f"{name}.gz": gzip.compress(payload)}, "MNIST/raw")
    with pytest.raises(DataError, match="mnist, test: expected labels 0..9, got 10 in row 0"):
        data.load("mnist", folder)
    records = np.frombuffer(tiny.cifar["data_batch_1.bin"], np.uint8).reshape(100, 3073).copy()
    records[records[:, 0] == 7, 0] = label
    changed = tiny.cifar | {"data_batch_1.bin": records.tobytes()}
    monkeypatch.setitem(readers.DIGESTS, "cifar10", digests(changed))
    with pytest.raises(DataError, match=r"train: expected 50 records per class, got \["):
        data.load("cifar10", write(folder, changed, "cifar-10-batches-bin"))


@pytest.mark.parametrize("path", ["CIFAR10/cifar-10-binary.tar.xz", f"CIFAR10/{ARCHIVE}", ARCHIVE])
def test_cifar_archive_is_kept_unpacked(path, tiny, tmp_path, cache, monkeypatch, capsys):
    folder = write(tmp_path / "data", {path: tar(tiny.cifar, f"w:{path[-2:]}")})
    cache.write_text("a file where the folder should be")
    tiny.check_cifar(folder)
    assert "no unpacked copy could be kept" in capsys.readouterr().err
    cache.unlink()
    tiny.check_cifar(folder)
    assert listing(cache) == [f"CIFAR10/cifar-10-batches-bin/{name}" for name in sorted(tiny.cifar)]
    assert [p.name for p in (cache / "CIFAR10").iterdir()] == ["cifar-10-batches-bin"]
    monkeypatch.setattr(readers, "_read_archive", None)  # the second time no archive is opened
    tiny.check_cifar(folder)
    copy = cache / "CIFAR10/cifar-10-batches-bin/data_batch_1.bin"
    copy.write_bytes(flip(copy.read_bytes(), 9))
    with pytest.raises(DataError, match="data_batch_1.bin: expected content with SHA-256.*delete it"):
        data.load("cifar10", folder)


# downloads

def in_cache(tiny):
    return sorted(f"MNIST/raw/{name}" for name in tiny.mnist)


def test_download_once_then_from_the_cache(tiny, server, cache, monkeypatch, capsys):
    tiny.check_mnist()
    assert capsys.readouterr().err.count("downloading http://127.0.0.1") == 4 and listing(cache) == in_cache(tiny)
    monkeypatch.setattr(download, "FileLock", None)  # what is cached is read without a lock: no reader waits
    tiny.check_mnist()
    assert sorted(server.log) == sorted((name, None) for name in tiny.mnist)
    assert capsys.readouterr() == ("", "")
    damaged = flip((cache / CACHED).read_bytes(), 3000)
    (cache / CACHED).write_bytes(damaged)
    with pytest.raises(DataError, match=rf"{IMAGES}: expected .* is a cached copy: delete it"):
        data.load("mnist")
    assert (cache / CACHED).read_bytes() == damaged and len(server.log) == 4, "it is kept"


def test_an_archive_is_downloaded_once_with_a_bar_on_a_terminal(tiny, server, monkeypatch, capsys):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "200")
    for _ in range(2):
        tiny.check_cifar()
    out, err = capsys.readouterr()
    assert server.log == [(ARCHIVE, None)]
    assert ARCHIVE in err and "━" in err and "downloading" not in err and out == ""


HALF = 5 * download.CHUNK


@pytest.mark.parametrize(("part", "cuts", "ranges", "asked", "kept"), [
    ("", [HALF], True, [None, f"bytes={HALF}-"], None),  # at once
    ("", [HALF], False, [None, f"bytes={HALF}-"], None),  # a server may ignore what is asked for
    ("", [HALF, 0], True, [None, f"bytes={HALF}-", f"bytes={HALF}-"], HALF),  # the second attempt brings nothing
    ("whole", [], True, ["bytes=WHOLE-"], None), ("wrong", [], True, ["bytes=100-", None], 0)])
def test_a_broken_transfer_is_resumed(part, cuts, ranges, asked, kept, tiny, server, cache):
    whole = tiny.mnist[IMAGES]
    if part:
        write(cache, {f"{CACHED}.part": whole if part == "whole" else b"\x1f\x8b" + b"x" * 98})
    server.cuts[IMAGES], server.ranges = cuts, ranges
    if kept is not None:
        with pytest.raises(DataError, match=rf"{kept} bytes are kept in .*\.part to resume.*PHOTONIC_DATA.*DATA="
                           if kept else "it was downloaded from http.* and is removed"):
            data.load("mnist")
        left = cache / f"{CACHED}.part"
        assert (left.read_bytes() if left.exists() else b"") == whole[:kept] and not (cache / CACHED).exists()
    tiny.check_mnist()
    assert server.asked(IMAGES) == [header and header.replace("WHOLE", str(len(whole))) for header in asked]
    assert listing(cache) == in_cache(tiny)


def test_hosts_that_fail_or_answer_otherwise_are_told(tiny, server, monkeypatch, cache):
    def refused(message):
        with pytest.raises(DataError, match=message):
            data.load("mnist")

    whole = server.files.pop(IMAGES)
    refused(f"{IMAGES}: download failed: 404")
    monkeypatch.setattr(download, "TIMEOUT", (0.1, 0.1))
    server.delay = 0.5
    refused(f"{IMAGES}: download failed: .*[Tt]imed out")
    assert listing(cache) == ["MNIST/raw/train-labels-idx1-ubyte.gz"]
    server.delay, server.files[IMAGES] = 0, whole
    write(cache, {f"{CACHED}.part": whole[:100]})
    send = Handler.send_header
    monkeypatch.setattr(Handler, "send_header", lambda self, key, value: send(
        self, key, "bytes 7-9/10" if key == "Content-Range" else value))
    refused("expected Content-Range from byte 100, got 'bytes 7-9/10'")
    assert (cache / f"{CACHED}.part").stat().st_size == 100
    monkeypatch.setitem(readers.BASE_URLS, "mnist", "http://127.0.0.1:9/")
    refused(r"http://127.0.0.1:9/.*download failed.*PHOTONIC_DATA=<folder>.*DATA=<folder>")
    monkeypatch.setenv("PHOTONIC_CACHE", str(cache / CACHED.parent / "train-labels-idx1-ubyte.gz"))  # no folder
    refused("cannot be written to the cache .*set PHOTONIC_CACHE")


def test_of_several_that_load_at_once_one_downloads(tiny, server, cache):
    """As processes do: each opens the lock for itself."""
    server.delay = 0.1
    with ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(tiny.check_mnist) for _ in range(2)]:
            done.result()
    assert sorted(server.log) == sorted((name, None) for name in tiny.mnist)
    assert listing(cache) == in_cache(tiny)


# SVHN: made-up MATLAB files of its format

@pytest.fixture
def made_up(monkeypatch):
    """The arrays of two tiny files, by part, as MATLAB has them."""
    rng = np.random.default_rng(0)
    monkeypatch.setattr(PARTS["dataset"]["svhn"], "spec", SVHN)
    return {part: {"X": rng.integers(0, 256, (32, 32, 3, n), dtype=np.uint8),
                   "y": (1 + np.arange(n, dtype=np.uint8) % 10)[:, None]}
            for part, n in (("train", SVHN.n_train), ("test", SVHN.n_test))}


def matlab(arrays):
    files = {f"{part}_32x32.mat": io.BytesIO() for part in arrays}
    for file, content in zip(files.values(), arrays.values(), strict=True):
        savemat(file, content, do_compression=True)
    return {name: file.getvalue() for name, file in files.items()}


WHOLE_SVHN, SVHN_HOST = DATASETS["svhn"].spec, readers.BASE_URLS["svhn"]


@pytest.mark.parametrize("below", ["", "SVHN"])
def test_records_of_svhn_are_channels_first_and_label_10_is_the_digit_0(made_up, tmp_path, below):
    Tiny.same(data.load("svhn", write(tmp_path, matlab(made_up), below)), [
        (part["X"].transpose(3, 2, 0, 1), part["y"][:, 0] % 10) for part in made_up.values()])


def test_svhn_is_downloaded_once_into_the_cache(made_up, server, cache):
    server.files = matlab(made_up)
    for _ in range(2):
        assert len(data.load("svhn").train_y) == 60
    assert server.log == [(f"{part}_32x32.mat", None) for part in ("train", "test")]
    assert listing(cache) == ["SVHN/test_32x32.mat", "SVHN/train_32x32.mat"]
    assert SVHN_HOST == "http://ufldl.stanford.edu/housenumbers/"
    spec = WHOLE_SVHN  # as it is published; nothing of it is private
    assert (spec.n_train, spec.n_test, spec.shape, spec.n_classes) == (73_257, 26_032, (3, 32, 32), 10)
    assert spec.mean == spec.std == (0.5, 0.5, 0.5) and not spec.published and not spec.sha256


@pytest.mark.parametrize(("change", "message"), [
    (lambda c: c.update(y=c["y"] - 1), r"train_32x32.mat, y: expected labels 1..10, got 0..9"),
    (lambda c: c.update(y=c["y"] + 1), r"train_32x32.mat, y: expected labels 1..10, got 2..11"),
    (lambda c: c.update(X=c["X"][..., :-1]), r"train_32x32.mat, X: expected uint8 of shape \(32, 32, 3, 60\), got"),
    (lambda c: c.update(X=c["X"].astype(float)), r"train_32x32.mat, X: expected uint8 of shape .*, got float64"),
    (lambda c: c.pop("y"), r"train_32x32.mat, y: expected uint8 of shape \(60, 1\), got none of that name")])
def test_svhn_of_another_form_is_refused(made_up, tmp_path, change, message):
    change(made_up["train"])
    with pytest.raises(DataError, match=message):
        data.load("svhn", write(tmp_path, matlab(made_up)))


@pytest.mark.parametrize("spoil", [lambda whole: whole[:-200], lambda whole: whole[:100], lambda whole: b""])
def test_files_of_svhn_that_cannot_be_read_are_refused(made_up, tmp_path, spoil):
    path = write(tmp_path, matlab(made_up)) / "train_32x32.mat"
    path.write_bytes(spoil(path.read_bytes()))
    with pytest.raises(DataError, match="train_32x32.mat: expected a readable, complete MATLAB 5 file, got"):
        data.load("svhn", tmp_path)


# the real sets

REAL = os.environ.get("PHOTONIC_DATA")  # read here: the fixture above hides it from every test
MNIST_TRAIN = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
MNIST_TEST = [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]


@pytest.mark.parametrize(("name", "train", "test"), [
    ("fashion_mnist", [6000] * 10, [1000] * 10), ("mnist", MNIST_TRAIN, MNIST_TEST),
    pytest.param("cifar10", [5000] * 10, [1000] * 10, marks=pytest.mark.slow)])
def test_real_sets(name, train, test, pytestconfig, monkeypatch):
    if not REAL:
        pytest.skip("PHOTONIC_DATA is not set")
    if kept := getattr(pytestconfig, "cache", None):  # between runs: to unpack an archive takes ten seconds
        monkeypatch.setenv("PHOTONIC_CACHE", str(kept.mkdir("data-sets")))
    dataset = data.load(name, REAL)
    spec = dataset.spec
    assert dataset.train_x.shape == (spec.n_train, spec.n_features)
    assert dataset.test_x.shape == (spec.n_test, spec.n_features)
    assert dataset.train_y.bincount().tolist() == train
    assert dataset.test_y.bincount().tolist() == test
    pixels = dataset.train_x.view(spec.n_train, spec.shape[0], -1)
    means = pixels.sum((0, 2)) / (spec.n_train * pixels.shape[2] * spec.scale)
    assert means.tolist() == pytest.approx(spec.mean, abs=1e-3)
