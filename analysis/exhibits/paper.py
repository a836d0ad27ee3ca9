"""Published numbers: R. Ohana et al., "Photonic Differential Privacy with Direct Feedback Alignment", NeurIPS 2021."""

from __future__ import annotations

import pandas as pd

SOURCE = "Ohana et al. 2021, Table 1"
# The paper's setting; its numbers are compared only with trials of this setting.
SETTING = {"dataset": "fashion_mnist", "network": "mlp", "hidden": (512, 512), "activation": "tanh", "batch_size": 256,
           "epochs": 15}

_SETTINGS = ("non-private", "0", "0.01", "0.03", "0.05", "0.1", "0.2")
_ROWS = {
    "bp": (88.33, 75.22, 70.71, 71.47, 71.27, 70.28, 66.78),
    "dfa": (86.80, 84.20, 84.04, 84.15, 83.70, 83.06, 81.66),
    "tdfa": (86.63, 84.20, 84.38, 84.04, 83.94, 82.98, 80.80),
    "pdfa": (85.85, 84.00, 83.79, 83.69, 83.36, 82.63, 80.94),
}

# (algorithm, setting) -> test accuracy in percent. One run each, as far as the paper says; pdfa ran on an OPU.
TABLE1: dict[tuple[str, str], float] = {
    (algorithm, setting): accuracy
    for algorithm, row in _ROWS.items() for setting, accuracy in zip(_SETTINGS, row, strict=True)
}

# Section 4, "Setting" and "BP baseline".
LEARNING_RATE = 0.01
LEARNING_RATE_BP_PRIVATE = 1e-4


def is_setting(runs: pd.DataFrame) -> bool:
    """Whether all runs have the paper's setting."""
    return all(value == published for field, published in SETTING.items() for value in runs[field])
