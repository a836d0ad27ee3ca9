"""Refuse settings that were written but that no trial uses: their author expects an effect.

`TrialConfig.ignored` has those of one trial.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pipeline.trials.feedback import Feedback
from pipeline.trials.fields import ConfigError, listed_or, plain
from pipeline.trials.naming import counted
from pipeline.trials.part import PARTS, SETTINGS, SLOTS, declares, owners, parts_of, unmet

if TYPE_CHECKING:
    from pipeline.trials.config import TrialConfig

Written = tuple["TrialConfig", Mapping[str, str]]  # a trial, and the place in the file of each given field


def check_used(trials: Sequence[TrialConfig]) -> None:
    """Refuse a setting that is not at its default in some trials, and that all of these ignore."""
    for name in sorted({name for trial in trials for name in trial.ignored}):
        given = [trial for trial in trials if getattr(trial, name) != SETTINGS[name].default]
        if given and all(name in trial.ignored for trial in given):
            raise ConfigError(why_unused(name, given))


def check_written(entries: Iterable[tuple[str, str, Any]], trials: Sequence[Written]) -> None:
    """Refuse entries of a file (field, place, value) that none of its trials uses."""
    trials_by_place: dict[str, list[TrialConfig]] = {}
    accepted = set()  # places whose entry has an effect, or may be written without one
    for trial, places in trials:
        for field, place in places.items():
            entry = re.sub(r"\[\d+\]$", "", place)  # a grid's values, `grid.sigma[2]`, are one entry
            trials_by_place.setdefault(entry, []).append(trial)
            if field in trial.used() or (not place.startswith("search.") and field not in trial.ignored):
                accepted.add(entry)
    for field, place, value in entries:
        if place not in accepted:
            error = ConfigError(field, "is overridden by every case", repr(value), "leave it out")
            if ignoring := trials_by_place.get(place):
                error = ConfigError(why_unused(field, ignoring))
            error.at = place
            raise error


def ignored(trials: Sequence[Written]) -> str:
    """Return which trials ignore which written fields: `sigma, tau_h by 3 trials of mechanism none`; empty for none."""
    ignoring: dict[str, list[int]] = {}  # field -> the trials that ignore it, by index
    for index, (trial, places) in enumerate(trials):
        for field in (field for field in places if field in trial.ignored):  # a preset's settings are not written
            ignoring.setdefault(field, []).append(index)
    all_trials = [trial for trial, _ in trials]
    clauses = []
    for indices in dict.fromkeys(map(tuple, ignoring.values())):
        fields = sorted(field for field, ignored_by in ignoring.items() if tuple(ignored_by) == indices)
        described = _description([all_trials[index] for index in indices], all_trials)
        clauses.append(f"{', '.join(fields)} by {counted(len(indices), 'trial')} of {described}")
    return "; ".join(clauses)


def _description(group: Sequence[TrialConfig], all_trials: Sequence[TrialConfig]) -> str:
    """Return a group's mechanisms or algorithms, whichever no other trial has; both if neither tells it apart."""
    texts = []
    for field in ("mechanism", "algorithm"):
        values = dict.fromkeys(getattr(trial, field) for trial in group)
        texts.append(f"{field} {', '.join(values)}")
        having = [trial for trial in all_trials if getattr(trial, field) in values]
        if len(having) == len(group):  # no other trial has them
            return texts[-1]
    return " with ".join(texts)


def why_unused(field: str, trials: Sequence[TrialConfig]) -> str:
    """Return `field: is not used with ..., got ...; use ...`, for trials that all ignore the field.

    If their mechanism has a replacement: `field: is of <parts>, got ... with <mechanism>; write <replacement>`.
    """
    trial = trials[0]
    declared = [part.__dataclass_fields__[field] for part in trial.parts if declares(part, field)]
    if field in SLOTS:
        declared = [SETTINGS[field]]
    missing = unmet(declared[0], trial) if declared else []
    reasons = [need.actual(trial) for need in missing]
    remedies = [" with ".join(need.text for need in missing)] if missing else []
    for slot, names, condition in _elsewhere(field, trial):
        current = f"{slot} {listed_or(dict.fromkeys(getattr(t, slot) for t in trials))}"
        if not missing:
            reasons.append(current)
        elif slot == "mechanism":
            reasons.insert(0, current)
        remedies.append(f"{slot} {listed_or(names)}{condition}")
    values = ", ".join(dict.fromkeys(f"{plain(getattr(trial, field))}" for trial in trials))
    reason, remedy = " and ".join(reasons), ", or ".join(remedies)
    replacement = trial.parts.mechanism.instead.get(field)
    if replacement and not missing:
        return f"{field}: is of {remedy}, got {values} with {reason}; write {replacement}"
    return f"{field}: is not used with {reason}, got {values}; use {remedy}"


def _elsewhere(field: str, trial: TrialConfig) -> list[tuple[str, list[str], str]]:
    """Return (slot, names, condition such as ` with sigma > 0`) of parts that use a field and could take the place.

    Mechanisms come first. Parts that use the field only beside certain other parts are returned for want of better.
    """
    replacements: list[tuple[str, list[str], str]] = []
    beside_others: list[tuple[str, list[str], str]] = []
    for slot, having in sorted(owners(field).items(), key=lambda item: item[0] != "mechanism"):
        names = [name for name in having if name != getattr(trial, slot)]
        if slot == "projector" and names and not set(names) & set(trial.parts.feedback.projectors):
            # The trial's algorithm takes none of the projectors with the field, so another algorithm replaces it.
            algorithms = {name: cls for name, cls in parts_of("algorithm", Feedback).items()
                          if set(cls.projectors) & set(names)}
            is_default = any(cls.projectors[0] in names for cls in algorithms.values())
            condition = "" if is_default else f" with projector {listed_or(names)}"
            replacements.append(("algorithm", list(algorithms), condition))
        elif names:
            needs = unmet(PARTS[slot][names[0]].__dataclass_fields__[field], trial)
            condition = "".join(f" with {need.text}" for need in needs)
            found = beside_others if any(need.name in PARTS for need in needs) else replacements
            found.append((slot, names, condition))
    return replacements or beside_others
