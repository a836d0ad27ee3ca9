"""Random features of an Optical Processing Unit (Saade et al. 2016, "Random projections through multiple optical
scattering"): intensities |R x|^2 of a binary record x, R with complex Gaussian entries, which nobody chose by data.

An OPU displays bits. A pixel v on 0..scale becomes T of them, bit k whether v > k scale/(T + 1): the fixed thresholds
of lightonml's `MultiThresholdEncoder`, so that the product of two records' codes counts the levels that both reach.
(Bit planes would give the last bit of a pixel as much weight as its first; quantiles of the data would have to be paid
for.)
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import numpy as np
import torch

from pipeline.learning.opu import open_fitted, simulated_device
from pipeline.trials.config import TrialConfig
from pipeline.trials.datasets import DatasetSpec


def encoded(records: torch.Tensor, thresholds: int, scale: float) -> torch.Tensor:
    """Return the bits of pixels, from [n, n_features] to [n, T n_features], both uint8; all of threshold 1 come first.

    Bit k of a pixel is set if it is above scale k/(T + 1), k = 1, ..., T = `thresholds`.
    """
    # Pixels are integers, so thresholds may be rounded down.
    levels = torch.tensor([int(scale * k / (thresholds + 1)) for k in range(1, thresholds + 1)], dtype=torch.uint8)
    return (records.unsqueeze(1) > levels.to(records.device).unsqueeze(1)).flatten(1).to(torch.uint8)


class SimulatedOptics:
    """|x R|^2 with the matrix R of lightonml's simulated device, whose real and imaginary parts are N(0, 1/n_bits).

    These are the device's results to rounding: the same products, but on all cores, or on a GPU.
    """

    def __init__(self, n_bits: int, width: int, seed: int, device: torch.device | str = "cpu") -> None:
        matrix = simulated_device(n_bits, width, seed, linear=False).random_matrix
        parts = np.concatenate([matrix.real, matrix.imag], axis=1)
        self.width, self.parts = width, torch.from_numpy(parts).to(device)  # [n_bits, 2 width]

    def __call__(self, bits: torch.Tensor) -> torch.Tensor:
        """Return intensities [n, width], float32, of bits [n, n_bits]."""
        field = (bits.to(torch.float32) @ self.parts).square_()
        return field[:, :self.width] + field[:, self.width:]


@contextlib.contextmanager
def optical(spec: DatasetSpec, config: TrialConfig, device: torch.device
            ) -> Iterator[Callable[[torch.Tensor], torch.Tensor]]:
    """Yield the map of uint8 records [n, n_features] to float32 [n, optical_width]; a real OPU is held meanwhile."""
    n_bits = config.optical_thresholds * spec.n_features
    with contextlib.ExitStack() as device_lease:
        intensities: Callable[[torch.Tensor], torch.Tensor]
        if config.optical_device == "hardware":
            opu = device_lease.enter_context(contextlib.closing(open_fitted(n_bits, config.optical_width)))

            def intensities(bits: torch.Tensor) -> torch.Tensor:
                """Return what the camera sees, 0..255: |R x|^2 times its exposure, for an R of its own, with noise."""
                seen = np.asarray(opu.transform(bits.cpu().numpy()), dtype=np.float32)
                return torch.from_numpy(seen).to(bits.device)
        else:
            intensities = SimulatedOptics(n_bits, config.optical_width, config.optical_seed, device)
        yield lambda records: intensities(encoded(records, config.optical_thresholds, spec.scale))
