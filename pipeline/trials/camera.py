"""The optical processor as a physical device, `projector: opu_physical`: its units and its noise.

A pattern of binary digits x is shown with a reference beam of phase 0 and then of phase pi. On pixel k the intensities
are |r + a_k.x|^2 and |r - a_k.x|^2; a_k is complex Gaussian, and its real part is row k of B^T. With phi
photo-electrons per unit of intensity,

    lambda = phi |r +- a_k.x|^2 + dark,    B^T x = (lambda_0 - lambda_pi)/(4 phi r)

exactly, for any signal. An error e = e+ - e- takes four exposures, two for each part. Units: intensities are squares of
entries of B; the camera's settings are in photo-electrons (docs/optics.md).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pipeline.trials.config import TrialConfig

# Settings of the camera and its reference beam, apart from the light.
SETTINGS = ("reference_ratio", "dark_counts", "read_noise", "full_well", "adc_bits")

# A scientific camera, Andor Zyla 4.2: read noise 0.9 e- (brochure "Zyla OEM", Andor), saturation 30,000 e- in 16 bits
# (Hardware Manual Zyla sCMOS 4.2 PLUS, version 2.0 of 18 Feb 2021, Table 5, where a level is 0.45 e-). We assume that
# an optical processor has such a camera: no source on the camera of a real one was found. The figures do not set
# photons, reference_ratio and dark_counts.
ZYLA_4_2: Mapping[str, float] = MappingProxyType({"read_noise": 0.9, "full_well": 30_000.0, "adc_bits": 16})


@dataclass(frozen=True)
class Camera:
    """One trial's light and camera, from the settings of the same names."""

    photons: float  # mean photo-electrons of a pixel in one exposure, with reference and all mirrors on
    reference_ratio: float  # |r| over the root mean square of |a_k.x| with all mirrors on
    dark_counts: float  # mean counts without light, per pixel and exposure
    read_noise: float  # standard deviation, in electrons
    full_well: float  # electrons at which a pixel saturates; 0 for no limit
    adc_bits: int  # 2^bits levels from 0 to the full well; 0 for no rounding
    std: float  # standard deviation of the real and of the imaginary part of a_k
    n_inputs: int  # mirrors, one for every class

    @property
    def reference(self) -> float:
        """Return |r|, the same on every pixel, in units of B."""
        return self.reference_ratio * self.std * math.sqrt(2 * self.n_inputs)

    @property
    def photons_per_unit(self) -> float:
        """Return phi: photo-electrons per unit of intensity in one exposure."""
        return self.photons / (2 * self.n_inputs * self.std**2 * (1 + self.reference_ratio**2))

    @property
    def adc_step(self) -> float:
        """Return the electrons between two levels; 0 without rounding."""
        return self.full_well / (2**self.adc_bits - 1) if self.adc_bits else 0.0

    @property
    def effective_sigma(self) -> float:
        """Return the standard deviation of the camera's noise on one component of B e, in units of the entries of B.

        e is a ternary error with one entry +1 and one -1. Saturation is ignored, and rounding counts as uniform noise.
        """
        return math.hypot(self.shot_sigma, self.floor_sigma)

    @property
    def shot_sigma(self) -> float:
        """Return the part of `effective_sigma` from counting photo-electrons: it falls as 1/sqrt(photons)."""
        phi = self.photons_per_unit  # the difference of two exposures of one part of e has variance 2 phi I
        return math.sqrt(4 * phi * self._mean_intensity) / (4 * phi * self.reference)

    @property
    def floor_sigma(self) -> float:
        """Return the part of `effective_sigma` from dark counts, read noise and rounding: it falls as 1/photons."""
        return math.sqrt(4 * self._dark_variance) / (4 * self.photons_per_unit * self.reference)

    def with_sigma(self, sigma: float) -> Camera:
        """Return this camera with the `photons` that give `effective_sigma` = sigma > 0, in units of an entry of B."""
        # It solves a phi^2 - 4 I phi - 4 V = 0, with the mean intensity I, and the variance V without light.
        intensity, a = self._mean_intensity, (4 * self.reference * sigma) ** 2
        phi = (2 * intensity + math.sqrt(4 * intensity**2 + 4 * a * self._dark_variance)) / a
        return replace(self, photons=phi * self.photons / self.photons_per_unit)

    @property
    def _mean_intensity(self) -> float:
        """Return I = r^2 + mean of |a.x|^2 on a pixel in one exposure with one mirror on, in units of B squared."""
        return self.reference**2 + 2 * self.std**2

    @property
    def _dark_variance(self) -> float:
        """Return V, the variance of an exposure without light, in electrons^2: dark counts, read noise, rounding."""
        return self.dark_counts + self.read_noise**2 + self.adc_step**2 / 12


def camera_of(trial: TrialConfig) -> Camera:
    """Return the camera of a trial with projector 'opu_physical'."""
    return Camera(trial.photons, trial.reference_ratio, trial.dark_counts, trial.read_noise, trial.full_well,
                  trial.adc_bits, trial.feedback_std, trial.layer_sizes[-1])
