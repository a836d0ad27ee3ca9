"""SVHN: made-up MATLAB files of its format, in a folder and from a host; what is not of that format is refused."""

import numpy as np
import pytest
from scipy.io import savemat

from pipeline.learning.data import dataset as data
from pipeline.learning.data import readers
from pipeline.learning.data.dataset import DataError
from pipeline.trials.datasets import DATASETS, DatasetSpec
from pipeline.trials.part import PARTS

SPEC = DatasetSpec(60, 20, (3, 32, 32), 10, (0.5,) * 3, (0.5,) * 3)


@pytest.fixture
def made_up(monkeypatch):
    """The arrays of two tiny files, by part, as MATLAB has them."""
    rng = np.random.default_rng(0)
    monkeypatch.setattr(PARTS["dataset"]["svhn"], "spec", SPEC)
    return {part: {"X": rng.integers(0, 256, (32, 32, 3, n), dtype=np.uint8),
                   "y": (1 + np.arange(n, dtype=np.uint8) % 10)[:, None]}
            for part, n in (("train", SPEC.n_train), ("test", SPEC.n_test))}


def write(folder, arrays):
    folder.mkdir(parents=True, exist_ok=True)
    for part, content in arrays.items():
        savemat(folder / f"{part}_32x32.mat", content, do_compression=True)
    return folder


def test_the_public_facts_are_those_of_the_cropped_digits_and_nothing_private():
    spec = DATASETS["svhn"]
    assert (spec.n_train, spec.n_test, spec.shape, spec.n_classes) == (73_257, 26_032, (3, 32, 32), 10)
    assert spec.mean == spec.std == (0.5, 0.5, 0.5) and not spec.published and not spec.sha256


@pytest.mark.parametrize("below", ["", "SVHN"])
def test_records_are_channels_first_and_label_10_is_the_digit_0(made_up, tmp_path, below):
    write(tmp_path / below, made_up)
    found = data.load("svhn", tmp_path)
    for part, x, y in (("train", found.train_x, found.train_y), ("test", found.test_x, found.test_y)):
        for i in range(len(y)):
            assert y[i] == int(made_up[part]["y"][i, 0]) % 10
            for channel in range(3):
                np.testing.assert_array_equal(x[i].view(3, 32, 32)[channel], made_up[part]["X"][:, :, channel, i])
    assert set(found.test_y.tolist()) == set(range(10))


def test_files_are_downloaded_once_into_the_cache(made_up, tmp_path, monkeypatch):
    monkeypatch.setenv("PHOTONIC_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("PHOTONIC_DATA", raising=False)
    write(tmp_path / "cache" / "SVHN", made_up)  # which is where a download is kept
    assert len(data.load("svhn").train_y) == 60
    asked = []
    monkeypatch.setenv("PHOTONIC_CACHE", str(tmp_path / "empty"))

    def fetched(url, target, read):
        asked.append((url, target.relative_to(tmp_path / "empty").as_posix()))
        return read(tmp_path / "cache" / "SVHN" / target.name)

    monkeypatch.setattr(readers, "fetch", fetched)
    data.load("svhn")
    host = "http://ufldl.stanford.edu/housenumbers/"
    assert asked == [(f"{host}{part}_32x32.mat", f"SVHN/{part}_32x32.mat") for part in ("train", "test")]


@pytest.mark.parametrize(("change", "message"), [
    (lambda c: c.update(y=c["y"] - 1), r"train_32x32.mat, y: expected labels 1..10, got 0..9"),
    (lambda c: c.update(y=c["y"] + 1), r"train_32x32.mat, y: expected labels 1..10, got 2..11"),
    (lambda c: c.update(X=c["X"][..., :-1]), r"train_32x32.mat, X: expected uint8 of shape \(32, 32, 3, 60\), got"),
    (lambda c: c.update(X=c["X"].astype(float)), r"train_32x32.mat, X: expected uint8 of shape .*, got float64"),
    (lambda c: c.pop("y"), r"train_32x32.mat, y: expected uint8 of shape \(60, 1\), got none of that name")])
def test_content_of_another_form_is_refused(made_up, tmp_path, change, message):
    change(made_up["train"])
    with pytest.raises(DataError, match=message):
        data.load("svhn", write(tmp_path, made_up))


@pytest.mark.parametrize("spoil", [lambda b: b[:-200], lambda b: b[:100], lambda b: b"", lambda b: b"other" * 99])
def test_files_that_cannot_be_read_are_refused(made_up, tmp_path, spoil):
    path = write(tmp_path, made_up) / "train_32x32.mat"
    path.write_bytes(spoil(path.read_bytes()))
    with pytest.raises(DataError, match="train_32x32.mat: expected a readable, complete MATLAB 5 file, got"):
        data.load("svhn", tmp_path)
    path.unlink()
    with pytest.raises(DataError, match="expected one of SVHN/train_32x32.mat, train_32x32.mat, found none"):
        data.load("svhn", tmp_path)
