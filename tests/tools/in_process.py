"""Sweeps in this process, pack after pack, for tests that ask nothing of Ray: it takes seconds to start a worker."""

import contextlib
import time
from types import SimpleNamespace

import torch

from pipeline.sweep import run, tuning
from pipeline.sweep.clock import Clock
from pipeline.sweep.nodes import Watch


def fit(driver, at_once, trainer):
    """In the place of `pipeline.sweep.tuning.fit`, with its own worker, callback and scheduler."""
    order = tuning.PackOrder(at_once, driver)
    for number in range(len(driver.packs)):
        trainable = object.__new__(tuning.PackTrainable)
        trainable.setup({"pack": number}, packs=driver.packs, trainer=trainer, plugins=driver.sweep.plugins,
                        code=tuning.program(driver.sweep.plugins), announces=False)
        trial, done = SimpleNamespace(config={"pack": number}, trial_id=f"{number:05}", status="RUNNING"), False
        driver.on_trial_start(0, [], trial)
        while not done:
            begin = time.monotonic()
            result = {"done": False, **trainable.step(), "time_this_iter_s": time.monotonic() - begin}
            done = result["done"] = order.on_trial_result(None, trial, result) == order.STOP or result["done"]
            driver.on_trial_result(0, [], trial, result)
        driver.on_step_end(0, [])


@contextlib.contextmanager
def without_ray(patch):
    """Sweeps find one node, with two cores and an OPU, and never start Ray, until `patch` is undone.

    A fixture gives the `monkeypatch` of its test: two patches of one name must be undone in the opposite order.
    """
    node, threads = {"CPU": 2, "OPU": 1}, torch.get_num_threads()
    patch.setattr(run, "running_ray", lambda *a: a[-1]() or contextlib.nullcontext(Watch(dict, print, Clock())))
    patch.setattr(run, "node_resources", lambda: [node])
    patch.setattr(run, "cluster_resources", lambda: node)
    patch.setattr(run, "prepare_nodes", lambda *a: None)
    patch.setattr(tuning, "in_use", dict)
    patch.setattr(tuning, "node_resources", lambda: [node])
    patch.setattr(run, "fit", fit)
    yield
    torch.set_num_threads(threads)
