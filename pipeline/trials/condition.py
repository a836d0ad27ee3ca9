"""A trial as its parts see it, and conditions under which a part uses a setting, with their words for messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol


class Trial(Protocol):
    """A `config.TrialConfig`, which parts do not import: every setting is an attribute, beside its other attributes."""

    @property
    def parts(self) -> Any: ...

    def __hash__(self) -> int: ...

    def __getattr__(self, name: str) -> Any: ...


class Need(NamedTuple):
    """A condition under which a part uses a setting."""

    name: str  # of the setting that it is on
    accepted: str  # in words: `> 0`, `'clip' or 'scale'`
    holds: Callable[[Trial], bool]

    @property
    def text(self) -> str:
        """Return the condition in words: `tau_h_min > 0`."""
        return f"{self.name} {self.accepted}"

    def actual(self, trial: Trial) -> str:
        """Return a trial's value in words: `tau_h_min 0`."""
        return f"{self.name} {_word(getattr(trial, self.name))}"


def positive(name: str) -> Need:
    """Return the condition that the setting `name`, a number, is > 0."""
    return Need(name, "> 0", lambda trial: getattr(trial, name) > 0)


def zero(name: str) -> Need:
    """Return the condition that the setting `name` is 0, false or empty."""
    return Need(name, "0", lambda trial: not getattr(trial, name))


def chosen(name: str, *values: Any) -> Need:
    """Return the condition that the setting `name` has one of these values."""
    return Need(name, " or ".join(map(_word, values)), lambda trial: getattr(trial, name) in values)


def not_chosen(name: str, *values: Any) -> Need:
    """Return the condition that the setting `name` has none of these values."""
    return Need(name, f"other than {' or '.join(map(_word, values))}", lambda trial: getattr(trial, name) not in values)


def _word(value: Any) -> str:
    """Return a value as messages write it: `0.5`, `'clip'`, and `'on'` or `'off'` for a boolean."""
    if isinstance(value, bool):
        return "'on'" if value else "'off'"
    return f"'{value}'" if isinstance(value, str) else f"{value:g}"


PRIVATE = Need("mechanism", "other than 'none'", lambda trial: trial.parts.mechanism.private)
