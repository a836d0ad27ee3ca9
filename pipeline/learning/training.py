"""The training of a pack, as stacked replicas. `learning.train` makes one, and its caller asks it for every epoch.

It knows no files, no MLflow and no Ray.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from pipeline.accounting.certified import with_noise
from pipeline.learning.alignment import cosines, feedback_update, true_gradient
from pipeline.learning.canaries import Canaries
from pipeline.learning.data.dataset import Dataset
from pipeline.learning.data.inputs import Inputs
from pipeline.learning.data.maps.computed import inputs
from pipeline.learning.data.sampling import ABSENT, BatchSampler, split
from pipeline.learning.evaluation import Evaluation
from pipeline.learning.feedback.algorithms import FEEDBACK, FeedbackPath
from pipeline.learning.feedback.losses import LOSSES, OutputLoss
from pipeline.learning.mechanisms import make_mechanism
from pipeline.learning.network.stacked import StackedNetwork, make_network, start_output
from pipeline.learning.randomness import Noise
from pipeline.learning.reporting import first_tags, outcome_of, record_of
from pipeline.learning.updates import UPDATES, MovingAverage, Update, learning_rate
from pipeline.trials import arithmetic
from pipeline.trials.disclosure import ALIGNMENTS
from pipeline.trials.packs import Pack
from pipeline.trials.part import Workers
from pipeline.trials.records import CLOCK, EpochRecord

ARITHMETICS: Workers[type[FloatingPoint]] = Workers()


@ARITHMETICS.of(arithmetic.Arithmetic)
class FloatingPoint:
    """The parts of a training that depend on its arithmetic: here float32, or bfloat16 for factors of products."""

    inputs: type[Inputs] = Inputs

    def __init__(self, pack: Pack, device: torch.device) -> None:
        self.pack, self.device = pack, device

    def network(self) -> StackedNetwork:
        return make_network(self.pack.shared, [trial.seed for trial in self.pack.trials], self.device)

    def loss(self) -> OutputLoss:
        return LOSSES[self.pack.shared.parts.loss](self.pack.shared)

    def feedback(self, net: StackedNetwork) -> FeedbackPath:
        return FEEDBACK[self.pack.shared.parts.feedback](self.pack, net, self.device)

    def begin(self, training: Training) -> None:
        """Look at public records before the first epoch."""

    def tags(self, r: int) -> dict[str, str]:
        """Return tags for the first epoch of trial r: how it is computed."""
        return {}


class Training:
    """The state of a pack while it trains: networks with a leading replica axis, one for each trial.

    Attributes:
        epoch: epochs done.
        active: replicas that have not diverged, in order.
        validation: every trial's validation records [R, k].
        records: per trial, the indices of its training records [N]; `ABSENT` replaces canaries that are left out.
    """

    net: StackedNetwork

    def __init__(self, pack: Pack, data: Dataset, device: torch.device) -> None:
        self.pack, self.data, self.device = pack, data, device
        self.epoch, self.active = 0, list(range(len(pack.trials)))
        self.arithmetic: FloatingPoint = ARITHMETICS[pack.shared.parts.arithmetic](pack, device)
        self._split_records()
        self._build()
        if self.canaries:
            self.canaries.begin(self.net, self.train_inputs)
        self._measured = 0  # batches on which alignment was measured
        self.measured_records = pack.shared.batch_size  # in a batch of test records

    def _split_records(self) -> None:
        """Draw each trial's training, validation and canary records; a canary that is left out becomes `ABSENT`."""
        shared, trials, data = self.pack.shared, self.pack.trials, self.data
        n_training, n_validation = shared.split_sizes
        n_used = n_training + n_validation  # the settings may leave out records
        splits = [split(data.spec.n_train, n_validation, trial.seed, n_used) for trial in trials]
        self.validation = torch.from_numpy(np.stack([validation for _, validation in splits])).to(self.device)
        self.records = [training for training, _ in splits]
        self.canaries = Canaries(trials, self.records, data.train_y, data.spec.n_classes) if shared.canaries else None
        if self.canaries:
            self.records = self.canaries.remaining

    def _build(self) -> None:
        """Build what a step and an evaluation need."""
        shared, trials = self.pack.shared, self.pack.trials
        noisy = tuple(with_noise(trial) for trial in trials)  # with the noise that a target epsilon requires
        self.train_inputs, self.test_inputs = inputs(self.data, shared, self.arithmetic.inputs)
        self.evaluation = Evaluation(noisy, self.data, self.train_inputs, self.test_inputs, self.validation)
        self.sampler = BatchSampler(shared.sampler, self.records, [t.seed for t in trials], shared.batch_size,
                                    shared.steps_per_epoch, self.device, secure=shared.secure)
        self.net = self._network()
        self.loss = self.arithmetic.loss()
        self.feedback = self.arithmetic.feedback(self.net)
        start_output(self.net, shared, self.feedback.matrices)
        self.mechanism = make_mechanism(Pack(noisy), self.net, self.device, self.feedback.matrices)
        self.update = self.net.blank_parameters(len(trials), self.device)
        self.gradient = self.net.blank_parameters(len(trials), self.device)  # for alignment alone
        self.optimizer: Update = UPDATES[shared.parts.optimizer](shared, self.net.parameters.flat, self.update.flat)
        self.average: MovingAverage | None = None
        if shared.averaging:
            self.average = MovingAverage(self.net.parameters.flat, shared.averaging, shared.exact)

    def _network(self) -> StackedNetwork:
        return self.arithmetic.network()

    def noise_sources(self) -> list[Noise]:
        """Return every noise source, always in the same order."""
        return [*self.mechanism.noise_sources(), *self.evaluation.noise_sources()]

    def close(self) -> None:
        """Release resources, such as a projector's device."""
        self.feedback.close()

    def capture(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Return the state between two epochs that a checkpoint must hold, as copied arrays and JSON values.

        Split, initial weights, feedback matrices and canaries are drawn again from the seed. A restored run gives the
        same bits as an uninterrupted one, on the same device and with the same pack. Generator states of secure trials
        are not captured: such trials resume with fresh noise and fresh batches.
        """
        tensors = {"weights": self.net.parameters.flat}
        tensors |= {f"optimizer.{name}": value for name, value in self.optimizer.state.items()}
        values = {"epoch": self.epoch, "active": self.active, "sampler": self.sampler.state()}
        if self.average:
            tensors["average"], values["average_steps"] = self.average.mean, self.average.steps
        for k, source in enumerate(self.noise_sources()):
            tensors |= {f"noise_{k}.{name}": value for name, value in source.state().items()}
        return {name: value.cpu().numpy().copy() for name, value in tensors.items()}, values

    def restore(self, arrays: Mapping[str, np.ndarray], values: Mapping[str, Any]) -> None:
        """Restore the state that `capture` returned; this training is new and has the same pack."""
        self.epoch, self.active = values["epoch"], list(values["active"])
        self.net.parameters.flat.copy_(torch.from_numpy(arrays["weights"]))
        self.optimizer.restore(_tensors_of(arrays, "optimizer"))
        self.sampler.restore(values["sampler"])
        if self.average:
            self.average.mean.copy_(torch.from_numpy(arrays["average"]))
            self.average.steps = values["average_steps"]
        for k, source in enumerate(self.noise_sources()):
            source.restore(_tensors_of(arrays, f"noise_{k}"))

    @property
    def ended(self) -> bool:
        """Whether no epoch or no active trial is left."""
        return self.epoch == self.pack.shared.epochs or not self.active

    def run_epoch(self) -> list[EpochRecord]:
        """Train one epoch; return the records of the trials that were active at its start."""
        start_time = time.perf_counter()
        losses, alignment = self._train_epoch()
        self.epoch += 1
        ended = self._ended_trials()
        with self.average.applied() if self.average else contextlib.nullcontext():
            evaluated, counts = self.evaluation.metrics(self.net, ended)
            if self.canaries and "finished" in ended.values():
                scores = self.canaries.scores(self.net, self.train_inputs)
                for r, status in ended.items():
                    if status == "finished":
                        evaluated[r] |= self.canaries.audit(r, scores[r])
            outcomes = {r: outcome_of(status, self._weights(r), counts[r]) for r, status in ended.items()}
        seconds = (time.perf_counter() - start_time) / len(self.pack.trials)
        records = []
        for r in self.active:
            metrics = {CLOCK: seconds, **self._metrics(r, losses, alignment), **evaluated[r]}
            records.append(record_of(self.pack.trials[r], self.epoch, metrics, self._tags(r), outcomes.get(r)))
        self.active = [r for r in self.active if r not in ended]
        return records

    def _ended_trials(self) -> dict[int, str]:
        """Return {replica: status} of trials that end with this epoch: it is the last, or weights are not finite."""
        # The released weights decide, and not the loss on private records.
        is_finite = torch.isfinite(self.net.parameters.flat).all(dim=1).tolist()
        is_last = self.epoch == self.pack.shared.epochs
        return {r: "finished" if is_finite[r] else "diverged" for r in self.active if is_last or not is_finite[r]}

    def _metrics(self, r: int, losses: torch.Tensor, alignment: torch.Tensor) -> dict[str, float]:
        """Return the alignments of trial r, and its training loss if `private_metrics` is plain."""
        metrics = {f"{name}{layer}": value for name, values in zip(ALIGNMENTS, alignment[r].tolist(), strict=True)
                   for layer, value in enumerate(values, start=1)}
        if self.pack.shared.disclosure == "plain":
            metrics["train/loss"] = losses[r].item()
        return metrics

    def _tags(self, r: int) -> Mapping[str, str]:
        """Return the tags of trial r: all with the first epoch, none later."""
        if self.epoch > 1:
            return {}
        return first_tags(self.pack.trials[r], self.device) | self.arithmetic.tags(r)

    def _train_epoch(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return mean training loss [R] and mean alignment [R, 2, L] on the CPU; alignment is nan if not measured."""
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
            alignment = torch.full((len(self.pack.trials), len(ALIGNMENTS), len(self.update.layers)), math.nan)
        return torch.stack(losses, dim=-1).mean(dim=-1).cpu(), alignment

    def step(self, indices: torch.Tensor,  # [R, m]; `ABSENT` marks padding
             measure_alignment: bool = False) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Train on one batch of every trial; return its mean loss [R] and, if measured, the alignment [R, 2, L].

        That is of the applied update, and of the feedback's, with the true gradient over the batch. If
        `private_metrics` is not plain, the feedback and the gradient are those over m test records.
        """
        is_plain = self.pack.shared.disclosure == "plain"
        of_feedback = None
        if measure_alignment and not is_plain:  # before the private batch: convolutions keep the state of the last one
            of_feedback = self._feedback_on_test_records()
        indices, present = self._present(indices)
        activations, logits = self.net.forward(self.train_inputs.batch(indices, reuse_buffer=True))
        labels = self.canaries.labels_of(indices) if self.canaries else self.data.train_y[indices]
        error, loss = self.loss(logits, labels, present)
        if measure_alignment and is_plain:
            of_feedback = self._feedback_alignment(error, activations, present)
        self.mechanism.update(self.deltas(error, activations, present), activations, self.update)
        return loss, self._take_step(of_feedback)

    def _present(self, indices: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return places [R, m] to read, and 1 for each that has a usable record [R, m, 1]; None if all have one."""
        usable = self.train_inputs.usable
        if self.pack.shared.parts.sampler.full and usable is None:
            return indices, None
        contributes = indices != ABSENT
        indices = indices.clamp(min=0)
        if usable is not None:
            contributes &= usable[indices]
        return indices, contributes.unsqueeze(-1).to(torch.float32)

    def _take_step(self, of_feedback: torch.Tensor | None) -> torch.Tensor | None:
        """Move the weights by `update`; return its alignment and the feedback's [R, 2, L], if that is measured."""
        self.optimizer.step()
        if self.average:
            self.average.update()
        return None if of_feedback is None else torch.stack([cosines(self.update, self.gradient), of_feedback], dim=1)

    def _feedback_alignment(self, error: torch.Tensor, activations: list[torch.Tensor],
                            present: torch.Tensor | None = None) -> torch.Tensor:
        """Write the true gradient of a batch to `gradient`; return the alignment of the feedback's update [R, L]."""
        true_gradient(self.net, error, activations, self.gradient)
        feedback_update(self.feedback, self.net, error, activations, self.update, present)  # overwritten by the step
        return cosines(self.update, self.gradient)

    def _feedback_on_test_records(self) -> torch.Tensor:
        """Return `_feedback_alignment` on the next m test records; it is public, like the test set and the iterate."""
        places = self._next_test_places().expand(len(self.pack.trials), -1)
        activations, logits = self.net.forward(self.test_inputs.batch(places, reuse_buffer=True))
        error, _ = self.loss(logits, self.data.test_y[places])
        return self._feedback_alignment(error, activations)

    def _next_test_places(self) -> torch.Tensor:
        """Return the places of the next m test records [m]."""
        m = self.measured_records
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

    def _weights(self, r: int) -> dict[str, np.ndarray]:
        """Return the weights of trial r by name: `layer_1.weight`, `layer_1.bias`, ..."""
        weights = {}
        blocks = zip(self.net.layers, self.net.parameters.weights, self.net.parameters.biases, strict=True)
        for number, (layer, weight, bias) in enumerate(blocks, start=1):
            weights[f"layer_{number}.weight"] = weight[r].cpu().numpy().reshape(layer.shape.weight_shape)
            weights[f"layer_{number}.bias"] = bias[r].cpu().numpy()
        return weights


def _tensors_of(arrays: Mapping[str, np.ndarray], prefix: str) -> dict[str, torch.Tensor]:
    """Return the arrays named `<prefix>.<name>` as tensors, by `<name>`."""
    prefix += "."
    return {name.removeprefix(prefix): torch.from_numpy(array) for name, array in arrays.items()
            if name.startswith(prefix)}
