"""Conditions under which a part of a trial uses a setting, with their words for messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from pipeline.trials.fields import listed_or

if TYPE_CHECKING:
    from pipeline.trials.config import TrialConfig


class Need(NamedTuple):
    """A condition under which a part uses a setting.

    Attributes:
        text: the condition in words, for messages: `tau_h_min > 0`.
        actual: function to a trial's actual value in words: `tau_h_min 0`.
        holds: whether a trial meets the condition.
    """

    text: str
    actual: Callable[[TrialConfig], str]
    holds: Callable[[TrialConfig], bool]


def positive(name: str) -> Need:
    """Return the condition that a number is > 0."""
    return Need(f"{name} > 0", lambda trial: f"{name} {getattr(trial, name):g}", lambda trial: getattr(trial, name) > 0)


def zero(name: str) -> Need:
    """Return the condition that a number is 0."""
    return Need(f"{name} 0", lambda trial: f"{name} {getattr(trial, name):g}", lambda trial: not getattr(trial, name))


def chosen(name: str, *values: Any) -> Need:
    """Return the condition that a setting has one of these values."""
    words = listed_or([_word(value) for value in values])
    return Need(f"{name} {words}", lambda trial: f"{name} '{_word(getattr(trial, name))}'",
                lambda trial: getattr(trial, name) in values)


def not_chosen(name: str, *values: Any) -> Need:
    """Return the condition that a setting has none of these values."""
    return Need(f"{name} other than {listed_or(values)}", lambda trial: f"{name} '{getattr(trial, name)}'",
                lambda trial: getattr(trial, name) not in values)


def _word(value: Any) -> str:
    """Return `on` or `off` for a boolean, and any other value unchanged."""
    if isinstance(value, bool):
        return "on" if value else "off"
    return value


def private() -> Need:
    """Return the condition that a trial has a mechanism."""
    return Need("mechanism other than 'none'", lambda trial: f"mechanism '{trial.mechanism}'",
                lambda trial: trial.parts.mechanism.private)


def built_in_trainer() -> Need:
    """Return the condition that a trial trains this package's networks."""
    return Need("trainer 'built_in'", lambda trial: f"trainer '{trial.trainer}'",
                lambda trial: trial.parts.trainer.built_in)
