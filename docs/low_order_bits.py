"""The table of docs/privacy.md, section 7: the low-order-bit attack on three sources of noise.

    PHOTONIC_DATA=/my/datasets PYTHONPATH=.:tests/tools .venv/bin/python docs/low_order_bits.py [RUNS]
"""

import sys

import torch
from box_muller import with_box_muller_noise

from pipeline import TrialConfig
from pipeline.auditing.low_order_bits import low_order_bit_audit
from pipeline.learning.data import load
from pipeline.learning.training import Training
from pipeline.trials.packs import Pack

RESEARCH = TrialConfig(algorithm="dfa", mechanism="per_example", batch_size=256, sampler="poisson", learning_rate=0.5,
                       noise_multiplier=1.0)
SECURE = TrialConfig(RESEARCH.given, noise="secure", arithmetic="integer")


def main(runs: int) -> None:
    """Print a line for every source of noise, noise multiplier and view."""
    data = load("fashion_mnist")
    sources = {"31 bits": (RESEARCH, with_box_muller_noise), "24 bits": (RESEARCH, lambda training: training),
               "integers": (SECURE, lambda training: training)}
    for name, (trial, change) in sources.items():
        for z in (20.0, 4.0):
            pack = Pack((TrialConfig(trial.given, noise_multiplier=z),))
            training = change(Training(pack, data, torch.device("cpu")))
            for seen in low_order_bit_audit(training, runs):
                print(f"{name}, z = {z:g}, {seen.view}: {seen.errors} errors in {2 * seen.runs} runs, "
                      f"AUC {seen.auc:.3f}, epsilon at least {seen.epsilon_lower:.2f}, certified {seen.epsilon:.3f}",
                      flush=True)
            training.close()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 150)
