"""Run a user's trainer: pass it its training data, evaluate the models that it yields, and check both.

docs/trainers.md lists what these checks cannot see.
"""

from __future__ import annotations

import contextlib
import math
import traceback
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from types import GeneratorType
from typing import Any

import numpy as np
import torch
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase

from pipeline.accounting.certified import with_noise
from pipeline.learning.canary_scores import CanaryScores
from pipeline.learning.data.dataset import Dataset
from pipeline.learning.data.sampling import ABSENT
from pipeline.learning.evaluation import EVALUATION_BATCH
from pipeline.learning.handed import (
    Contributions,
    Epoch,
    GlobalRandomness,
    TrainerError,
    TrainerFailed,
    TrialContext,
    packed_state,
    unpacked_state,
)
from pipeline.learning.randomness import Noise
from pipeline.learning.run import Run
from pipeline.trials.packs import Pack
from pipeline.trials.trainer import check_packages

ALIKE = 1e-3  # largest change of a logit with the batch, relative to the largest logit: it allows for rounding
LOOKED_AT = 16  # test records with compared logits


class Harness(Run):
    """One trial of a user's trainer."""

    def __init__(self, pack: Pack, data: Dataset, device: torch.device, rungs: Collection[int] = ()) -> None:
        """Prepare the trial's data, its view for the trainer, and its generators; the trainer itself begins later.

        A certified trainer (one with `parameters`) gets `contributions`, another gets the records.
        """
        super().__init__(pack, data, device, rungs)
        (self.config,) = (with_noise(trial) for trial in pack.trials)
        self.trainer, self.shape = self.config.parts.trainer, self.config.parts.features.shape(self.config)
        check_packages(self.config)
        self.contributions = (Contributions(self.config, self.records[0], self._fetch, device)
                              if self.trainer.parameters else None)
        self.handed = TrialContext(self.config, self.contributions)
        self.randomness = GlobalRandomness(self.config.seed, device)
        self.training: GeneratorType[Any, Any, Any] | None = None
        self.yielded: Epoch | None = None
        self.known = (CanaryScores(self.canaries, data, self.train_inputs, self.test_inputs) if self.canaries
                      else None)
        self.net = self

    def _fetch(self, indices: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return usable records [n, *shape] and labels [n] at indices [n]; n may shrink."""
        if self.train_inputs.usable is not None:
            indices = indices[self.train_inputs.usable[indices]]
        labels = self.canaries.labels[0] if self.canaries else self.data.train_y
        return self.train_inputs.batch(indices).view(-1, *self.shape), labels[indices]

    def close(self) -> None:
        """End the trainer's generator."""
        if self.training:
            with self._at_its_line(), self.randomness.drawn_from():
                self.training.close()

    @property
    def resumable(self) -> bool:
        """Whether training can resume from here in another process."""
        return self.yielded is not None and self.yielded.state is not None

    def noise_sources(self) -> list[Noise]:
        """Return every noise source, always in the same order."""
        return [*(self.contributions.noise_sources() if self.contributions else []),
                *([self.evaluation.noise] if self.evaluation.noise else [])]

    def capture(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Return the last yielded state and the states of all generators; secret noise has none."""
        content = {"state": self._last.state, "global": self.randomness.state,
                   "generators": [[*key, own.get_state()] for key, own in self.handed.generators.items()]}
        tensors: dict[str, torch.Tensor] = {}
        with self._at_its_line():
            packed = packed_state(content, tensors)
        for k, source in enumerate(self.noise_sources()):
            tensors |= {f"noise_{k}.{name}": value for name, value in source.state().items()}
        if self.known:
            tensors["canaries"] = torch.from_numpy(self.known.total)
        sampler = self.contributions.sampler.state() if self.contributions else []
        return ({name: value.detach().cpu().numpy().copy() for name, value in tensors.items()},
                {"epoch": self.epoch, "active": self.active, "sampler": sampler, "trainer": packed})

    def restore(self, arrays: Mapping[str, np.ndarray], values: Mapping[str, Any]) -> None:
        """Load a checkpoint, before the first epoch of a process that resumes the trial.

        The generators are restored later: when the trainer first reads `epochs_left`. Until then it draws initial
        weights and the like, and must draw the same ones as in the first process.

        Args:
            arrays: the arrays that `capture` returned, by name.
            values: the other values that `capture` returned: the epoch, the active trials, and the sampler's and the
                trainer's state.
        """
        trainer_state = unpacked_state(values["trainer"], arrays)
        self.handed.state = trainer_state["state"]

        def restore_generators() -> None:
            self.randomness.put(trainer_state["global"])  # the generators of Python, NumPy and torch
            for stream, device, generator_state in trainer_state["generators"]:
                self.handed.generator(stream, device).set_state(generator_state)

        self.handed.restore_generators = restore_generators
        for k, source in enumerate(self.noise_sources()):
            prefix = f"noise_{k}."  # as `capture` names the arrays of this noise source
            source.restore({name.removeprefix(prefix): torch.from_numpy(array)
                            for name, array in arrays.items() if name.startswith(prefix)})
        if self.known:
            self.known.total = arrays["canaries"].copy()
        if self.contributions:
            self.contributions.sampler.restore(values["sampler"])
        self.epoch = self.handed.epochs_done = values["epoch"]
        self.active = list(values["active"])

    def _train_epoch(self) -> Mapping[str, float]:
        """Get the next model from the trainer; return its metrics."""
        if self.training is None:
            self.training = self._begun()
        yielded = self._next(self.training)
        if yielded is None:
            raise self._error(f"yields {self.epoch} times; must yield once for each of {self.config.epochs} epochs")
        self.yielded = yielded if isinstance(yielded, Epoch) else Epoch(yielded)
        self._check_model(self.yielded.model)
        if self.known and self.canaries and 2 * (self.epoch + 1) > self.config.epochs:  # late models know canaries best
            self.known.add(torch.cat([self.forward(self.train_inputs.batch(part))[1] for part in
                                      self.canaries.indices.split(EVALUATION_BATCH, dim=1)], dim=1))
        if self.contributions:
            with self._at_its_line():
                self.contributions.end_epoch()
        if self.handed.restore_generators:
            raise self._error("resumes from a state but never reads `trial.epochs_left`, which restores the generators")
        if self.epoch + 1 == self.config.epochs:
            self._end(self.training)
        return self._own_metrics(self.yielded.metrics)

    def _begun(self) -> GeneratorType[Any, Any, Any]:
        """Return the trainer's generator before its first step."""
        begun: GeneratorType[Any, Any, Any]  # `trainer` has checked this
        if self.contributions:
            begun = self.trainer.works(self.handed, self.device)
        else:
            own = torch.from_numpy(self.records[0][self.records[0] != ABSENT]).to(self.device)
            begun = self.trainer.works(self.handed, *self._fetch(own), self.device)
        return begun

    @property
    def _last(self) -> Epoch:
        """Return the trainer's last yielded epoch.

        Raises:
            RuntimeError: before the first epoch.
        """
        if self.yielded is None:
            raise RuntimeError(f"trainer '{self.trainer.name}' has not yielded anything yet")
        return self.yielded

    def _end(self, training: GeneratorType[Any, Any, Any]) -> None:
        """Let the trainer end after its last epoch; no accountant covers what it does then."""
        if self.contributions:
            self.contributions.over = True
        if self._next(training) is not None:
            raise self._error(f"yields more than once for each of {self.config.epochs} epochs; must end after the last")

    def _next(self, training: GeneratorType[Any, Any, Any]) -> Any:
        """Return the trainer's next yield; None at its end."""
        with self._at_its_line(), self.randomness.drawn_from():
            for yielded in training:
                if frame := training.gi_frame:
                    self._line = frame.f_lineno
                if yielded is None:
                    raise self._error("yields None; must be a model: what maps records to logits")
                return yielded
        return None

    def released(self, records: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Return one release [d] of the trainer's `step` on a batch: fresh noise, same weights from stream `init`.

        Args:
            records, labels: the batch, [n, *shape] and [n].

        Raises:
            TrainerError: if the trainer has no `step`, or the result is not a finite vector of floats.
        """
        step = self.trainer.step
        if step is None:
            raise self._error("has no step whose releases could be told apart")
        for key in [key for key in self.handed.generators if key[0] == "init"]:
            del self.handed.generators[key]
        with self._at_its_line(), self.randomness.drawn_from():
            update = step(self.handed, records, labels, self.device)
        if not isinstance(update, torch.Tensor) or not update.is_floating_point() or update.shape != (
                self._d or max(update.numel(), 1),):
            what = f"{update.dtype} {list(update.shape)}" if isinstance(update, torch.Tensor) else repr(update)[:80]
            raise self._error(f"gives {what} as a step; must be the released update, floating point "
                              f"[{self._d or 'd'}]")
        if not torch.isfinite(update).all():
            raise self._error(f"gives nan as a step, of a batch of {len(labels)}")
        self._d = len(update)
        return update.detach()

    _line = _d = 0

    def _error(self, text: str, got: str = "") -> TrainerError:
        line = self._line or self.trainer.works.__code__.co_firstlineno
        error = TrainerError(f"trainer '{self.trainer.name}' {text}", got)
        error.place = f"{Path(self.trainer.source).name}:{line}"
        return error

    @contextlib.contextmanager
    def _at_its_line(self) -> Iterator[None]:
        """Add the line in the trainer's file to errors raised in the context."""
        try:
            yield
        except (Exception, SystemExit) as error:
            if getattr(error, "place", ""):
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
        """Refuse a model that is not a function of one record at a time."""
        if not callable(model):
            raise self._error("yields no model, which maps records to logits", f"a {type(model).__name__}")
        for name, module in model.named_modules() if isinstance(model, torch.nn.Module) else ():
            if isinstance(module, _BatchNorm) or (isinstance(module, _NormBase) and module.track_running_stats):
                raise self._error(f"yields a module whose layer '{name}' ({type(module).__name__}) has statistics of "
                                  "whole batches of private records; use GroupNorm or LayerNorm")
        places = torch.arange(min(LOOKED_AT, len(self.data.test_y)), device=self.device)
        inputs = self.test_inputs.batch(places[None])
        together = self.forward(inputs)[1][0]
        apart = torch.cat([self.forward(inputs[:, part])[1][0] for part in places.split([1, len(places) - 1])])
        scale = max(together.abs().max().item(), 1e-30)
        if (difference := (together - apart).abs().max().item() / scale) > ALIKE:
            raise self._error(f"yields a model whose logits of a record change by {difference:.2g} of their size with "
                              "the batch that the record is in, or from call to call; must be a function of one record")
        for name, values in self._weights(0).items():
            if not np.isfinite(values).all():
                raise self._error(f"yields nan: parameter '{name}' is not finite")

    @torch.no_grad()
    def forward(self, x: torch.Tensor) -> tuple[None, torch.Tensor]:
        """Return the logits [1, m, classes] of inputs [1, m, n_0], for `Evaluation`.

        Raises:
            TrainerError: if the model's result has another shape or is not finite.
        """
        model, classes = self._last.model, self.data.spec.n_classes
        learning = model if isinstance(model, torch.nn.Module) and model.training else None
        with self._at_its_line():
            if learning is not None:
                learning.eval()
            logits = model(x[0].view(-1, *self.shape))
            if learning is not None:
                learning.train()
        if not isinstance(logits, torch.Tensor) or logits.shape != (x.shape[1], classes):
            got = list(logits.shape) if isinstance(logits, torch.Tensor) else f"a {type(logits).__name__}"
            raise self._error(f"yields a model that must give logits [n, {classes}] for n records", f"{got} for "
                              f"{x.shape[1]} records")
        if not torch.isfinite(logits).all():
            raise self._error("yields nan: logits of records are not finite")
        return None, logits.detach().float()[None]

    def _own_metrics(self, metrics: Mapping[str, float]) -> dict[str, float]:
        """Return the metrics that may be logged, as `trainer/<name>`."""
        for name, value in metrics.items():
            if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
                raise self._error(f"yields metric '{name}' that is no finite number", f"{value!r}"[:80])
        open_to_all = self.config.disclosure == "plain"
        return {f"trainer/{name}": float(value) for name, value in metrics.items()
                if open_to_all or name in self.trainer.public}

    def _metrics(self, r: int, trained: Mapping[str, float]) -> dict[str, float]:
        return dict(trained)

    def _finite(self) -> list[bool]:
        return [True]  # `_check_model` refuses others

    def _weights(self, r: int) -> dict[str, np.ndarray]:
        """Return a module's parameters and buffers by name; empty for another callable."""
        model: Any = self._last.model
        model = getattr(model, "_module", model)  # Opacus wraps it
        if not isinstance(model, torch.nn.Module):
            return {}
        return {name: value.detach().cpu().numpy() for name, value in model.state_dict().items()}

    def _canary_scores(self) -> np.ndarray:
        """Return the unexplained log-probability of each canary's wrong label [1, k]; k = 0 without canaries."""
        return self.known.scores()[None] if self.known else np.empty((1, 0))
