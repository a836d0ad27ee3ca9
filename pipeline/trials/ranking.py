"""Who is ahead. A lead below the rounding of the numbers that are shown is no difference: nobody gets the credit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def is_difference(difference: float, digits: int = 2) -> bool:
    """Whether a difference is at least one unit of the last of these decimals, with which its numbers are shown."""
    return round(abs(difference) * 10**digits, 6) >= 1


def leaders(scores: Mapping[str, float], digits: int = 2) -> list[str]:
    """Return the name with the highest score, with all names that it is not ahead of, in the order of `scores`."""
    highest = max(scores.values(), default=0.0)
    return [name for name, score in scores.items() if not is_difference(highest - score, digits)]


def who_leads(scores: Mapping[str, float], digits: int = 2) -> str:
    """Return the leader's name, or `no difference between BP and DFA`."""
    names = leaders(scores, digits)
    return f"no difference between {joined(names)}" if len(names) > 1 else "".join(names)


def joined(names: Sequence[str], last: str = "and") -> str:
    """Return names as text: `BP`, `BP and DFA`, `BP, DFA and PDFA`."""
    *others, final = names
    return f"{', '.join(others)} {last} {final}" if others else final
