"""Compute one record after the other, each on a fresh copy of the network. `OwnNet` does so where it cannot map.

A record sees the pristine module, its own numbers and the same state of all generators, whatever was computed before.
What code keeps outside the module is its author's statement (docs/networks.md). An error that the network raises on a
record is told to nobody: the record contributes nothing, or counts as wrong.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from pipeline.learning.mechanisms.gradients import GradientRows, Gradients
from pipeline.learning.own.isolation import isolated
from pipeline.learning.own.segments import Segments, copy_of, ends

OUT_OF_MEMORY = ("can't allocate memory", "not enough memory")  # in the text of torch's RuntimeError on the CPU


class Alone:
    """A network's segments, for one record after the other, with logits [n, n_classes].

    It has the methods of `Mapped`.

    Attributes:
        raised: what the network raised last; None if nothing. It is for public records alone.
    """

    def __init__(self, segments: Segments, n_classes: int) -> None:
        self.segments, self.n_classes = segments, n_classes
        self.raised: BaseException | None = None

    def chunk(self, records_at_once: int) -> int:
        """Return the size of chunks."""
        return 1

    def logits(self, records: Tensor) -> Tensor:
        """Return the logits of records [n, *shape]; nan for a record on which the network raises."""
        found = []
        for record in records.split(1):
            copied, logits = copy_of(self.segments), record.new_full((1, self.n_classes), torch.nan)
            with isolated(), self._attempt():
                logits = self._outputs(copied, record)[-1].detach()
            found.append(logits)
        return torch.cat(found)

    def gradients(self, record: Tensor, signals_of: Callable[[Tensor], Sequence[Tensor]]) -> list[Gradients]:
        """Return the gradient of a record [1, *shape] in all trained parameters, nan if the network raises.

        `signals_of` gives a signal [1, n_k] for each segment from logits [1, n_classes].
        """
        copied, outputs = copy_of(self.segments), list[Tensor]()
        trained = list(copied.trained.values())
        row = record.new_full((1, sum(parameter.numel() for parameter in trained)), torch.nan)
        with isolated():
            with self._attempt():
                outputs = self._outputs(copied, record)
            if outputs:
                signals = signals_of(outputs[-1].detach())
                with self._attempt():
                    row = _row(outputs, signals, trained)
        return [GradientRows(row)]

    def _outputs(self, copied: Segments, record: Tensor) -> list[Tensor]:
        outputs = copied(record)
        _check("logits", outputs[-1], (1, self.n_classes), record)
        return outputs

    @contextlib.contextmanager
    def _attempt(self) -> Iterator[None]:
        """Keep an error in `raised` and go on after the context. A machine without memory ends the trial."""
        try:
            yield
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            if lacks_memory(error):
                raise
            self.raised = error


def lacks_memory(error: BaseException) -> bool:
    """Whether a machine's want of memory raised an error."""
    if type(error) is RuntimeError:
        return any(text in str(error) for text in OUT_OF_MEMORY)
    return isinstance(error, (MemoryError, torch.OutOfMemoryError))


def _row(outputs: Sequence[Tensor], signals: Sequence[Tensor], trained: Sequence[Tensor]) -> Tensor:
    """Go back from the outputs of a copy; return the gradients in its trained parameters as one row [1, d]."""
    shapes = [parameter.shape for parameter in trained]
    torch.autograd.backward(*ends(outputs, signals))
    gradients = [torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.to_dense()
                 for parameter in trained]
    for gradient, shape in zip(gradients, shapes, strict=True):
        _check("a gradient", gradient, shape, signals[0])
    return torch.cat([gradient.flatten() for gradient in gradients])[None]


def _check(what: str, found: Tensor, shape: Sequence[int], like: Tensor) -> None:
    """Raise for a tensor of another kind, shape, type or device, which a network may give for some records."""
    if type(found) is not Tensor or found.layout != torch.strided:  # a subclass could see what it is added to
        raise TypeError(f"{what} must be a dense tensor, got a {type(found).__name__}")
    if tuple(found.shape) != tuple(shape) or found.dtype != like.dtype or found.device != like.device:
        raise ValueError(f"{what} must be {like.dtype} {list(shape)}, got {found.dtype} {list(found.shape)}")
