"""Datasets: tiny synthetic files with their own digests, a local server that misbehaves, and the real sets if given."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import re
import struct
import subprocess
import sys
import tarfile
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
import torch

from pipeline.learning.data import dataset as data
from pipeline.learning.data import download, readers
from pipeline.learning.data.dataset import DataError
from pipeline.trials.datasets import DatasetSpec
from pipeline.trials.part import PARTS

REPOSITORY = Path(__file__).parents[2]
MNIST = DatasetSpec(200, 50, (1, 28, 28), 10, (0.5,), (0.5,))
CIFAR = DatasetSpec(500, 100, (3, 32, 32), 10, (0.5,) * 3, (0.5,) * 3)
IMAGES = "train-images-idx3-ubyte"
CACHED = Path("MNIST/raw") / f"{IMAGES}.gz"


def idx(array):
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes()


def flip(payload, at):
    return payload[:at] + bytes([payload[at] ^ 1]) + payload[at + 1:]


def digests(files):
    return {name: hashlib.sha256(payload).hexdigest() for name, payload in files.items()}


def write(folder, files):
    for name, payload in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(payload)
    return folder


def listing(folder):
    """The files below `folder` that hold data (lock files are empty)."""
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file() and p.suffix != ".lock")


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """An empty cache, no data folder, and no official host within reach."""
    monkeypatch.setenv("PHOTONIC_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("PHOTONIC_DATA", raising=False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    for name in readers.BASE_URLS:
        monkeypatch.setitem(readers.BASE_URLS, name, "http://127.0.0.1:9/")
    return tmp_path / "cache"


@pytest.fixture
def mnist(monkeypatch):
    """The arrays of a tiny MNIST, whose sizes and digests stand in the tables."""
    rng = np.random.default_rng(1)
    arrays = {}
    for part, n in (("train", MNIST.n_train), ("t10k", MNIST.n_test)):
        arrays[f"{part}-images-idx3-ubyte"] = rng.integers(0, 256, (n, 28, 28), dtype=np.uint8)
        arrays[f"{part}-labels-idx1-ubyte"] = rng.integers(0, 10, n, dtype=np.uint8)
    monkeypatch.setattr(PARTS["dataset"]["mnist"], "spec", MNIST)
    monkeypatch.setitem(readers.DIGESTS, "mnist", digests({name: idx(a) for name, a in arrays.items()}))
    return arrays


@pytest.fixture
def mnist_files(mnist):
    return {f"{name}.gz": gzip.compress(idx(array)) for name, array in mnist.items()}


@pytest.fixture
def mnist_folder(mnist_files, tmp_path):
    return write(tmp_path / "data", {f"MNIST/raw/{name}": payload for name, payload in mnist_files.items()})


@pytest.fixture
def cifar_files(monkeypatch):
    """The `.bin` files of a tiny CIFAR-10."""
    rng = np.random.default_rng(2)
    files = {}
    for name in (*readers.CIFAR_BATCHES["train"], *readers.CIFAR_BATCHES["test"]):
        records = rng.integers(0, 256, (100, 3073), dtype=np.uint8)
        records[:, 0] = rng.permutation(np.arange(100) % 10)
        files[name] = records.tobytes()
    monkeypatch.setattr(PARTS["dataset"]["cifar10"], "spec", CIFAR)
    monkeypatch.setitem(readers.DIGESTS, "cifar10", digests(files))
    return files


def tar(files, mode):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode) as archive:
        for name, payload in {"batches.meta.txt": b"airplane\n", **files}.items():
            member = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
            member.size = len(payload)
            archive.addfile(member, io.BytesIO(payload))
    return buffer.getvalue()


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
def server(monkeypatch):
    server = Server()
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    for name in readers.BASE_URLS:
        monkeypatch.setitem(readers.BASE_URLS, name, f"http://127.0.0.1:{server.server_port}/")
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def mnist_server(server, mnist_files):
    server.files = dict(mnist_files)
    return server


def check_mnist(dataset, arrays):
    assert dataset.spec == MNIST
    assert dataset.train_x.dtype == dataset.test_x.dtype == torch.uint8
    assert dataset.train_y.dtype == dataset.test_y.dtype == torch.int64
    for part, x, y in (("train", dataset.train_x, dataset.train_y), ("t10k", dataset.test_x, dataset.test_y)):
        np.testing.assert_array_equal(x.numpy(), arrays[f"{part}-images-idx3-ubyte"].reshape(-1, 784))
        np.testing.assert_array_equal(y.numpy(), arrays[f"{part}-labels-idx1-ubyte"])


# digits

def test_digits_are_a_fixed_split_of_the_bundled_set():
    first, second = data.load("digits"), data.load("digits")
    assert first.train_x.shape == (1437, 64) and first.test_x.shape == (360, 64)
    assert first.train_x.dtype == torch.uint8 and first.train_y.dtype == torch.int64
    for name in ("train_x", "train_y", "test_x", "test_y"):
        assert torch.equal(getattr(first, name), getattr(second, name))
    order = np.random.default_rng(0).permutation(1797)
    from sklearn.datasets import load_digits
    bunch = load_digits()
    np.testing.assert_array_equal(torch.cat([first.train_x, first.test_x]).numpy(), bunch.data[order])
    np.testing.assert_array_equal(torch.cat([first.train_y, first.test_y]).numpy(), bunch.target[order])
    # golden: neither scikit-learn nor numpy may move a record from one side to the other
    assert first.train_y.bincount().tolist() == [139, 145, 130, 155, 139, 150, 144, 152, 144, 139]
    assert first.train_x.max() == 16
    mean, std = (first.train_x / 16.0).mean(), (first.train_x / 16.0).std()
    assert mean == pytest.approx(first.spec.mean[0], abs=2e-3) and std == pytest.approx(first.spec.std[0], abs=2e-3)


def test_an_unknown_name_is_refused():
    with pytest.raises(DataError, match="dataset: must be one of fashion_mnist, .*, got 'imagenet'"):
        data.load("imagenet")


# a given folder

@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("how", ["argument", "environment"])
def test_given_folder(packed, how, mnist, mnist_folder, cache, monkeypatch):
    if not packed:
        for path in list(mnist_folder.rglob("*.gz")):
            path.with_suffix("").write_bytes(gzip.decompress(path.read_bytes()))
            path.unlink()
    if how == "environment":
        monkeypatch.setenv("PHOTONIC_DATA", str(mnist_folder))
    check_mnist(data.load("mnist", mnist_folder if how == "argument" else None), mnist)
    assert not cache.exists()


def snapshot(folder):
    return {str(p): (p.stat().st_mtime_ns, p.stat().st_mode, p.read_bytes() if p.is_file() else b"")
            for p in (folder, *folder.rglob("*"))}


def test_given_folder_is_never_written(mnist_folder, cifar_files):
    write(mnist_folder, {"CIFAR10/cifar-10-binary.tar.gz": tar(cifar_files, "w:gz")})
    folders = [mnist_folder, *(p for p in mnist_folder.rglob("*") if p.is_dir())]
    before = snapshot(mnist_folder)
    for folder in folders:
        folder.chmod(0o555)
    try:
        data.load("mnist", mnist_folder)
        data.load("cifar10", mnist_folder)
    finally:
        for folder in folders:
            folder.chmod(0o755)
    assert {k: (v[0], v[2]) for k, v in snapshot(mnist_folder).items()} == {k: (v[0], v[2]) for k, v in before.items()}


def test_missing_file_is_an_error_and_no_download(mnist_folder, mnist_server, cache):
    (mnist_folder / CACHED).unlink()
    with pytest.raises(DataError, match=rf"expected one of MNIST/raw/{IMAGES}, MNIST/raw/{IMAGES}\.gz, found none"):
        data.load("mnist", mnist_folder)
    with pytest.raises(DataError, match="CIFAR10/cifar-10-batches-bin, .*CIFAR10/cifar-10-binary.tar.xz"):
        data.load("cifar10", mnist_folder)
    assert mnist_server.log == [] and not cache.exists()


@pytest.mark.parametrize("how", ["argument", "environment"])
def test_given_folder_must_exist(how, tmp_path, mnist_server, monkeypatch):
    if how == "environment":
        monkeypatch.setenv("PHOTONIC_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(DataError, match=f"nowhere: must be a folder .*{'PHOTONIC' if how == 'environment' else how}"):
        data.load("mnist", tmp_path / "nowhere" if how == "argument" else None)
    assert mnist_server.log == []


DAMAGE = {
    "truncated gzip": (lambda p: p[:len(p) // 2], "expected a readable, complete idx or gzip file"),
    "bit flip in gzip": (lambda p: flip(p, len(p) // 2), "expected a readable, complete|SHA-256"),
    "bit flip in a pixel": (lambda p: gzip.compress(flip(gzip.decompress(p), 5000)), "SHA-256 [0-9a-f]{64}, got "),
    "one record missing": (lambda p: gzip.compress(gzip.decompress(p)[:-784]), "expected 156816 bytes .*got 156032"),
    "other sizes": (lambda p: gzip.compress(idx(np.zeros((10, 28, 28), np.uint8))), r"shape \(200, 28, 28\)"),
    "a web page": (lambda p: b"<html>please log in</html>", "header 00000803 .* got header 3c68746d"),
    "empty": (lambda p: b"", "got header of an empty file"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_file_in_a_given_folder(damage, mnist_folder):
    change, message = DAMAGE[damage]
    path = mnist_folder / CACHED
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(DataError, match=f"{IMAGES}.gz: .*({message})"):
        data.load("mnist", mnist_folder)


def test_labels_out_of_range(mnist, mnist_folder, monkeypatch):
    name = "t10k-labels-idx1-ubyte"
    payload = idx(np.full(MNIST.n_test, 10, np.uint8))
    monkeypatch.setitem(readers.DIGESTS["mnist"], name, hashlib.sha256(payload).hexdigest())
    (mnist_folder / "MNIST/raw" / f"{name}.gz").write_bytes(gzip.compress(payload))
    with pytest.raises(DataError, match="mnist, test: expected labels 0..9, got 10 in row 0"):
        data.load("mnist", mnist_folder)


# CIFAR-10

def check_cifar(dataset, files):
    train = np.frombuffer(b"".join(files[f"data_batch_{i}.bin"] for i in range(1, 6)), np.uint8).reshape(500, 3073)
    test = np.frombuffer(files["test_batch.bin"], np.uint8).reshape(100, 3073)
    for records, x, y in ((train, dataset.train_x, dataset.train_y), (test, dataset.test_x, dataset.test_y)):
        assert x.dtype == torch.uint8 and y.dtype == torch.int64
        np.testing.assert_array_equal(x.numpy(), records[:, 1:])
        np.testing.assert_array_equal(y.numpy(), records[:, 0])


@pytest.mark.parametrize("path", ["CIFAR10/cifar-10-binary.tar.xz", "CIFAR10/cifar-10-binary.tar.gz",
                                  "cifar-10-binary.tar.gz"])
def test_cifar_archive_is_kept_unpacked(path, cifar_files, tmp_path, cache, monkeypatch):
    folder = write(tmp_path / "data", {path: tar(cifar_files, f"w:{path[-2:]}")})
    check_cifar(data.load("cifar10", folder), cifar_files)
    assert listing(cache) == [f"CIFAR10/cifar-10-batches-bin/{name}" for name in sorted(cifar_files)]
    assert [p.name for p in (cache / "CIFAR10").iterdir()] == ["cifar-10-batches-bin"]
    monkeypatch.setattr(readers, "_read_archive", None)  # the second time no archive is opened
    check_cifar(data.load("cifar10", folder), cifar_files)


@pytest.mark.parametrize("path", ["CIFAR10/cifar-10-batches-bin", "cifar-10-batches-bin"])
def test_cifar_unpacked_folder(path, cifar_files, tmp_path, cache):
    folder = write(tmp_path / "data", {f"{path}/{name}": payload for name, payload in cifar_files.items()})
    check_cifar(data.load("cifar10", folder), cifar_files)
    assert not cache.exists()
    (folder / path / "test_batch.bin").unlink()
    with pytest.raises(DataError, match="test_batch.bin: expected a readable file"):
        data.load("cifar10", folder)


def test_cifar_without_a_writable_cache(cifar_files, tmp_path, cache, capsys):
    cache.write_text("a file where the folder should be")
    folder = write(tmp_path / "data", {"cifar-10-binary.tar.gz": tar(cifar_files, "w:gz")})
    check_cifar(data.load("cifar10", folder), cifar_files)
    assert "no unpacked copy could be kept" in capsys.readouterr().err


CIFAR_DAMAGE = {
    "truncated": (lambda f: tar(f, "w:gz")[:400_000], "expected a readable, complete tar archive"),
    "no archive": (lambda f: b"<html>please log in</html>" * 100, "expected a readable, complete tar archive"),
    "member missing": (lambda f: tar({k: v for k, v in f.items() if k != "data_batch_3.bin"}, "w:gz"),
                       "got none named data_batch_3.bin"),
    "record cut": (lambda f: tar(f | {"data_batch_2.bin": f["data_batch_2.bin"][:-1]}, "w:gz"),
                   r"data_batch_2.bin: expected 307300 bytes \(100 records of 3073\), got 307299"),
    "bit flip": (lambda f: tar(f | {"test_batch.bin": flip(f["test_batch.bin"], 77)}, "w:gz"),
                 "test_batch.bin: expected content with SHA-256"),
}


@pytest.mark.parametrize("damage", CIFAR_DAMAGE)
def test_damaged_cifar_archive(damage, cifar_files, tmp_path, cache):
    change, message = CIFAR_DAMAGE[damage]
    folder = write(tmp_path / "data", {"cifar-10-binary.tar.gz": change(cifar_files)})
    with pytest.raises(DataError, match=f"cifar-10-binary.tar.gz.*{message}"):
        data.load("cifar10", folder)
    assert not cache.exists()


@pytest.mark.parametrize("label", [10, 3])
def test_cifar_labels(label, cifar_files, tmp_path, monkeypatch):
    records = np.frombuffer(cifar_files["data_batch_1.bin"], np.uint8).reshape(100, 3073).copy()
    records[records[:, 0] == 7, 0] = label
    changed = cifar_files | {"data_batch_1.bin": records.tobytes()}
    monkeypatch.setitem(readers.DIGESTS, "cifar10", digests(changed))
    folder = write(tmp_path / "data", {f"cifar-10-batches-bin/{name}": payload for name, payload in changed.items()})
    with pytest.raises(DataError, match=r"train: expected 50 records per class, got \["):
        data.load("cifar10", folder)


def test_cifar_damaged_copy_in_the_cache(cifar_files, tmp_path, cache):
    folder = write(tmp_path / "data", {"cifar-10-binary.tar.gz": tar(cifar_files, "w:gz")})
    data.load("cifar10", folder)
    copy = cache / "CIFAR10/cifar-10-batches-bin/data_batch_1.bin"
    copy.write_bytes(flip(copy.read_bytes(), 9))
    with pytest.raises(DataError, match="data_batch_1.bin: expected content with SHA-256.*delete it"):
        data.load("cifar10", folder)


def test_cifar_download(cifar_files, server, cache):
    server.files = {"cifar-10-binary.tar.gz": tar(cifar_files, "w:gz")}
    for _ in range(2):
        check_cifar(data.load("cifar10"), cifar_files)
    assert server.log == [("cifar-10-binary.tar.gz", None)]


# downloads

def test_download_once_then_from_the_cache(mnist, mnist_server, cache, monkeypatch, capsys):
    check_mnist(data.load("mnist"), mnist)
    assert capsys.readouterr().err.count("downloading http://127.0.0.1") == 4
    assert listing(cache) == sorted(f"MNIST/raw/{name}.gz" for name in mnist)
    monkeypatch.setattr(download, "FileLock", None)  # what is cached is read without a lock: no reader waits
    check_mnist(data.load("mnist"), mnist)
    assert sorted(mnist_server.log) == sorted((f"{name}.gz", None) for name in mnist)
    assert capsys.readouterr() == ("", "")


def test_progress_bar_on_a_terminal(mnist_server, monkeypatch, capsys):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "200")
    data.load("mnist")
    out, err = capsys.readouterr()
    assert f"{IMAGES}.gz" in err and "━" in err and "downloading" not in err and out == ""


@pytest.mark.parametrize("ranges", [True, False])  # a server may ignore what is asked for
def test_broken_transfer_is_resumed_at_once(ranges, mnist, mnist_server, cache):
    half = 5 * download.CHUNK
    mnist_server.cuts[f"{IMAGES}.gz"], mnist_server.ranges = [half], ranges
    check_mnist(data.load("mnist"), mnist)
    assert mnist_server.asked(f"{IMAGES}.gz") == [None, f"bytes={half}-"]
    assert listing(cache) == sorted(f"MNIST/raw/{name}.gz" for name in mnist)


def test_broken_transfer_is_resumed_by_the_next_call(mnist, mnist_server, cache, mnist_files):
    """The second attempt brings nothing, so the call gives up; what came stays."""
    half = 5 * download.CHUNK
    mnist_server.cuts[f"{IMAGES}.gz"] = [half, 0]
    with pytest.raises(DataError, match=rf"{half} bytes are kept in .*\.gz\.part to resume.*PHOTONIC_DATA.*DATA="):
        data.load("mnist")
    assert (cache / f"{CACHED}.part").read_bytes() == mnist_files[f"{IMAGES}.gz"][:half]
    assert not (cache / CACHED).exists()
    check_mnist(data.load("mnist"), mnist)
    assert mnist_server.asked(f"{IMAGES}.gz")[-1] == f"bytes={half}-"
    assert not (cache / f"{CACHED}.part").exists()


def test_part_that_is_already_complete(mnist, mnist_server, cache, mnist_files):
    write(cache, {f"{CACHED}.part": mnist_files[f"{IMAGES}.gz"]})
    check_mnist(data.load("mnist"), mnist)
    assert mnist_server.asked(f"{IMAGES}.gz") == [f"bytes={len(mnist_files[f'{IMAGES}.gz'])}-"]


def test_wrong_part_is_removed_and_the_next_try_starts_anew(mnist, mnist_server, cache):
    write(cache, {f"{CACHED}.part": b"\x1f\x8b" + b"x" * 98})
    with pytest.raises(DataError, match="it was downloaded from http.* and is removed"):
        data.load("mnist")
    assert not (cache / f"{CACHED}.part").exists()
    check_mnist(data.load("mnist"), mnist)
    assert mnist_server.asked(f"{IMAGES}.gz") == ["bytes=100-", None]


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_download_never_reaches_the_cache(damage, mnist, mnist_server, mnist_files, cache):
    change, message = DAMAGE[damage]
    mnist_server.files[f"{IMAGES}.gz"] = change(mnist_files[f"{IMAGES}.gz"])
    with pytest.raises(DataError, match=f"{IMAGES}.gz.part: .*({message}).*is removed"):
        data.load("mnist")
    assert listing(cache) == ["MNIST/raw/train-labels-idx1-ubyte.gz"]
    mnist_server.files = mnist_files
    check_mnist(data.load("mnist"), mnist)


def test_damaged_file_in_the_cache_is_named_and_kept(mnist_server, cache):
    data.load("mnist")
    damaged = flip((cache / CACHED).read_bytes(), 3000)
    (cache / CACHED).write_bytes(damaged)
    with pytest.raises(DataError, match=rf"{IMAGES}\.gz: expected .* is a cached copy: delete it"):
        data.load("mnist")
    assert (cache / CACHED).read_bytes() == damaged
    assert len(mnist_server.log) == 4


def test_no_network_says_what_to_do(mnist, cache):
    with pytest.raises(DataError, match=r"http://127.0.0.1:9/.*download failed.*PHOTONIC_DATA=<folder>.*DATA=<folder>"):
        data.load("mnist")
    assert listing(cache) == []


def test_http_error_and_silence(mnist_server, monkeypatch, cache):
    del mnist_server.files[f"{IMAGES}.gz"]
    with pytest.raises(DataError, match=f"{IMAGES}.gz: download failed: 404"):
        data.load("mnist")
    monkeypatch.setattr(download, "TIMEOUT", (0.1, 0.1))
    mnist_server.delay = 0.5
    with pytest.raises(DataError, match=f"{IMAGES}.gz: download failed: .*[Tt]imed out"):
        data.load("mnist")
    assert listing(cache) == ["MNIST/raw/train-labels-idx1-ubyte.gz"]


def test_range_from_elsewhere_is_refused(mnist_server, cache, monkeypatch):
    write(cache, {f"{CACHED}.part": mnist_server.files[f"{IMAGES}.gz"][:100]})
    send = Handler.send_header
    monkeypatch.setattr(Handler, "send_header", lambda self, key, value: send(
        self, key, "bytes 7-9/10" if key == "Content-Range" else value))
    with pytest.raises(DataError, match="expected Content-Range from byte 100, got 'bytes 7-9/10'"):
        data.load("mnist")
    assert (cache / f"{CACHED}.part").stat().st_size == 100


def test_cache_that_cannot_be_written(mnist_server, cache):
    cache.write_text("a file where the folder should be")
    with pytest.raises(DataError, match="cannot be written to the cache .*set PHOTONIC_CACHE"):
        data.load("mnist")


CHILD = """
import json, os, sys
from pipeline.learning.data import dataset as data
from pipeline.learning.data import readers
from pipeline.trials.datasets import DatasetSpec
from pipeline.trials.part import PARTS
settings = json.loads(sys.argv[1])
PARTS["dataset"]["mnist"].spec = DatasetSpec(*settings["sizes"], (1, 28, 28), 10, (0.5,), (0.5,))
readers.DIGESTS["mnist"] = settings["digests"]
readers.BASE_URLS["mnist"] = settings["url"]
child = os.fork()  # what is imported is imported once
dataset = data.load("mnist")
os.write(1, b"%d %d\\n" % (dataset.train_x.sum(), dataset.test_y.sum()))  # in one piece
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) if child else 0)
"""


def test_two_processes_download_once(mnist, mnist_server, cache):
    mnist_server.delay = 0.3
    settings = json.dumps({"sizes": [MNIST.n_train, MNIST.n_test], "digests": readers.DIGESTS["mnist"],
                           "url": readers.BASE_URLS["mnist"]})
    children = subprocess.run([sys.executable, "-c", CHILD, settings], cwd=REPOSITORY, text=True, capture_output=True,
                              timeout=60)
    assert children.returncode == 0, children.stderr
    expected = f"{mnist[IMAGES].sum(dtype=int)} {mnist['t10k-labels-idx1-ubyte'].sum(dtype=int)}\n"
    assert children.stdout == expected * 2
    assert sorted(mnist_server.log) == sorted((f"{name}.gz", None) for name in mnist)
    assert listing(cache) == sorted(f"MNIST/raw/{name}.gz" for name in mnist)


# the real sets

REAL = os.environ.get("PHOTONIC_DATA")  # read here: the fixture above hides it from every test
MNIST_TRAIN = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
MNIST_TEST = [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]


@pytest.mark.parametrize(("name", "train", "test"), [("fashion_mnist", [6000] * 10, [1000] * 10),
                                                     ("mnist", MNIST_TRAIN, MNIST_TEST),
                                                     pytest.param("cifar10", [5000] * 10, [1000] * 10,
                                                                  marks=pytest.mark.slow)])
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
