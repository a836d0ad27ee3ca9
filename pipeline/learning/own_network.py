"""Build a user's network, describe its blocks, and refuse one that cannot be trained."""

from __future__ import annotations

import contextlib
import math
import random
from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase
from torch.nn.modules.dropout import _DropoutNd
from torch.utils.flop_counter import FlopCounterMode

from pipeline.learning.blocks import Blocks, rows
from pipeline.learning.mechanisms.registry import FP32_PRODUCTS
from pipeline.learning.randomness import sequence
from pipeline.trials.config import TrialConfig
from pipeline.trials.fields import ConfigError, refuse
from pipeline.trials.network import Own
from pipeline.trials.shapes import BlockShape


class Described(NamedTuple):
    """What is known of a network before it has weights."""

    blocks: tuple[BlockShape, ...]
    shared: str  # a parameter that two blocks share; empty for none
    failure: str  # why its contributions cannot be computed record by record; empty if they can


def own(trial: TrialConfig) -> Own:
    """Return the part of a trial's own network."""
    return cast("Own", trial.parts.network)  # `Parts` has the class of built-in ones


def _in_words(part: Own) -> str:
    """Return the network's name, with file and line of the function that builds it."""
    return f"'{part.name}' ({Path(part.source).name}:{part.works.__code__.co_firstlineno})"


def built(part: Own, shape: tuple[int, ...], n_classes: int) -> nn.Sequential:
    """Return the network that a user's function builds, with its own initial weights, and refuse what is none."""
    def fault(must: str, got: str, use: str = "") -> ConfigError:
        return ConfigError("network", f"{_in_words(part)} {must}", got, use)

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
        keeps_statistics = isinstance(layer, _NormBase) and layer.track_running_stats
        if isinstance(layer, _BatchNorm) or keeps_statistics:
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
    where, shared = _in_words(part), ""
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
    refuse(found.failure, "network", f"{_in_words(part)} must compute what torch.func.vmap can map over records",
           found.failure)
    refuse(found.shared and not trial.parts.feedback.exact, "network", f"{_in_words(part)} must share no parameter "
           f"between blocks with algorithm '{trial.algorithm}', which would get two signals",
           f"'{found.shared}' in two", "use 'bp'")


def initial_module(config: TrialConfig) -> nn.Sequential:
    """Return a trial's module with initial weights from the trial's stream `network`, on the CPU."""
    with seeded(config.seed):
        return built(own(config), config.parts.features.shape(config), config.parts.data.spec.n_classes)


def _attribute(owner: Any, name: str) -> tuple[Callable[[], Any], Callable[[Any], None]]:
    """Return functions that get and set an attribute of `owner`."""
    return partial(getattr, owner, name), partial(setattr, owner, name)


# Functions that get and set torch's global settings, which a network's code may change.
TORCH_SETTINGS: tuple[tuple[Callable[[], Any], Callable[[Any], Any]], ...] = (
    (torch.get_default_dtype, torch.set_default_dtype),
    (torch.get_default_device, lambda device: torch.set_default_device(None if device.type == "cpu" else device)),
    (torch.get_num_threads, torch.set_num_threads),
    (torch.is_grad_enabled, torch.set_grad_enabled),
    (torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode),
    *(_attribute(torch.backends.cudnn, name) for name in ("benchmark", "deterministic", "enabled")),
    *(_attribute(attrgetter(name)(torch.backends), "fp32_precision") for name in FP32_PRODUCTS),
    *((partial(get, kind), partial(set_value, kind)) for kind in ("cpu", "cuda") for get, set_value in (
        (torch.is_autocast_enabled, torch.set_autocast_enabled), (torch.get_autocast_dtype, torch.set_autocast_dtype))))


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed the global generators of torch, NumPy and Python within the context.

    At its end their states are restored, except those of CUDA, and torch's settings that the code has changed.
    """
    settings = [get() for get, _ in TORCH_SETTINGS]
    states = torch.get_rng_state(), np.random.get_state(), random.getstate()
    seeds = [int(sequence(seed, "network", k).generate_state(1)[0]) for k in range(3)]
    try:
        torch.manual_seed(seeds[0])
        np.random.seed(seeds[1])
        random.seed(seeds[2])
        yield
    finally:
        torch.set_rng_state(states[0])
        np.random.set_state(states[1])
        random.setstate(states[2])
        for value, (get, set_value) in zip(settings, TORCH_SETTINGS, strict=True):
            if get() != value:
                set_value(value)
