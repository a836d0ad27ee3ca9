"""Train a pack of trials, epoch by epoch. No files, no MLflow, no Ray."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import time
from collections.abc import Collection, Iterable, Iterator, Mapping

import numpy as np
import torch

from pipeline.accounting import account, describe, privacy_tags
from pipeline.accounting.certified import calibrated, with_noise
from pipeline.learning.alignment import cosines, true_gradient
from pipeline.learning.canaries import Canaries
from pipeline.learning.data.dataset import Dataset
from pipeline.learning.data.features import features
from pipeline.learning.data.inputs import Inputs
from pipeline.learning.data.sampling import ABSENT, BatchSampler, split
from pipeline.learning.evaluation import EVALUATION_BATCH, Evaluation, worst_class
from pipeline.learning.feedback.algorithms import make_feedback
from pipeline.learning.feedback.losses import make_loss
from pipeline.learning.mechanisms import make_mechanism
from pipeline.learning.network.network import make_network, start_output
from pipeline.learning.optimizer import MovingAverage, learning_rate, make_optimizer
from pipeline.learning.randomness import Noise
from pipeline.learning.rows import check_rows
from pipeline.trials.camera import camera_of
from pipeline.trials.config import TrialConfig
from pipeline.trials.disclosure import check_metrics
from pipeline.trials.packs import Pack
from pipeline.trials.records import DESCRIPTION, ClassAccuracy, Draw, EpochRecord, Outcome


class Keeper:
    """What becomes of a training between its epochs: nothing, here. `sweep.worker` keeps checkpoints."""

    def resume(self, training: Training) -> Iterable[list[EpochRecord] | Draw]:
        """Put a training that was just made where one was left; the epochs to hand in again, in case they were lost, or
        a question whose answer is that more is asked for."""
        return ()

    def keep(self, training: Training, records: list[EpochRecord]) -> Iterable[list[EpochRecord]]:
        """After an epoch: the epochs that may be handed in now."""
        return [records]

    def end(self) -> None:
        """Whoever asked for the records has all of them."""


def train(pack: Pack, data: Dataset, device: torch.device | str = "cpu", keeper: Keeper | None = None,
          rungs: Collection[int] = ()) -> Iterator[list[EpochRecord] | Draw]:
    """Train every trial of a pack, epoch by epoch.

    Args:
        pack: trials with one `pack_key`.
        data: the pack's data set, resident on `device`.
        device: where to train.
        keeper: what goes on from where another training was left, and is left in its turn.
        rungs: epochs after which a trial may be stopped; its records of them say what it then has to report.

    Yields:
        The records of one epoch, one for each trial that was active at its start. A trial's last record carries its
        outcome; a trial whose weights stop being finite ends there as `diverged`, and the others go on. Whatever else
        the keeper has to hand out comes first.
    """
    keeper, training = keeper or Keeper(), Training(pack, data, torch.device(device), rungs)
    try:
        yield from keeper.resume(training)
        while not training.ended:
            yield from keeper.keep(training, training.run_epoch())
        keeper.end()
    finally:
        training.close()


class Training:
    """The state of a pack while it trains.

    Attributes:
        epoch: epochs done.
        active: replicas that have not diverged, in order.
        evaluation: what counts records that are classified right.
    """

    def __init__(self, pack: Pack, data: Dataset, device: torch.device, rungs: Collection[int] = ()) -> None:
        c, trials = pack.shared, pack.trials
        self.pack, self.data, self.device, self.rungs = pack, data, device, rungs
        seeds = [t.seed for t in trials]
        parts = [split(data.spec.n_train, c.split_sizes[1], seed, sum(c.split_sizes)) for seed in seeds]
        self.validation = torch.from_numpy(np.stack([part[1] for part in parts])).to(device)
        self.train_inputs, self.test_inputs = (Inputs(records, c, data) for records in features(data, c))
        self.evaluation = Evaluation(tuple(with_noise(t) for t in trials), data, self.train_inputs, self.test_inputs,
                                     self.validation)
        records = [part[0] for part in parts]
        self.canaries = Canaries(trials, records, data.train_y, data.spec.n_classes) if c.canaries else None
        records = self.canaries.remaining if self.canaries else records
        self.sampler = BatchSampler(c.sampler, records, seeds, c.batch_size, c.steps_per_epoch,
                                    device, secure=c.secure)
        self.net = make_network(c, seeds, device)
        self.loss = make_loss(c)
        self.feedback = make_feedback(pack, self.net, device)
        start_output(self.net, c, self.feedback.matrices)
        self.mechanism = make_mechanism(Pack(tuple(with_noise(t) for t in trials)), self.net, device,
                                        self.feedback.matrices)
        self.update, self.gradient = (self.net.blank_parameters(len(trials), device) for _ in range(2))
        self.optimizer = make_optimizer(c, self.net.parameters.flat, self.update.flat)
        self.average = MovingAverage(self.net.parameters.flat, c.averaging) if c.averaging else None
        self.untrained_losses = self._canary_losses() if self.canaries else None
        if c.secure:
            check_rows(self)
        self._measured = 0  # batches on which alignment was measured
        self.epoch = 0
        self.active = list(range(len(trials)))

    def noise_sources(self) -> list[Noise]:
        """All that draws noise, always in the same order."""
        return [*self.mechanism.noise_sources(), *([self.evaluation.noise] if self.evaluation.noise else []),
                *self.feedback.noise_sources()]

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
        last, on_rung = self.epoch == self.pack.shared.epochs, self.epoch in self.rungs
        ended = [r for r in self.active if last or not finite[r]]
        with self.average.applied() if self.average else contextlib.nullcontext():
            parts = dict.fromkeys(filter(None, (self.evaluation.followed, "test" if ended or on_rung else "")))
            counts = {part: self.evaluation.count(self.net, part) for part in parts}
            accuracies = {part: self.evaluation.accuracy(part, of_all) for part, of_all in counts.items()}
            scores = self._canary_scores() if last and self.canaries else None
            seconds = (time.perf_counter() - began) / len(self.pack.trials)
            records = []
            for r in self.active:
                metrics = {"time/epoch_seconds": seconds} | self._metrics(r, losses, alignment, accuracies)
                end = None
                if r in ended or on_rung:
                    tested = metrics | {"test/accuracy": accuracies["test"][r],
                                        "test/worst_class_accuracy": worst_class(counts["test"][r])}
                    status = "stopped" if r not in ended else "finished" if finite[r] else "diverged"
                    # When to stop was seen in what was released: a trial that ends early costs what all of it would.
                    end = self._record(r, tested, self.pack.shared.epochs, self._outcome(r, status, counts),
                                       scores if finite[r] else None)
                records.append(end if r in ended else
                               dataclasses.replace(self._record(r, metrics, self.epoch), if_stopped=end))
        self.active = [r for r, record in zip(self.active, records, strict=True) if record.outcome is None]
        return records

    def _metrics(self, r: int, losses: torch.Tensor, alignment: torch.Tensor,
                 accuracies: dict[str, list[float]]) -> dict[str, float]:
        """What trial r logs of every epoch, before epsilon: alignments, the accuracy that is followed, and the loss
        where that may be logged."""
        metrics = {f"alignment/layer_{k + 1}": v for k, v in enumerate(alignment[r].tolist())}
        if followed := self.evaluation.followed:
            metrics[f"{followed}/accuracy"] = accuracies[followed][r]
        if self.pack.shared.disclosure == "plain":
            metrics["train/loss"] = losses[r].item()
        return metrics

    def _train_epoch(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Mean training loss [R], mean alignment [R, L] (nan where none was measured), on the CPU."""
        c = self.pack.shared
        self._measured = self.epoch * c.alignment_batches
        batches = self.sampler.epoch()
        n_measured = min(c.alignment_batches, len(batches))
        measured = {int((k + 0.5) * len(batches) / n_measured) for k in range(n_measured)}  # evenly over the epoch
        losses, alignments = [], []
        for step, indices in enumerate(batches):
            self.optimizer.learning_rate = learning_rate(c, self.epoch * len(batches) + step)
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
            Mean loss of the batch [R]; if asked for, alignment [R, L] of the applied update with the true gradient of
            the batch or, where `private_metrics` is not plain, of as many test records.
        """
        present, usable = None, self.train_inputs.usable
        if self.pack.shared.secure or not self.pack.shared.parts.sampler.full or usable is not None:
            there = indices != ABSENT
            indices = indices.clamp(min=0)
            present = (there if usable is None else there & usable[indices]).unsqueeze(-1).to(torch.float32)
        of_test = measure_alignment and self.pack.shared.disclosure != "plain"
        if of_test:  # before the private batch goes forward: convolutions belong to the last that did
            self._gradient_on_test_records()
        activations, logits = self.net.forward(self.train_inputs.batch(indices, passing=True))
        labels = self.canaries.labels_of(indices) if self.canaries else self.data.train_y[indices]
        error, loss = self.loss(logits, labels, present)
        if measure_alignment and not of_test:
            true_gradient(self.net, error, activations, self.gradient)
        self.mechanism.update(self.deltas(error, activations, present), activations, self.update)
        self.optimizer.step()
        if self.average:
            self.average.update()
        return loss, cosines(self.update, self.gradient) if measure_alignment else None

    def _gradient_on_test_records(self) -> None:
        """The true gradient on the next m test records: public, as the test set and the iterate are."""
        m = self.pack.shared.batch_size
        places = torch.arange(self._measured * m, (self._measured + 1) * m, device=self.device)
        places = (places % len(self.data.test_y)).expand(len(self.pack.trials), -1)
        self._measured += 1
        activations, logits = self.net.forward(self.test_inputs.batch(places, passing=True))
        error, _ = self.loss(logits, self.data.test_y[places])
        true_gradient(self.net, error, activations, self.gradient)

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

    def _record(self, r: int, measured: Mapping[str, float], paid: int, outcome: Outcome | None = None,
                scores: np.ndarray | None = None) -> EpochRecord:
        """What trial r has to report: what was measured, and the cost of `paid` epochs."""
        trial, tags = self.pack.trials[r], {}
        if self.epoch == 1:
            tags = {**privacy_tags(trial), **calibrated(trial), **_optical_tags(trial), DESCRIPTION: describe(trial),
                    "device": _device_name(self.device)}
        metrics = measured | {e.metric_name: e.value for e in account(trial, paid)}
        if scores is not None:
            epsilon, metrics["audit/canary_auc"] = self.canaries.audit(r, scores[r])
            metrics[epsilon.metric_name] = epsilon.value
        metrics = {name: value for name, value in metrics.items() if math.isfinite(value)}
        if trial.disclosure != "plain":
            check_metrics(metrics)
        return EpochRecord(trial.trial_key, self.epoch, metrics, tags, outcome)

    def _outcome(self, r: int, status: str, counts: dict[str, torch.Tensor]) -> Outcome:
        weights = {}
        blocks = zip(self.net.layers, self.net.parameters.weights, self.net.parameters.biases, strict=True)
        for number, (layer, w, b) in enumerate(blocks, start=1):
            weights[f"layer_{number}.weight"] = w[r].cpu().numpy().reshape(layer.shape.weight_shape)
            weights[f"layer_{number}.bias"] = b[r].cpu().numpy()
        per_class = tuple(
            ClassAccuracy(label, part, count, right) for part, of_all in counts.items()
            if part in self.evaluation.published
            for label, (count, right) in enumerate(zip(*of_all[r].tolist(), strict=True)))
        return Outcome(status, {name: np.array(value) for name, value in weights.items()}, per_class)


def _optical_tags(trial: TrialConfig) -> dict[str, str]:
    """What the light of a physical device amounts to, as the noise on a component of a projection."""
    if not trial.physical:
        return {}
    return {"optics.effective_sigma": repr(camera_of(trial).effective_sigma)}


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
