"""A training step as a CUDA graph: captured once, then replayed, so that its many small kernels are one launch."""

from __future__ import annotations

from collections.abc import Callable

import torch

from pipeline.learning.randomness import GaussianNoise
from pipeline.learning.training import Training

WARM_UP = 3  # steps before the capture, in which the optimizer and the libraries take what memory they keep


class Replayed:
    """In the place of `Training.step`: `training.step = Replayed(training)`. The same steps, in memory that stays.

    A graph holds addresses and no Python. So what changes from step to step is written into buffers beforehand: the
    records' indices, and the noise, whose generators draw outside of the graph. The first steps are taken as they
    are, then one is captured, which does not execute it, and from then on it is replayed. On a CPU the captured
    function is called instead, on the same buffers.

    Steps that measure alignment are not replayed. Inputs lie in a buffer that grows with the largest batch that was
    asked for, so that one evaluation is made first: it must not grow once a graph holds it.

    Args:
        training: with a constant learning rate and full batches, not averaged, its first epoch not begun.

    Raises:
        ValueError: for another training, whose steps differ by more than what is in the buffers.
    """

    def __init__(self, training: Training) -> None:
        c = training.pack.shared
        sources = [*training.mechanism.noise_sources(), *training.feedback.noise_sources()]
        if (c.schedule != "constant" or c.averaging or not c.parts.sampler.full
                or not all(isinstance(source, GaussianNoise) for source in sources)):
            raise ValueError("training: a graph needs a constant schedule, no averaging, a sampler of full batches and "
                             "Gaussian noise of recorded seeds")
        self._step, self._replay, self._taken = training.step, self._run, 0
        self._indices = torch.zeros(len(training.pack.trials), c.batch_size, dtype=torch.int64, device=training.device)
        self._noise = [(source.next, torch.zeros_like(source.block[:, 0])) for source in sources]
        for source, (_, buffer) in zip(sources, self._noise, strict=True):
            source.next = lambda buffer=buffer: buffer
        for part in ("validation", "test"):
            training.evaluation.count(training.net, part)

    def __call__(self, indices: torch.Tensor,
                 measure_alignment: bool = False) -> tuple[torch.Tensor, torch.Tensor | None]:
        """As `Training.step`."""
        self._indices.copy_(indices)
        for draw, buffer in self._noise:
            buffer.copy_(draw())
        if measure_alignment:
            return self._step(self._indices, measure_alignment=True)
        if self._taken == WARM_UP and self._indices.is_cuda:
            self._replay = self._captured()
        self._taken += 1
        self._replay()
        return self._loss.clone(), None  # the next replay writes to the same place

    def _run(self) -> None:
        self._loss, _ = self._step(self._indices)

    def _captured(self) -> Callable[[], None]:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._run()
        return graph.replay
