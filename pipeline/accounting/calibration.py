"""The noise that a target epsilon needs: searched once, and kept in the cache for all later commands."""

from __future__ import annotations

import contextlib
import functools
import math
import os
import tempfile
from collections.abc import Callable
from importlib.metadata import version
from typing import NamedTuple

from pipeline.package import cache_folder
from pipeline.trials.fields import ConfigError, digest

MAX_VALUE = 1e6  # largest calibrated value
MIN_RATIO, AIMED_RATIO = 0.99, 0.995  # of epsilon to its target: the smallest accepted, and the aim of a search
MIN_WIDTH, MIN_WIDTH_BESIDE_INFINITY = 1e-5, 1e-3  # of log(value), at which a search without success ends
FOLDER = "noise"  # in the cache
VERSION = 1  # of the kept values; to be raised if a search gives other bits


@functools.cache
def _software() -> dict[str, str]:
    return {name: version(name) for name in ("photonic-dfa", "dp-accounting", "numpy", "scipy")}


def kept(of: tuple[object, ...], target_epsilon: float, epsilon_of: Callable[[float], float], least: float,
         search: Callable[[], float]) -> float:
    """Return the value >= `least` that gives `target_epsilon`: from the cache if it fits, else from `search`.

    `of` is the entry's key: all that `epsilon_of` depends on. A searched value is kept if the cache can be written.
    """
    name = digest({"of": repr((VERSION, *of, target_epsilon, least)), **_software()})
    try:
        text = (cache_folder() / FOLDER / name).read_text(encoding="ascii")
        value = float(text) if text.endswith("\n") else math.nan  # nan: written in part
    except (OSError, ValueError, RuntimeError):  # missing or damaged; RuntimeError: the user has no home folder
        value = math.nan
    if least <= value <= MAX_VALUE and MIN_RATIO * target_epsilon <= epsilon_of(value) <= target_epsilon:
        return value
    value = search()
    with contextlib.suppress(OSError, RuntimeError):
        folder = cache_folder() / FOLDER
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=folder, delete=False) as file:
            file.write(f"{value!r}\n")
        os.replace(file.name, folder / name)  # whole, so that no process reads a part of it
    return value


class _Point(NamedTuple):
    log_value: float
    value: float
    log_ratio: float  # log(epsilon/target), which decreases nearly linearly with `log_value`


def calibrate(target_epsilon: float, epsilon_of: Callable[[float], float], name: str, search_from: float = 1e-6,
              least: float = 0.0) -> float:
    """Return a value, such as a noise multiplier, that gives an epsilon between 0.99 and 1 times `target_epsilon`.

    `epsilon_of` decreases with the value, and is infinite where no accountant takes it. Values from `search_from` to
    `MAX_VALUE` are searched. A result below `least` is refused only afterwards, so that no result depends on `least`.
    A target that no value attains is refused; messages call the value `name`.
    """
    if not 0 < target_epsilon < math.inf:
        raise ConfigError(f"target_epsilon: must be > 0 and finite, got {target_epsilon}")

    def evaluate(log_value: float) -> _Point:
        value = min(max(math.exp(log_value), search_from), MAX_VALUE)  # exp rounds
        positive_epsilon = max(epsilon_of(value), 1e-300)
        return _Point(log_value, value, math.log(positive_epsilon / target_epsilon))

    accepted = f"{name} in [{max(search_from, least):g}, {MAX_VALUE:g}]"
    low, high = _bracket(evaluate, math.log(search_from), math.log(MAX_VALUE))
    if high.log_ratio > 0:
        smallest_epsilon = epsilon_of(MAX_VALUE)
        if math.isinf(smallest_epsilon):
            raise ConfigError(f"target_epsilon: no {accepted} gives a finite epsilon at this delta, got "
                              f"{target_epsilon:g}; use a larger delta")
        raise ConfigError(f"target_epsilon: must be at least {smallest_epsilon:.4g}, as no {accepted} gives less, got "
                          f"{target_epsilon:g}")
    found = _interpolate(evaluate, low, high)
    if found.log_ratio < math.log(MIN_RATIO) or found.value < least:
        largest_epsilon = epsilon_of(max(found.value, least))
        raise ConfigError(f"target_epsilon: must be at most {largest_epsilon:.4g}, as no {accepted} gives more, got "
                          f"{target_epsilon:g}")
    return found.value


def _bracket(evaluate: Callable[[float], _Point], log_min: float, log_max: float) -> tuple[_Point, _Point]:
    """Return points on both sides of the target, the larger epsilon first; both on one side at an end of the range."""
    step = math.log(1.4)
    low = high = evaluate(0.0)
    while high.log_ratio > 0 and high.log_value < log_max:
        low, high = high, evaluate(min(high.log_value + step, log_max))
    while low.log_ratio <= 0 and high.log_value > log_min:
        low, high = evaluate(max(low.log_value - step, log_min)), low
    return low, high


def _interpolate(evaluate: Callable[[float], _Point], low: _Point, high: _Point) -> _Point:
    """Shrink a bracket by linear interpolation (regula falsi) until the ratio at `high` is accepted; return `high`."""
    while high.log_ratio < math.log(MIN_RATIO):
        is_finite = low.log_ratio < math.inf
        width = high.log_value - low.log_value
        if width <= (MIN_WIDTH if is_finite else MIN_WIDTH_BESIDE_INFINITY):
            break  # no value attains the target
        fraction = 0.5
        if is_finite:
            fraction = (low.log_ratio - math.log(AIMED_RATIO)) / (low.log_ratio - high.log_ratio)
            fraction = min(max(fraction, 0.1), 0.9)  # so that either end may move
        middle = evaluate(low.log_value + fraction * width)
        if middle.log_ratio > 0:
            low = middle
        else:
            high = middle
    return high
