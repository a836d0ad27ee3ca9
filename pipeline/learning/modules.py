"""Train a user's network by its blocks: a record's contribution is computed from this record alone.

Block k maps h^{k-1} to h^k. A signal is the learning signal at a block's output: B^k e for DFA, and the error e at the
output block. A segment is what back-propagates: one block for DFA, the whole network for BP, and for `hybrid` the lower
blocks with the one above them. The contribution of a record is the gradient, over all segments, of the product of a
segment's output with its signal.

The module sees one record at a time, and `torch.func.vmap` maps that over records. So a contribution depends on its own
record by construction, in real numbers; in float32 the last bits might depend on the other records of a call, which is
tried (`rows_are_separate`).
"""

from __future__ import annotations

import contextlib
import math
import warnings
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.modules.dropout import _DropoutNd
from torch.utils.flop_counter import FlopCounterMode

from pipeline.learning.alignment import cosines
from pipeline.learning.data.dataset import Dataset
from pipeline.learning.data.sampling import ABSENT
from pipeline.learning.global_state import GlobalRandomness
from pipeline.learning.handed import TRIED_BATCHES, array_of, filled, has_batch_statistics, rows_are_separate
from pipeline.learning.integers.contributions import ROW_ELEMENTS, RowSum
from pipeline.learning.mechanisms.gaussian import GaussianMechanism
from pipeline.learning.network.network import Parameters
from pipeline.learning.training import Training
from pipeline.trials.config import TrialConfig
from pipeline.trials.fields import ConfigError, refuse
from pipeline.trials.network import Own
from pipeline.trials.packs import Pack
from pipeline.trials.shapes import BlockShape

TOLERANCE = 1e-3  # of rows by probes, relative to their norm


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
        if has_batch_statistics(layer):
            raise fault("must compute from one record at a time", f"{layer_name}, which takes statistics of batches",
                        "use GroupNorm or LayerNorm")
        if isinstance(layer, _DropoutNd) and layer.p:
            raise fault("must give the same result at every call", f"{layer_name}, which draws at random", "leave it "
                        "out")
    return module


@lru_cache(maxsize=256)
def described(part: Own, shape: tuple[int, ...], n_classes: int) -> Described:
    """Return the shapes of a network's blocks, from a run on torch's meta device, which computes no number."""
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
                refuse(parameter.dtype != torch.float32, "network", f"{where}, block '{name}', must have float32 "
                       "parameters", f"{parameter.dtype} in '{key}'")
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
        passed = Blocks(module, len(module) - 1, shape).forward(torch.zeros(2, *shape, device="meta"))
        rows(passed.parts([passed.logits]))
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


@dataclass(frozen=True)
class Gradients:
    """Gradients of n records in one layer, as products of learning signals and inputs, summed over T positions.

    Attributes:
        delta: signals at the layer's output [n, T, n_out].
        h: its inputs [n, T, n_in].
        has_bias: whether the layer has a bias, whose gradient is the sum of the signals.
    """

    delta: Tensor
    h: Tensor
    has_bias: bool

    def __getitem__(self, records: slice) -> Tensor:
        """Return the gradients of some records, [n, d]: those of the weights [n_out, n_in], then those of the bias."""
        delta, h = self.delta[records], self.h[records]
        weight = torch.bmm(delta.transpose(1, 2), h).flatten(1)
        return torch.cat([weight, delta.sum(dim=1)], dim=1) if self.has_bias else weight

    def squares(self) -> Tensor:
        """Return the squared norms of the gradients [n, 1] at T = 1, where they are not formed."""
        return self.delta.square().sum(dim=2) * (self.h.square().sum(dim=2) + self.has_bias)

    def sum(self, factors: Tensor) -> Tensor:
        """Return the sum [d] of the gradients, each times its factor [n, 1], at T = 1."""
        delta = torch.where(factors > 0, self.delta[:, 0] * factors, 0.0)
        weight = (delta.T @ torch.where(factors > 0, self.h[:, 0], 0.0)).flatten()
        return torch.cat([weight, delta.sum(dim=0)]) if self.has_bias else weight


Part = Gradients | Tensor  # of a layer's gradients, as products or as rows [n, d]


class Segment:
    """Blocks through which a signal goes back.

    A linear layer or convolution that is called once adds a probe, a zero, to its output: the gradient at the probe is
    the learning signal. Other trained parameters get a copy for each record.

    Args:
        children: the blocks, by name.
        h: one record's input of the first.
        with_probes: whether layers get probes; without, all parameters get copies.
    """

    def __init__(self, children: Sequence[tuple[str, nn.Module]], h: Tensor, with_probes: bool) -> None:
        self.module = nn.Sequential(OrderedDict(children))
        self.order = [name for name, parameter in self.module.named_parameters() if parameter.requires_grad]
        self.layers = {name: layer for name, layer in self.module.named_modules()
                       if with_probes and type(layer) in (nn.Linear, nn.Conv2d) and _has_products(layer)}
        calls: dict[str, list[torch.Size]] = {name: [] for name in self.layers}  # shapes of outputs

        def counted(name: str, layer: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:
            calls[name] += [output.shape] * (1 if args else 2)  # a hook sees no input that was given by name

        with torch.no_grad(), self._hooked(counted):
            self.output = self.module(h[None])[0]
        self.layers = {name: layer for name, layer in self.layers.items() if len(calls[name]) == 1}
        self.probe_shapes = {name: calls[name][0] for name in self.layers}
        self.copied = {name: parameter for name, parameter in self.module.named_parameters()
                       if parameter.requires_grad and name.rpartition(".")[0] not in self.layers}
        names = {parameter: name for name, parameter in self.copied.items()}
        # Where copies go: a parameter may belong to several layers, and a layer to several blocks.
        self.places = {f"{path}.{name}".lstrip("."): names[parameter] for path, layer in self.module.named_modules()
                       for name, parameter in layer.named_parameters(recurse=False) if parameter in names}

    @contextlib.contextmanager
    def _hooked(self, hook: Callable[..., Any]) -> Iterator[None]:
        """Call `hook(name, layer, inputs, output)` after every call of a layer within the context."""
        handles = [layer.register_forward_hook(partial(hook, name)) for name, layer in self.layers.items()]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _of_one(self, copies: dict[str, Tensor], probes: dict[str, Tensor],
                h: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the output of one record's input h, and inputs of layers by name; the module sees a batch of one."""
        inputs: dict[str, Tensor] = {}

        def probed(name: str, layer: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> Tensor:
            inputs[name] = args[0].detach()
            return output + probes[name]

        with self._hooked(probed):
            placed = {place: copies[name] for place, name in self.places.items()}
            return functional_call(self.module, placed, (h[None],), tie_weights=False)[0], inputs

    def forward(self, h: Tensor) -> tuple[Tensor, Callable[[Tensor], list[Part]]]:
        """Return the outputs [n, ...] of inputs h [n, ...], and a function from signals [n, n_k] to their gradients."""
        n = len(h)
        copies = {name: parameter.detach().expand(n, *parameter.shape).requires_grad_()
                  for name, parameter in self.copied.items()}
        probes = {name: h.new_zeros(n, *shape).requires_grad_() for name, shape in self.probe_shapes.items()}
        output, inputs = vmap(self._of_one)(copies, probes, h)

        def gradients(signal: Tensor) -> list[Part]:
            wanted = {**copies, **probes}
            found = dict(zip(wanted, torch.autograd.grad(output, list(wanted.values()), signal.view_as(output),
                                                         allow_unused=True, materialize_grads=True), strict=True))
            parts: list[Part] = []
            for name in self.order:
                layer, _, parameter = name.rpartition(".")
                if name in copies:
                    parts.append(found[name].flatten(1))
                elif parameter == "weight":  # its layer's bias follows, and is part of this
                    parts.append(_products(self.layers[layer], found[layer], inputs[layer]))
            return [part[:] if isinstance(part, Gradients) and part.h.shape[1] > 1 else part for part in parts]

        return output.detach(), gradients


@contextlib.contextmanager
def for_vmap() -> Iterator[None]:
    """Choose the kernel of attention that `vmap` has a rule for; what else has none is computed record by record."""
    with sdpa_kernel(SDPBackend.MATH), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "There is a performance drop because we have not yet implemented")
        yield


def _has_products(layer: nn.Module) -> bool:
    """Whether all gradients in a linear layer or convolution are products of signals and inputs."""
    is_plain = not isinstance(layer, nn.Conv2d) or (
        layer.groups == 1 and layer.padding_mode == "zeros" and not isinstance(layer.padding, str))
    names = {name for name, parameter in layer.named_parameters() if parameter.requires_grad}
    own = {name for name, _ in layer.named_parameters()}
    return is_plain and names == own and "weight" in names and names <= {"weight", "bias"}


def _products(layer: nn.Module, delta: Tensor, h: Tensor) -> Gradients:
    """Return the gradients in a layer of one call for each of n records, from its signals and inputs."""
    n, has_bias = len(h), layer.bias is not None
    if isinstance(layer, nn.Conv2d):
        padding = cast("tuple[int, ...]", layer.padding)  # `_has_products` refuses texts
        columns = functional.unfold(h.flatten(0, 1), layer.kernel_size, layer.dilation, padding, layer.stride)
        h = columns.transpose(1, 2).reshape(n, -1, columns.shape[1])
        delta = delta.flatten(3).transpose(2, 3)  # [n, images, positions, n_out]
    return Gradients(delta.reshape(n, -1, delta.shape[-1]), h.reshape(n, -1, h.shape[-1]), has_bias)


class Pass(NamedTuple):
    """A forward pass of n records."""

    logits: Tensor
    gradients: list[Callable[[Tensor], list[Part]]]  # of the segments, from the signals at their outputs

    def parts(self, signals: Sequence[Tensor]) -> list[Part]:
        """Return the contributions of the records by layer, from a signal [n, n_k] for each segment."""
        return [part for of_segment, signal in zip(self.gradients, signals, strict=True) for part in of_segment(signal)]


def rows(parts: Sequence[Part], records: slice = slice(None)) -> Tensor:
    """Return contributions of some records as rows [n, d]."""
    return torch.cat([part[records] for part in parts], dim=1)


def norms(parts: Sequence[Part]) -> Tensor:
    """Return the norms of contributions [n, 1]."""
    squares = [part.squares() if isinstance(part, Gradients) else part.square().sum(dim=1, keepdim=True)
               for part in parts]
    return torch.stack(squares).sum(dim=0).sqrt()


def weighted_sum(parts: Sequence[Part], factors: Tensor) -> Tensor:
    """Return the sum [d] of contributions, each times its factor [n, 1]; with factor 0, none of its numbers count."""
    return torch.cat([part.sum(factors) if isinstance(part, Gradients) else
                      torch.where(factors > 0, part * factors, 0.0).sum(dim=0) for part in parts])


class Blocks:
    """A module as segments.

    Args:
        module: the network.
        lower: how many blocks, from the lowest, back-propagate from the block above them; all but the last for BP.
        shape: of a record.
        with_probes: as of `Segment`.
    """

    def __init__(self, module: nn.Sequential, lower: int, shape: Sequence[int], with_probes: bool = True) -> None:
        children, self.segments = list(module.named_children()), []
        h = torch.zeros(*shape, device=next(module.parameters()).device)
        for blocks in (children[:lower + 1], *([child] for child in children[lower + 1:])):
            self.segments.append(Segment(blocks, h, with_probes))
            h = self.segments[-1].output

    def forward(self, records: Tensor) -> Pass:
        """Return the pass of records [n, *shape]."""
        h, gradients = records, []
        with torch.enable_grad(), for_vmap():
            for segment in self.segments:
                h, of_segment = segment.forward(h)
                gradients.append(of_segment)
        return Pass(h, gradients)


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
        with for_vmap():
            return None, vmap(lambda record: self.module(record[None])[0])(x[0].view(-1, *self.shape))[None]


class ModuleTraining(Training):
    """One trial of a user's network; `rounded_rows`: bits of rows were seen to depend on other records of a call."""

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
            passed, error, loss = self._passed(x, y, present)
            total += loss * len(chunk)
            self._add(passed.parts(self._signals(error)), present.bool()[:, None])
            if measure_alignment and not on_test_records:
                self._add_gradient(x, error)
        if isinstance(self.mechanism, GaussianMechanism):
            if isinstance(self.mechanism.integers, RowSum):
                self.mechanism.integers.release(self.update)
            else:
                self.mechanism.release(self.update)
        self.optimizer.step()
        if self.average:
            self.average.update()
        return total / max(len(places), 1), cosines(self.update, self.gradient) if measure_alignment else None

    def _passed(self, x: Tensor, y: Tensor, present: Tensor) -> tuple[Pass, Tensor, Tensor]:
        """Return the pass of inputs [n, n_0], errors [1, n, n_classes], 0 for padding, and the mean loss [1]."""
        passed = self.net.blocks.forward(x.view(-1, *self.net.shape))
        error, loss = self.loss(passed.logits[None], y[None], present.float()[None, :, None])
        return passed, error, loss

    def _signals(self, error: Tensor) -> list[Tensor]:
        """Return the signals of the segments' outputs, each [n, n_k], from the error [1, n, n_classes]."""
        signals = self.mechanism.perturb(self.feedback.signals(self.mechanism.error(error)))
        return [signal[0] for signal in signals]

    def _rows(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the contributions [n, d] of inputs [n, n_0] and labels [n], without an OPU's noise."""
        passed, error, _ = self._passed(x, y, torch.ones_like(y))
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

    def _add_gradient(self, x: Tensor, error: Tensor) -> None:
        """Add the gradient of the mean loss to `gradient`, from inputs [n, n_0] and errors [1, n, n_classes]."""
        passed = self.net.whole.forward(x.view(-1, *self.net.shape))
        factors = torch.full((len(x), 1), 1 / self.config.batch_size, device=self.device)
        self.gradient.row[0] += weighted_sum(passed.parts([error[0]]), factors)

    def _gradient_on_test_records(self) -> None:
        places = self._next_test_places()
        for chunk in places.split(self.size):
            x, y, present = filled(self.size, self.test_inputs.batch(chunk), self.data.test_y[chunk],
                                   torch.ones_like(chunk))
            self._add_gradient(x, self._passed(x, y, present)[1])

    def _weights(self, r: int) -> dict[str, np.ndarray]:
        """Return the module's parameters and buffers by name."""
        return {name: array_of(value) for name, value in self.net.module.state_dict().items()}
