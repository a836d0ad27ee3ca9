"""Documented, validated fields of a configuration: what `config.TrialConfig` is made of."""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
import json
import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pipeline.trials.config import TrialConfig


class UserError(Exception):
    """An error whose message is meant for people as it stands; the command line prints it in one line."""


class ConfigError(UserError, ValueError):
    """A setting that cannot be run; the message names the field, the value and what would be accepted.

    Example:
        >>> TrialConfig(sigma=-0.1)
        Traceback (most recent call last):
        pipeline.trials.fields.ConfigError: sigma: must be >= 0, got -0.1
    """


# What other tools call our fields and their values, in small letters and without signs.
ELSEWHERE = {
    "lr": "learning_rate", "stepsize": "learning_rate", "eta": "learning_rate", "maxgradnorm": "clipping_norm",
    "l2normclip": "clipping_norm", "clip": "clipping_norm", "clipnorm": "clipping_norm", "z": "noise_multiplier",
    "eps": "target_epsilon", "epsilon": "target_epsilon", "noisestd": "sigma", "lotsize": "batch_size",
    "bs": "batch_size", "numepochs": "epochs", "nepochs": "epochs", "optim": "optimizer", "model": "network",
    "architecture": "network", "data": "dataset", "method": "algorithm", "feedback": "algorithm", "randomseed": "seed",
    "hiddensizes": "hidden", "dp": "mechanism", "dpsgd": "per_example", "opacus": "per_example",
    "persample": "per_example", "fmnist": "fashion_mnist", "cifar": "cifar10", "backprop": "bp",
    "backpropagation": "bp", "opu": "pdfa", "cnn": "convnet", "fullyconnected": "mlp", "dense": "mlp",
}


SYNONYMS = {"arithmetic": "matmul_precision"}  # settings with another name in files than in keys and parameters


def renamed(values: Mapping[str, Any]) -> dict[str, Any]:
    """Settings by their names in keys.

    Raises:
        ConfigError: for one that is given by both names.
    """
    for name, known in SYNONYMS.items():
        if name in values and known in values:
            raise ConfigError(f"{name}: is another name of {known}; give it once, got {values[name]!r} and "
                              f"{values[known]!r}")
    return {SYNONYMS.get(name, name): value for name, value in values.items()}


def meant(name: Any, names: Collection[str]) -> str:
    """`did you mean 'sigma'? `, of the one among `names` that a wrong name may have meant; or empty."""
    bare = {re.sub("[^a-z0-9]", "", known.lower()): known for known in names}
    asked = re.sub("[^a-z0-9]", "", str(name).lower())
    close = [bare.get(asked), ELSEWHERE.get(asked), *(bare[k] for k in difflib.get_close_matches(asked, bare, 1))]
    return next((f"did you mean '{known}'? " for known in close if known in names), "")


def known_fields(name: str, names: Collection[str]) -> str:
    """The end of a message on a field that is unknown: the one that may have been meant or, as there are some eighty,
    where they are listed."""
    return meant(name, names).strip() or "`photonic fields` lists all there are, and with FILE those of its plugins"


def accepted(name: str, names: Collection[str], what: str) -> str:
    """The end of a message on a name that is unknown: the one that may have been meant, and all there are."""
    return f"{meant(name, names)}{what} are {', '.join(names)}"


def always(trial: TrialConfig) -> bool:
    """True: a setting without a condition applies to every trial that has it."""
    return True


def setting(
    default: Any,
    doc: str,
    *,
    choices: Collection[str] | None = None,
    low: float | None = None,
    high: float | None = None,
    open_low: bool = False,
    open_high: bool = False,
    per_trial: bool = False,
    applies: Callable[[TrialConfig], bool] = always,
    needs: Sequence[Any] = (),
    elide: bool = False,
    identity: bool = True,
    called: str = "",
) -> Any:
    """A documented setting of a part.

    Args:
        default: value where the experiment file is silent; its type is the setting's type.
        doc: one line for the reader (`photonic fields` prints it).
        choices: the values that are accepted.
        low: the least value that is accepted.
        high: the largest value that is accepted.
        open_low: `low` itself is not accepted.
        open_high: `high` itself is not accepted.
        per_trial: trials that differ only in such settings share tensor shapes and train in one pack.
        applies: whether a trial with the part uses the setting; where not, it is no part of the trial's identity.
        needs: the same, as conditions (`part.Need`) that a message can name.
        elide: at its default it is no part of the identity, as of a setting that is younger than stored trials.
        identity: false of a path, which says where something lies, while another setting says what it is.
        called: its name in messages, if it is another than in keys.

    Example:
        >>> setting(0.5, "share of the records", low=0, high=1).default
        0.5
    """
    meta = dict(doc=doc, choices=choices, low=low, high=high, open_low=open_low, open_high=open_high,
                per_trial=per_trial, applies=applies, needs=tuple(needs), elide=elide, identity=identity,
                called=called)
    return dataclasses.field(default=default, metadata=meta)


def check_whole(place: str, value: Any, low: int, below: float = math.inf) -> None:
    """Raises:
        ConfigError: unless an entry of a file, at `place`, is a whole number from low on and less than `below`.
    """
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value < below:
        raise ConfigError(f"{place}: must be a whole number >= {low}, got {value!r}")


def plain(value: Any) -> Any:
    """`value` as JSON has it."""
    return list(value) if isinstance(value, tuple) else value


def digest(values: Mapping[str, Any]) -> str:
    """16 hexadecimal digits of the SHA-256 of `values`, sorted by name."""
    text = json.dumps(values, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def listed_or(choices: Collection[str]) -> str:
    """`'a' or 'b'`."""
    return " or ".join(f"'{c}'" for c in choices)


def coerce(f: dataclasses.Field[Any], value: Any) -> Any:
    """`value` as the type of the field's default; only conversions that lose nothing.

    Raises:
        ConfigError: for a value of another type.
    """
    kind, name = type(f.default), f.metadata["called"] or f.name
    if kind is bool and isinstance(value, bool):
        return value
    if kind is str and isinstance(value, str):
        return value
    if not isinstance(value, bool):
        if kind is int and isinstance(value, int):
            return value
        if kind is float and isinstance(value, int | float) and math.isfinite(value):
            return float(value) + 0.0  # -0.0 is 0.0
        if kind is float and isinstance(value, str):
            raise ConfigError(f"{name}: must be a number, got the text {value!r}")
        if kind is tuple and isinstance(value, list | tuple):
            return tuple(value)
    wanted = {int: "a whole number", float: "a finite number", bool: "true or false", str: "text",
              tuple: "a list of whole numbers"}[kind]
    hint = "; several values go to grid" if isinstance(value, list) else ""
    if f.name == "noise" and not hint:
        hint = "; how much noise there is, noise_multiplier says, or sigma of the photonic mechanism"
    raise ConfigError(f"{name}: must be {wanted}, got {value!r}{hint}")


def check(f: dataclasses.Field[Any], value: Any) -> None:
    """Raises:
        ConfigError: for a value outside what the field accepts.
    """
    meta, name = f.metadata, f.metadata["called"] or f.name
    if meta["choices"] and value not in meta["choices"]:
        hint = meant(value, meta["choices"]).strip()
        if not hint and f.name == "algorithm" and re.sub("[^a-z]", "", value.lower()) == "dpsgd":
            hint = "DP-SGD is algorithm 'bp' with mechanism 'per_example'"
        raise ConfigError(f"{name}: must be one of {', '.join(meta['choices'])}, got {value!r}"
                          + (f"; {hint}" if hint else ""))
    if isinstance(value, tuple):
        widths = all(isinstance(n, int) and not isinstance(n, bool) and n >= 1 for n in value)
        if not widths or (not value and f.name != "hidden"):  # no hidden layer: softmax regression
            raise ConfigError(f"{name}: must be a list of at least one positive width, got {list(value)!r}")
        return
    low, high = meta["low"], meta["high"]
    if low is not None and (value < low or (meta["open_low"] and value == low)):
        raise ConfigError(f"{name}: must be {'>' if meta['open_low'] else '>='} {low:g}, got {value}")
    if high is not None and (value > high or (meta["open_high"] and value == high)):
        raise ConfigError(f"{name}: must be {'<' if meta['open_high'] else '<='} {high:g}, got {value}")
