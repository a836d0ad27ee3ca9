"""Attack one step of the photonic and of a certified mechanism, and draw docs/row_space.svg.

    python docs/row_space.py [FOLDER]    (default: docs; data from PHOTONIC_DATA, else downloaded)
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from analysis.papers.row_space import plot
from analysis.style import theme
from pipeline.auditing.row_space import row_space_audit
from pipeline.learning.data import load
from pipeline.trials import TrialConfig

COMMON: dict[str, Any] = dict(dataset="fashion_mnist", algorithm="pdfa", batch_size=256, seed=0)
PHOTONIC = [TrialConfig(mechanism="photonic", sigma=sigma, **COMMON) for sigma in (0.1, 1.0, 10.0)]
CERTIFIED = TrialConfig(mechanism="per_example", noise_multiplier=1.0, sampler="poisson", **COMMON)
CERTIFIED_STEPS = 10


def write(folder: Path) -> Path:
    """Print the AUC of every attack, and write `row_space.svg`: photonic at sigma = 10 beside certified."""
    data = load("fashion_mnist")
    print("mechanism    sigma    z  layer  steps  members  non-members    AUC  TPR at FPR 0.1%")
    shown = {}
    for config in (*PHOTONIC, CERTIFIED):
        for layer in (1, 2):
            steps = CERTIFIED_STEPS if config is CERTIFIED else 1
            audit = row_space_audit(config, data, layer=layer, steps=steps)
            print(f"{config.mechanism:11}  {config.sigma:5g}  {config.noise_multiplier:3g}  {layer:5}  {steps:5}  "
                  f"{len(audit.members):7}  {len(audit.non_members):11}  {audit.auc:.3f}  {audit.tpr():.4f}",
                  flush=True)
            if layer == 1:
                shown[config] = audit.members, audit.non_members
    figure = plot({"photonic, σ = 10": shown[PHOTONIC[-1]],
                   "certified (per-example clipping, z = 1)": shown[CERTIFIED]})
    path = folder / "row_space.svg"
    with theme():
        figure.savefig(path, metadata={"Date": None})
    return path


if __name__ == "__main__":
    write(Path(sys.argv[1] if len(sys.argv) > 1 else "docs"))
