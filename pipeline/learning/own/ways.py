"""Choose how a network's records are computed: `Mapped` where its graph is reviewed and right, else `Alone`.

`OwnNet` chooses when a trial begins, and `building.why_alone` before that, for the dry run. Both try networks on
made-up records, and `OwnTraining` tries them on public test records.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch
from torch import Tensor

from pipeline.learning.mechanisms.gradients import rows_of
from pipeline.learning.own.alone import Alone
from pipeline.learning.own.isolation import isolated, seeded
from pipeline.learning.own.mapped import Mapped
from pipeline.learning.own.operators import DrawsAtRandom, NotMapped, is_reviewed_here
from pipeline.learning.own.segments import Segments, children_of, copy_of
from pipeline.trials.fields import ConfigError, refuse
from pipeline.trials.guard import guarded

TOLERANCE = 1e-3  # of a graph's gradients in a parameter, relative to their norm: far more than rounding
ROUNDING = 1e-6  # relative to the norm of all gradients
Way = Mapped | Alone


def made_up(shape: Sequence[int], n: int = 2) -> Tensor:
    """Return records [n, *shape] with numbers between 0 and 1, always the same."""
    return torch.rand(n, *shape, generator=torch.Generator().manual_seed(0))


def choose(where: str, segments: Segments, records: Tensor, n_classes: int) -> tuple[Way, str]:  # [k, *shape]
    """Return how to compute records of a network, and why not by its graph; empty if by its graph.

    `where` names the network in errors.

    Raises:
        ConfigError: for a network that draws at random, keeps state between calls, or raises on these public records.
    """
    alone = Alone(segments, n_classes)
    _refuse_uncopied(where, segments)
    _refuse_hooks(where, segments)
    try:
        mapped = Mapped(segments, records[:1])
        differing = difference(mapped, alone, records)
        _refuse_outside(where, segments)
        if not differing:
            return mapped, ""
        reason = f"block '{differing}' has other gradients than its graph"
    except ConfigError:
        raise
    except DrawsAtRandom as error:
        raise ConfigError("network", f"{where} must give the same result at every call", f"{error}, which draws at "
                          "random", "leave it out") from error
    except Exception as error:  # torch has many kinds, and so has the user's code
        reason = str(error) if isinstance(error, NotMapped) else (
            f"{type(error).__name__} while it is traced, as by an `if` on a record's numbers")
    check_alone(where, alone, records)
    _refuse_outside(where, segments)
    return alone, reason


def _refuse_uncopied(where: str, segments: Segments) -> None:
    """Refuse a network without copies of its own, which would keep what a record leaves in them."""
    must = f"{where} must be a module that `copy.deepcopy` copies, with all its modules"
    with guarded(partial(ConfigError, "network", must)):
        modules = {id(module) for module in copy_of(segments).modules()}
    shared = [name.removeprefix("network.") for name, module in segments.named_modules() if id(module) in modules]
    refuse(shared, "network", must, f"a copy that shares {', '.join(shared)}")


def _refuse_hooks(where: str, segments: Segments) -> None:
    """Refuse hooks of trained parameters, which copies lack; and forget gradients from before."""
    hooked = [name.removeprefix("network.") for name, parameter in segments.trained.items()
              if parameter._backward_hooks or parameter._post_accumulate_grad_hooks]
    refuse(hooked, "network", f"{where} must have no hooks on its parameters", f"hooks on {', '.join(hooked)}",
           "compute with a masked weight in its forward pass")
    segments.zero_grad(set_to_none=True)


def _refuse_outside(where: str, segments: Segments) -> None:
    """Refuse parameters that copies have used: of a closure, or behind a weak reference."""
    outside = [name.removeprefix("network.") for name, parameter in segments.trained.items()
               if parameter.grad is not None]
    refuse(outside, "network", f"{where} must use its parameters as attributes of its modules", f"{', '.join(outside)} "
           "in a closure or behind a weak reference", "assign the module as an attribute")


def check(where: str, way: Way, alone: Alone, records: Tensor, size: int) -> None:
    """Refuse a network that raises on public records, or computes them wrongly in its way, in chunks of a size."""
    if isinstance(way, Alone):
        return check_alone(where, alone, records)
    alone.logits(records)
    _refuse_raised(where, alone)
    differing = difference(way, alone, records)
    refuse(differing, "network", f"{where} must compute the same by its graph as by itself", f"block '{differing}', "
           "which does not on test records", "use torch's operators alone in its forward pass")
    if not is_reviewed_here(records.device):
        check_neighbours(where, way, alone.segments, records, size)


def check_alone(where: str, alone: Alone, records: Tensor) -> None:
    """Refuse a network that raises on public records, draws at random, or changes what outlives a call."""
    kept = {**alone.segments.trained, **alone.segments.fixed, "network.its input": records}
    before = {name: value.detach().clone() for name, value in kept.items()}
    alone.logits(records)
    _refuse_raised(where, alone)
    first = _alone_rows(alone, records, seed=0)
    second = _alone_rows(alone, records.flip(0), seed=1).flip(0)
    _refuse_raised(where, alone)
    changed = [name.removeprefix("network.") for name, value in kept.items() if not _same(value, before[name])]
    refuse(changed, "network", f"{where} must change nothing in place that outlives a call",
           f"changes of {', '.join(changed)}", "write to a copy")
    refuse(not _same(first, second), "network", f"{where} must give the same result at every call",
           "another one at the second", "draw nothing at random, and keep nothing outside the module")


def _refuse_raised(where: str, alone: Alone) -> None:
    refuse(alone.raised, "network", f"{where} must raise on no record", f"{type(alone.raised).__name__}: "
           f"{alone.raised}", "guard what can raise, as an index by a clamp")


def check_neighbours(where: str, mapped: Mapped, segments: Segments, records: Tensor, size: int) -> None:
    """Refuse a network if other records of a chunk change a record's gradient by more than rounding.

    Graphs of reviewed operators need no such trial, and it is no proof.
    """
    rows = []
    for number in (0.0, 1e30, -1.0, torch.inf, torch.nan):
        chunk = torch.cat([records[:1], records.new_full((size - 1, *records.shape[1:]), number)])
        rows.append(rows_of(mapped.gradients(chunk, _signals(segments, records)))[0])
    change, length = max(float((row - rows[0]).norm()) for row in rows[1:]), float(rows[0].norm())
    refuse(not change <= ROUNDING * length, "network", f"{where} must compute each record from itself alone",
           f"a change by {change:.1g} of a gradient of norm {length:.1g}, which other records of its chunk cause")


def difference(mapped: Mapped, alone: Alone, records: Tensor) -> str:
    """Return the first block whose gradients differ between a graph and plain back-propagation; empty if none does.

    They are compared at the present weights and, as those may hide a block, at random ones; a difference in the logits
    is one of the last block.
    """
    segments = alone.segments
    blocks = [*(name.split(".")[1] for name in segments.trained), children_of(segments.network)[-1][0]]
    widths = [parameter.numel() for parameter in segments.trained.values()]
    for weights in (contextlib.nullcontext(), _random_weights(segments)):
        with weights:
            rows = rows_of(mapped.gradients(records, _signals(segments, records)))
            expected = _alone_rows(alone, records, seed=0)
            logits = mapped.logits(records), alone.logits(records)
        pairs = [*zip(rows.split(widths, dim=1), expected.split(widths, dim=1), strict=True), logits]
        for block, (of_graph, of_alone) in zip(blocks, pairs, strict=True):
            if not (of_graph - of_alone).norm() <= TOLERANCE * of_alone.norm() + ROUNDING * expected.norm():
                return block
    return ""


def _alone_rows(alone: Alone, records: Tensor, seed: int) -> Tensor:
    """Return the gradients [k, d] of records by `Alone`, with the global generators in the state of a seed."""
    with seeded(seed):
        signals_of = _signals(alone.segments, records)
        return torch.cat([rows_of(alone.gradients(record, signals_of)) for record in records.split(1)])


def _signals(segments: Segments, records: Tensor) -> Callable[[Tensor], list[Tensor]]:
    """Return a function from logits of n records to n random signals for each segment, the same for all records."""
    with isolated():
        widths = [output.numel() for output in copy_of(segments)(records[:1])]
    generator = torch.Generator().manual_seed(1)
    signals = [torch.randn(1, width, generator=generator).to(records.device) for width in widths]
    return lambda logits: [signal.expand(len(logits), -1) for signal in signals]


@contextlib.contextmanager
def _random_weights(segments: Segments) -> Iterator[None]:
    """Add noise to the trained parameters within the context, of about the size of usual initial weights."""
    parameters, generator = list(segments.trained.values()), torch.Generator().manual_seed(2)
    with torch.no_grad():
        before = [parameter.clone() for parameter in parameters]
        for parameter in parameters:
            fan_in = max(1, parameter[0].numel()) if parameter.dim() > 1 else 64
            parameter.add_(torch.randn(parameter.shape, generator=generator).to(parameter.device), alpha=fan_in**-0.5)
        try:
            yield
        finally:
            for parameter, values in zip(parameters, before, strict=True):
                parameter.copy_(values)


def _same(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors have the same numbers, nan included."""
    return torch.equal(torch.nan_to_num(one), torch.nan_to_num(other))
