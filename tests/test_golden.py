"""Golden values: what five short trials came to when they were written down, so that moved code is seen to be the same.

The trials draw from every stream of `randomness.STREAMS` between them, and go through the public face alone, so that
this file need not change when modules move.

The numbers hold on every processor, to a tolerance. The digests of the weights, to the last bit, hold where products
and functions round as they did: processors and versions of torch differ there. A fingerprint of a few fixed results
tells; where it is another, that test is skipped. `python tests/test_golden.py` prints what this environment gives.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
import torch

from pipeline import TrialConfig, train

GOLDEN = Path(__file__).parent / "data" / "golden.json"
TINY = {"dataset": "digits", "train_records": 640, "hidden": (24, 16), "batch_size": 32, "epochs": 2, "seed": 3}
TRIALS = {  # the streams that each draws from, beside split, init and sampling
    "bp": TrialConfig(**TINY, algorithm="bp", learning_rate=0.05),
    # feedback, noise
    "pdfa photonic": TrialConfig(**TINY, algorithm="pdfa", feedback_std=0.1, mechanism="photonic", sigma=0.02,
                                 tau_h=8.0, learning_rate=0.02),
    # feedback, release, audit
    "dfa per_example": TrialConfig(**TINY, algorithm="dfa", feedback_std=0.2, mechanism="per_example",
                                   noise_multiplier=1.0, sampler="poisson", canaries=40, averaging=0.9,
                                   learning_rate=0.3),
    # feedback, release
    "hybrid component": TrialConfig(**{**TINY, "hidden": (16,)}, network="convnet", channels=(4, 4), kernel=3,
                                    algorithm="hybrid", mechanism="component", target_norm=0.5, noise_multiplier=0.5,
                                    optimizer="adam", learning_rate=0.02),
    # feedback, release, evaluation
    "tdfa noisy metrics": TrialConfig(**TINY, algorithm="tdfa", feedback_std=0.2, mechanism="per_example",
                                      noise_multiplier=0.5, sampler="without_replacement", private_metrics="noisy",
                                      learning_rate=0.05),
}
ACCURACY = 0.02  # one of 64 validation records may fall on the other side
OTHERS = 1e-4  # of a loss and of a cosine; other instruction sets change them by 1e-6


def run(trial):
    """The trial's numbers by name, epoch by epoch, and the digest of its final weights."""
    records = list(train(trial))
    numbers = [{name: value for name, value in record.metrics.items()
                if name.startswith(("train/", "alignment/")) or name.endswith("/accuracy")} for record in records]
    digest = hashlib.sha256()
    for name, weight in sorted(records[-1].outcome.weights.items()):
        assert weight.dtype == "float32"
        digest.update(f"{name} {weight.shape}".encode() + weight.tobytes())
    return {"numbers": numbers, "weights": digest.hexdigest()}


def fingerprint():
    """Digest of fixed products, functions, norms, a step of Adam and normal numbers, as they are rounded here."""
    a = torch.arange(-4608, 4608, dtype=torch.float32).view(3, 64, 48) / 4609
    a = a - a.square() / 3
    weights = a.clone()
    weights.grad = a.sin()
    torch.optim.Adam([weights], lr=0.1, fused=True).step()
    noise = torch.randn(999, generator=torch.Generator().manual_seed(0))
    results = [noise, weights, a[0] @ a[1].T, torch.bmm(a, a.transpose(1, 2)), torch.bmm(a[:, :31, :7], a[:, :7, :10]),
               a.tanh(), a.sigmoid(), a.log_softmax(dim=-1), a.sum(dim=1), torch.linalg.vector_norm(a, dim=1),
               torch.linalg.matrix_norm(a, ord=2)]
    return hashlib.sha256(b"".join(result.contiguous().numpy().tobytes() for result in results)).hexdigest()


def measured():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # a sum that threads share has another order
    try:
        return {"fingerprint": fingerprint(), "trials": {name: run(trial) for name, trial in TRIALS.items()}}
    finally:
        torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def ours():
    return measured()


@pytest.fixture(scope="module")
def golden():
    return json.loads(GOLDEN.read_text())


@pytest.mark.parametrize("name", TRIALS)
def test_loss_accuracy_and_alignment_are_what_they_were(name, ours, golden):
    epochs = golden["trials"][name]["numbers"]
    assert len(epochs) == len(ours["trials"][name]["numbers"]) == 2
    for expected, got in zip(epochs, ours["trials"][name]["numbers"], strict=True):
        assert got.keys() == expected.keys()
        for metric, value in expected.items():
            tolerance = ACCURACY if metric.endswith("/accuracy") else OTHERS
            assert got[metric] == pytest.approx(value, rel=0, abs=tolerance), metric


@pytest.mark.parametrize("name", TRIALS)
def test_weights_are_what_they_were_to_the_last_bit(name, ours, golden):
    if ours["fingerprint"] != golden["fingerprint"]:
        pytest.skip("this processor, or this version of torch, rounds otherwise than where the digests were taken")
    assert ours["trials"][name]["weights"] == golden["trials"][name]["weights"]


if __name__ == "__main__":
    print(json.dumps(measured(), indent=1))
