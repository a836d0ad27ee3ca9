"""Packs that share GPUs, with two GPUs that are said to be there: Ray only counts them, and training is a stand-in."""

from __future__ import annotations

import functools
import os
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
import ray
import sweep_stub
from ray import cloudpickle
from sweep_stub import experiment, grid

from pipeline.sweep.cluster import in_use
from pipeline.sweep.run import run_sweep

cloudpickle.register_pickle_by_value(sweep_stub)
cloudpickle.register_pickle_by_value(sys.modules[__name__])


def train(pack, *, folder: Path, packs: int):
    """Says on which GPU it is, and waits until all packs train at the same time."""
    (folder / f"gpu-{pack.shared.seed}").write_text(os.environ["CUDA_VISIBLE_DEVICES"])
    deadline = time.monotonic() + 120
    while len(list(folder.glob("gpu-*"))) < packs:
        if time.monotonic() > deadline:
            raise RuntimeError("the packs do not train at the same time")
        time.sleep(0.05)
    yield from sweep_stub.train(pack, folder=folder)


@pytest.mark.slow
def test_two_packs_on_each_of_two_gpus(tmp_path):
    ray.init("local", num_cpus=4, num_gpus=2, include_dashboard=False, logging_level="ERROR", log_to_driver=False)
    try:
        cluster = in_use()
        assert cluster["in_use"] == {"CPU": [0, 4], "GPU": [0, 2]}
        (node,) = cluster["nodes"]
        assert node == {"node": node["node"], "CPU": 4, "GPU": 2}
        trainer = functools.partial(train, folder=tmp_path, packs=4)
        result = run_sweep(experiment(grid(("dfa",), 4), cpu=1, gpu=0.5), root=tmp_path / "runs", trainer=trainer,
                           quiet=True)
    finally:
        ray.shutdown()
    assert result.finished == 4
    assert Counter(file.read_text() for file in tmp_path.glob("gpu-*")) == {"0": 2, "1": 2}
