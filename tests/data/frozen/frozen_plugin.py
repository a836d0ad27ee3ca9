"""A feedback path with a setting of its own, by the public names that docs/extending.md had."""

import torch

from pipeline.learning.feedback import Feedback, register_feedback
from pipeline.learning.randomness import torch_generator
from pipeline.trials.fields import setting


class SparseAlignment(Feedback):
    """Feedback alignment with fixed matrices, of which a share of the entries is 0."""

    def __init__(self, pack, net, device):
        self.fixed = [torch.empty(w.shape) for w in net.parameters.weights]
        for r, trial in enumerate(pack.trials):
            generator = torch_generator(trial.seed, "feedback")
            for b in self.fixed:
                b[r].normal_(0, trial.feedback_std, generator=generator)
                b[r] *= torch.rand(b[r].shape, generator=generator) >= trial.sparsity
        self.fixed = [b.to(device) for b in self.fixed]

    def signals(self, error):
        return [error]

    def deltas(self, signals, net, activations, derivative):
        deltas = list(signals)
        for k in range(len(net.layers) - 1, 0, -1):
            carried = net.layers[k].back(deltas[0], self.fixed[k])
            deltas.insert(0, carried * derivative(activations[k], k))
        return deltas


register_feedback("frozen_fa", SparseAlignment, label="Sparse FA", per_record="matrices are fixed",
                  settings={"sparsity": setting(0.25, "share of the entries that are 0", low=0, high=1),
                            "feedback_std": None})
