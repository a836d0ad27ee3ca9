"""Factors that vary in a set of trials: algorithm, noise, and the fields that distinguish the remaining trials."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pipeline.trials.config import TrialConfig
from pipeline.trials.mechanism import Mechanism
from pipeline.trials.naming import noise_setting
from pipeline.trials.part import parts_of

Fields = Mapping[str, Any]


def differing(trials: Sequence[Fields], cell: Callable[[Fields], Any], ignored: Sequence[str]) -> tuple[str, ...]:
    """Return the fields, except the ignored ones, in which trials of one cell differ.

    Args:
        trials: canonical fields of each (`TrialConfig.canonical`).
        cell: function from a trial's fields to its cell, a group of comparable trials.
    """
    cells: dict[Any, list[Fields]] = {}
    for fields in trials:
        cells.setdefault(cell(fields), []).append(fields)
    return tuple(sorted({name for first, *rest in cells.values() for other in rest
                         for name in other.keys() | first.keys()
                         if name not in ignored and other.get(name) != first.get(name)}))


def varied_fields(trials: Sequence[TrialConfig]) -> tuple[str, ...]:
    """Return the fields, except the seed, in which trials of one algorithm, mechanism and noise differ."""
    return _varied([trial.canonical() for trial in trials])


def _varied(trials: Sequence[Fields]) -> tuple[str, ...]:
    return differing(trials, lambda f: (f["algorithm"], f["mechanism"], noise_setting(f)), ("seed",))


def find_factors(trials: Sequence[Fields]) -> list[dict[str, str | float]]:
    """Return each trial's levels of all factors that vary, seeds excluded; `-` means that a factor does not apply.

    Factors are `algorithm`, `noise` (`noise_setting`) and each field in which trials of one algorithm, mechanism and
    noise differ.
    """
    extra = set(_varied(trials))
    if len({f["mechanism"] for f in trials} - {"none"}) > 1:
        extra.add("mechanism")
    if len({f["dataset"] for f in trials}) > 1:
        extra.add("dataset")
    names = sorted(extra)
    rows = [{"algorithm": f["algorithm"], "noise": noise_setting(f), **{name: _level(f.get(name)) for name in names}}
            for f in trials]
    kept = [name for name in ("algorithm", "noise", *names) if len({row[name] for row in rows}) > 1]
    return [{name: row[name] for name in kept} for row in rows]


def balanced(trials: Sequence[Fields]) -> list[int]:
    """Return the indices of trials that form a balanced grid: every combination of levels equally often.

    All trials are tried first, then those with a mechanism. The list is empty if neither is balanced, or if fewer than
    two factors vary.
    """
    private = [place for place, f in enumerate(trials) if parts_of("mechanism", Mechanism)[f["mechanism"]].private]
    for places in (list(range(len(trials))), private):
        rows = find_factors([trials[place] for place in places])
        if rows and len(rows[0]) > 1 and _is_balanced(rows):
            return places
    return []


def _is_balanced(rows: Sequence[Mapping[str, Any]]) -> bool:
    """Whether every combination of values occurs, and all occur equally often."""
    combinations = Counter(tuple(row.values()) for row in rows)
    count = 1
    for name in rows[0]:
        count *= len({row[name] for row in rows})
    return len(combinations) == count and len(set(combinations.values())) == 1


def _level(value: Any) -> str | float:
    """Return a field's value as a level: numbers stay numbers, and `-` means that a field does not apply."""
    if value is None:
        return "-"
    if isinstance(value, list | tuple):
        return "×".join(map(str, value)) or "none"
    return value if isinstance(value, int | float) and not isinstance(value, bool) else str(value)
