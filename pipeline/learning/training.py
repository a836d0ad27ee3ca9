"""Train the networks of a pack, as stacked replicas."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import torch

from pipeline.accounting.certified import with_noise
from pipeline.learning.data.dataset import Dataset
from pipeline.learning.data.inputs import Inputs
from pipeline.learning.data.sampling import ABSENT, BatchSampler
from pipeline.learning.feedback.algorithms import BackPropagation, Feedback
from pipeline.learning.feedback.losses import Loss
from pipeline.learning.mechanisms import make_mechanism
from pipeline.learning.mechanisms.base import mean_outer_products
from pipeline.learning.network.network import Network, Parameters, make_network, start_output
from pipeline.learning.optimizer import MovingAverage, Optimizer, learning_rate
from pipeline.learning.randomness import Noise
from pipeline.learning.run import Run, tensors_of
from pipeline.trials.packs import Pack


class FloatingPoint:
    """The parts of a training that depend on its arithmetic: here float32, or bfloat16 for factors of products."""

    inputs: type[Inputs] = Inputs

    def __init__(self, pack: Pack, device: torch.device) -> None:
        self.pack, self.device = pack, device

    def network(self) -> Network:
        return make_network(self.pack.shared, [trial.seed for trial in self.pack.trials], self.device)

    def loss(self) -> Loss:
        return self.pack.shared.parts.loss.load()(self.pack.shared)

    def feedback(self, net: Network) -> Feedback:
        return self.pack.shared.parts.feedback.load()(self.pack, net, self.device)

    def begin(self, training: Training) -> None:
        """Look at public records before the first epoch."""

    def tags(self, r: int) -> dict[str, str]:
        """Return tags for the first epoch of trial r: how it is computed."""
        return {}


class Training(Run):
    """Networks with a leading replica axis, one for each trial of a pack."""

    net: Network

    def __init__(self, pack: Pack, data: Dataset, device: torch.device, rungs: Collection[int] = ()) -> None:
        """Build what a step needs; mechanisms get the trials with the noise that a target epsilon requires."""
        shared, trials = pack.shared, pack.trials
        self.arithmetic: FloatingPoint = shared.parts.arithmetic.load()(pack, device)
        self.inputs = self.arithmetic.inputs  # of which `Run` makes some
        super().__init__(pack, data, device, rungs)
        seeds = [t.seed for t in trials]
        self.sampler = BatchSampler(shared.sampler, self.records, seeds, shared.batch_size, shared.steps_per_epoch,
                                    device, secure=shared.secure)
        self.net = self._network()
        self.loss = self.arithmetic.loss()
        self.feedback = self.arithmetic.feedback(self.net)
        start_output(self.net, shared, self.feedback.matrices)
        self.mechanism = make_mechanism(Pack(tuple(with_noise(t) for t in trials)), self.net, device,
                                        self.feedback.matrices)
        self.update, self.gradient = (self.net.blank_parameters(len(trials), device) for _ in range(2))
        self.optimizer: Optimizer = shared.parts.optimizer.load()(shared, self.net.parameters.flat, self.update.flat)
        self.average: MovingAverage | None = None
        if shared.averaging:
            self.average = MovingAverage(self.net.parameters.flat, shared.averaging, shared.exact)
        self.untrained_losses = self._canary_losses()
        self._measured = 0  # batches on which alignment was measured

    def _network(self) -> Network:
        return self.arithmetic.network()

    def noise_sources(self) -> list[Noise]:
        return [*self.mechanism.noise_sources(), *self.evaluation.noise_sources()]

    def close(self) -> None:
        self.feedback.close()

    def _state(self) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        """Return what does not follow from the trials, as split, initial weights, feedback matrices and canaries do."""
        tensors = {"weights": self.net.parameters.flat}
        tensors |= {f"optimizer.{name}": value for name, value in self.optimizer.state.items()}
        values: dict[str, Any] = {"sampler": self.sampler.state()}
        if self.average:
            tensors["average"], values["average_steps"] = self.average.mean, self.average.steps
        return tensors, values

    def _restore(self, arrays: Mapping[str, np.ndarray], values: Mapping[str, Any]) -> None:
        self.net.parameters.flat.copy_(torch.from_numpy(arrays["weights"]))
        self.optimizer.restore(tensors_of(arrays, "optimizer"))
        self.sampler.restore(values["sampler"])
        if self.average:
            self.average.mean.copy_(torch.from_numpy(arrays["average"]))
            self.average.steps = values["average_steps"]

    def _tags(self, r: int) -> dict[str, str]:
        return self.arithmetic.tags(r)

    def _evaluated(self) -> contextlib.AbstractContextManager[Any]:
        return self.average.applied() if self.average else contextlib.nullcontext()

    def _metrics(self, r: int, trained: tuple[torch.Tensor, torch.Tensor]) -> dict[str, float]:
        """Return the alignments of trial r, and its training loss if `private_metrics` is plain."""
        losses, alignment = trained
        metrics = {f"alignment/layer_{k + 1}": v for k, v in enumerate(alignment[r].tolist())}
        if self.pack.shared.disclosure == "plain":
            metrics["train/loss"] = losses[r].item()
        return metrics

    def _train_epoch(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return mean training loss [R] and mean alignment [R, L] on the CPU; alignment is nan if not measured."""
        shared = self.pack.shared
        if self.epoch == 0:
            self.arithmetic.begin(self)
        self._measured = self.epoch * shared.alignment_batches
        batches = self.sampler.epoch()
        n_measured = min(shared.alignment_batches, len(batches))
        measured = {int((k + 0.5) * len(batches) / n_measured) for k in range(n_measured)}  # evenly over the epoch
        losses, alignments = [], []
        for step, indices in enumerate(batches):
            self.optimizer.learning_rate = learning_rate(shared, self.epoch * len(batches) + step)
            loss, alignment = self.step(indices, measure_alignment=step in measured)
            losses.append(loss)
            if alignment is not None:
                alignments.append(alignment)
        if alignments:
            alignment = torch.stack(alignments, dim=-1).nanmean(dim=-1).cpu()
        else:
            alignment = torch.full((len(self.pack.trials), len(self.update.layers)), math.nan)
        return torch.stack(losses, dim=-1).mean(dim=-1).cpu(), alignment

    def step(self, indices: torch.Tensor,  # [R, m]; `ABSENT` marks padding
             measure_alignment: bool = False) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Train on one batch of every trial; return its mean loss [R] and, if measured, the alignment [R, L].

        That is of the applied update with the true gradient over the batch or, if `private_metrics` is not plain, over
        m test records.
        """
        present, usable = None, self.train_inputs.usable
        if not self.pack.shared.parts.sampler.full or usable is not None:
            contributes = indices != ABSENT
            indices = indices.clamp(min=0)
            if usable is not None:
                contributes = contributes & usable[indices]
            present = contributes.unsqueeze(-1).to(torch.float32)  # [R, m, 1]: 1 for a record, 0 for padding
        on_test_records = measure_alignment and self.pack.shared.disclosure != "plain"
        if on_test_records:  # before the private batch's forward pass: convolutions keep the state of the last one
            self._gradient_on_test_records()
        activations, logits = self.net.forward(self.train_inputs.batch(indices, reuse_buffer=True))
        labels = self.canaries.labels_of(indices) if self.canaries else self.data.train_y[indices]
        error, loss = self.loss(logits, labels, present)
        if measure_alignment and not on_test_records:
            true_gradient(self.net, error, activations, self.gradient)
        self.mechanism.update(self.deltas(error, activations, present), activations, self.update)
        return loss, self._take_step(measure_alignment)

    def _take_step(self, measure_alignment: bool) -> torch.Tensor | None:
        """Move the weights by `update`; return its alignment with `gradient` [R, L], if measured."""
        self.optimizer.step()
        if self.average:
            self.average.update()
        return cosines(self.update, self.gradient) if measure_alignment else None

    def _gradient_on_test_records(self) -> None:
        """Write the true gradient on the next m test records; it is public, like the test set and the iterate."""
        places = self._next_test_places().expand(len(self.pack.trials), -1)
        activations, logits = self.net.forward(self.test_inputs.batch(places, reuse_buffer=True))
        error, _ = self.loss(logits, self.data.test_y[places])
        true_gradient(self.net, error, activations, self.gradient)

    def _next_test_places(self) -> torch.Tensor:
        """Return the places of the next m test records [m]."""
        m = self.pack.shared.batch_size
        places = torch.arange(self._measured * m, (self._measured + 1) * m, device=self.device)
        self._measured += 1
        return places % len(self.data.test_y)

    def deltas(self, error: torch.Tensor, activations: list[torch.Tensor],  # [R, m, n_L]; h^0..h^{L-1} [R, m, n_{l-1}]
               present: torch.Tensor | None = None) -> list[torch.Tensor]:  # [R, m, 1], 0 for padding; None without any
        """Return delta^1..delta^L [R, m, n_l] of a batch, the input of the mechanism's `update`."""
        signals = self.mechanism.perturb(self.feedback.signals(self.mechanism.error(error)))
        if present is not None:  # noise was added to the padding too
            signals = [s * present for s in signals]
        return self.feedback.deltas(signals, self.net, activations, self.mechanism.derivative)

    def _canary_losses(self) -> torch.Tensor:
        """Return the losses of the canaries' wrong labels at the current weights [R, k]; k = 0 without canaries."""
        if not self.canaries:
            return torch.empty(len(self.pack.trials), 0)
        return self.canaries.losses(self._canary_logits())

    def _canary_scores(self) -> np.ndarray:
        """Return how much training lowered the loss of each canary's wrong label [R, k]; higher for members."""
        return (self.untrained_losses - self._canary_losses()).cpu().numpy()

    def _finite(self) -> torch.Tensor:
        return torch.isfinite(self.net.parameters.flat).all(dim=1).cpu()

    def _weights(self, r: int) -> dict[str, np.ndarray]:
        """Return the weights of trial r by name: `layer_1.weight`, `layer_1.bias`, ..."""
        weights = {}
        blocks = zip(self.net.layers, self.net.parameters.weights, self.net.parameters.biases, strict=True)
        for number, (layer, weight, bias) in enumerate(blocks, start=1):
            weights[f"layer_{number}.weight"] = weight[r].cpu().numpy().reshape(layer.shape.weight_shape)
            weights[f"layer_{number}.bias"] = bias[r].cpu().numpy()
        return weights


def true_gradient(net: Network, error: torch.Tensor, activations: list[torch.Tensor], out: Parameters) -> None:
    """Write the gradient of the batch's mean loss to `out`: back-propagation without clipping or noise."""
    bp = BackPropagation()
    deltas = bp.deltas(bp.signals(error), net, activations, net.derivative)
    mean_outer_products(net, deltas, activations, error.shape[1], out)


def cosines(update: Parameters, gradient: Parameters) -> torch.Tensor:
    """Return the cosine between update and gradient per layer [R, L], over weights and biases; nan if one is zero."""
    layers = zip(update.layers, gradient.layers, strict=True)
    return torch.stack([_dot(u, g) / (_dot(u, u) * _dot(g, g)).sqrt() for u, g in layers], dim=1)


def _dot(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return row-wise dot products [R, n], [R, n] -> [R], one at a time: a row's bits must not depend on R."""
    return torch.stack([torch.dot(x, y) for x, y in zip(a, b, strict=True)])
