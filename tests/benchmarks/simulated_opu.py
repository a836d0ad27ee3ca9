"""lightonml's own OPU class, with its default rescaling, on its simulated device in place of the optics."""

from __future__ import annotations

from typing import Any

from pipeline.learning.opu import import_lightonml, simulated_device


def opened(n_features: int, n_components: int, seed: int = 0) -> Any:
    """An open OPU with the matrix of this seed.

    The simulated device has entries of 1/sqrt(n_features) but says stdev = 1: its linear output is 1/sqrt(n_features)
    of the optics'.
    """
    # With a size other than the matrix's, lightonml silently builds another matrix from seed 0.
    return import_lightonml().OPU(n_components=n_components, max_n_features=n_features, disable_pbar=True,
                                  open_at_init=True,
                                  opu_device=simulated_device(n_features, n_components, seed))
