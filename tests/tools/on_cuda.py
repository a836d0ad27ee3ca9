"""The tests of learning on a GPU: `PYTHONPATH=.:tests:tests/tools pytest -p on_cuda tests/learning`.

Each module's device CPU becomes the GPU, what tests load and make is there, and what they read comes back. A test that
compares with the bits of a processor, or runs other processes, cannot pass so.
"""

import functools
import sys
from pathlib import Path

import pytest
import torch
from torch.overrides import TorchFunctionMode

DEVICE = torch.device("cuda")
TESTS = str(Path(__file__).parents[1])
MAKE = {getattr(torch, name) for name in ("tensor", "arange", "ones", "zeros", "full", "rand", "randn", "randint",
                                          "randperm", "eye", "from_numpy", "linspace")}


class There(TorchFunctionMode):
    """Tensors that a test makes, drawn on the processor from its generators, are moved to the GPU."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        made = function(*args, **(kwargs or {}))
        by_test = function in MAKE and sys._getframe(1).f_code.co_filename.startswith(TESTS)
        return made.to(DEVICE) if by_test and "device" not in (kwargs or {}) else made


def pytest_collection_modifyitems(items):
    for module in {item.module for item in items}:
        vars(module).update({name: value.to(DEVICE) for name, value in vars(module).items()
                             if isinstance(value, torch.Tensor)})
        if hasattr(module, "CPU"):
            module.CPU = DEVICE
        if hasattr(module, "load"):
            module.load = functools.partial(module.load, device=DEVICE)
    tests = sys.modules["conftest"]  # not as imported here: pytest imports its own
    tests.load = functools.partial(tests.load, device=DEVICE)
    for name in ("numpy", "__array__"):
        here = getattr(torch.Tensor, name)
        setattr(torch.Tensor, name, lambda self, *a, _here=here, **k: _here(self.cpu(), *a, **k))


@pytest.fixture(autouse=True)
def there():
    with There():
        yield
