"""How much of their bound the contributions of records use, layer by layer, before the first step of training.

    python experiments/leekifer2020/contributions.py FILE.yaml    (data from PHOTONIC_DATA, else downloaded)

It prints a row for every method in the file with a Gaussian mechanism, from one batch of its first seed: the mean norm
of a record's contribution to each layer and to all layers together, in units of C; and the norm of the mean update over
that of noise with standard deviation 0.01 on every coordinate.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from pipeline.experiment.experiment import load_experiment
from pipeline.learning.data import load
from pipeline.learning.data.sampling import ABSENT
from pipeline.learning.mechanisms import contribution_bound
from pipeline.learning.mechanisms.base import sum_outer_products
from pipeline.learning.mechanisms.float_sum import FloatSum
from pipeline.learning.mechanisms.gaussian import GaussianStep
from pipeline.learning.training import Training
from pipeline.trials import TrialConfig
from pipeline.trials.packs import Pack

SIGMA = 0.01


def contributions(trial: TrialConfig) -> tuple[list[float], list[float]]:
    """Return the mean norm over C of each layer and of all together, and the signal over noise of each layer."""
    training = Training(Pack((trial,)), load(trial.dataset), torch.device("cpu"))
    mechanism, net, indices = training.mechanism, training.net, training.sampler.epoch()[0]
    indices = indices[indices != ABSENT][None]  # [1, records of the batch]
    if not isinstance(mechanism, GaussianStep) or not isinstance(mechanism.sum, FloatSum):
        raise SystemExit(f"{trial.mechanism}: must be a Gaussian mechanism in floating point, got arithmetic "
                         f"'{trial.arithmetic}'")
    activations, logits = net.forward(training.train_inputs.batch(indices))
    error, _ = training.loss(logits, training.data.train_y[indices])
    deltas = mechanism.factors(training.deltas(error, activations))
    bounded = mechanism.bounded(deltas, activations)
    squares = torch.stack([layer.squared_norms(d, h) for layer, d, h in zip(net.layers, *bounded, strict=True)])
    norms = torch.cat([squares, squares.sum(dim=0, keepdim=True)]).sqrt() / contribution_bound(trial)
    sum_outer_products(net, *bounded, training.update)
    ratios = [layer.norm() / trial.batch_size / (SIGMA * layer.numel() ** 0.5) for layer in training.update.layers]
    return norms.flatten(1).mean(dim=1).tolist(), [ratio.item() for ratio in ratios]


def main(file: Path) -> None:
    """Print a Markdown table."""
    methods = {(t.dataset, t.algorithm, t.mechanism): t for t in reversed(load_experiment(file).trials)
               if t.parts.mechanism.certified}
    layers = max(len(t.layers) for t in methods.values())
    columns = [f"layer {k}" for k in range(1, layers + 1)]
    print("|", " | ".join(["method", *columns, "all", *(f"signal/noise {c}" for c in columns)]), "|")
    print("|", " | ".join(["---", *["---:"] * (2 * layers + 1)]), "|")
    for (dataset, algorithm, mechanism), trial in methods.items():
        norms, ratios = contributions(trial)
        fill = [""] * (layers - len(ratios))
        cells = [*(f"{v:.3f}" for v in norms[:-1]), *fill, f"{norms[-1]:.3f}", *(f"{v:.3f}" for v in ratios), *fill]
        print("|", " | ".join([f"{dataset} {algorithm} {mechanism}", *cells]), "|")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit("usage: python experiments/leekifer2020/contributions.py FILE")
    main(Path(sys.argv[1]))
