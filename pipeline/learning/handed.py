"""The arguments of a user's trainer, and the values that it yields (docs/trainers.md)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from pipeline.learning.data.sampling import ABSENT, BatchSampler
from pipeline.learning.mechanisms import make_mechanism
from pipeline.learning.network.layers import make_layer
from pipeline.learning.network.network import Network
from pipeline.learning.own_code import (
    TRIED_BATCHES,
    GlobalRandomness,
    RowsFunction,
    TrainerError,
    array_of,
    check_rows,
    in_chunks,
    rows_are_separate,
)
from pipeline.learning.randomness import Noise, torch_generator
from pipeline.trials.config import TrialConfig
from pipeline.trials.packs import Pack
from pipeline.trials.shapes import dense_shapes, n_parameters

ROWS_AT_ONCE = 64  # records in one call of the function that `TrialContext.rows` is given


@dataclass(frozen=True)
class Epoch:
    """The result of a trainer's epoch: a model with metrics and state. A trainer may also yield the model alone.

    Attributes:
        model: maps records [n, *shape] to logits [n, classes]. The weights of a `torch.nn.Module` are saved.
        metrics: finite numbers by name, logged as `trainer/<name>`. They count as private unless the trainer's `public`
            says why they may be known.
        state: tensors, numbers, texts, and lists and dicts of them. After a restart it is `trial.state`, and training
            resumes from it. Without a state the trial starts again from its first epoch.

    Example:
        >>> Epoch(lambda records: records, metrics={"steps": 20}).state is None
        True
    """

    model: Callable[[torch.Tensor], torch.Tensor]
    metrics: Mapping[str, float] = field(default_factory=dict)
    state: Any = None


class TrialContext:
    """A trial as its trainer sees it. Every setting is an attribute, with the noise that a target epsilon gives.

    Attributes:
        epochs_done: epochs before a restart; 0 at the start.
        state: the state yielded after those epochs; None at the start.
    """

    def __init__(self, config: TrialConfig, contributions: Contributions | None) -> None:
        self._config, self._contributions = config, contributions
        self.epochs_done, self.state = 0, None
        self.generators: dict[tuple[str, str], torch.Generator] = {}
        self.restore_generators: Callable[[], None] | None = None  # set after a restart

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_config"], name)

    @property
    def epochs_left(self) -> range:
        """Return the numbers of the epochs left to train, from `epochs_done` on.

        After a restart, reading this restores the generators. Draws before it, such as initial weights, are repeated.
        """
        if self.restore_generators:
            self.restore_generators()
            self.restore_generators = None
        return range(self.epochs_done, self._config.epochs)

    def generator(self, stream: str = "noise", device: torch.device | str = "cpu") -> torch.Generator:
        """Return the trial's generator of a stream, always the same one: `noise`, `sampling`, `init` or `feedback`.

        Raises:
            TrainerError: for another stream. A certified trainer gets only `init` and `feedback`: with the generator of
                the noise it could repeat the noise and subtract it.
        """
        accepted: tuple[str, ...] = ("noise", "sampling", "init", "feedback")
        if self._contributions:
            accepted = ("init", "feedback")
        if stream not in accepted:
            raise TrainerError(f"generator: must be one of {', '.join(accepted)}, got '{stream}'")
        device = torch.device(device)
        key = stream, f"{device.type}:{device.index or 0}"
        if key not in self.generators:
            self.generators[key] = torch_generator(self._config.seed, stream, device)
        return self.generators[key]

    def batches(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yield an epoch's batches to a certified trainer: records [n, *shape], labels [n]; n varies and may be 0."""
        return self._certified_contributions().batches()

    def rows(self, function: RowsFunction, records: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Return the contributions [n, d] of a batch's records, for `release`; the function sees 64 records at a time.

        In float32 the last bits of a row may depend on the batch's size. Here every call has the same shapes: zeros
        fill the last one. At the first two batches of every epoch the function is tried on test records: whether
        permuted, missing or other neighbours change a bit of a row. The tag `privacy.certified` is `true` only if none
        does, and if records and labels come as `batches` gave them.

        Args:
            function: maps records [64, *shape] and labels [64] to contributions [64, d]; row i is of record i alone.
            records, labels: a batch of `batches`.

        Raises:
            TrainerError: for rows of another shape or type.
        """
        return self._certified_contributions().rows(function, records, labels)

    def release(self, contributions: torch.Tensor) -> torch.Tensor:
        """Return the noisy mean [d] of a batch's bounded contributions, for a certified trainer.

        Call it once per batch, also for an empty batch. The sum is divided by the public m.

        Args:
            contributions: [n, d], the result of `rows`; row i is the contribution of record i, which is bounded here.
        """
        return self._certified_contributions().release(contributions)

    def _certified_contributions(self) -> Contributions:
        """Return the batches and releases of a certified trainer; an error for other trainers."""
        if self._contributions is None:
            raise TrainerError("batches, rows and release are of trainers that hand in contributions (per_record)")
        return self._contributions


class Flat(Network):
    """Contributions of d numbers as mechanisms see them: biases of one layer without inputs and weights."""

    def __init__(self, config: TrialConfig) -> None:
        self.sizes = (0, n_parameters(config.layers))
        self.layers = [make_layer(shape) for shape in dense_shapes(self.sizes)]


class Contributions:
    """Draws the batches of a certified trainer and releases the contributions of their records.

    The mechanism sees one layer with d units and no inputs: a contribution is a gradient of the biases alone. Its norm
    is therefore the norm of the row.

    Attributes:
        rounded_rows: whether rows were released that did not come from `rows` as they are, or whose bits depend on
            their neighbours. It sees mistakes: a trainer that means to can deceive it.
    """

    def __init__(self, config: TrialConfig, records: np.ndarray,  # with its noise; training records [N], or `ABSENT`
                 fetch: Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]],  # from indices
                 tried: tuple[torch.Tensor, torch.Tensor],  # 96 test records and labels, on which functions are tried
                 randomness: GlobalRandomness) -> None:
        device = tried[0].device
        self.sampler = BatchSampler(config.sampler, [records], [config.seed], config.batch_size,
                                    config.steps_per_epoch, device, secure=config.secure)
        net = Flat(config)
        self.mechanism = make_mechanism(Pack((config,)), net, device)
        self._update = net.blank_parameters(1, device)  # overwritten by every release
        self._fetch, self._steps = fetch, config.steps_per_epoch
        self._tried, self._randomness = tried, randomness
        # Copies of records and labels of the batch that is not released yet, if there is one.
        self._batch: tuple[torch.Tensor, torch.Tensor] | None = None
        self._computed: torch.Tensor | None = None  # copy of the last result of `rows` for these
        self._is_separate = True  # no bit of a row was seen to depend on a neighbour
        self.rounded_rows = False
        self.n_released = 0  # batches of this epoch
        self.is_finished = False  # no epoch is left

    def noise_sources(self) -> list[Noise]:
        return self.mechanism.noise_sources()

    def batches(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yield the batches of one epoch: records [n, *shape] and labels [n]; each must be released before the next."""
        if self._batch or self.n_released or self.is_finished:
            raise TrainerError("batches: must be called once per epoch, got a second call before the yield, "
                               "or one after the last epoch")
        for indices in self.sampler.epoch()[:, 0]:  # one trial
            if self._batch:
                raise TrainerError("batches: every batch must be released before the next one, got the next one "
                                   "asked for first")
            records, labels = self._fetch(indices[indices != ABSENT])
            self._batch = records.clone(), labels.clone()
            yield records, labels

    def rows(self, function: RowsFunction, records: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Return the rows [n, d] of a batch's records; see `TrialContext.rows`."""
        d = self._update.biases[0].shape[1]
        if self.n_released < TRIED_BATCHES:
            with self._randomness.restoring():  # a trial that resumes tries the function again
                self._is_separate &= rows_are_separate(function, ROWS_AT_ONCE, d, *self._tried)
        rows = in_chunks(function, ROWS_AT_ONCE, d, records, labels)
        is_batch = self._batch and all(map(_same_bits, (records, labels), self._batch))
        self._computed = rows.clone() if is_batch else None
        return rows

    def release(self, rows: torch.Tensor) -> torch.Tensor:
        """Return a batch's noisy mean [d], once: the bounded sum of contributions [n, d], n >= 0, over the public m."""
        # The mechanism sees contributions as gradients of biases, and writes its noisy mean [1, d] there.
        (mean,) = self._update.biases
        if self._batch is None:
            raise TrainerError("release: once for each batch, got it without one")
        n, d = len(self._batch[0]), mean.shape[1]
        check_rows(rows, n, d, "release")
        if not self._is_separate or self._computed is None or not _same_bits(rows, self._computed):
            self.rounded_rows = True
        self._computed = None  # a batch's rows are no rows of the next
        deltas = rows.detach().to(mean.dtype)[None]  # [1, n, d]
        no_inputs = deltas.new_zeros(1, n, 0)
        self.mechanism.update([deltas], [no_inputs], self._update)  # fills `mean`
        self._batch = None
        self.n_released += 1
        return mean[0].clone()

    def end_epoch(self) -> None:
        """Check that every batch of the epoch was released."""
        if self.n_released != self._steps or self._batch:
            raise TrainerError(f"yields after {self.n_released} of {self._steps} batches were released; must be all of "
                               "an epoch's, as that is what is accounted for")
        self.n_released = 0


def _same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    is_alike = one.dtype == other.dtype and one.shape == other.shape
    return is_alike and torch.equal(*(x.detach().contiguous().view(torch.uint8) for x in (one, other)))


def packed_state(value: Any, tensors: dict[str, torch.Tensor]) -> Any:
    """Return a trainer's state as a JSON value, and add its tensors to `tensors` under new names.

    A tensor or container becomes a dict with one key, its kind: `tensor`, `dict`, `tuple` or `list`. Other values stay.
    """
    if isinstance(value, torch.Tensor | np.ndarray):
        name, tensor = f"state_{len(tensors)}", torch.as_tensor(value)
        if tensor.layout != torch.strided:
            raise TrainerError(f"state: tensors must be dense, got {tensor.layout}")
        try:
            tensors[name] = torch.from_numpy(array_of(tensor))
        except TypeError as error:
            raise TrainerError(f"state: tensors must have a type that a file can hold, got {error}") from None
        return {"tensor": [name, str(tensor.dtype).removeprefix("torch.")]}
    if isinstance(value, Mapping):
        return {"dict": [[packed_state(key, tensors), packed_state(item, tensors)] for key, item in value.items()]}
    if isinstance(value, tuple | list):
        kind = "tuple" if isinstance(value, tuple) else "list"
        return {kind: [packed_state(item, tensors) for item in value]}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TrainerError(f"state: must be made of tensors, numbers, texts, lists and dicts, got {type(value).__name__}")


def unpacked_state(packed: Any, arrays: Mapping[str, np.ndarray]) -> Any:
    """Return the trainer's state that `packed_state` made into JSON; all arrays, by name, become tensors."""
    if not isinstance(packed, dict):
        return packed
    ((kind, content),) = packed.items()
    if kind == "tensor":
        name, dtype = content
        return torch.from_numpy(np.array(arrays[name])).to(getattr(torch, dtype))
    if kind == "dict":
        return {unpacked_state(key, arrays): unpacked_state(item, arrays) for key, item in content}
    values = [unpacked_state(item, arrays) for item in content]
    return tuple(values) if kind == "tuple" else values
