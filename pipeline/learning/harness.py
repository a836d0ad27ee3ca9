"""Run a user's trainer: pass it its training data, evaluate the models that it yields, and check both.

docs/trainers.md lists what these checks cannot see.
"""

from __future__ import annotations

import contextlib
import math
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import GeneratorType
from typing import Any

import numpy as np
import torch

from pipeline.accounting.certified import with_noise
from pipeline.learning.canaries import CanaryScores
from pipeline.learning.data.dataset import Dataset
from pipeline.learning.data.sampling import ABSENT
from pipeline.learning.handed import ROWS_AT_ONCE, Contributions, Epoch, TrialContext, packed_state, unpacked_state
from pipeline.learning.own_code import GlobalRandomness, TrainerError, TrainerFailed, array_of, has_batch_statistics
from pipeline.learning.randomness import Noise
from pipeline.learning.run import Run
from pipeline.trials.packs import Pack
from pipeline.trials.trainer import check_packages

LOGIT_TOLERANCE = 1e-3  # largest change of a logit with its batch, relative to the largest logit: allows for rounding
N_COMPARED = 16  # test records with compared logits


class Harness(Run):
    """One trial of a user's trainer."""

    def __init__(self, pack: Pack, data: Dataset, device: torch.device) -> None:
        """Prepare the trial's data, its view for the trainer, and its generators; the trainer itself begins later.

        A certified trainer (one with `parameters`) gets `contributions`, another gets the records.
        """
        super().__init__(pack, data, device)
        (trial,) = pack.trials
        self.config = with_noise(trial)
        self.trainer, self.shape = self.config.parts.trainer, self.config.parts.features.shape(self.config)
        check_packages(self.config)
        self.randomness = GlobalRandomness(self.config.seed, device)
        self.contributions: Contributions | None = None
        if self.trainer.parameters:
            inputs, labels = self._tried_records(ROWS_AT_ONCE)
            self.contributions = Contributions(self.config, self.records[0], self._fetch,
                                               (inputs.view(-1, *self.shape), labels), self.randomness)
        self.context = TrialContext(self.config, self.contributions)
        self.epochs_generator: GeneratorType[Any, Any, Any] | None = None  # of the trainer, which yields its epochs
        self.yielded: Epoch | None = None
        self.canary_scores: CanaryScores | None = None
        if self.canaries:
            self.canary_scores = CanaryScores(self.canaries, data, self.train_inputs, self.test_inputs)
        self.net = self  # `Evaluation` calls `forward`
        self._line = 0  # of the trainer's file, reached last; 0 if unknown
        self._update_length = 0  # of the first `release_step`; 0 before it

    def _fetch(self, indices: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the records [n, *shape] and labels [n] at these indices, without records of unusable features."""
        if self.train_inputs.usable is not None:
            indices = indices[self.train_inputs.usable[indices]]
        labels = self.canaries.labels[0] if self.canaries else self.data.train_y
        return self.train_inputs.batch(indices).view(-1, *self.shape), labels[indices]

    def close(self) -> None:
        """End the trainer's generator."""
        if self.epochs_generator:
            with self._line_in_errors(), self.randomness.installed():
                self.epochs_generator.close()

    @property
    def rounded_rows(self) -> bool:  # type: ignore[override]  # `Run` has a constant
        """Whether a certified trainer's rows are independent only up to rounding."""
        return self.contributions is not None and self.contributions.rounded_rows

    @property
    def resumable(self) -> bool:
        """Whether training can resume from here in another process."""
        return self.yielded is not None and self.yielded.state is not None

    def noise_sources(self) -> list[Noise]:
        released = self.contributions.noise_sources() if self.contributions else []
        return [*released, *self.evaluation.noise_sources()]

    def _state(self) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        """Return the last yielded state and the states of all generators; secret noise has none."""
        generators = [[stream, device, generator.get_state()]
                      for (stream, device), generator in self.context.generators.items()]
        content = {"state": self._last_epoch.state, "global": self.randomness.state, "generators": generators}
        tensors: dict[str, torch.Tensor] = {}
        with self._line_in_errors():
            packed = packed_state(content, tensors)
        if self.canary_scores:
            tensors["canaries"] = torch.from_numpy(self.canary_scores.total)
        return tensors, {"sampler": self.contributions.sampler.state() if self.contributions else [], "trainer": packed}

    def _restore(self, arrays: Mapping[str, np.ndarray], values: Mapping[str, Any]) -> None:
        """Load a checkpoint, before the first epoch of a process that resumes the trial.

        The generators are restored later: when the trainer first reads `epochs_left`. Until then it draws initial
        weights and the like, and must draw the same ones as in the first process.
        """
        trainer_state = unpacked_state(values["trainer"], arrays)
        self.context.state, self.context.epochs_done = trainer_state["state"], self.epoch

        def restore_generators() -> None:
            self.randomness.set_global(trainer_state["global"])  # the generators of Python, NumPy and torch
            for stream, device, generator_state in trainer_state["generators"]:
                self.context.generator(stream, device).set_state(generator_state)

        self.context.restore_generators = restore_generators
        if self.canary_scores:
            self.canary_scores.total = arrays["canaries"].copy()
        if self.contributions:
            self.contributions.sampler.restore(values["sampler"])

    def _train_epoch(self) -> Mapping[str, float]:
        """Get the next model from the trainer's generator, check and score it; return its metrics."""
        if self.epochs_generator is None:
            self.epochs_generator = self._start_trainer()
        yielded = self._next(self.epochs_generator)
        if yielded is None:
            raise self._error(f"yields {self.epoch} times; must yield once for each of {self.config.epochs} epochs")
        self.yielded = yielded if isinstance(yielded, Epoch) else Epoch(yielded)
        self._check_model(self.yielded.model)
        number, n_epochs = self.epoch + 1, self.config.epochs
        if self.canary_scores and number > n_epochs / 2:  # later models remember the canaries best
            logits = self._canary_logits()
            self._check_finite(logits)  # with canaries, `private_metrics` is plain
            self.canary_scores.add(logits)
        if self.contributions:
            with self._line_in_errors():
                self.contributions.end_epoch()
        if self.context.restore_generators:  # still set: reading `trial.epochs_left` removes it
            raise self._error("resumes from a state but never reads `trial.epochs_left`, which restores the generators")
        if number == n_epochs:
            if self.contributions:
                self.contributions.is_finished = True  # no accountant would cover further batches
            if self._next(self.epochs_generator) is not None:
                raise self._error(f"yields more than once for each of {n_epochs} epochs; must end after the last")
        return self._public_metrics(self.yielded.metrics)

    def _start_trainer(self) -> GeneratorType[Any, Any, Any]:
        """Return the trainer's generator before its first step; a certified trainer gets no records here."""
        data: tuple[torch.Tensor, ...] = ()
        if self.contributions is None:
            indices = self.records[0][self.records[0] != ABSENT]
            data = self._fetch(torch.from_numpy(indices).to(self.device))
        generator: GeneratorType[Any, Any, Any] = self.trainer.works(self.context, *data, self.device)
        return generator

    @property
    def _last_epoch(self) -> Epoch:
        """Return the trainer's last yielded epoch."""
        if self.yielded is None:
            raise RuntimeError(f"trainer '{self.trainer.name}' has not yielded anything yet")
        return self.yielded

    def _next(self, generator: GeneratorType[Any, Any, Any]) -> Any:
        """Return the next value that the trainer's generator yields; None at its end."""
        with self._line_in_errors(), self.randomness.installed():
            try:
                yielded = next(generator)
            except StopIteration:
                return None
        if generator.gi_frame:
            self._line = generator.gi_frame.f_lineno
        if yielded is None:
            raise self._error("yields None; must be a model: what maps records to logits")
        return yielded

    def release_step(self, records: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Run the trainer's `step` on a batch [n, *shape] with labels [n]; return the update that it releases [d].

        The noise is fresh. Initial weights are the same at every call: the `init` generators restart.
        """
        step = self.trainer.step
        if step is None:
            raise self._error("has no step whose releases could be told apart")
        for stream, device in [*self.context.generators]:
            if stream == "init":
                del self.context.generators[stream, device]
        with self._line_in_errors(), self.randomness.installed():
            update = step(self.context, records, labels, self.device)
        if isinstance(update, torch.Tensor):
            got, is_vector = f"{update.dtype} {list(update.shape)}", update.ndim == 1 and update.is_floating_point()
        else:
            got, is_vector = repr(update)[:80], False
        length = self._update_length  # 0 before the first release: any positive length is accepted
        if not is_vector or len(update) != (length or max(len(update), 1)):
            raise self._error(f"gives {got} as a step; must be the released update, floating point [{length or 'd'}]")
        if not torch.isfinite(update).all():
            raise self._error(f"gives nan as a step, of a batch of {len(labels)}")
        self._update_length = len(update)
        return update.detach()

    def _error(self, text: str, got: str = "") -> TrainerError:
        """Return an error about the trainer, with its name and the place in its file; `got` may be private."""
        line = self._line or self.trainer.works.__code__.co_firstlineno
        error = TrainerError(f"trainer '{self.trainer.name}' {text}", got)
        error.place = f"{Path(self.trainer.source).name}:{line}"
        return error

    @contextlib.contextmanager
    def _line_in_errors(self) -> Iterator[None]:
        """Add the line in the trainer's file to errors that the trainer raises within the context."""
        try:
            yield
        except (Exception, SystemExit) as error:
            if getattr(error, "place", ""):  # has its line already
                raise
            lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__)
                     if frame.filename == self.trainer.source and frame.lineno]
            self._line = lines[-1] if lines else self._line
            if isinstance(error, TrainerError):
                raise self._error(error.public, error.got) from error
            failed = TrainerFailed(f"trainer '{self.trainer.name}': {type(error).__name__}: {error}")
            failed.place = self._error("").place
            raise failed from error

    def _check_model(self, model: Any) -> None:
        """Check that the model that the trainer just yielded is a finite function of one record at a time."""
        if not callable(model):
            raise self._error("yields no model, which maps records to logits", f"a {type(model).__name__}")
        for name, layer in model.named_modules() if isinstance(model, torch.nn.Module) else ():
            if has_batch_statistics(layer):  # no noise protects them
                raise self._error(f"yields a module whose layer '{name}' ({type(layer).__name__}) has statistics of "
                                  "whole batches of private records; use GroupNorm or LayerNorm")
        self._check_records_are_separate()
        parameters = dict(self._module.named_parameters()) if self._module else {}
        for name, values in self._weights(0).items():  # a buffer may be infinite, as causal masks are
            if name in parameters and not np.isfinite(values).all():
                raise self._error(f"yields nan: parameter '{name}' is not finite")

    def _check_records_are_separate(self) -> None:
        """Refuse a model with logits that depend on the other records of the batch, measured on a few test records.

        The logits of one batch are compared with those of the same records in two batches: the first, and the others.
        """
        indices = torch.arange(min(N_COMPARED, len(self.data.test_y)), device=self.device)
        inputs = self.test_inputs.batch(indices[None])  # [1, m, n_0]
        in_one_batch = self.forward(inputs)[1]
        self._check_finite(in_one_batch)
        in_two_batches = torch.cat([self.forward(inputs[:, :1])[1], self.forward(inputs[:, 1:])[1]], dim=1)
        scale = max(in_one_batch.abs().max().item(), 1e-30)  # not 0, as it divides
        difference = (in_one_batch - in_two_batches).abs().max().item() / scale
        if difference > LOGIT_TOLERANCE:
            raise self._error(f"yields a model whose logits of a record change by {difference:.2g} of their size with "
                              "the batch that the record is in, or from call to call; must be a function of one record")

    def _check_finite(self, logits: torch.Tensor) -> None:
        """Refuse logits that are not finite, of test records or canaries.

        Those of validation records, which are private, decide nothing: `Evaluation` counts such a record as wrong.
        """
        if not torch.isfinite(logits).all():
            raise self._error("yields nan: logits of records are not finite")

    def forward(self, x: torch.Tensor) -> tuple[None, torch.Tensor]:
        """Return the logits [1, m, classes] of inputs [1, m, n_0], for `Evaluation`."""
        n_records, n_classes = x.shape[1], self.data.spec.n_classes
        with self._line_in_errors(), self.randomness.settings_installed(), torch.no_grad():
            logits = _in_evaluation_mode(self._last_epoch.model, x[0].view(-1, *self.shape))
        shape = list(logits.shape) if isinstance(logits, torch.Tensor) else f"a {type(logits).__name__}"
        if shape != [n_records, n_classes]:
            raise self._error(f"yields a model that must give logits [n, {n_classes}] for n records",
                              f"{shape} for {n_records} records")
        return None, logits.detach().float()[None]

    def _public_metrics(self, metrics: Mapping[str, float]) -> dict[str, float]:
        """Return the trainer's metrics that may be logged, as `trainer/<name>`; these must be finite numbers.

        With disclosure `plain` all may be logged, else only those that the trainer declares public. The others may
        depend on private records, so that nothing looks at them.
        """
        if not isinstance(metrics, Mapping):
            raise self._error("yields metrics that are no dict of numbers by name", f"a {type(metrics).__name__}")
        names = metrics if self.config.disclosure == "plain" else self.trainer.public
        public = {name: value for name, value in metrics.items() if name in names}
        for name, value in public.items():
            if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
                raise self._error(f"yields metric '{name}' that is no finite number", f"{value!r}"[:80])
        return {f"trainer/{name}": float(value) for name, value in public.items()}

    def _metrics(self, r: int, trained: Mapping[str, float]) -> dict[str, float]:
        return dict(trained)

    def _finite(self) -> list[bool]:
        return [True]  # `_check_model` refuses others

    @property
    def _module(self) -> torch.nn.Module | None:
        """Return the last yielded model if it is a `torch.nn.Module`, without the wrapper of Opacus."""
        model: Any = self._last_epoch.model
        if any(cls.__module__.startswith("opacus.") for cls in type(model).__mro__):
            model = getattr(model, "_module", model)
        return model if isinstance(model, torch.nn.Module) else None

    def _weights(self, r: int) -> dict[str, np.ndarray]:
        """Return the last model's parameters and buffers by name; empty if it is not a `torch.nn.Module`."""
        weights = {}
        for name, value in self._module.state_dict().items() if self._module else ():
            try:
                weights[name] = array_of(value)
            except TypeError as error:
                raise self._error(f"yields a module with '{name}' in its state, which no file of weights can hold; "
                                  "yield a function of records in its place, whose weights are not kept",
                                  str(error)) from None
        return weights

    def _canary_scores(self) -> np.ndarray:
        """Return the unexplained log-probability of each canary's wrong label [1, k]; k = 0 without canaries."""
        return self.canary_scores.scores()[None] if self.canary_scores else np.empty((1, 0))


def _in_evaluation_mode(model: Any, records: torch.Tensor) -> Any:
    """Return the model's output for the records; modules in training mode are in evaluation mode meanwhile."""
    if not isinstance(model, torch.nn.Module):
        return model(records)
    modes = [(module, module.training) for module in model.modules()]
    if any(training for _, training in modes):
        model.eval()
    output = model(records)
    for module, training in modes:  # a module's own `train` may do more than set the mode
        if module.training != training:
            module.train(training)
    for module, training in modes:  # `train` also changed the modes of parts
        module.training = training
    return output
