"""Train a pack epoch by epoch, with any trainer. No files, no MLflow, no Ray."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import numpy as np
import torch

from pipeline.accounting import account, describe, privacy_tags
from pipeline.accounting.certified import calibrated, with_noise
from pipeline.accounting.statement import with_rounded_rows
from pipeline.learning.canaries import Canaries
from pipeline.learning.data.dataset import Dataset
from pipeline.learning.data.features import features
from pipeline.learning.data.inputs import Inputs
from pipeline.learning.data.sampling import split
from pipeline.learning.evaluation import EVALUATION_BATCH, Evaluation, Net, worst_class
from pipeline.learning.own_code import array_of
from pipeline.learning.randomness import Noise
from pipeline.trials.disclosure import check_metrics
from pipeline.trials.packs import Pack
from pipeline.trials.part import load
from pipeline.trials.records import DESCRIPTION, ClassAccuracy, EpochRecord, Outcome


def train(pack: Pack, data: Dataset, device: torch.device | str = "cpu",
          rungs: Collection[int] = ()) -> Iterator[list[EpochRecord]]:
    """Train every trial of a pack; yield the records of each epoch, one for each trial that was active at its start.

    A trial's last record has its outcome. A trial with weights that are not finite ends as `diverged`; the others
    continue. On `rungs`, epochs after which a trial may be stopped, records hold the outcome that it would then have.
    """
    with contextlib.closing(prepare(pack, data, torch.device(device), rungs)) as training:
        while not training.ended:
            yield training.run_epoch()


def prepare(pack: Pack, data: Dataset, device: torch.device, rungs: Collection[int] = ()) -> Any:
    """Make the `Run` of a pack before its first epoch (arguments as `Run`'s); a `Training` for built-in networks."""
    return load(pack.shared.parts.trainer.run(pack.shared))(pack, data, device, rungs)


class Run(ABC):
    """The state of a pack while it trains.

    Attributes:
        epoch: epochs done.
        active: replicas that have not diverged, in order.
        net: the networks to evaluate.
        validation: every trial's validation records [R, k].
        records: per trial, the indices of its training records [N]; `ABSENT` replaces canaries that are left out.
    """

    net: Net
    inputs: type[Inputs] = Inputs
    rounded_rows = False  # whether last bits of contributions may depend on other records of a batch

    def __init__(self, pack: Pack, data: Dataset, device: torch.device, rungs: Collection[int] = ()) -> None:
        self.pack, self.data, self.device, self.rungs = pack, data, device, rungs
        self.epoch, self.active = 0, list(range(len(pack.trials)))
        shared, trials = pack.shared, pack.trials
        n_training, n_validation = shared.split_sizes
        n_used = n_training + n_validation  # the settings may leave out records
        splits = [split(data.spec.n_train, n_validation, trial.seed, n_used) for trial in trials]
        self.validation = torch.from_numpy(np.stack([validation for _, validation in splits])).to(device)
        self.train_inputs, self.test_inputs = (self.inputs(records, shared, data) for records in features(data, shared))
        self.evaluation = Evaluation(tuple(with_noise(t) for t in trials), data, self.train_inputs, self.test_inputs,
                                     self.validation)
        self.records = [training for training, _ in splits]
        self.canaries = Canaries(trials, self.records, data.train_y, data.spec.n_classes) if shared.canaries else None
        if self.canaries:
            self.records = self.canaries.remaining

    @property
    def resumable(self) -> bool:
        """Whether a checkpoint can be written now."""
        return True

    @abstractmethod
    def noise_sources(self) -> list[Noise]:
        """Return every noise source, always in the same order."""

    def capture(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Return the state between two epochs, as copied arrays and JSON values.

        A restored run gives the same bits as an uninterrupted one, on the same device and with the same pack. Generator
        states of secure trials are not captured: such trials resume with fresh noise and fresh batches.
        """
        tensors, values = self._state()
        for k, source in enumerate(self.noise_sources()):
            tensors |= {f"noise_{k}.{name}": value for name, value in source.state().items()}
        arrays = {name: array_of(value).copy() for name, value in tensors.items()}
        return arrays, {"epoch": self.epoch, "active": self.active, **values}

    def restore(self, arrays: Mapping[str, np.ndarray], values: Mapping[str, Any]) -> None:
        """Restore the state that `capture` returned; this run is new and has the same pack."""
        for k, source in enumerate(self.noise_sources()):
            source.restore(tensors_of(arrays, f"noise_{k}"))
        self.epoch, self.active = values["epoch"], list(values["active"])
        self._restore(arrays, values)

    @abstractmethod
    def _state(self) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        """Return what `capture` adds to noise sources, `epoch` and `active`: tensors, and JSON values."""

    @abstractmethod
    def _restore(self, arrays: Mapping[str, np.ndarray], values: Mapping[str, Any]) -> None:
        """Restore what `_state` returned."""

    @abstractmethod
    def close(self) -> None:
        """Release resources, such as a projector's device."""

    @property
    def ended(self) -> bool:
        """Whether no epoch or no active trial is left."""
        return self.epoch == self.pack.shared.epochs or not self.active

    def run_epoch(self) -> list[EpochRecord]:
        """Train one epoch; return the records of the trials that were active at its start.

        A trial ends after the last epoch, or when its weights are not finite. On a rung, an epoch after which a search
        may stop a trial, its record also holds the record that replaces it in that case.
        """
        start_time = time.perf_counter()
        trained = self._train_epoch()
        self.epoch += 1
        is_finite = self._finite()  # from the released weights; the loss on private records decides nothing
        is_last, on_rung = self.epoch == self.pack.shared.epochs, self.epoch in self.rungs
        ending = [r for r in self.active if is_last or not is_finite[r]]
        followed = self.evaluation.followed
        parts = [followed] if followed else []
        if (ending or on_rung) and followed != "test":
            parts.append("test")
        records = []
        with self._evaluated():
            counts = {part: self.evaluation.count(self.net, part) for part in parts}
            accuracies = {part: self.evaluation.accuracy(part, part_counts) for part, part_counts in counts.items()}
            scores = self._canary_scores() if is_last and self.canaries else None
            seconds = (time.perf_counter() - start_time) / len(self.pack.trials)
            for r in self.active:
                metrics = {"time/epoch_seconds": seconds} | self._metrics(r, trained)
                if followed:
                    metrics[f"{followed}/accuracy"] = accuracies[followed][r]
                tested = metrics
                if r in ending or on_rung:
                    tested = metrics | {"test/accuracy": accuracies["test"][r],
                                        "test/worst_class_accuracy": worst_class(counts["test"][r])}
                if r in ending:
                    outcome = self._outcome(r, "finished" if is_finite[r] else "diverged", counts)
                    audited = scores[r] if scores is not None and is_finite[r] else None
                    records.append(self._record(r, tested, outcome, audited))
                    continue
                record = self._record(r, metrics)
                if on_rung:
                    if_stopped = self._record(r, tested, self._outcome(r, "stopped", counts))
                    record = dataclasses.replace(record, if_stopped=if_stopped)
                records.append(record)
        self.active = [r for r in self.active if r not in ending]
        return records

    @abstractmethod
    def _train_epoch(self) -> Any:
        """Train one epoch; return the input of `_metrics`."""

    @abstractmethod
    def _finite(self) -> Any:
        """Return whether all weights of each replica are finite [R], on the CPU."""

    @abstractmethod
    def _metrics(self, r: int, trained: Any) -> dict[str, float]:
        """Return the metrics of trial r for every epoch, without accuracy and epsilon."""

    @abstractmethod
    def _canary_scores(self) -> np.ndarray:
        """Return a score of each canary [R, k], higher if it seems to be a member."""

    @abstractmethod
    def _weights(self, r: int) -> dict[str, np.ndarray]:
        """Return the final weights of trial r by name."""

    def _tags(self, r: int) -> dict[str, str]:
        """Return tags for the first epoch of trial r: how it is computed."""
        return {}

    def _evaluated(self) -> contextlib.AbstractContextManager[Any]:
        return contextlib.nullcontext()

    def _record(self, r: int, measured: Mapping[str, float], outcome: Outcome | None = None,
                scores: np.ndarray | None = None) -> EpochRecord:  # of trial r's canaries [k], for their audit
        """Return the record of trial r. With an outcome its epsilons are of all planned epochs, else of those done.

        The decision to end early used released values, so an early end costs as much as all epochs.
        """
        trial, tags = self.pack.trials[r], {}
        if self.epoch == 1:
            device = torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else "cpu"
            tags = {**privacy_tags(trial), **calibrated(trial), **self._tags(r), DESCRIPTION: describe(trial),
                    "device": device}
        if trial.secure and self.rounded_rows:
            tags = with_rounded_rows({**privacy_tags(trial), **tags})
        epsilons = account(trial, trial.epochs if outcome else self.epoch)
        metrics = dict(measured) | {e.metric_name: e.value for e in epsilons}
        if scores is not None and self.canaries:
            epsilon, metrics["audit/canary_auc"] = self.canaries.audit(r, scores)
            metrics[epsilon.metric_name] = epsilon.value
        metrics = {name: value for name, value in metrics.items() if math.isfinite(value)}
        if trial.disclosure != "plain":
            check_metrics(metrics)
        return EpochRecord(trial.trial_key, self.epoch, metrics, tags, outcome)

    def _tried_records(self, size: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return inputs [n, n_0] and labels [n] of the first 1.5 chunks of `size` test records, repeated if needed."""
        places = torch.arange(3 * size // 2, device=self.device) % len(self.data.test_y)
        return self.test_inputs.batch(places), self.data.test_y[places]

    def _canary_logits(self) -> torch.Tensor:
        """Return the logits of the canaries of all trials [R, k, classes], of which there must be some."""
        assert self.canaries
        chunks = self.canaries.indices.split(EVALUATION_BATCH, dim=1)
        return torch.cat([self.net.forward(self.train_inputs.batch(chunk))[1] for chunk in chunks], dim=1)

    def _outcome(self, r: int, status: str, counts: dict[str, torch.Tensor]) -> Outcome:
        """Return trial r's outcome: status, weights, and accuracies by class, from counts [R, 2, classes] by part."""
        per_class = []
        for part, part_counts in counts.items():
            if part not in self.evaluation.published:
                continue
            n_records, n_correct = part_counts[r].tolist()
            for label, (records, correct) in enumerate(zip(n_records, n_correct, strict=True)):
                per_class.append(ClassAccuracy(label, part, records, correct))
        # A file of weights takes the bytes as they lie in memory, so that rows must come first.
        weights = {name: np.array(value, order="C") for name, value in self._weights(r).items()}
        return Outcome(status, weights, tuple(per_class))


def tensors_of(arrays: Mapping[str, np.ndarray], prefix: str) -> dict[str, torch.Tensor]:
    """Return the arrays named `<prefix>.<name>` as tensors, by `<name>`."""
    prefix += "."
    return {name.removeprefix(prefix): torch.from_numpy(array) for name, array in arrays.items()
            if name.startswith(prefix)}
