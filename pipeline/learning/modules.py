"""Train a user's network by its blocks: a record's contribution is computed from this record alone.

Block k maps h^{k-1} to h^k. A signal is the learning signal at a block's output: B^k e for DFA, and the error e at the
output block. A segment is what back-propagates: one block for DFA, the whole network for BP, and for `hybrid` the lower
blocks with the one above them. Its input is detached, and

    contribution of record i = (vjp of segment s at h_i, on its signal; over all segments s)

`torch.func.vjp` computes it for one record, and `torch.func.vmap` maps that over records. So row i depends on record i
by construction, in real numbers; in float32 the last bits might depend on the other records of a call, which is tried
(`rows_are_separate`).
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Collection, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, vjp, vmap
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase
from torch.nn.modules.dropout import _DropoutNd
from torch.utils.flop_counter import FlopCounterMode

from pipeline.learning.alignment import cosines
from pipeline.learning.data.dataset import Dataset
from pipeline.learning.data.sampling import ABSENT
from pipeline.learning.global_state import GlobalRandomness
from pipeline.learning.handed import TRIED_BATCHES, array_of, filled, rows_are_separate
from pipeline.learning.integers.contributions import RowSum
from pipeline.learning.mechanisms.gaussian import GaussianMechanism
from pipeline.learning.network.network import Parameters
from pipeline.learning.training import Training
from pipeline.trials.config import TrialConfig
from pipeline.trials.fields import ConfigError, refuse
from pipeline.trials.own_network import Own
from pipeline.trials.packs import Pack
from pipeline.trials.shapes import BlockShape

# Trained numbers above which norms of contributions and then one pass over their weighted sum are faster than rows.
ROWS_UP_TO = 50_000


class Described(NamedTuple):
    """What is known of a network before it has weights."""

    blocks: tuple[BlockShape, ...]
    shared: str  # a parameter that two blocks share; empty for none
    failure: str  # why its contributions cannot be computed record by record; empty if they can


def own(trial: TrialConfig) -> Own:
    """Return the part of a trial's own network."""
    return cast("Own", trial.parts.network)  # `Parts` has the class of built-in ones


def place(part: Own) -> str:
    """Return file and line of the function that builds a network."""
    return f"{Path(part.source).name}:{part.works.__code__.co_firstlineno}"


def built(part: Own, shape: tuple[int, ...], n_classes: int) -> nn.Sequential:
    """Return the network that a user's function builds, with its own initial weights, and refuse what is none."""
    def fault(must: str, got: str, use: str = "") -> ConfigError:
        return ConfigError("network", f"'{part.name}' ({place(part)}) {must}", got, use)

    try:
        module = part.works(part, shape, n_classes)
    except ConfigError:
        raise
    except Exception as error:  # a user's function may raise anything
        raise fault("must build a module", f"{type(error).__name__}: {error}") from error
    if not isinstance(module, nn.Sequential) or type(module).forward is not nn.Sequential.forward or not len(module):
        raise fault("must return a torch.nn.Sequential, whose children are the blocks", f"a {type(module).__name__}")
    for name, layer in module.named_modules():
        layer_name = f"layer '{name}' ({type(layer).__name__})"
        if isinstance(layer, _BatchNorm) or (isinstance(layer, _NormBase) and layer.track_running_stats):
            raise fault("must compute from one record at a time", f"{layer_name}, which takes statistics of batches",
                        "use GroupNorm or LayerNorm")
        if isinstance(layer, _DropoutNd) and layer.p:
            raise fault("must give the same result at every call", f"{layer_name}, which draws at random", "leave it "
                        "out")
    return module


@lru_cache(maxsize=256)
def described(part: Own, shape: tuple[int, ...], n_classes: int) -> Described:
    """Return the shapes of a network's blocks, from a run on torch's meta device, which computes no number.

    Raises:
        ConfigError: for a module that is no function from [n, *shape] to [n, n_classes] with trained parameters.
    """
    with torch.device("meta"):
        module, h = built(part, shape, n_classes), torch.zeros(2, *shape)
    where, shared = f"'{part.name}' ({place(part)})", ""
    blocks: list[BlockShape] = []
    owners: set[nn.Parameter] = set()  # trained parameters of the blocks so far
    for name, block in module.named_children():
        kept = {"its input": h, **{f"buffer '{key}'": buffer for key, buffer in block.named_buffers()}}
        versions = {key: value._version for key, value in kept.items()}
        try:
            with FlopCounterMode(display=False) as flops:
                out = block(h)
        except Exception as error:
            raise ConfigError("network", f"{where} must take records of shape {list(shape)}", f"in block '{name}', for "
                              f"inputs {list(h.shape[1:])}: {type(error).__name__}: {error}") from error
        if not isinstance(out, Tensor) or len(out) != len(h):
            got = f"of shape {list(out.shape)}" if isinstance(out, Tensor) else f"a {type(out).__name__}"
            raise ConfigError("network", f"{where}, block '{name}', must give one tensor [n, ...] for n records", got)
        changed = [key for key, value in kept.items() if value._version != versions[key]]
        refuse(changed, "network", f"{where} must change nothing in place that outlives a call",
               f"block '{name}', which changes {', '.join(changed)}")
        n_trained = 0
        for key, parameter in block.named_parameters():
            if parameter in owners:
                shared = shared or f"{name}.{key}"
            elif parameter.requires_grad:
                owners.add(parameter)
                n_trained += parameter.numel()
        blocks.append(BlockShape(math.prod(h.shape[1:]), math.prod(out.shape[1:]), n_trained,
                                 flops.get_total_flops() // (2 * len(h))))
        h = out
    refuse(tuple(h.shape[1:]) != (n_classes,), "network", f"{where} must give {n_classes} logits of a record",
           f"an output of shape {list(h.shape[1:])}")
    refuse(not owners, "network", f"{where} must have parameters to train (requires_grad)", "none")
    failure = ""
    try:
        net = Blocks(module, len(module) - 1)
        signals = [torch.zeros(2, blocks[-1].n_out, device="meta")]
        net.rows(torch.zeros(2, *shape, device="meta"), signals)
    except Exception as error:  # torch.func has many kinds
        failure = f"{type(error).__name__}: {error}"
    return Described(tuple(blocks), shared, failure)


def check_trainable(trial: TrialConfig) -> None:
    """Refuse a network whose contributions cannot be computed record by record, and shared weights under feedback."""
    part = own(trial)
    found = described(part, trial.parts.features.shape(trial), trial.parts.data.spec.n_classes)
    refuse(found.failure, "network", f"'{part.name}' ({place(part)}) must compute what torch.func.vmap can map over "
           "records", found.failure)
    refuse(found.shared and not trial.parts.feedback.exact, "network", f"'{part.name}' ({place(part)}) must share no "
           f"parameter between blocks with algorithm '{trial.algorithm}', which would get two signals",
           f"'{found.shared}' in two", "use 'bp'")


class Segment(NamedTuple):
    """Blocks through which a signal goes back."""

    module: nn.Sequential
    trained: dict[str, Tensor]  # parameters by name

    def of_one(self, parameters: dict[str, Tensor], h: Tensor) -> Tensor:
        """Return the output of one record's input h; the module sees a batch of one."""
        output: Tensor = functional_call(self.module, parameters, (h[None],))
        return output[0]


class Blocks:
    """Contributions of a module's records, and their sums.

    Args:
        module: the network.
        lower: how many blocks, from the lowest, back-propagate from the block above them; all but the last for BP.
    """

    def __init__(self, module: nn.Sequential, lower: int) -> None:
        children = list(module.named_children())
        parts = [children[:lower + 1], *([child] for child in children[lower + 1:])]
        self.segments = [self._segment(blocks) for blocks in parts]
        self.whole = self._segment(children)

    @staticmethod
    def _segment(children: Sequence[tuple[str, nn.Module]]) -> Segment:
        module = nn.Sequential(OrderedDict(children))
        return Segment(module, {name: parameter.detach() for name, parameter in module.named_parameters()
                                if parameter.requires_grad})

    def logits(self, records: Tensor) -> Tensor:
        """Return the logits [n, n_classes] of records [n, *shape]."""
        output: Tensor = vmap(partial(self.whole.of_one, self.whole.trained))(records)
        return output

    def rows(self, records: Tensor, signals: Sequence[Tensor]) -> Tensor:
        """Return the contributions [n, d] of records [n, *shape]; a signal [n, n_k] for the output of each segment."""
        def contribution(h: Tensor, *signals: Tensor) -> Tensor:
            gradients = []
            for segment, signal in zip(self.segments, signals, strict=True):
                output, back = vjp(partial(segment.of_one, h=h), segment.trained)[:2]
                (by_name,) = back(signal.view_as(output))
                gradients += [by_name[name].flatten() for name in segment.trained]
                h = output.detach()
            return torch.cat(gradients)

        rows: Tensor = vmap(contribution)(records, *signals)
        return rows

    def norms(self, records: Tensor, signals: Sequence[Tensor]) -> Tensor:
        """Return the norms [n, 1] of `rows`."""
        return torch.linalg.vector_norm(self.rows(records, signals), dim=1, keepdim=True)

    def sum(self, records: Tensor, signals: Sequence[Tensor], segments: Sequence[Segment] = ()) -> Tensor:
        """Return the sum [d] of `rows`, in one backward pass; of other segments, if they are given."""
        gradients: list[Tensor] = []
        h = records
        for segment, signal in zip(segments or self.segments, signals, strict=True):
            parameters = {name: value.detach().requires_grad_() for name, value in segment.trained.items()}
            with torch.enable_grad():
                output = vmap(partial(segment.of_one, parameters))(h)
                gradients += torch.autograd.grad(output, list(parameters.values()), signal.view_as(output),
                                                 allow_unused=True, materialize_grads=True)
            h = output.detach()
        return torch.cat([gradient.flatten() for gradient in gradients])


class BlockParameters(Parameters):
    """All trained numbers as one row, as mechanisms see them: the biases of one layer without inputs."""

    def __init__(self, lengths: Sequence[int], replicas: int, device: torch.device | str, dtype: torch.dtype) -> None:
        super().__init__((0, sum(lengths)), replicas, device, dtype, [(sum(lengths), 0)])
        self.row = self.biases[0]  # [R, d]
        self.layers = [layer for layer in self.row.split(lengths, dim=1) if layer.shape[1]]


def initial_module(config: TrialConfig) -> nn.Sequential:
    """Return a trial's module with initial weights from the trial's streams, on the CPU."""
    with GlobalRandomness(config.seed, torch.device("cpu")).installed():
        return built(own(config), config.parts.features.shape(config), config.parts.data.spec.n_classes)


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
        lower = own(config).lower_layers if feedback.convolutional else 0
        self.blocks = Blocks(module, len(module) - 1 if feedback.exact else lower)

    def blank_parameters(self, replicas: int, device: torch.device | str = "cpu",
                         dtype: torch.dtype = torch.float32) -> BlockParameters:
        """Return zeros in the layout of the parameters."""
        return BlockParameters(self.lengths, replicas, device, dtype)

    @torch.no_grad()
    def forward(self, x: Tensor) -> tuple[None, Tensor]:
        """Return (None, logits [1, m, n_classes]) of inputs x [1, m, n_0], for `Evaluation`."""
        return None, self.blocks.logits(x[0].view(-1, *self.shape))[None]


class ModuleTraining(Training):
    """One trial of a user's network.

    Attributes:
        rounded_rows: whether bits of rows were seen to depend on the other records of a call.
    """

    net: ModuleNet  # type: ignore[assignment]  # what `Training` asks of a network
    update: BlockParameters
    gradient: BlockParameters

    def __init__(self, pack: Pack, data: Dataset, device: torch.device, rungs: Collection[int] = ()) -> None:
        """Prepare the network, and test records on which the independence of rows is tried."""
        super().__init__(pack, data, device, rungs)
        (self.config,) = pack.trials
        self.size = own(self.config).records_at_once
        places = torch.arange(3 * self.size // 2, device=device) % len(data.test_y)
        self._tried = self.test_inputs.batch(places), data.test_y[places]
        self._n_tries = 0  # that are left in this epoch
        is_large = self.net.parameters.row.shape[1] > ROWS_UP_TO
        self.by_norms = isinstance(self.mechanism, GaussianMechanism) and not self.config.secure and is_large

    def _network(self, seeds: Sequence[int]) -> Any:
        return ModuleNet(self.pack.shared, initial_module(self.pack.shared).to(self.device))

    def _train_epoch(self) -> tuple[Tensor, Tensor]:
        self._n_tries = TRIED_BATCHES if self.config.secure else 0
        return super()._train_epoch()

    def step(self, indices: Tensor, measure_alignment: bool = False) -> tuple[Tensor, Tensor | None]:
        """Train on one batch, some records at a time; arguments and result as of `Training.step`."""
        if self._n_tries:
            self._n_tries -= 1
            d = self.update.row.shape[1]
            self.rounded_rows |= not rows_are_separate(self._rows, self.size, d, *self._tried)
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
            records, error, loss = self._error(x, y, present)
            total += loss * len(chunk)
            if measure_alignment and not on_test_records:
                self._add_gradient(records, error)
            self._add(records, self._signals(error), len(chunk))
        if isinstance(self.mechanism, GaussianMechanism):
            if isinstance(self.mechanism.integers, RowSum):
                self.mechanism.integers.release(self.update)
            else:
                self.mechanism.release(self.update)
        self.optimizer.step()
        if self.average:
            self.average.update()
        return total / max(len(places), 1), cosines(self.update, self.gradient) if measure_alignment else None

    def _error(self, x: Tensor, y: Tensor, present: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return records [n, *shape], their errors [1, n, n_classes], 0 for padding, and the mean loss [1]."""
        records = x.view(-1, *self.net.shape)
        error, loss = self.loss(self.net.blocks.logits(records)[None], y[None], present.float()[None, :, None])
        return records, error, loss

    def _signals(self, error: Tensor) -> list[Tensor]:
        """Return the signals of the segments' outputs, each [n, n_k], from the error [1, n, n_classes]."""
        signals = self.mechanism.perturb(self.feedback.signals(self.mechanism.error(error)))
        return [signal[0] for signal in signals]

    def _rows(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the contributions [n, d] of inputs [n, n_0] and labels [n], without an OPU's noise."""
        records, error, _ = self._error(x, y, torch.ones_like(y))
        return self.net.blocks.rows(records, [signal[0] for signal in self.feedback.signals(error)])

    def _add(self, records: Tensor, signals: list[Tensor], n: int) -> None:
        """Add the bounded contributions of the first n records to `update` or, as integers, to the mechanism's sum."""
        blocks, mechanism, total = self.net.blocks, self.mechanism, self.update.row[0]
        if not isinstance(mechanism, GaussianMechanism):
            total += blocks.sum(records, [signal / self.config.batch_size for signal in signals])
        elif isinstance(mechanism.integers, RowSum):
            mechanism.integers.add(mechanism.factor, blocks.rows(records, signals)[None, :n])
        elif self.by_norms:
            norms = blocks.norms(records, signals)
            finite = norms.isfinite()
            factors = torch.where(finite, mechanism.factor(norms[None])[0], 0.0)
            usable = finite.view(-1, *[1] * (records.ndim - 1))
            total += blocks.sum(torch.where(usable, records, 0.0),
                                [torch.where(finite, signal * factors, 0.0) for signal in signals])
        else:
            rows = blocks.rows(records, signals)[:n]
            norms = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
            factors = torch.where(norms.isfinite(), mechanism.factor(norms[None])[0], 0.0)
            total += torch.where(norms.isfinite(), rows * factors, 0.0).sum(dim=0)

    def _add_gradient(self, records: Tensor, error: Tensor) -> None:
        """Add the gradient of the mean loss to `gradient`, from errors [1, n, n_classes]."""
        signals = [error[0] / self.config.batch_size]
        self.gradient.row[0] += self.net.blocks.sum(records, signals, [self.net.blocks.whole])

    def _gradient_on_test_records(self) -> None:
        places = self._next_test_places()
        for chunk in places.split(self.size):
            x, y, present = filled(self.size, self.test_inputs.batch(chunk), self.data.test_y[chunk],
                                   torch.ones_like(chunk))
            records, error, _ = self._error(x, y, present)
            self._add_gradient(records, error)

    def _tags(self, r: int) -> dict[str, str]:
        """Return how contributions are computed."""
        if not isinstance(self.mechanism, GaussianMechanism):
            return {}
        way = "norms, then one pass over the weighted sum" if self.by_norms else "rows"
        return {"network.contributions": way}

    def _weights(self, r: int) -> dict[str, np.ndarray]:
        """Return the module's parameters and buffers by name."""
        return {name: array_of(value) for name, value in self.net.module.state_dict().items()}
