"""Train the networks of a pack, as stacked replicas."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from pipeline.accounting.certified import with_noise
from pipeline.learning.alignment import cosines, true_gradient
from pipeline.learning.data.dataset import Dataset
from pipeline.learning.data.sampling import ABSENT, BatchSampler
from pipeline.learning.evaluation import EVALUATION_BATCH
from pipeline.learning.feedback.algorithms import Feedback
from pipeline.learning.feedback.losses import Loss
from pipeline.learning.mechanisms import make_mechanism
from pipeline.learning.network.network import Network, make_network, start_output
from pipeline.learning.optimizer import MovingAverage, Optimizer, learning_rate
from pipeline.learning.randomness import Noise
from pipeline.learning.run import Run
from pipeline.trials.packs import Pack


class Training(Run):
    """Networks with a leading replica axis, one for each trial of a pack."""

    net: Network

    def __init__(self, pack: Pack, data: Dataset, device: torch.device, rungs: Collection[int] = ()) -> None:
        """Build what a step needs; mechanisms get the trials with the noise that a target epsilon requires."""
        super().__init__(pack, data, device, rungs)
        shared, trials = pack.shared, pack.trials
        seeds = [t.seed for t in trials]
        self.sampler = BatchSampler(shared.sampler, self.records, seeds, shared.batch_size, shared.steps_per_epoch,
                                    device, secure=shared.secure)
        self.net = self._network(seeds)
        self.loss = self._loss()
        self.feedback = self._feedback()
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

    def _network(self, seeds: Sequence[int]) -> Network:
        return make_network(self.pack.shared, seeds, self.device)

    def _loss(self) -> Loss:
        return self.pack.shared.parts.loss.load()(self.pack.shared)

    def _feedback(self) -> Feedback:
        return self.pack.shared.parts.feedback.load()(self.pack, self.net, self.device)

    def noise_sources(self) -> list[Noise]:
        """Return every noise source, always in the same order."""
        evaluation_noise = [self.evaluation.noise] if self.evaluation.noise else []
        return [*self.mechanism.noise_sources(), *evaluation_noise, *self.feedback.noise_sources()]

    def close(self) -> None:
        self.feedback.close()

    def capture(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Return the state between two epochs, as copied arrays and JSON values.

        The rest follows from the trials: split, initial weights, feedback matrices, canaries. A restored training gives
        the same bits as an uninterrupted one, on the same device and with the same pack. Generator states of secure
        trials are not captured: such trials resume with fresh noise and fresh batches.
        """
        tensors = {"weights": self.net.parameters.flat}
        tensors |= {f"optimizer.{name}": value for name, value in self.optimizer.state.items()}
        values = {"epoch": self.epoch, "active": self.active, "sampler": self.sampler.state()}
        if self.average:
            tensors["average"], values["average_steps"] = self.average.mean, self.average.steps
        for k, source in enumerate(self.noise_sources()):
            tensors |= {f"noise_{k}.{name}": value for name, value in source.state().items()}
        return {name: value.detach().cpu().numpy().copy() for name, value in tensors.items()}, values

    def restore(self, arrays: Mapping[str, np.ndarray], values: Mapping[str, Any]) -> None:
        tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
        self.net.parameters.flat.copy_(tensors["weights"])
        self.optimizer.restore(_named(tensors, "optimizer"))
        self.sampler.restore(values["sampler"])
        if self.average:
            self.average.mean.copy_(tensors["average"])
            self.average.steps = values["average_steps"]
        for k, source in enumerate(self.noise_sources()):
            source.restore(_named(tensors, f"noise_{k}"))
        self.epoch, self.active = values["epoch"], list(values["active"])

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
        self.optimizer.step()
        if self.average:
            self.average.update()
        return loss, cosines(self.update, self.gradient) if measure_alignment else None

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
        logits = [self.net.forward(self.train_inputs.batch(chunk))[1]
                  for chunk in self.canaries.indices.split(EVALUATION_BATCH, dim=1)]
        return self.canaries.losses(torch.cat(logits, dim=1))

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


def _named(tensors: Mapping[str, torch.Tensor], prefix: str) -> dict[str, torch.Tensor]:
    """Return the tensors named `<prefix>.<name>`, by `<name>`."""
    prefix += "."
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
