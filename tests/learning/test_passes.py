"""How many passes over memory a training step makes, and how many bytes it moves: never more than were written down.

Every operation of torch is seen with its tensors, views left out: it reads its inputs once and writes its results
once, whatever lies in a cache. `PYTHONPATH=.:tests/benchmarks python tests/learning/test_passes.py` writes down what
this code does, in tests/data/passes.json.
"""

import json
import math
from pathlib import Path

import pytest
import torch
from steps import random_records, training_of
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from pipeline.trials.config import TrialConfig

RECORDED = Path(__file__).parents[1] / "data" / "passes.json"
BASE = {"dataset": "digits", "hidden": (96, 48), "batch_size": 64, "alignment_batches": 0}
MECHANISMS = {"none": {}, "photonic": {"mechanism": "photonic", "sigma": 0.1},
              "per_example": {"mechanism": "per_example", "noise_multiplier": 1.0}}
CASES = {f"{algorithm} {mechanism} {precision}": {**BASE, **settings, "algorithm": algorithm,
                                                  "arithmetic": precision}
         for algorithm in ("bp", "dfa", "tdfa", "pdfa") for mechanism, settings in MECHANISMS.items()
         for precision in (("float32",) if mechanism == "per_example" else ("float32", "bfloat16"))}
LARGE = 64 * 48  # elements: of the smallest activation of a layer; what is smaller is no pass
ONLY_WRITTEN = ("copy_", "fill_", "zero_", "normal_", "uniform_")
WAITING = ("_local_scalar_dense", "nonzero", "masked_select", "_unique2")  # the host must know the result, or its shape
GATHERED = ("index_select", "index", "gather")  # of their first input as many elements are read as result


class Traffic(TorchDispatchMode):
    """Counts bytes and passes over large tensors of the operations within, and names those that the host waits for."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes, self.passes, self.waits = 0, 0, []

    def __torch_dispatch__(self, operation, types, arguments=(), keywords=None):
        result = operation(*arguments, **(keywords or {}))
        name, slots = operation.overloadpacket.__name__, operation._schema.arguments
        self.waits += [name] if name in WAITING else []
        if operation.is_view or "empty" in name:
            return result
        by_name = [(slot, keywords[slot.name]) for slot in slots if slot.name in (keywords or {})]
        given = [*zip(slots, arguments, strict=False), *by_name]
        for k, (slot, value) in enumerate(given):
            writes = slot.alias_info is not None and slot.alias_info.is_write
            if not slot.is_out and not (writes and name in ONLY_WRITTEN):
                self._moved([result] if name in GATHERED and k == 0 else [value])
            if writes:
                self._moved([value])
        if not operation._schema.is_mutable:
            self._moved([result])
        return result

    def _moved(self, tensors) -> None:
        for tensor in tree_leaves(tensors):
            if isinstance(tensor, torch.Tensor):
                elements = math.prod(n for n, stride in zip(tensor.shape, tensor.stride(), strict=True) if stride)
                self.bytes += elements * tensor.element_size()
                self.passes += elements >= LARGE


def traffic(case):
    """What one step moves, once the optimizer has its memory."""
    training = training_of(TrialConfig(**CASES[case]), random_records("digits"))
    first, second = training.sampler.epoch()[:2]
    training.step(first)
    with Traffic() as seen:
        training.step(second)
    training.close()
    # A look at all factors, which `gaussian.py` takes on a CPU alone.
    assert not seen.waits or TrialConfig(**CASES[case]).mechanism == "per_example"
    return {"bytes": seen.bytes, "passes": seen.passes}


@pytest.mark.parametrize("case", CASES)
def test_a_step_moves_no_more_than_was_written_down(case):
    seen, most = traffic(case), json.loads(RECORDED.read_text())[case]
    assert seen["bytes"] <= most["bytes"] and seen["passes"] <= most["passes"]


if __name__ == "__main__":
    torch.set_num_threads(1)
    RECORDED.write_text(json.dumps({case: traffic(case) for case in CASES}, indent=1) + "\n")
