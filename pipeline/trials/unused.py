"""Settings that were written down and that no trial uses are refused: whoever writes one expects it to do something.

A trial uses the fields of its `used()`. A default of 0 or false (`sigma: 0`, `denoise: false`) makes no difference
where it is not used, and may be written down anywhere; one that another value would replace (`schedule: constant`),
wherever that value would be used.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from pipeline.trials.choices import (
    ALGORITHMS,
    BOUNDINGS,
    CONV_CLIPS,
    CONV_ERRORS,
    MECHANISMS,
    NETWORKS,
    OPTIMIZERS,
    OUTPUT_INITS,
    PROJECTORS,
    TAU_H_RULES,
)
from pipeline.trials.config import ConfigError, TrialConfig, settings, uses
from pipeline.trials.features import FEATURES, OPTICAL_DEVICES
from pipeline.trials.fields import listed_or, plain
from pipeline.trials.naming import counted

Written = tuple[TrialConfig, Mapping[str, str]]  # a trial, and the place in the file of every field that was given

# What a field's counterpart is called under another mechanism.
COUNTERPARTS = {
    "photonic": {"target_epsilon": "target_label_epsilon", "noise_multiplier": "sigma",
                 "clipping_norm": "tau_f and tau_h", "target_norm": "tau_f and tau_h", "tau_e": "tau_f",
                 "feedback_norm": "feedback_std"},
    "component": {"sigma": "noise_multiplier or target_epsilon", "clipping_norm": "target_norm", "tau_f": "tau_e"},
    "per_example": {"sigma": "noise_multiplier or target_epsilon", "tau_f": "clipping_norm", "tau_h": "clipping_norm",
                    "tau_e": "clipping_norm", "target_norm": "clipping_norm"},
}
# Fields on which it depends whether another is used: those of a choice with what may be chosen, and those of which it
# matters whether they are 0, with a value on the other side.
CHOICES = {"mechanism": MECHANISMS, "algorithm": ALGORITHMS, "network": NETWORKS, "optimizer": OPTIMIZERS,
           "bounding": BOUNDINGS, "error_clip": (True, False), "tau_h_rule": TAU_H_RULES, "conv_error": CONV_ERRORS,
           "conv_clip": CONV_CLIPS, "output_init": OUTPUT_INITS, "projector": PROJECTORS, "features": FEATURES,
           "optical_device": OPTICAL_DEVICES}
NUMBERS = ("sigma", "tau_h_min", "target_norm", "canaries")


def check_used(trials: Sequence[TrialConfig]) -> None:
    """Refuse trials with a field that differs from its default, where none of those that have it so uses it.

    Raises:
        ConfigError: naming field, value, the reason, and what to use instead.
    """
    used_by = [trial.used() for trial in trials]
    for f in settings():
        given = [number for number, trial in enumerate(trials) if getattr(trial, f.name) != f.default]
        if given and not any(f.name in used_by[number] for number in given):
            raise ConfigError(why_unused(f.name, [trials[number] for number in given]))


def used(trial: TrialConfig) -> TrialConfig:
    """The same trial, with every field that it does not use at its default."""
    return TrialConfig.from_mapping(trial.used())


def check_written(entries: Mapping[str, Any], trials: Sequence[Written]) -> None:
    """Refuse entries of a file of which no trial that got them makes use.

    Args:
        entries: what was written, by its place (`cases[0].base.sigma`).
        trials: all trials of the file.

    Raises:
        ConfigError: as `check_used`, and with the place.
    """
    reached: dict[str, list[TrialConfig]] = {place: [] for place in entries}
    fine = set()
    for trial, places in trials:
        uses_them = trial.used()
        for field, place in places.items():
            reached[place].append(trial)
            if field in uses_them or not place.startswith("search.") and _neutral(trial, field):
                fine.add(place)
    for place, value in entries.items():
        field = place.rpartition(".")[2]
        if not reached[place]:
            raise ConfigError(f"{field}: is overridden by every case, got {value!r}; leave it out, at {place}")
        if place not in fine:
            raise ConfigError(f"{why_unused(field, reached[place])}, at {place}")


def ignored(trials: Sequence[Written]) -> str:
    """Which trials make no use of which written fields: `sigma, tau_h by 3 trials of mechanism none`; or empty."""
    who: dict[str, list[int]] = {}
    for number, (trial, places) in enumerate(trials):
        uses_them = trial.used()
        for field in places:
            if field not in uses_them and not _neutral(trial, field):
                who.setdefault(field, []).append(number)
    groups: dict[tuple[int, ...], list[str]] = {}
    for field, numbers in who.items():
        groups.setdefault(tuple(numbers), []).append(field)
    everyone = [trial for trial, _ in trials]
    return "; ".join(f"{', '.join(sorted(fields))} by {counted(len(numbers), 'trial')} of "
                     f"{_called([everyone[number] for number in numbers], everyone)}"
                     for numbers, fields in groups.items())


def _called(some: Sequence[TrialConfig], everyone: Sequence[TrialConfig]) -> str:
    """What tells some trials from the others: their mechanisms or their algorithms, or both."""
    names = {field: list(dict.fromkeys(getattr(trial, field) for trial in some))
             for field in ("mechanism", "algorithm")}
    texts = {field: f"{field} {', '.join(values)}" for field, values in names.items()}
    for field, values in names.items():
        if len(some) == sum(getattr(trial, field) in values for trial in everyone):
            return texts[field]
    return " with ".join(texts.values())


def _neutral(trial: TrialConfig, field: str) -> bool:
    """Whether the trial would be the same with or without the field: it has its default, which is 0 or false, or which
    a trial does not count among what it uses while it would another value."""
    value = getattr(trial, field)
    if field == "tau_f" and not trial.sigma:  # the scale of noise that there is none of
        return value == _default(field) and _uses(_with(trial, sigma=1.0), field)
    return value == _default(field) and (not value or any(_uses(_with(trial, **{field: other}), field)
                                                          for other in _other_values(field, value)))


def _other_values(field: str, value: Any) -> list[Any]:
    if isinstance(value, bool):
        return [not value]
    return [value + 1] if isinstance(value, int | float) else list(_field(field).metadata["choices"] or ())


def _default(field: str) -> Any:
    return _field(field).default


def _field(name: str) -> dataclasses.Field:
    return next(f for f in settings() if f.name == name)


def _uses(c: Any, field: str) -> bool:
    """As `field in c.used()`, for settings that need not go together."""
    return c.projector in ALGORITHMS[c.algorithm].projectors and uses(c, _field(field))


def _with(trial: TrialConfig, **changes: Any) -> SimpleNamespace:
    """A trial's settings with others in their place, not checked; an algorithm brings its projector."""
    if "algorithm" in changes:
        changes.setdefault("projector", ALGORITHMS[changes["algorithm"]].projectors[0])
    return SimpleNamespace(**{f.name: getattr(trial, f.name) for f in settings()} | changes)


def why_unused(field: str, trials: Sequence[TrialConfig]) -> str:
    """`field: is not used with ..., got ...; use ...`, for trials of which none uses it."""
    switches, ways = _ways(field, trials[0])
    values = ", ".join(dict.fromkeys(f"{plain(getattr(trial, field))}" for trial in trials))
    reasons = " and ".join(_state(switch, trials) for switch in switches)
    if counterpart := COUNTERPARTS.get(trials[0].mechanism, {}).get(field):
        ways = [counterpart, *ways]
    return f"{field}: is not used with {reasons}, got {values}; use {', or '.join(ways)}"


def _state(switch: str, trials: Sequence[TrialConfig]) -> str:
    values = list(dict.fromkeys(getattr(trial, switch) for trial in trials))
    return f"{switch} {_named(values) if switch in CHOICES else ' or '.join(f'{value:g}' for value in values)}"


def _ways(field: str, trial: TrialConfig) -> tuple[list[str], list[str]]:
    """(fields because of which the trial does not use `field`, changes with which it would), as few as do."""
    for many in range(1, len(CHOICES) + len(NUMBERS) + 1):
        found = [(switches, values) for switches in itertools.combinations((*CHOICES, *NUMBERS), many)
                 if (values := [change for change in itertools.product(*(_others(trial, s) for s in switches))
                                if _uses(_with(trial, **dict(zip(switches, change, strict=True))), field)])]
        if found:
            because = list(dict.fromkeys(switch for switches, _ in found for switch in switches))
            return because, [" with ".join(_change(switch, [change[number] for change in values])
                                           for number, switch in enumerate(switches)) for switches, values in found]
    raise AssertionError(f"{field}: nothing makes a trial use it")


def _others(trial: TrialConfig, switch: str) -> list[Any]:
    value = getattr(trial, switch)
    return [other for other in CHOICES[switch] if other != value] if switch in CHOICES else [0 if value else 1]


def _change(switch: str, values: Sequence[Any]) -> str:
    values = list(dict.fromkeys(values))
    return f"{switch} {_named(values)}" if switch in CHOICES else f"{switch} > 0" if values[0] else f"{switch} 0"


def _named(values: Sequence[Any]) -> str:
    """`'a' or 'b'`; switches as an experiment file has them."""
    return listed_or([{True: "on", False: "off"}[v] if isinstance(v, bool) else v for v in values])
