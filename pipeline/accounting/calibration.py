"""The noise that a target epsilon needs: searched once, and kept in the cache for all later commands."""

from __future__ import annotations

import contextlib
import functools
import math
import os
import tempfile
from collections.abc import Callable
from importlib.metadata import version

from pipeline.package import cache_folder
from pipeline.trials.fields import ConfigError, digest

MAX_VALUE = 1e6  # largest calibrated value
CALIBRATION_RANGE = (0.99, 0.995)  # epsilon over its target: the smallest accepted ratio, and the ratio aimed at
FOLDER = "noise"  # in the cache
VERSION = 1  # of the kept values; to be raised if a search gives other bits


@functools.cache
def _software() -> dict[str, str]:
    """Return the versions of the software on which the bits of a calibrated value depend."""
    return {name: version(name) for name in ("photonic-dfa", "dp-accounting", "numpy", "scipy")}


def kept(of: tuple[object, ...], target_epsilon: float, epsilon_of: Callable[[float], float], least: float,
         search: Callable[[], float]) -> float:
    """Return the value >= `least` that gives `target_epsilon`: the cache's if it still does, else that of `search`.

    `of` is the entry's key: all that `epsilon_of` depends on. Without a cache that can be written, nothing is kept.
    """
    name = digest({"of": repr((VERSION, *of, target_epsilon, least)), **_software()})
    try:
        text = (cache_folder() / FOLDER / name).read_text(encoding="ascii")
        value = float(text) if text.endswith("\n") else math.nan  # nan: written in part
    except (OSError, ValueError, RuntimeError):  # missing or damaged; RuntimeError: the user has no home folder
        value = math.nan
    if (least <= value <= MAX_VALUE
            and CALIBRATION_RANGE[0] * target_epsilon <= epsilon_of(value) <= target_epsilon):
        return value
    value = search()
    with contextlib.suppress(OSError, RuntimeError):
        folder = cache_folder() / FOLDER
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=folder, delete=False) as file:
            file.write(f"{value!r}\n")
        os.replace(file.name, folder / name)  # whole, so that no process reads a part of it
    return value


def calibrate(target_epsilon: float, epsilon_of: Callable[[float], float], name: str, min_value: float = 1e-6,
              least: float = 0.0) -> float:
    """Return a value, such as a noise multiplier, that gives an epsilon between 0.99 and 1 times `target_epsilon`.

    `epsilon_of` decreases with the value, and is infinite where no accountant takes it. If no value from `min_value` to
    `MAX_VALUE`, >= `least`, attains the target, the target is refused; messages call the value `name`.
    """
    if not 0 < target_epsilon < math.inf:
        raise ConfigError(f"target_epsilon: must be > 0 and finite, got {target_epsilon}")

    def value_at(log_value: float) -> float:
        return min(max(math.exp(log_value), min_value), MAX_VALUE)  # exp rounds

    def log_ratio(log_value: float) -> float:  # of epsilon to its target: it decreases and is nearly linear
        return math.log(max(epsilon_of(value_at(log_value)), 1e-300) / target_epsilon)  # epsilon may be 0

    def refusal(bound: str, value: float, other: str) -> ConfigError:  # of a target beyond the epsilon of a value
        attained, accepted = epsilon_of(value), f"{name} in [{max(min_value, least):g}, {MAX_VALUE:g}]"
        if math.isinf(attained):
            return ConfigError(f"target_epsilon: no {accepted} gives a finite epsilon at this delta, got "
                               f"{target_epsilon:g}; use a larger delta")
        return ConfigError(f"target_epsilon: must be {bound} {attained:.4g}, as no {accepted} gives {other}, got "
                           f"{target_epsilon:g}")

    min_ratio, aim = map(math.log, CALIBRATION_RANGE)
    bottom, top = math.log(min_value), math.log(MAX_VALUE)
    # Bracket the solution between logarithms of values, in steps of a factor 1.4: the ratio is > 0 at `low` and <= 0 at
    # `high`.
    low = high = 0.0
    ratio_at_low = ratio_at_high = log_ratio(0.0)
    while ratio_at_high > 0:
        if high == top:
            raise refusal("at least", MAX_VALUE, "less")
        low, ratio_at_low = high, ratio_at_high
        high = min(high + math.log(1.4), top)
        ratio_at_high = log_ratio(high)
    while ratio_at_low <= 0 and high > bottom:
        high, ratio_at_high = low, ratio_at_low
        low = max(low - math.log(1.4), bottom)
        ratio_at_low = log_ratio(low)
    # Shrink the bracket by linear interpolation, at least a tenth from either end; halve it if epsilon is infinite.
    while ratio_at_high < min_ratio and high - low > (1e-5 if ratio_at_low < math.inf else 1e-3):
        fraction = 0.5
        if ratio_at_low < math.inf:
            fraction = min(max((ratio_at_low - aim) / (ratio_at_low - ratio_at_high), 0.1), 0.9)
        middle = low + fraction * (high - low)
        ratio = log_ratio(middle)
        if ratio > 0:
            low, ratio_at_low = middle, ratio
        else:
            high, ratio_at_high = middle, ratio
    if ratio_at_high < min_ratio or value_at(high) < least:  # no more epsilon is to be had
        raise refusal("at most", max(value_at(high), least), "more")
    return value_at(high)
