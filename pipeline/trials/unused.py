"""Refuse settings that were written but that no trial uses: their author expects an effect.

A default of 0 or false (`sigma: 0`, `denoise: false`) has no effect where it is not used, so it may be written
anywhere. Another default (`schedule: constant`) may be written if a part of the trial has the setting.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pipeline.trials.feedback import Feedback
from pipeline.trials.fields import ConfigError, listed_or, plain
from pipeline.trials.naming import counted
from pipeline.trials.part import PARTS, SETTINGS, SLOTS, Need, Part, declares, owners, parts_of, settings

if TYPE_CHECKING:
    from pipeline.trials.config import TrialConfig

Written = tuple["TrialConfig", Mapping[str, str]]  # a trial, and the place in the file of each given field


def check_used(trials: Sequence[TrialConfig]) -> None:
    """Refuse a setting that differs from its default in some trials but is used by none of them.

    Raises:
        ConfigError: naming field, value, the reason, and a replacement.
    """
    used_by = [trial.used() for trial in trials]
    for f in settings():
        given = [number for number, trial in enumerate(trials) if getattr(trial, f.name) != f.default]
        if given and not any(f.name in used_by[number] for number in given):
            raise ConfigError(why_unused(f.name, [trials[number] for number in given]))


def check_written(entries: Mapping[str, Any], trials: Sequence[Written]) -> None:
    """Refuse entries of a file that no trial uses.

    Args:
        entries: written values by place (`cases[0].base.sigma`).
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
            if field in uses_them or (not place.startswith("search.") and _neutral(trial, field)):
                fine.add(place)
    for place, value in entries.items():
        field = place.rpartition(".")[2]
        if not reached[place]:
            raise ConfigError(f"{field}: is overridden by every case, got {value!r}; leave it out, at {place}")
        if place not in fine:
            raise ConfigError(f"{why_unused(field, reached[place])}, at {place}")


def ignored(trials: Sequence[Written]) -> str:
    """Return which trials do not use which written fields, for example `sigma, tau_h by 3 trials of mechanism none`.

    It is empty if all written fields are used, or have no effect anyway.
    """
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
    """Return what distinguishes some trials from the others: their mechanisms, their algorithms, or both."""
    names = {field: list(dict.fromkeys(getattr(trial, field) for trial in some))
             for field in ("mechanism", "algorithm")}
    texts = {field: f"{field} {', '.join(values)}" for field, values in names.items()}
    for field, values in names.items():
        if len(some) == sum(getattr(trial, field) in values for trial in everyone):
            return texts[field]
    return " with ".join(texts.values())


def _neutral(trial: TrialConfig, field: str) -> bool:
    """Whether the trial would be the same without the field."""
    value = getattr(trial, field)
    return value == SETTINGS[field].default and (not value or any(declares(part, field) for part in trial.parts))


def why_unused(field: str, trials: Sequence[TrialConfig]) -> str:
    """Return `field: is not used with ..., got ...; use ...`, for trials that all ignore the field."""
    trial = trials[0]
    missing = _missing(field, trial)
    reasons = [need.now(trial) for need in missing]
    remedies = [" with ".join(need.wanted for need in missing)] if missing else []
    for slot, names, condition in _elsewhere(field, trial):
        current = f"{slot} {listed_or(dict.fromkeys(getattr(t, slot) for t in trials))}"
        if not missing:
            reasons.append(current)
        elif slot == "mechanism":
            reasons.insert(0, current)
        remedies.append(f"{slot} {listed_or(names)}{condition}")
    if replacement := trial.parts.mechanism.instead.get(field):
        remedies = [replacement, *remedies]
    values = ", ".join(dict.fromkeys(f"{plain(getattr(trial, field))}" for trial in trials))
    return f"{field}: is not used with {' and '.join(reasons)}, got {values}; use {', or '.join(remedies)}"


def _missing(field: str, trial: TrialConfig) -> list[Need]:
    """Return the unmet conditions that keep a trial from using a setting of its own parts or slots."""
    if field in SLOTS:
        return [need for need in SETTINGS[field].metadata["needs"] if not need.holds(trial)]
    has_it = next((part for part in trial.parts if declares(part, field)), None)
    return _needs(field, type(has_it), trial) if has_it else []


def _needs(field: str, cls: type[Part], trial: TrialConfig) -> list[Need]:
    """Return the unmet conditions under which a part uses a setting."""
    return [need for need in cls.__dataclass_fields__[field].metadata["needs"] if not need.holds(trial)]


def _elsewhere(field: str, trial: TrialConfig) -> Iterator[tuple[str, list[str], str]]:
    """Yield (slot, parts in it, condition) for parts that have the setting and could replace the trial's own parts.

    Mechanisms come first. If the algorithm does not take a projector, algorithms that take it are offered instead.
    """
    for slot, having in sorted(owners(field).items(), key=lambda item: item[0] != "mechanism"):
        names = [name for name in having if name != getattr(trial, slot)]
        compatible = [name for name in names if name in trial.parts.feedback.projectors]
        if slot == "projector" and names and not compatible:
            # algorithms that accept such a projector, and whether it is their default
            is_default = {name: cls.projectors[0] in names for name, cls in parts_of("algorithm", Feedback).items()
                          if set(cls.projectors) & set(names)}
            condition = "" if any(is_default.values()) else f" with projector {listed_or(names)}"
            yield "algorithm", list(is_default), condition
        elif names:
            conditions = _needs(field, PARTS[slot][names[0]], trial)
            if not any(need.slot for need in conditions):
                yield slot, names, "".join(f" with {need.wanted}" for need in conditions)
