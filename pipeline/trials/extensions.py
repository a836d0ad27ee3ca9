"""Settings that an extension brings along, checked when it is registered."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.trials.choices import own_settings
from pipeline.trials.config import FIELDS, TrialConfig
from pipeline.trials.fields import ConfigError, check, coerce


def settings_of_extension(extension: str,
                          given: Sequence[str] | Mapping[str, dataclasses.Field | None]) -> dict[str, Any]:
    """What the registration of an extension says of its settings, as `choices.Choice` takes it.

    Args:
        extension: its name.
        given: names of fields that exist; or, by name, what `fields.setting` makes of a new one, and None for fields
            that exist.

    Raises:
        ConfigError: naming a field that does not exist, or one that exists, or that another extension has otherwise.
    """
    entries = given if isinstance(given, Mapping) else dict.fromkeys(given)
    known, own = [f.name for f in FIELDS], own_settings(but=extension)
    for name, entry in entries.items():
        if entry is None and name not in known:
            raise ConfigError(f"settings: must be fields of a trial, got {name!r}; they are {', '.join(known)}; of a "
                              "new one say what it is: settings={'" + name + "': setting(...)}")
        if entry is None:
            continue
        if not isinstance(entry, dataclasses.Field) or "doc" not in entry.metadata:
            raise ConfigError(f"settings: '{name}' must be what `pipeline.trials.fields.setting` makes, got {entry!r}")
        if not re.fullmatch("[a-z][a-z0-9_]*", name) or hasattr(TrialConfig, name) or name in (*known, "extra"):
            raise ConfigError(f"settings: a new one must be small letters, digits and '_', and no name that a trial "
                              f"has, got '{name}'")
        entry.name = name
        if name in own and _said(own[name]) != _said(entry):
            raise ConfigError(f"settings: '{name}' is another extension's, with another default, text or range; "
                              "choose another name, or make them equal")
        check(entry, coerce(entry, entry.default))
    return {"settings": tuple(name for name, entry in entries.items() if entry is None),
            "own": {name: entry for name, entry in entries.items() if entry is not None}}


def _said(f: dataclasses.Field) -> tuple[Any, ...]:
    """What is said of a setting, but for when it applies."""
    return f.default, *(value for name, value in f.metadata.items() if name != "applies")
