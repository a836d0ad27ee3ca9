"""Project the output errors of all replicas by B, for all hidden layers at once.

`gaussian` draws B on the CPU. `opu_simulated` takes B from lightonml's simulated device. `opu_hardware` uses an Optical
Processing Unit with its own matrix. Only the last two import lightonml.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from pipeline.learning.network.layers import matmul
from pipeline.learning.opu import open_fitted, simulated_device
from pipeline.learning.randomness import integer_seed
from pipeline.trials import feedback
from pipeline.trials.config import TrialConfig
from pipeline.trials.feedback import is_centered, width_factor
from pipeline.trials.part import Workers

CENTERING_EXPOSURES = 64  # of a real OPU, over which the mean of B is averaged


class ErrorProjector:
    """Maps e to B e. Replica r has its own B_r, and its result does not depend on the other replicas.

    Args:
        n_classes: length of an output error.
        n_out_total: sum of the widths of the hidden layers.
        seeds: R seeds of 32 bits, one per replica.
        std: standard deviation of the entries of B.

    Attributes:
        matrices: B [R, n_classes, n_out_total]; None if it is not known, as for a real device.
        takes_ternary: whether errors must be ternary. The first is checked, on a CPU: elsewhere the host would wait.
    """

    matrices: Tensor | None = None
    takes_ternary = False

    def __init__(self, n_classes: int, n_out_total: int, seeds: Sequence[int], std: float,
                 device: torch.device | str = "cpu") -> None:
        for name, value in (("n_classes", n_classes), ("n_out_total", n_out_total), ("seeds", len(seeds))):
            if value < 1:
                raise ValueError(f"{name}: must be at least 1, got {value}")
        for seed in seeds:
            if not 0 <= seed < 2**32:
                raise ValueError(f"seeds: must be >= 0 and < 2**32, got {seed}")
        if not 0 < std < math.inf:
            raise ValueError(f"std: must be > 0 and finite, got {std}")
        self.n_classes = n_classes
        self.n_out_total = n_out_total
        self.n_replicas = len(seeds)
        self.std = std
        self.device = torch.device(device)
        self._check_next = self.takes_ternary and self.device.type == "cpu"

    def project(self, e: Tensor) -> Tensor:
        """Project output errors e [R, m, n_classes] to [R, m, n_out_total], float32; an OPU's must be ternary."""
        if e.ndim != 3 or e.shape[0] != self.n_replicas or e.shape[2] != self.n_classes:
            raise ValueError(f"e: must have shape [{self.n_replicas}, m, {self.n_classes}], got {list(e.shape)}")
        if self._check_next:
            check_ternary(e)
            self._check_next = False
        return self._project(e)

    def _project(self, e: Tensor) -> Tensor:
        assert self.matrices is not None  # a projector whose matrix is not known overrides this
        return matmul(e, self.matrices)

    def center(self) -> None:
        """Subtract from B its mean over classes: then B 1 = 0, and B e does not depend on the sum of e."""
        if self.matrices is None:
            raise RuntimeError(f"{type(self).__name__}: its matrix is not known, so it cannot be centred")
        self.matrices.sub_(self.matrices.double().mean(dim=1, keepdim=True))

    def scale(self, widths: Sequence[int], factors: Sequence[float]) -> None:
        """Multiply each layer's part of B by its factor."""
        if self.matrices is None:
            raise RuntimeError(f"{type(self).__name__}: its matrix is not known, so it cannot be scaled")
        for block, factor in zip(self.matrices.split(list(widths), dim=2), factors, strict=True):
            block.mul_(factor)

    def normalize(self, widths: Sequence[int], beta: float) -> None:
        """Scale each layer's part of B to spectral norm beta (Lee & Kifer 2020, Algorithm 1, line 2)."""
        if self.matrices is None:
            raise RuntimeError(f"{type(self).__name__}: its matrix is not known, so its norm cannot be set")
        for block in self.matrices.split(list(widths), dim=2):
            block.mul_(beta / torch.linalg.matrix_norm(block, ord=2, dim=(1, 2), keepdim=True))

    def close(self) -> None:
        """Release resources; may be called more than once."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.close()


PROJECTORS: Workers[type[ErrorProjector]] = Workers()


@PROJECTORS.of(feedback.GaussianMatrix)
class GaussianProjector(ErrorProjector):
    """B_r has entries std * N(0, 1), drawn on the CPU from seed r: they do not depend on the device."""

    matrices: Tensor

    def __init__(self, n_classes: int, n_out_total: int, seeds: Sequence[int], std: float,
                 device: torch.device | str = "cpu") -> None:
        super().__init__(n_classes, n_out_total, seeds, std, device)
        drawn = [torch.randn(n_classes, n_out_total, generator=torch.Generator("cpu").manual_seed(seed))
                 for seed in seeds]
        self.matrices = (std * torch.stack(drawn)).to(self.device)


def check_ternary(e: Tensor) -> None:
    """Refuse an error with values other than -1, 0 and 1."""
    others = e[(e != 0) & (e.abs() != 1)]
    if others.numel():
        raise ValueError(f"e: an OPU projects -1, 0 and 1 only, got {others[0].item():g} (ternarize the error first)")


@PROJECTORS.of(feedback.SimulatedOpu)
class SimulatedOpuProjector(ErrorProjector):
    """B_r is the real part of the matrix of lightonml's `SimulatedOpuDevice`, built from seed r.

    The device draws the real part with standard deviation 1/sqrt(n_classes), so it is multiplied by
    std * sqrt(n_classes). The simulation is linear and without noise, so B e+ - B e- = B e is one product.
    """

    takes_ternary = True
    matrices: Tensor

    def __init__(self, n_classes: int, n_out_total: int, seeds: Sequence[int], std: float,
                 device: torch.device | str = "cpu") -> None:
        super().__init__(n_classes, n_out_total, seeds, std, device)
        real = np.stack([simulated_device(n_classes, n_out_total, seed).random_matrix.real for seed in seeds])
        self.matrices = (std * math.sqrt(n_classes) * torch.from_numpy(real)).to(self.device)


@PROJECTORS.of(feedback.HardwareOpu)
class HardwareOpuProjector(ErrorProjector):
    """One Optical Processing Unit, opened once. All replicas share its fixed matrix; the seeds only count replicas.

    With its default rescaling (`variance`) lightonml divides by stdev * sqrt(n_classes). Inputs N(0, 1) then give
    outputs of unit variance: entries of B have standard deviation 1/sqrt(n_classes). So the result is multiplied by
    std * sqrt(n_classes), as in the simulation. It contains the device's own noise.

    `close` or the end of a `with` block releases the device, at the latest garbage collection or the interpreter's
    exit. Only one process can hold it. `open_opu` opens an OPU of n_components, with the methods `fit1d`,
    `linear_transform` and `close`; by default the host's.
    """

    def __init__(self, n_classes: int, n_out_total: int, seeds: Sequence[int], std: float,
                 device: torch.device | str = "cpu", *, open_opu: Callable[[int], Any] | None = None) -> None:
        super().__init__(n_classes, n_out_total, seeds, std, device)
        self._mean: Tensor | None = None  # mean of B over classes [n_out_total], in the device's units, from `center`
        self._factors = torch.full((n_out_total,), std * math.sqrt(n_classes))  # from the device's units
        self._opu = open_fitted(n_classes, n_out_total, open_opu)
        self._finalizer = weakref.finalize(self, self._opu.close)

    def _project(self, e: Tensor) -> Tensor:
        """Return the measured B e: a device projects only bits, so B (e = 1) - B (e = -1)."""
        if not self._finalizer.alive:
            raise RuntimeError("opu_hardware: the projector is closed; open another one to project")
        # Errors leave the accelerator anyway, so the check adds no wait. Without it, a value that is not ternary would
        # be projected as 0.
        rows = e.reshape(-1, self.n_classes).cpu()
        check_ternary(rows)
        projected = self._measured(rows == 1) - self._measured(rows == -1)
        if self._mean is not None:
            projected -= rows.sum(dim=1, keepdim=True) * self._mean
        return (self._factors * projected).reshape(*e.shape[:2], self.n_out_total).to(self.device)

    def center(self) -> None:
        """Measure the mean of B over classes, the projection of all ones; it is subtracted from now on."""
        ones = torch.ones(CENTERING_EXPOSURES, self.n_classes, dtype=torch.bool)
        self._mean = self._measured(ones).mean(dim=0) / self.n_classes

    def scale(self, widths: Sequence[int], factors: Sequence[float]) -> None:
        """Multiply what is measured from now on, each layer by its factor."""
        for part, factor in zip(self._factors.split(list(widths)), factors, strict=True):
            part.mul_(factor)

    def _measured(self, patterns: Tensor) -> Tensor:
        """Return the device's projections [rows, n_out_total], float32, of binary patterns [rows, n_classes]."""
        projections = self._opu.linear_transform(patterns.to(torch.uint8).numpy())
        return torch.from_numpy(np.asarray(projections, dtype=np.float32))

    def close(self) -> None:
        self._finalizer()


def shape_matrices(projector: ErrorProjector, trial: TrialConfig, widths: Sequence[int]) -> None:
    """Centre B and scale it for layers of these widths, as the trial says."""
    if is_centered(trial):
        projector.center()
    factors = [width_factor(trial, width) for width in widths]
    if set(factors) != {1.0}:
        projector.scale(widths, factors)


def make_projector(trials: Sequence[TrialConfig], n_out_total: int, device: torch.device | str) -> ErrorProjector:
    """Make the projector of a pack's trials, to hidden layers of this total width."""
    shared = trials[0]
    seeds = [integer_seed(t.seed, "feedback") for t in trials]
    n_classes, projector = shared.layer_sizes[-1], PROJECTORS[shared.parts.projector]
    return projector(n_classes, n_out_total, seeds, shared.feedback_std, device)
