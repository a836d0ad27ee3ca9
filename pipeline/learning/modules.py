"""Train a user's network by its blocks. `pipeline.learning.run` makes the `ModuleTraining` of such a pack."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import vmap

from pipeline.accounting.statement import with_rounded_rows
from pipeline.learning.blocks import Blocks, Part, Pass, for_vmap, norms, rows, weighted_sum
from pipeline.learning.data.dataset import Dataset
from pipeline.learning.data.sampling import ABSENT
from pipeline.learning.integers.contributions import ROW_ELEMENTS, RowSum
from pipeline.learning.mechanisms.gaussian import GaussianMechanism
from pipeline.learning.network.network import Parameters
from pipeline.learning.own_network import initial_module, own
from pipeline.learning.training import Training
from pipeline.trials.config import TrialConfig
from pipeline.trials.packs import Pack

TOLERANCE = 1e-3  # of rows by probes, relative to their norm
TRIED_BATCHES = 2  # per epoch on which the independence of rows is tried: the first weights, if 0, may hide a fault
STORABLE = ("bool", "int", "uint", "float", "complex64")  # prefixes of NumPy's types that a file of weights can hold


class BlockParameters(Parameters):
    """All trained numbers as one row, as mechanisms see them: the biases of one layer without inputs."""

    def __init__(self, lengths: Sequence[int], replicas: int, device: torch.device | str, dtype: torch.dtype) -> None:
        super().__init__((0, sum(lengths)), replicas, device, dtype, [(sum(lengths), 0)])
        self.row = self.biases[0]  # [R, d]
        self.layers = [layer for layer in self.row.split(lengths, dim=1) if layer.shape[1]]


class ModuleNet:
    """A user's network, with its trained parameters in one row.

    Attributes:
        sizes: numbers of a record before, between and after the blocks.
        parameters: the trained parameters; those of the module become views of it.
        blocks: contributions of its records.
    """

    def __init__(self, config: TrialConfig, module: nn.Sequential) -> None:
        self.module, self.shape, self.sizes = module, config.parts.features.shape(config), config.layer_sizes
        self.lengths = [shape.parameters for shape in config.layers]
        trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
        self.parameters = self.blank_parameters(1, trained[0].device)
        views = self.parameters.row[0].split([parameter.numel() for parameter in trained])
        for parameter, view in zip(trained, views, strict=True):
            view.copy_(parameter.detach().flatten())
            parameter.data = view.view_as(parameter)
        feedback = config.parts.feedback
        self.whole = self._blocks(len(module) - 1)
        lower = own(config).lower_layers if feedback.convolutional else 0
        self.blocks = self.whole if feedback.exact else self._blocks(lower)

    def _blocks(self, lower: int) -> Blocks:
        """Return the module's segments, with probes unless rows would differ: a weight is used outside its layer."""
        record = torch.rand(1, *self.shape, generator=torch.Generator().manual_seed(0)).to(self.parameters.row.device)
        by_probes, by_copies = (Blocks(self.module, lower, self.shape, with_probes) for with_probes in (True, False))
        signals = [torch.ones_like(segment.output).flatten()[None] for segment in by_copies.segments]
        row, expected = (rows(blocks.forward(record).parts(signals)) for blocks in (by_probes, by_copies))
        return by_probes if (row - expected).norm() <= TOLERANCE * expected.norm() else by_copies

    def blank_parameters(self, replicas: int, device: torch.device | str = "cpu",
                         dtype: torch.dtype = torch.float32) -> BlockParameters:
        """Return zeros in the layout of the parameters."""
        return BlockParameters(self.lengths, replicas, device, dtype)

    @torch.no_grad()
    def forward(self, x: Tensor) -> tuple[None, Tensor]:
        """Return (None, logits [1, m, n_classes]) of inputs x [1, m, n_0], for `Evaluation`."""
        if torch.compiler.is_exporting():  # vmap would bind the program to the number of records
            return None, self.module(x[0].view(-1, *self.shape))[None]
        with for_vmap():
            return None, vmap(lambda record: self.module(record[None])[0])(x[0].view(-1, *self.shape))[None]


class ModuleTraining(Training):
    """One trial of a user's network."""

    net: ModuleNet  # type: ignore[assignment]  # what `Training` asks of a network
    update: BlockParameters
    gradient: BlockParameters

    def __init__(self, pack: Pack, data: Dataset, device: torch.device) -> None:
        """Prepare the network, and test records on which the independence of rows is tried."""
        super().__init__(pack, data, device)
        (self.config,) = pack.trials
        self.size = own(self.config).records_at_once
        # 1.5 chunks of test records, repeated if there are too few.
        places = torch.arange(3 * self.size // 2, device=device) % len(data.test_y)
        self._tried = self.test_inputs.batch(places), data.test_y[places]
        self._n_tries = 0  # that are left in this epoch
        self._rounded_rows = False  # whether bits of a row were seen to depend on other records

    def _network(self) -> Any:
        return ModuleNet(self.pack.shared, initial_module(self.pack.shared).to(self.device))

    def _train_epoch(self) -> tuple[Tensor, Tensor]:
        self._n_tries = TRIED_BATCHES if self.config.secure else 0
        return super()._train_epoch()

    def step(self, indices: Tensor, measure_alignment: bool = False) -> tuple[Tensor, Tensor | None]:
        """Train on one batch, some records at a time; arguments and result as of `Training.step`."""
        if self._n_tries:
            self._n_tries -= 1
            self._rounded_rows |= not rows_are_separate(self._rows, self.size, *self._tried)
        places, usable = indices[0][indices[0] != ABSENT], self.train_inputs.usable
        if usable is not None:
            places = places[usable[places]]
        labels = self.canaries.labels[0] if self.canaries else self.data.train_y
        self.update.flat.zero_()
        self.gradient.flat.zero_()
        total = torch.zeros(1, device=self.device)  # of losses
        on_test_records = measure_alignment and self.config.disclosure != "plain"
        if on_test_records:
            self._gradient_on_test_records()
        for chunk in places.split(self.size):
            x, y, present = filled(self.size, self.train_inputs.batch(chunk), labels[chunk], torch.ones_like(chunk))
            passed, error, loss = self._passed(self.net.blocks, x, y, present)
            total += loss * len(chunk)
            self._add(passed.parts(self._signals(error)), present.bool()[:, None])
            if measure_alignment and not on_test_records:
                self._add_gradient(x, y, present)
        if isinstance(self.mechanism, GaussianMechanism):
            if isinstance(self.mechanism.integers, RowSum):
                self.mechanism.integers.release(self.update)
            else:
                self.mechanism.release(self.update)
        return total / max(len(places), 1), self._take_step(measure_alignment)

    def _passed(self, blocks: Blocks, x: Tensor, y: Tensor,  # inputs [n, n_0] and labels [n]
                present: Tensor) -> tuple[Pass, Tensor, Tensor]:  # [n]: 1 for a record, 0 for padding
        """Return the pass of the inputs, errors [1, n, n_classes], 0 for padding, and the mean loss [1]."""
        passed = blocks.forward(x.view(-1, *self.net.shape))
        error, loss = self.loss(passed.logits[None], y[None], present.float()[None, :, None])
        return passed, error, loss

    def _signals(self, error: Tensor) -> list[Tensor]:
        """Return the signals of the segments' outputs, each [n, n_k], from the error [1, n, n_classes]."""
        signals = self.mechanism.perturb(self.feedback.signals(self.mechanism.error(error)))
        return [signal[0] for signal in signals]

    def _rows(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the contributions [n, d] of inputs [n, n_0] and labels [n], without an OPU's noise."""
        passed, error, _ = self._passed(self.net.blocks, x, y, torch.ones_like(y))
        return rows(passed.parts([signal[0] for signal in self.feedback.signals(error)]))

    def _add(self, parts: list[Part], present: Tensor) -> None:
        """Add bounded contributions to `update` or, as integers, to the mechanism's sum; `present` [n, 1] for records.

        A contribution that is not finite counts as none.
        """
        mechanism, total = self.mechanism, self.update.row[0]
        if not isinstance(mechanism, GaussianMechanism):
            total += weighted_sum(parts, present / self.config.batch_size)
        elif isinstance(mechanism.integers, RowSum):
            n, at_once = int(present.sum()), max(1, ROW_ELEMENTS // len(total))  # padding comes last
            for begin in range(0, n, at_once):
                mechanism.integers.add(mechanism.factor, rows(parts, slice(begin, min(begin + at_once, n)))[None])
        else:
            lengths = norms(parts)
            factors = torch.where(present & lengths.isfinite(), mechanism.factor(lengths[None])[0], 0.0)
            total += weighted_sum(parts, factors)

    def _add_gradient(self, x: Tensor, y: Tensor, present: Tensor) -> None:
        """Add the gradient of the mean loss to `gradient`; arguments as of `_passed`."""
        passed, error, _ = self._passed(self.net.whole, x, y, present)
        factors = torch.full((len(x), 1), 1 / self.config.batch_size, device=self.device)
        self.gradient.row[0] += weighted_sum(passed.parts([error[0]]), factors)

    def _gradient_on_test_records(self) -> None:
        for chunk in self._next_test_places().split(self.size):
            self._add_gradient(*filled(self.size, self.test_inputs.batch(chunk), self.data.test_y[chunk],
                                       torch.ones_like(chunk)))

    def _tags(self, r: int) -> Mapping[str, str]:
        """Return the tags of `Training`, and of rounded rows, which only secure trials are tried for."""
        tags = super()._tags(r)
        return with_rounded_rows(self.config, tags) if self._rounded_rows else tags

    def _weights(self, r: int) -> dict[str, np.ndarray]:
        """Return the module's parameters and buffers by name."""
        return {name: array_of(value) for name, value in self.net.module.state_dict().items()}


def filled(size: int, *parts: Tensor) -> list[Tensor]:
    """Return the parts of at most `size` records, in new memory, with zeros for records that are missing."""
    # `cat` takes new memory, also for a full chunk: kernels may depend on how memory is aligned.
    return [torch.cat([part, part.new_zeros(size - len(part), *part.shape[1:])]) for part in parts]


def rows_are_separate(function: Callable[[Tensor, Tensor], Tensor], size: int,  # from records and labels to rows
                      records: Tensor, labels: Tensor) -> bool:
    """Whether rows of 1.5 chunks of test records keep their bits if neighbours are permuted, missing or replaced."""
    half, indices = size // 2, torch.arange(size, device=records.device)
    with_others = torch.cat([indices[:half], indices[half:] + half])

    def bits(indices: Tensor) -> list[bytes]:  # digests, as rows may be long
        rows = function(*filled(size, records[indices], labels[indices]))[:len(indices)].detach().cpu().numpy()
        return [hashlib.blake2b(row.tobytes()).digest() for row in rows]

    expected = bits(indices)
    return (bits(indices.flip(0))[::-1] == expected and bits(indices[:half]) == expected[:half]
            and bits(with_others)[:half] == expected[:half])


def array_of(value: Any) -> np.ndarray:
    """Return a tensor as a dense array, types such as bfloat16 as float32; a `TypeError` if no file can hold it."""
    if not isinstance(value, Tensor) or value.is_meta or value.is_quantized or value.is_nested:
        raise TypeError(type(value).__name__)
    dense = value.detach().to_dense().cpu()
    if dense.is_floating_point() and dense.element_size() <= 2 and dense.dtype != torch.float16:  # NumPy lacks it
        dense = dense.float()
    array = dense.numpy()
    if not array.dtype.name.startswith(STORABLE):
        raise TypeError(array.dtype.name)
    return array
