"""Build a user's network, describe its blocks, and refuse one that cannot be trained.

Settings are checked by it (`pipeline.trials.network`), and a training begins with `initial_module`.
"""

from __future__ import annotations

from functools import lru_cache, partial
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.parameter import is_lazy
from torch.utils.flop_counter import FlopCounterMode

from pipeline.learning.own.isolation import seeded
from pipeline.learning.own.segments import Segments, blocks_of, children_of
from pipeline.learning.own.ways import choose, made_up
from pipeline.trials.condition import Trial
from pipeline.trials.config import TrialConfig
from pipeline.trials.fields import ConfigError, refuse
from pipeline.trials.guard import guarded, name_of
from pipeline.trials.network import Own
from pipeline.trials.shapes import BlockShape


class Described(NamedTuple):
    """What is known of a network from its settings alone."""

    blocks: tuple[BlockShape, ...]
    shared: str  # a trained parameter that two blocks share; empty for none


def own(trial: Trial) -> Own:
    """Return the part of a trial's own network."""
    return cast("Own", trial.parts.network)  # `Parts` has the class of built-in ones


def in_words(part: Own) -> str:
    """Return the network's name, with file and line of the function that builds it."""
    return f"'{part.name}'{name_of(part.build)}"


def lower_blocks(trial: Trial) -> int:
    """Return how many blocks, from the lowest, back-propagate from the one above them; all but the last for BP."""
    feedback = trial.parts.feedback
    return len(trial.layers) - 1 if feedback.exact else own(trial).lower_layers if feedback.convolutional else 0


def built(part: Own, shape: tuple[int, ...], n_classes: int) -> nn.Sequential:
    """Return the network that a user's function builds, with its own initial weights, and refuse what is none."""
    def fault(must: str, got: str, use: str = "") -> ConfigError:
        return ConfigError("network", f"{in_words(part)} {must}", got, use)

    with guarded(partial(fault, "must build a module")):
        module = part.build(part, shape, n_classes)
    if not isinstance(module, nn.Sequential) or type(module).forward is not nn.Sequential.forward or not len(module):
        raise fault("must return a torch.nn.Sequential, whose children are the blocks", f"a {type(module).__name__}")
    for name, layer in module.named_modules():
        layer_name = f"layer '{name}' ({type(layer).__name__})"
        keeps_statistics = isinstance(layer, _NormBase) and layer.track_running_stats
        if isinstance(layer, _BatchNorm) or keeps_statistics:
            raise fault("must compute from one record at a time", f"{layer_name}, which takes statistics of batches",
                        "use GroupNorm or LayerNorm")
        if isinstance(layer, _DropoutNd) and layer.p:
            raise fault("must give the same result at every call", f"{layer_name}, which draws at random", "leave it "
                        "out")
    if any(is_lazy(value) for value in module.state_dict().values()):
        with guarded(partial(fault, f"must take records of shape {list(shape)}")):
            module(made_up(shape))  # a lazy layer takes its shape from its first input
    return module


def initial_module(config: TrialConfig) -> nn.Sequential:
    """Return a trial's module with initial weights from the trial's stream `network`, on the CPU."""
    with seeded(config.seed):
        return built(own(config), config.parts.features.shape(config), config.parts.data.spec.n_classes)


@lru_cache(maxsize=256)
def described(part: Own, shape: tuple[int, ...], n_classes: int) -> Described:
    """Return the shapes of a network's blocks, from a run on two made-up records."""
    where, blocks, shared = in_words(part), list[BlockShape](), ""
    owners: set[nn.Parameter] = set()  # trained parameters of the blocks so far
    with seeded(0), torch.no_grad():
        module, h = built(part, shape, n_classes), made_up(shape)
        children = children_of(module)
        for places in blocks_of(module):
            n_in, trained, multiplications = h[0].numel(), dict[nn.Parameter, str](), 0
            for name, child in (children[place] for place in places):
                trained |= _trained(where, name, child)
                h, of_child = _output(where, name, child, h)
                multiplications += of_child
            shared = shared or next((name for parameter, name in trained.items() if parameter in owners), "")
            n_trained = sum(parameter.numel() for parameter in trained.keys() - owners)
            blocks.append(BlockShape(n_in, h[0].numel(), n_trained, multiplications))
            owners |= trained.keys()
    refuse(tuple(h.shape[1:]) != (n_classes,), "network", f"{where} must give {n_classes} logits of a record",
           f"an output of shape {list(h.shape[1:])}")
    refuse(not owners, "network", f"{where} must have parameters to train (requires_grad)", "none")
    return Described(tuple(blocks), shared)


def _output(where: str, name: str, child: nn.Module, h: Tensor) -> tuple[Tensor, int]:
    """Return the output of a child for h [n, ...], and the multiplications of one record."""
    def fault(line: str) -> ConfigError:
        return ConfigError("network", f"{where} must take records of shape {list(h.shape[1:])}",
                           f"in block '{name}', {line}")

    with guarded(fault), FlopCounterMode(display=False) as flops:
        out = child(h.clone())
    got = f"of shape {list(out.shape)}, {out.dtype}" if isinstance(out, Tensor) else f"a {type(out).__name__}"
    refuse(not isinstance(out, Tensor) or out.shape[:1] != h.shape[:1] or not out.is_floating_point(), "network",
           f"{where}, block '{name}', must give one tensor [n, ...] for n records", got)
    return out, flops.get_total_flops() // (2 * len(h))


def _trained(where: str, name: str, child: nn.Module) -> dict[nn.Parameter, str]:
    trained = {key: parameter for key, parameter in child.named_parameters() if parameter.requires_grad}
    other = [f"{value.dtype} in '{key}'" for key, value in trained.items() if value.dtype != torch.float32]
    refuse(other, "network", f"{where}, block '{name}', must have float32 parameters", ", ".join(other))
    return {parameter: f"{name}.{key}" for key, parameter in trained.items()}


@lru_cache(maxsize=256)
def _why_alone(part: Own, shape: tuple[int, ...], n_classes: int, lower: int) -> str:
    """Return why records are computed one after the other; empty if their graph is mapped. `lower`: of `Segments`."""
    with seeded(0):
        segments = Segments(built(part, shape, n_classes), lower)
        return choose(in_words(part), segments, made_up(shape), n_classes)[1]


def check_blocks(trial: Trial) -> None:
    """Refuse trained weights that blocks share, which would get two signals, with projected errors."""
    part = own(trial)
    found = described(part, trial.parts.features.shape(trial), trial.parts.data.spec.n_classes)
    refuse(found.shared and not trial.parts.feedback.exact, "network", f"{in_words(part)} must share no parameter "
           f"between blocks with algorithm '{trial.algorithm}', which would get two signals",
           f"'{found.shared}' in two", "use 'bp'")


def why_alone(trial: Trial) -> str:
    """Refuse a network that cannot be trained; return why its records are computed alone, empty if they are not."""
    return _why_alone(own(trial), trial.parts.features.shape(trial), trial.parts.data.spec.n_classes,
                      lower_blocks(trial))
