"""Checkpoints without Ray: a trial that was stopped and restored ends with the bits of one that was not."""

import json
import math

import numpy as np
import pytest
import torch
from flat import items, train, train_pack
from safetensors import safe_open

from pipeline.learning.randomness import GaussianNoise
from pipeline.learning.train import prepare
from pipeline.learning.training import Training
from pipeline.sweep import checkpoints as module
from pipeline.sweep import private
from pipeline.sweep.checkpoints import Checkpoint, Checkpoints
from pipeline.sweep.private import UnusableFile
from pipeline.sweep.sealed import found
from pipeline.trials.config import TrialConfig
from pipeline.trials.packs import Pack
from pipeline.trials.records import EpochRecord, Hidden, Outcome, Result, Sealed

MECHANISMS = {
    "photonic": {"mechanism": "photonic", "sigma": 0.05},
    "component": {"mechanism": "component", "noise_multiplier": 1.0, "tau_h": 2.0},
    "per_example": {"mechanism": "per_example", "noise_multiplier": 1.0, "sigma": 0.05},
}
TINY = {"dataset": "digits", "hidden": (16, 16), "batch_size": 128, "epochs": 3, "learning_rate": 0.1}


def pack_of(replicas=1, **settings) -> Pack:
    return Pack(tuple(TrialConfig(**{**TINY, "seed": seed, **settings}) for seed in range(replicas)))


def comparable(record: EpochRecord):
    """All of a record but the time it took and what became of its checkpoint; weights as bytes."""
    metrics = {k: v for k, v in record.metrics.items() if not k.startswith("time/")}
    tags = {k: v for k, v in record.tags.items() if k != "checkpoint"}
    outcome = record.outcome and (record.outcome.status, record.outcome.per_class,
                                  {k: v.tobytes() for k, v in record.outcome.weights.items()})
    return record.trial_key, record.epoch, metrics, tags, outcome


def run_epochs(training: Training, n: int) -> list[EpochRecord]:
    return [record for _ in range(n) for record in training.run_epoch()]


def assert_resumes_bit_by_bit(pack: Pack, data, folder) -> None:
    whole = list(train(pack, data))
    assert len(whole) == len(pack.trials) * pack.shared.epochs
    for stop in range(1, pack.shared.epochs):
        first = prepare(pack, data, torch.device("cpu"))
        records = run_epochs(first, stop)
        Checkpoints(folder, 0).save(pack, Checkpoint("cpu", *first.capture(), records))
        run_epochs(first, 1)  # what the stopped one does after its checkpoint leaves the other alone
        saved = Checkpoints(folder, 0).load(pack, "cpu")
        second = prepare(pack, data, torch.device("cpu"))
        second.restore(saved.arrays, saved.values)
        again = [*saved.records, *run_epochs(second, pack.shared.epochs - stop)]
        assert [comparable(r) for r in again] == [comparable(r) for r in whole]


@pytest.mark.parametrize(("replicas", "settings"), [
    (3, {"algorithm": "bp", "optimizer": "adam", "learning_rate": 0.01, "averaging": 0.9}),
    (3, {"algorithm": "bp", **MECHANISMS["component"], "sampler": "without_replacement"}),
    (1, {**MECHANISMS["per_example"], "momentum": 0.0}), (1, {"algorithm": "tdfa", **MECHANISMS["photonic"]}),
    (3, {"algorithm": "pdfa", **MECHANISMS["per_example"]}),
    (3, {"algorithm": "pdfa", **MECHANISMS["photonic"], "joint_release": True, "denoise": True}),
    (3, {**MECHANISMS["per_example"], "sampler": "poisson", "canaries": 40}),
    (3, {"algorithm": "hybrid", "network": "convnet", "channels": (4,), "kernel": 3, "batch_size": 256,
         "train_records": 512}),
    (1, {"algorithm": "pdfa", **MECHANISMS["per_example"], "sampler": "without_replacement", "arithmetic": "integer"}),
    (1, {"algorithm": "dfa", "mechanism": "per_example", "target_epsilon": 3.0, "sampler": "poisson",
         "private_metrics": "noisy"}),
], ids=["bp-adam-averaged", "component", "dfa-plain-sgd", "tdfa", "pdfa", "pdfa-decoded", "canaries", "convnet",
        "integers", "noisy metrics"])
def test_restored_training_has_the_same_bits(replicas, settings, digits, tmp_path):
    assert_resumes_bit_by_bit(pack_of(replicas, **settings), digits, tmp_path)


def test_what_is_unread_of_a_block_of_noise_is_not_lost(digits, tmp_path, monkeypatch):
    """GPUs draw the noise of several steps at once, and an epoch ends in the middle of a block."""
    monkeypatch.setattr(GaussianNoise, "STEPS_PER_BLOCK", {"cpu": 16})
    pack = pack_of(2, algorithm="dfa", **MECHANISMS["per_example"])
    assert pack.shared.steps_per_epoch % 16
    assert_resumes_bit_by_bit(pack, digits, tmp_path)


def test_a_diverged_trial_stays_ended_and_its_outcome_comes_back(digits, tmp_path):
    pack = pack_of(3)
    training = prepare(pack, digits, torch.device("cpu"))
    training.net.parameters.weights[0][1, 0, 0] = math.nan
    records = training.run_epoch()
    Checkpoints(tmp_path, 0).save(pack, Checkpoint("cpu", *training.capture(), records))
    saved = Checkpoints(tmp_path, 0).load(pack, "cpu")
    assert [r.outcome and r.outcome.status for r in saved.records] == [None, "diverged", None]
    assert all(np.array_equal(saved.records[1].outcome.weights[name], weights, equal_nan=True)
               for name, weights in records[1].outcome.weights.items())
    other = prepare(pack, digits, torch.device("cpu"))
    other.restore(saved.arrays, saved.values)
    assert other.active == [0, 2]
    assert [comparable(r) for r in run_epochs(other, 2)] == [comparable(r) for r in run_epochs(training, 2)]


def test_secure_trials_leave_neither_seed_nor_generator_and_go_on_with_fresh_noise(digits, tmp_path):
    seed = 987654321987654321
    pack = Pack((TrialConfig(**TINY, **MECHANISMS["per_example"], noise="secure", arithmetic="integer",
                             sampler="poisson", algorithm="pdfa", seed=seed),))
    training = prepare(pack, digits, torch.device("cpu"))
    records, store = training.run_epoch(), Checkpoints(tmp_path, 0)
    store.save(pack, Checkpoint("cpu", *training.capture(), records))
    with safe_open(store.path(pack), framework="numpy") as file:
        assert set(file.keys()) == {"weights", "optimizer.momentum_buffer"}
        content = json.loads(file.metadata()["training"])
    assert content["values"] == {"epoch": 1, "active": [0], "sampler": []}
    assert str(seed) not in store.path(pack).read_bytes().decode("latin-1")

    saved = store.load(pack, "cpu")
    resumed = [prepare(pack, digits, torch.device("cpu")) for _ in range(2)]
    for other in resumed:
        other.restore(saved.arrays, saved.values)
        assert np.array_equal(other.sampler.records[0], training.sampler.records[0])
        assert torch.equal(other.net.parameters.flat, training.net.parameters.flat)
    drawn = [other.mechanism.sum.noise.next() for other in (training, *resumed)]
    assert not torch.equal(drawn[0], drawn[1]) and not torch.equal(drawn[1], drawn[2])
    assert drawn[1].std().item() == pytest.approx(2.0**40, rel=0.1)


def saved_pack(folder):
    pack = pack_of(2)
    record = EpochRecord(pack.trials[0].trial_key, 1, {"train/loss": 1 / 3}, {}, Outcome("finished", {}, ()))
    Checkpoints(folder, 0).save(pack, Checkpoint("cpu", {"weights": np.arange(4096, dtype=np.float32)},
                                                 {"epoch": 1, "active": [0, 1]}, [record]))
    return pack, Checkpoints(folder, 0).path(pack)


def test_what_was_saved_is_what_is_loaded_and_one_file_replaces_the_other(tmp_path):
    pack, path = saved_pack(tmp_path)
    saved_pack(tmp_path)
    assert list(tmp_path.iterdir()) == [path]
    saved = Checkpoints(tmp_path, 0).load(pack, "cpu")
    assert saved.records[0].metrics == {"train/loss": 1 / 3} and saved.values["active"] == [0, 1]
    assert np.array_equal(saved.arrays["weights"], np.arange(4096))
    assert Checkpoints(tmp_path, 0).load(pack_of(3), "cpu") is None
    Checkpoints(tmp_path, 0).remove(pack)
    assert not list(tmp_path.iterdir())


def flip(content):
    return content[:-100] + bytes([content[-100] ^ 1]) + content[-99:]


@pytest.mark.parametrize(("damage", "device", "says"), [
    (lambda content: content[: len(content) // 2], "cpu", "damaged"), (lambda content: b"", "cpu", "damaged"),
    (flip, "cpu", "checksum"),
    (lambda content: content.replace(b"0.3333333333333333", b"0.4333333333333333"), "cpu", "checksum"),
    (lambda content: content, "cuda", "trained on 'cpu', and this is 'cuda'"),
    ("code", "cpu", r"other software wrote it \(code [0-9a-f]{16} and not another\)"),
    ("trials", "cpu", "other trials")],
    ids=["half-written", "empty", "a flipped bit", "a changed record", "device", "code", "trials"])
def test_a_checkpoint_that_cannot_be_trusted_is_refused(damage, device, says, tmp_path, monkeypatch):
    pack, path = saved_pack(tmp_path)
    if damage == "code":
        monkeypatch.setitem(module.SOFTWARE, "code", "another")
    elif damage == "trials":
        pack = Pack(pack.trials[::-1])
        path.rename(Checkpoints(tmp_path, 0).path(pack))
    else:
        path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(UnusableFile, match=says) as error:
        Checkpoints(tmp_path, 0).load(pack, device)
    assert "\n" not in str(error.value)


def test_an_interrupted_save_leaves_the_old_checkpoint(tmp_path, monkeypatch):
    _pack, path = saved_pack(tmp_path)
    before = path.read_bytes()

    def no_space(*arguments):
        raise OSError("No space left on device")

    monkeypatch.setattr(private.os, "fsync", no_space)
    with pytest.raises(OSError, match="No space left"):
        saved_pack(tmp_path)
    assert list(tmp_path.iterdir()) == [path] and path.read_bytes() == before


def test_packs_with_a_checkpoint_stay_together_and_orphans_go(tmp_path):
    pack, path = saved_pack(tmp_path)
    first, second = (t.trial_key for t in pack.trials)
    (tmp_path / "abc.tmp").write_bytes(b"half")
    (tmp_path / "0123456789abcdef.safetensors").write_bytes(b"junk")
    said, store = [], Checkpoints(tmp_path, 0)
    assert [(f.trial_keys, f.epoch) for f in store.found() if not f.problem] == [((first, second), 1)]
    wider = pack_of(4).trials
    assert store.resumable(wider, {first}, said.append) == [pack], "a trial that is done stays in its pack"
    assert list(tmp_path.iterdir()) == [path]
    assert len(said) == 1 and "0123456789abcdef.safetensors given up" in said[0] and "damaged" in said[0]

    assert store.resumable(wider[1:], set(), said.append) == []
    assert "no longer in the experiment" in said[1] and not list(tmp_path.iterdir())
    saved_pack(tmp_path)
    assert store.resumable(wider, {first, second}, said.append) == [] and len(said) == 2
    assert not list(tmp_path.iterdir())
    saved_pack(tmp_path)
    assert store.resumable(wider, {first}, said.append, released={second}) == [], "its noise may not be drawn again"
    assert said[2].endswith("a trial of its pack was released") and not list(tmp_path.iterdir())


def test_worker_hands_in_all_epochs_from_the_first_says_so_and_cleans_up(digits, tmp_path):
    pack, store = pack_of(2, **MECHANISMS["photonic"]), Checkpoints(tmp_path, 0)
    source = train_pack(pack, tmp_path)
    for _ in range(3):  # the first record of the second epoch, whose checkpoint is written by then
        next(source)
    source.close()
    assert store.load(pack, "cpu").values["epoch"] == 2
    again = list(train_pack(pack, tmp_path))
    assert [comparable(r) for r in again] == [comparable(r) for r in train(pack, digits)]
    assert [r.tags.get("checkpoint") for r in again] == [None] * 2 + ["resumed from epoch 2"] * 2 + [None] * 2
    assert not list(tmp_path.iterdir())


def test_worker_starts_again_where_the_checkpoint_is_damaged(digits, tmp_path):
    pack, store = pack_of(1), Checkpoints(tmp_path, 0)
    next(source := train_pack(pack, tmp_path))
    source.close()
    store.path(pack).write_bytes(flip(store.path(pack).read_bytes()))
    again = list(train_pack(pack, tmp_path))
    assert [comparable(r) for r in again] == [comparable(r) for r in train(pack, digits)]
    assert again[0].tags["checkpoint"].startswith("checkpoint refused, started again: ")
    assert not any("checkpoint" in r.tags for r in again[1:])


def test_short_trials_write_no_checkpoint(tmp_path):
    assert len(list(train_pack(pack_of(1), tmp_path / "none", 30))) == 3
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("seconds", [0, 1e9])
def test_a_secure_pack_tells_its_progress_alone_until_its_result_is_sealed(digits, tmp_path, seconds):
    """Where there is a checkpoint the next worker goes on from it; elsewhere it draws all noise anew."""
    pack = pack_of(1, **MECHANISMS["per_example"], noise="secure", arithmetic="integer")
    killed = items(pack, tmp_path, seconds)
    assert [next(killed) for _ in range(2)] == [Hidden(1), Hidden(2)]
    killed.close()
    assert Checkpoints(tmp_path, 0).path(pack).exists() == (not seconds) and not found(tmp_path)
    *progress, sealed, result = items(pack, tmp_path, seconds)
    assert progress == [Hidden(1), Hidden(2, "" if seconds else "resumed from epoch 2"), Hidden(3)]
    assert isinstance(sealed, Sealed) and isinstance(result, Result) and not result.failure
    assert [record.epoch for record in result.records] == [1, 2, 3]
    assert result.records[-1].outcome.status == "finished" and not list(tmp_path.iterdir())
