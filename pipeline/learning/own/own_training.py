"""Train a user's network. `pipeline.learning.train` makes the `OwnTraining` of such a trial."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from pipeline.accounting.statement import with_own_network
from pipeline.learning.alignment import cosines
from pipeline.learning.data.dataset import Dataset
from pipeline.learning.data.inputs import Inputs
from pipeline.learning.data.sampling import ABSENT
from pipeline.learning.feedback.algorithms import BackPropagationPath, FeedbackPath
from pipeline.learning.mechanisms.float_sum import FloatSum
from pipeline.learning.mechanisms.gaussian import GaussianStep
from pipeline.learning.mechanisms.gradients import add_all
from pipeline.learning.mechanisms.row_sum import RowSum
from pipeline.learning.own.alone import Alone
from pipeline.learning.own.building import in_words, initial_module, own
from pipeline.learning.own.net import OwnNet, OwnParameters, filled
from pipeline.learning.own.operators import is_reviewed_here
from pipeline.learning.own.ways import Way, check
from pipeline.learning.training import Training
from pipeline.trials.packs import Pack
from pipeline.trials.records import EpochRecord

TRIED = 8  # public test records on which a network is tried before it trains
STORED = {torch.bfloat16: torch.float32, torch.complex128: torch.complex64}  # what no file of weights can hold


class OwnTraining(Training):
    """One trial of a user's network."""

    net: OwnNet  # type: ignore[assignment]  # what `Training` asks of a network
    update: OwnParameters
    gradient: OwnParameters

    def __init__(self, pack: Pack, data: Dataset, device: torch.device) -> None:
        """Prepare the network, and try it on public test records."""
        super().__init__(pack, data, device)
        (self.config,) = pack.trials
        records = self.test_inputs.batch(torch.arange(min(TRIED, len(data.test_y)), device=device))
        alone = Alone(self.net.segments, self.net.n_classes)
        check(in_words(own(self.config)), self.net.way, alone, records.view(-1, *self.net.shape), self.net.chunk)

    def _network(self) -> Any:
        return OwnNet(self.pack.shared, initial_module(self.pack.shared).to(self.device))

    @cached_property
    def _true_gradient(self) -> Way:
        return self.net.true_gradient()

    def run_epoch(self) -> list[EpochRecord]:
        """Train one epoch as `Training` does; on one thread if bits are covered, as others split tensors elsewhere."""
        n_threads = torch.get_num_threads()
        torch.set_num_threads(1 if self.config.secure else n_threads)
        try:
            return super().run_epoch()
        finally:
            torch.set_num_threads(n_threads)

    def step(self, indices: Tensor, measure_alignment: bool = False) -> tuple[Tensor, Tensor | None]:
        """Train on one batch, some records at a time; arguments and result as of `Training.step`."""
        places, usable = indices[0][indices[0] != ABSENT], self.train_inputs.usable
        if usable is not None:
            places = places[usable[places]]
        labels = self.canaries.labels[0] if self.canaries else self.data.train_y
        of_feedback = None
        if measure_alignment and self.config.disclosure == "plain":
            of_feedback = self._alignment_over(self.train_inputs, labels, places)
        elif measure_alignment:
            of_feedback = self._alignment_over(self.test_inputs, self.data.test_y, self._next_test_places())
        self.update.flat.zero_()
        total = torch.zeros(1, device=self.device)  # of losses
        for chunk in places.split(self.net.chunk):
            x, y, present = self._filled(self.train_inputs.batch(chunk), labels[chunk])
            self._add(x, self._signals_of(y, present, total), present)
        if isinstance(self.mechanism, GaussianStep):
            self._sum.publish(self.update)
        return total / max(len(places), 1), self._take_step(of_feedback)

    def _filled(self, x: Tensor, y: Tensor,  # [k, n_0], [k]
                size: int = 0) -> tuple[Tensor, Tensor, Tensor]:  # n; 0 for that of the training's chunks
        """Return records [n, *shape], their labels [n], and whether each is one [n]; the others are padding."""
        x, y, present = filled(size or self.net.chunk, x, y, torch.ones_like(y, dtype=torch.bool))
        return x.view(-1, *self.net.shape), y, present

    def _error(self, logits: Tensor, y: Tensor, present: Tensor) -> tuple[Tensor, Tensor]:
        """Return the errors [1, n, n_classes], 0 for padding, and the sum of losses [1]."""
        error, loss = self.loss(logits[None], y[None], present.float()[None, :, None])
        return error, loss * present.sum()

    def _signals_of(self, y: Tensor, present: Tensor, total: Tensor) -> Callable[[Tensor], list[Tensor]]:
        """Return a function from logits to the signals of the segments [n, n_k]; it adds the losses to `total`."""
        def signals_of(logits: Tensor) -> list[Tensor]:
            error, loss = self._error(logits, y, present)
            total.add_(loss)
            signals = self.mechanism.perturb(self.feedback.signals(self.mechanism.error(error)))
            return [signal[0] for signal in signals]
        return signals_of

    def _add(self, x: Tensor, signals_of: Callable[[Tensor], list[Tensor]], present: Tensor) -> None:
        """Add bounded contributions, none that is not finite, to `update` or, as integers, to the mechanism's sum."""
        gradients = self.net.way.gradients(x, signals_of)
        if isinstance(self.mechanism, GaussianStep):
            self._sum.add(self.mechanism.factor, gradients, present, self.update)
        else:
            add_all(gradients, self.update.row[0], (present / self.config.batch_size).float())

    @property
    def _sum(self) -> FloatSum | RowSum:
        """The Gaussian mechanism's sum; integer arithmetic has no networks of users."""
        return cast("FloatSum | RowSum", cast("GaussianStep", self.mechanism).sum)

    def _alignment_over(self, inputs: Inputs, labels: Tensor, places: Tensor) -> Tensor:
        """Write the true gradient over some records to `gradient`; return the alignment of the feedback's update."""
        for feedback, way, out in ((BackPropagationPath(), self._true_gradient, self.gradient),
                                   (self.feedback, self.net.way, self.update)):
            out.flat.zero_()
            size = way.chunk(self.net.chunk)
            for chunk in places.split(size):
                x, y, present = self._filled(inputs.batch(chunk), labels[chunk], size)
                gradients = way.gradients(x, self._plain_signals_of(feedback, y, present))
                add_all(gradients, out.row[0], present.float() / self.config.batch_size)
        return cosines(self.update, self.gradient)

    def _plain_signals_of(self, feedback: FeedbackPath, y: Tensor, present: Tensor) -> Callable[[Tensor], list[Tensor]]:
        """Return a function from logits to the signals of a feedback, without the mechanism's bounds and noise."""
        return lambda logits: [signal[0] for signal in feedback.signals(self._error(logits, y, present)[0])]

    def _tags(self, r: int) -> Mapping[str, str]:
        """Return the tags of `Training`, and how contributions are computed."""
        tags = super()._tags(r)
        if not tags:
            return tags
        is_reviewed = isinstance(self.net.way, Alone) or is_reviewed_here(self.device)
        return with_own_network(tags, self.net.why_alone, is_reviewed)

    def _weights(self, r: int) -> dict[str, np.ndarray]:
        """Return the module's parameters by name; buffers are as they were built."""
        return {name: value.detach().cpu().to(STORED.get(value.dtype, value.dtype)).numpy()
                for name, value in self.net.module.named_parameters()}
