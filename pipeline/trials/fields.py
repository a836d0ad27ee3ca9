"""Documented, validated fields of a configuration, from which `config.TrialConfig` is built."""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
import json
import math
import operator
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeGuard

from pipeline.trials.condition import Need, Trial


class UserError(Exception):
    """An error with a message for people; the command line prints it in one line.

    A message that may hold private numbers, or a digest of records, has an attribute `public` beside it: the line that
    is shown of trials that keep their errors private.
    """

    at: str = ""  # place of the setting in a file, if it is known (`pipeline.experiment.yaml_text.Place`)
    of_record: bool = False  # whether the message shows a private record, which a screen must not of secure trials

    @property
    def field(self) -> str:
        """Return the setting that the message is about, or the entry of a file."""
        return str(self).partition(":")[0]


class ConfigError(UserError, ValueError):
    """A setting that cannot be run; the message names the field, the value and what would be accepted.

    Args:
        field: name of the setting; alone, the whole message.
        must: what would be accepted, or what is wrong.
        got: the value, which stands in the message as `str` writes it.
        use: the remedy, if `must` does not say it.

    Example:
        >>> TrialConfig(sigma=-0.1)
        Traceback (most recent call last):
        pipeline.trials.fields.ConfigError: sigma: must be >= 0, got -0.1
    """

    def __init__(self, field: str, must: str = "", got: object = "", use: str = "") -> None:
        remedy = f"; {use}" if use else ""
        super().__init__(f"{field}: {must}, got {got}{remedy}" if must else field)


def refuse(condition: object, field: str, must: str, got: object, use: str = "") -> None:
    """Raise `ConfigError(field, must, got, use)` if the condition holds; arguments are evaluated in any case."""
    if condition:
        raise ConfigError(field, must, got, use)


# Names of other tools for our fields and values, in small letters and without punctuation.
ELSEWHERE = {
    "lr": "learning_rate", "stepsize": "learning_rate", "eta": "learning_rate", "maxgradnorm": "clipping_norm",
    "l2normclip": "clipping_norm", "clip": "clipping_norm", "clipnorm": "clipping_norm", "z": "noise_multiplier",
    "eps": "target_epsilon", "epsilon": "target_epsilon", "noisestd": "sigma", "lotsize": "batch_size",
    "bs": "batch_size", "m": "batch_size", "taub": "tau_f", "numepochs": "epochs", "nepochs": "epochs",
    "optim": "optimizer", "model": "network", "architecture": "network", "data": "dataset", "method": "algorithm",
    "feedback": "algorithm", "randomseed": "seed", "hiddensizes": "hidden", "dp": "mechanism", "dpsgd": "per_example",
    "opacus": "per_example", "persample": "per_example", "fmnist": "fashion_mnist", "cifar": "cifar10",
    "backprop": "bp", "backpropagation": "bp", "opu": "pdfa", "cnn": "convnet", "fullyconnected": "mlp",
    "dense": "mlp",
}


def suggestion(name: Any, names: Collection[str]) -> str:
    """Return `did you mean 'sigma'? ` for a wrong name with a likely correction among `names`, else an empty text."""
    by_letters = {re.sub("[^a-z0-9]", "", known.lower()): known for known in names}
    letters = re.sub("[^a-z0-9]", "", str(name).lower())
    candidates = [by_letters.get(letters), ELSEWHERE.get(letters)]  # most likely first
    candidates += [by_letters[similar] for similar in difflib.get_close_matches(letters, by_letters, 1)]
    return next((f"did you mean '{candidate}'? " for candidate in candidates if candidate in names), "")


def known_fields(name: str, names: Collection[str]) -> str:
    """Return the end of a message on an unknown field: the likely correction, else the command that lists all."""
    all_fields = "`photonic fields` lists all there are, and with FILE those of its plugins"
    return suggestion(name, names).strip() or all_fields


def accepted(name: str, names: Collection[str], what: str) -> str:
    """Return the end of a message on an unknown name: a likely correction, if any, and `<what> are <all names>`."""
    return f"{suggestion(name, names)}{what} are {', '.join(names)}"


def setting(default: Any, doc: str, *, choices: Collection[str] | None = None, low: float | None = None,
            high: float | None = None, open_low: bool = False, open_high: bool = False, per_trial: bool = False,
            applies: Callable[[Trial], bool] | None = None, needs: Sequence[Need] = (), elide: bool = False,
            identity: bool = True) -> Any:
    """Declare a documented setting of a part.

    Args:
        default: value if the experiment file gives none; its type is the setting's type.
        doc: one line for the reader (`photonic fields` prints it).
        choices: the values that are accepted.
        low: the least value that is accepted.
        high: the largest value that is accepted.
        open_low: `low` itself is not accepted.
        open_high: `high` itself is not accepted.
        per_trial: trials that differ only in such settings share tensor shapes and train in one pack.
        applies: whether a trial with the part uses the setting, by default always; an unused setting does not belong to
            the trial's identity.
        needs: the same, as conditions (`condition.Need`) that a message can name.
        elide: at its default the setting does not belong to the identity; for settings younger than stored trials.
        identity: False for a path: it says where a file is, and another setting identifies the content.

    Example:
        >>> setting(0.5, "share of the records", low=0, high=1).default
        0.5
    """
    return dataclasses.field(default=default, metadata=dict(
        doc=doc, choices=choices, low=low, high=high, open_low=open_low, open_high=open_high, per_trial=per_trial,
        applies=applies, needs=tuple(needs), elide=elide, identity=identity))


def is_number(value: object) -> TypeGuard[int | float]:
    """Whether a value is a number; in Python, a bool is also an int."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_whole(value: object, low: int = 1) -> bool:
    """Whether a value is a whole number >= low."""
    return is_number(value) and isinstance(value, int) and value >= low


def check_whole(place: str, value: Any, low: int, below: float = math.inf) -> None:
    """Refuse an entry of a file, at `place`, unless it is a whole number >= low and < below."""
    refuse(not is_whole(value, low) or value >= below, place, f"must be a whole number >= {low}", repr(value))


def plain(value: Any) -> Any:
    """Return a setting's value as JSON has it: a list for a tuple, others unchanged."""
    return list(value) if isinstance(value, tuple) else value


def digest(values: Mapping[str, Any]) -> str:
    """Return 16 hexadecimal digits of the SHA-256 of `values` as JSON, sorted by name; nan and infinity are refused."""
    text = json.dumps(values, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def listed_or(choices: Collection[str]) -> str:
    """Return `'a' or 'b'`."""
    return " or ".join(f"'{choice}'" for choice in choices)


def coerce(f: dataclasses.Field[Any], value: Any) -> Any:
    """Return `value` as the type of the field's default (int to float, list to tuple), or refuse it.

    Only finite floats are taken; ranges and choices are not checked (`check` does).
    """
    type_ = type(f.default)
    if type_ is float and is_number(value) and math.isfinite(value):
        return float(value) + 0.0  # -0.0 becomes 0.0
    if type_ is tuple and isinstance(value, list | tuple):
        return tuple(value)
    if type_ is not float and isinstance(value, type_) and isinstance(value, bool) == (type_ is bool):
        return value
    expected = {int: "a whole number", float: "a finite number", bool: "true or false", str: "text",
                tuple: "a list of whole numbers"}[type_]
    got, use = repr(value), ""
    if type_ in (int, float) and isinstance(value, str):
        expected, got = expected.replace("finite ", ""), f"the text {value!r}"
        use = "write it without quotes, comma, colon and leading zeros" if re.search("[0-9]", value) else ""
    elif isinstance(value, list):
        use = "several values go to grid"
    elif f.name == "noise":  # a number here is a frequent mistake
        use = "how much noise there is, noise_multiplier says, or sigma of the photonic mechanism"
    elif type_ is str:  # YAML reads on, no and 3 otherwise
        use = "in quotes it is text"
    raise ConfigError(f.name, f"must be {expected}", got, use)


def check(f: dataclasses.Field[Any], value: Any) -> None:
    """Refuse a value, of the field's type, outside its choices or range; lists must be of whole numbers >= 1."""
    rules, name = f.metadata, f.name
    if rules["choices"] and value not in rules["choices"]:
        use = suggestion(value, rules["choices"]).strip()
        if not use and f.name == "algorithm" and re.sub("[^a-z]", "", value.lower()) == "dpsgd":
            use = "DP-SGD is algorithm 'bp' with mechanism 'per_example'"
        raise ConfigError(name, f"must be one of {', '.join(rules['choices'])}", repr(value), use)
    if isinstance(value, tuple):
        may_be_empty = f.name == "hidden"  # without hidden layers: softmax regression
        numbers = "whole numbers" if may_be_empty else "at least one whole number"
        refuse(not (value or may_be_empty) or not all(is_whole(width) for width in value),
               name, f"must be a list of {numbers} >= 1", list(value))
        return
    for bound, sign, beyond in (("low", ">", operator.lt), ("high", "<", operator.gt)):
        limit, is_open = rules[bound], rules[f"open_{bound}"]
        if limit is not None and (beyond(value, limit) or (is_open and value == limit)):
            raise ConfigError(name, f"must be {sign}{'' if is_open else '='} {limit:g}", value)
