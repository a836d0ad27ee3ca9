"""Train a pack of trials, epoch by epoch. No files, no MLflow, no Ray."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator

import numpy as np
import torch

from pipeline.accounting import account, describe, privacy_tags
from pipeline.accounting.certified import with_noise
from pipeline.alignment import cosines, true_gradient
from pipeline.canaries import Canaries
from pipeline.config import TrialConfig
from pipeline.data import Dataset
from pipeline.feedback import make_feedback, output_error
from pipeline.mechanisms import make_mechanism
from pipeline.networks import make_network
from pipeline.packs import Pack
from pipeline.records import DESCRIPTION, ClassAccuracy, EpochRecord, Outcome
from pipeline.sampling import ABSENT, BatchSampler, split

EVALUATION_BATCH = 1_000
LEAST_NORM = 1e-6  # of an input: one of zeros has no direction, and stays zero


def train(pack: Pack, data: Dataset, device: torch.device | str = "cpu") -> Iterator[EpochRecord]:
    """Train every trial of a pack and report each epoch of each trial.

    Args:
        pack: trials with one `pack_key`.
        data: the pack's data set, resident on `device`.
        device: where to train.

    Yields:
        One record per trial and epoch, epoch by epoch. A trial's last record carries its outcome; a trial whose
        weights stop being finite ends there as `diverged`, and the others go on.
    """
    training = Training(pack, data, torch.device(device))
    try:
        while not training.ended:
            yield from training.run_epoch()
    finally:
        training.close()


def make_optimizer(config: TrialConfig, parameters: torch.Tensor) -> torch.optim.Optimizer:
    """The pack's optimizer; element-wise, so that stacked trials do not touch each other."""
    if config.optimizer == "adam":
        return torch.optim.Adam([parameters], lr=config.learning_rate, fused=True)
    return torch.optim.SGD([parameters], lr=config.learning_rate, momentum=config.momentum, fused=True)


class Inputs:
    """uint8 records, resident on the device, handed out as float batches on the trial's input scale."""

    def __init__(self, records: torch.Tensor, config: TrialConfig, data: Dataset) -> None:
        mean, std = {"unit": ((0.0,), (1.0,)), "centered": ((0.5,), (0.5,)),
                     "standardized": (data.spec.mean, data.spec.std)}[config.inputs]
        per_channel = data.spec.n_features // len(mean)
        columns = [torch.tensor(v, device=records.device).repeat_interleave(per_channel) for v in (mean, std)]
        self.records = records
        self.factor, self.shift = 1 / (data.spec.scale * columns[1]), -columns[0] / columns[1]
        self.norm = config.input_norm

    def batch(self, indices: torch.Tensor) -> torch.Tensor:
        """Float inputs [..., n_0] of the records at `indices` [...]."""
        rows = self.records.index_select(0, indices.flatten()).to(torch.float32)
        inputs = torch.addcmul(self.shift, rows, self.factor)
        if self.norm:
            inputs.mul_(self.norm / torch.linalg.vector_norm(inputs, dim=1, keepdim=True).clamp_(min=LEAST_NORM))
        return inputs.view(*indices.shape, -1)


class MovingAverage:
    """Exponential moving average of the iterates, w <- d w + (1 - d) w_t: post-processing of what is released.

    The decay of step t is min(d, t/(t + 9)), so that the first iterates are soon forgotten.

    Args:
        iterate: w_t, which the optimizer changes in place.
        decay: d.
    """

    def __init__(self, iterate: torch.Tensor, decay: float) -> None:
        self.iterate, self.decay, self.steps = iterate, decay, 0
        self.mean = iterate.clone()

    def update(self) -> None:
        """Take in the iterate of the step just made."""
        self.steps += 1
        self.mean.lerp_(self.iterate, 1 - min(self.decay, self.steps / (self.steps + 9)))

    @contextlib.contextmanager
    def applied(self) -> Iterator[None]:
        """The average stands in the place of the iterate."""
        iterate = self.iterate.clone()
        self.iterate.copy_(self.mean)
        try:
            yield
        finally:
            self.iterate.copy_(iterate)


class Training:
    """The state of a pack while it trains.

    Attributes:
        epoch: epochs done.
        active: replicas that have not diverged, in order.
        followed: whose accuracy every epoch has: `validation`, or `test` where nothing is held out.
    """

    def __init__(self, pack: Pack, data: Dataset, device: torch.device) -> None:
        c, trials = pack.shared, pack.trials
        self.pack, self.data, self.device = pack, data, device
        seeds = [t.seed for t in trials]
        self.followed = "validation" if c.split_sizes[1] else "test"
        parts = [split(data.spec.n_train, c.split_sizes[1], seed, sum(c.split_sizes)) for seed in seeds]
        self.validation = torch.from_numpy(np.stack([part[1] for part in parts])).to(device)
        self.train_inputs, self.test_inputs = Inputs(data.train_x, c, data), Inputs(data.test_x, c, data)
        records = [part[0] for part in parts]
        self.canaries = Canaries(trials, records, data.train_y, data.spec.n_classes) if c.canaries else None
        records = self.canaries.remaining if self.canaries else records
        self.sampler = BatchSampler(c.sampler, records, seeds, c.batch_size, c.steps_per_epoch,
                                    device, secure=c.secure)
        self.net = make_network(c, seeds, device)
        self.feedback = make_feedback(pack, self.net, device)
        self.mechanism = make_mechanism(Pack(tuple(with_noise(t) for t in trials)), self.net, device,
                                        self.feedback.matrices)
        self.update, self.gradient = (self.net.blank_parameters(len(trials), device) for _ in range(2))
        self.net.parameters.flat.grad = self.update.flat
        self.optimizer = make_optimizer(c, self.net.parameters.flat)
        self.average = MovingAverage(self.net.parameters.flat, c.averaging) if c.averaging else None
        self.untrained_losses = self._canary_losses() if self.canaries else None
        self.epoch = 0
        self.active = list(range(len(trials)))

    def close(self) -> None:
        """Release what the feedback holds, such as a projector's device."""
        self.feedback.close()

    @property
    def ended(self) -> bool:
        """Whether no epoch is left, or no trial."""
        return self.epoch == self.pack.shared.epochs or not self.active

    def run_epoch(self) -> list[EpochRecord]:
        """Train one epoch; the records of the trials that were active at its start."""
        began = time.perf_counter()
        losses, alignment = self._train_epoch()
        self.epoch += 1
        finite = self._weights_finite()  # of what is released; the loss of private records decides nothing
        last = self.epoch == self.pack.shared.epochs
        with self.average.applied() if self.average else contextlib.nullcontext():
            trial_ends = last or not bool(finite[self.active].all())
            parts = dict.fromkeys((self.followed, "test") if trial_ends else (self.followed,))
            counts = {part: self._count_correct(part) for part in parts}
            scores = self._canary_scores() if last and self.canaries else None
            seconds = (time.perf_counter() - began) / len(self.pack.trials)
            records = [self._record(r, losses[r].item(), alignment[r], bool(finite[r]), last,
                                    {part: of_all[r] for part, of_all in counts.items()}, scores, seconds)
                       for r in self.active]
        self.active = [r for r, record in zip(self.active, records, strict=True) if record.outcome is None]
        return records

    def _train_epoch(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Mean training loss [R], mean alignment [R, L] (nan where none was measured), on the CPU."""
        c = self.pack.shared
        batches = self.sampler.epoch()
        n_measured = min(c.alignment_batches, len(batches))
        measured = {int((k + 0.5) * len(batches) / n_measured) for k in range(n_measured)}  # evenly over the epoch
        losses, alignments = [], []
        for step, indices in enumerate(batches):
            loss, alignment = self.step(indices, measure_alignment=step in measured)
            losses.append(loss)
            alignments += [] if alignment is None else [alignment]
        nothing = torch.full((len(self.pack.trials), len(self.update.layers)), math.nan)
        alignment = torch.stack(alignments, dim=-1).nanmean(dim=-1).cpu() if alignments else nothing
        return torch.stack(losses, dim=-1).mean(dim=-1).cpu(), alignment

    def step(self, indices: torch.Tensor, measure_alignment: bool = False) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Train on one batch of every trial.

        Args:
            indices: training records [R, m]; `ABSENT` where a batch has no record.

        Returns:
            Mean loss of the batch [R]; alignment of the applied update with the true gradient [R, L] if asked for.
        """
        present = None
        if self.pack.shared.sampler == "poisson":
            present = (indices != ABSENT).unsqueeze(-1).to(torch.float32)
            indices = indices.clamp(min=0)
        activations, logits = self.net.forward(self.train_inputs.batch(indices))
        labels = self.canaries.labels_of(indices) if self.canaries else self.data.train_y[indices]
        error, loss = output_error(logits, labels, present)
        if measure_alignment:
            true_gradient(self.net, error, activations, self.gradient)
        self.mechanism.update(self.deltas(error, activations, present), activations, self.update)
        self.optimizer.step()
        if self.average:
            self.average.update()
        return loss, cosines(self.update, self.gradient) if measure_alignment else None

    def deltas(self, error: torch.Tensor, activations: list[torch.Tensor],
               present: torch.Tensor | None = None) -> list[torch.Tensor]:
        """delta^1..delta^L [R, m, n_l] of a batch, as the mechanism's update takes them.

        Args:
            error: of the outputs [R, m, n_L].
            activations: h^0..h^{L-1}, each [R, m, n_{l-1}].
            present: [R, m, 1], 0 where a batch has no record; None where every place has one.
        """
        signals = self.mechanism.perturb(self.feedback.signals(self.mechanism.error(error)))
        if present is not None:  # noise has reached the empty places, too
            signals = [s * present for s in signals]
        return self.feedback.deltas(signals, self.net, activations, self.mechanism.derivative)

    def _canary_losses(self) -> torch.Tensor:
        """Losses of the canaries' wrong labels at the present weights [R, k]."""
        logits = [self.net.forward(self.train_inputs.batch(chunk))[1]
                  for chunk in self.canaries.indices.split(EVALUATION_BATCH, dim=1)]
        return self.canaries.losses(torch.cat(logits, dim=1))

    def _canary_scores(self) -> np.ndarray:
        """By how much training lowered the loss of every canary's wrong label [R, k]; more if it took part."""
        return (self.untrained_losses - self._canary_losses()).cpu().numpy()

    def _weights_finite(self) -> torch.Tensor:
        """[R], on the CPU."""
        return torch.isfinite(self.net.parameters.flat).all(dim=1).cpu()

    def _count_correct(self, part: str) -> torch.Tensor:
        """Records by class, and those of them classified right: [R, 2, n_classes], int64, on the CPU.

        A record whose output is not finite, as after a divergence, is not classified right.
        """
        classes, replicas = self.data.spec.n_classes, len(self.pack.trials)
        counts = torch.zeros(replicas, 2, classes, dtype=torch.int64, device=self.device)
        if part == "validation":
            inputs, labels, indices = self.train_inputs, self.data.train_y, self.validation
        else:
            inputs, labels = self.test_inputs, self.data.test_y
            indices = torch.arange(len(labels), device=self.device).expand(replicas, -1)
        for chunk in indices.split(EVALUATION_BATCH, dim=1):
            _, logits = self.net.forward(inputs.batch(chunk))
            y = labels[chunk]
            right = (logits.argmax(dim=-1) == y) & torch.isfinite(logits).all(dim=-1)
            counts[:, 0].scatter_add_(1, y, torch.ones_like(y))
            counts[:, 1].scatter_add_(1, y, right.to(torch.int64))
        return counts.cpu()

    def _record(self, r: int, loss: float, alignment: torch.Tensor, finite: bool, last: bool,
                counts: dict[str, torch.Tensor], scores: np.ndarray | None, seconds: float) -> EpochRecord:
        """`counts`: of `_count_correct`, [2, n_classes] of every part that was evaluated."""
        trial = self.pack.trials[r]
        metrics = {"train/loss": loss, "time/epoch_seconds": seconds}
        metrics[f"{self.followed}/accuracy"] = accuracy(counts[self.followed])
        metrics |= {f"alignment/layer_{k + 1}": v for k, v in enumerate(alignment.tolist())}
        tags = {}
        if self.epoch == 1:
            tags = {**privacy_tags(trial), DESCRIPTION: describe(trial), "device": _device_name(self.device)}
        # When to stop was seen in what was released, so that a trial that ends early costs what all of it would.
        metrics |= {e.metric_name: e.value for e in account(trial, self.epoch if finite else trial.epochs)}
        outcome = None
        if last or not finite:
            test = counts["test"]
            metrics["test/accuracy"] = accuracy(test)
            metrics["test/worst_class_accuracy"] = (test[1] / test[0]).min().item()
            outcome = self._outcome(r, "finished" if finite else "diverged", counts)
        if finite and scores is not None:
            epsilon, metrics["audit/canary_auc"] = self.canaries.audit(r, scores[r])
            metrics[epsilon.metric_name] = epsilon.value
        metrics = {name: value for name, value in metrics.items() if math.isfinite(value)}
        return EpochRecord(trial.trial_key, self.epoch, metrics, tags, outcome)

    def _outcome(self, r: int, status: str, counts: dict[str, torch.Tensor]) -> Outcome:
        weights = {}
        blocks = zip(self.net.layers, self.net.parameters.weights, self.net.parameters.biases, strict=True)
        for number, (layer, w, b) in enumerate(blocks, start=1):
            weights[f"layer_{number}.weight"] = w[r].cpu().numpy().reshape(layer.shape.weight_shape)
            weights[f"layer_{number}.bias"] = b[r].cpu().numpy()
        per_class = tuple(
            ClassAccuracy(label, part, count, right) for part, of_part in counts.items()
            for label, (count, right) in enumerate(zip(*of_part.tolist(), strict=True)))
        return Outcome(status, {name: np.array(value) for name, value in weights.items()}, per_class)


def accuracy(counts: torch.Tensor) -> float:
    """Share of records classified right, from counts [2, n_classes]."""
    return (counts[1].sum() / counts[0].sum()).item()


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
