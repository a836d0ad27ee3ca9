"""One trial, composed of parts from flat settings, and identified by `trial_key`."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from pipeline.trials.arithmetic import Arithmetic
from pipeline.trials.component import Component as Component
from pipeline.trials.datasets import Data
from pipeline.trials.features import Features
from pipeline.trials.feedback import Feedback, Projector
from pipeline.trials.fields import SYNONYMS, ConfigError, check, coerce, digest, known_fields, plain, renamed
from pipeline.trials.loss import Loss
from pipeline.trials.mechanism import Mechanism
from pipeline.trials.network import Network
from pipeline.trials.optimizer import Optimizer
from pipeline.trials.part import PARTS, RESERVED, SETTINGS, SLOTS, Part, fields, parts_of, settings, uses
from pipeline.trials.release import Release
from pipeline.trials.sampler import Sampler
from pipeline.trials.shapes import LayerShape
from pipeline.trials.trainer import Trainer

__all__ = ["ConfigError", "TrialConfig", "settings"]


@dataclass(frozen=True)
class Parts:
    """One part for each slot."""

    data: Data
    features: Features
    network: Network
    feedback: Feedback
    projector: Projector
    loss: Loss
    mechanism: Mechanism
    release: Release
    sampler: Sampler
    optimizer: Optimizer
    arithmetic: Arithmetic
    trainer: Trainer

    def __iter__(self) -> Iterator[Part]:
        return (getattr(self, attribute) for attribute in SLOTS.values())


@dataclass(frozen=True, init=False, repr=False)
class TrialConfig:
    """The settings of one trial, by name; defaults as in Ohana et al. 2021, sections 3 and 4.

    A trial is made of parts (`pipeline.trials.part`), and every part has its own settings. Each setting is an attribute
    of the trial: the given value or the default. Settings that no part of the trial uses do not belong to its identity.

    Attributes:
        given: the given settings, (name, value), sorted by name; `TrialConfig(given, sigma=1)` changes one.
        parts: one for each slot.

    Raises:
        ConfigError: for an unknown setting, a value outside its range, or a combination that cannot be run.

    Example:
        >>> trial = TrialConfig(dataset="digits", algorithm="dfa", mechanism="per_example", noise_multiplier=2)
        >>> trial.noise_multiplier, trial.clipping_norm  # what is left out has its default
        (2.0, 1.0)
    """

    given: tuple[tuple[str, Any], ...] = field(compare=False)
    parts: Parts = field(init=False)
    unused: tuple[tuple[str, Any], ...] = field(init=False)

    def __init__(self, given: tuple[tuple[str, Any], ...] = (), **values: Any) -> None:
        """Compose a trial from its settings, and refuse it if it cannot be run.

        Args:
            given: settings of an earlier trial, its `given`.
            values: settings that replace or extend them, also under the names of `SYNONYMS`.

        Raises:
            ConfigError: for an unknown setting, a value outside its range, or a combination that cannot be run.
        """
        values = {**dict(given), **renamed(values)}
        for name, value in values.items():
            if name not in SETTINGS:
                raise ConfigError(f"{name}: unknown field, got {value!r}; {known_fields(name, SETTINGS)}")
            values[name] = coerce(SETTINGS[name], value)
        for name, value in values.items():
            if value != SETTINGS[name].default:
                check(SETTINGS[name], value)
        self._compose(values)
        if settled := {name: value for part in self.parts for name, value in part.settled(self).items()}:
            values |= settled
            self._compose(values)
        for part in (self.parts.trainer, *self.parts):  # the trainer's own slots are checked first
            part.check(self)

    def _compose(self, values: Mapping[str, Any]) -> None:
        """Set the trial's parts, its unused settings and `_flat`, the value of every setting of its parts.

        A trainer may bring parts of its own for some slots. The projector depends on the algorithm if it is left open.

        Args:
            values: settings by name, with their final types.
        """
        chosen: dict[str, Any] = {}  # each a subclass of its slot's base class
        names: dict[str, Any] = {slot: values.get(slot) or SETTINGS[slot].default for slot in SLOTS}
        brings = parts_of("trainer", Trainer)[names["trainer"]].brings
        for slot, attribute in SLOTS.items():
            name = names[slot]
            cls = brings.get(slot) or PARTS[slot][name or chosen["feedback"].projectors[0]]
            chosen[attribute] = cls(**{f.name: values[f.name] for f in fields(cls) if f.name in values})
        flat = {f.name: getattr(part, f.name) for part in chosen.values() for f in fields(part)}
        unused = {name: value for name, value in values.items()
                  if name not in flat and name not in SLOTS and value != SETTINGS[name].default}
        flat |= unused | {slot: chosen[attribute].name for slot, attribute in SLOTS.items()}
        self.__dict__.update(given=tuple(sorted(values.items())), parts=Parts(**chosen),
                             unused=tuple(sorted(unused.items())), _flat=flat)

    def __getattr__(self, name: str) -> Any:
        """Return the value of a setting: the trial's, or the default if no part has it.

        After unpickling in another process, the parts are composed first.
        """
        if name in ("parts", "unused", "_flat") and "given" in self.__dict__:  # unpickled in another process
            self._compose(dict(self.given))
            return self.__dict__[name]
        name = SYNONYMS.get(name, name)
        if not name.startswith("_"):
            if name in (flat := self._flat):
                return flat[name]
            if name in SETTINGS:
                return SETTINGS[name].default
        raise AttributeError(f"'TrialConfig' object has no attribute '{name}'")

    def __getstate__(self) -> dict[str, Any]:
        return {"given": self.given}  # no classes: the other process composes the parts after it has loaded the plugins

    def __repr__(self) -> str:
        return f"TrialConfig({', '.join(f'{name}={value!r}' for name, value in self.given)})"

    @property
    def split_sizes(self) -> tuple[int, int]:
        """Return the numbers of (training, validation) records."""
        return self.parts.data.split_sizes

    @property
    def steps_per_epoch(self) -> int:
        """Return the full batches in one pass; a smaller last batch is left out, so every step has m records."""
        return self.split_sizes[0] // self.batch_size

    @property
    def sampling_rate(self) -> float:
        """Return q = m/N, from public numbers."""
        return self.batch_size / self.split_sizes[0]

    @property
    def layers(self) -> tuple[LayerShape, ...]:
        """Return the shapes of layers 1..L, convolutions first."""
        return self.parts.trainer.layers(self)

    @property
    def layer_sizes(self) -> tuple[int, ...]:
        """Return (n_0, ..., n_L): input, outputs of hidden layers (pooled for convolutions), classes."""
        layers = self.layers
        return (layers[0].n_in, *(layer.n_out for layer in layers))

    @property
    def physical(self) -> bool:
        """Whether a camera counts light, so that a projection has the device's own noise instead of sigma."""
        return self.parts.projector.physical

    @property
    def exact(self) -> bool:
        """Whether contributions are integers, so that their sum has no rounding error."""
        return self.parts.arithmetic.exact

    @property
    def secure(self) -> bool:
        """Whether noise and batches come from the operating system."""
        return self.parts.release.secret and self.parts.mechanism.private

    @property
    def disclosure(self) -> str:
        """Return how private records are logged: one of `release.DISCLOSURES`."""
        return self.private_metrics or self.parts.release.in_effect(self)

    @property
    def hides_errors(self) -> bool:
        """Whether exception messages stay in the private folder, because they may contain private records."""
        return self.secure or (not self.parts.trainer.own and self.disclosure != "plain")

    @property
    def draws_fresh_noise(self) -> bool:
        """Whether a second run of the trial draws different noise, and so is a second release."""
        return self.secure or self.parts.trainer.redraws

    @property
    def needs_opu(self) -> bool:
        """Whether the trial must reserve an `OPU` resource."""
        return self.parts.projector.on_opu or self.on_hardware

    @property
    def on_hardware(self) -> bool:
        """Whether the trial uses a real OPU, which only one process can open."""
        return self.parts.projector.hardware or self.parts.features.hardware

    def values(self) -> dict[str, Any]:
        """Return all settings that exist; unused ones have their defaults."""
        return {f.name: getattr(self, f.name) for f in settings()}

    def canonical(self) -> dict[str, Any]:
        """Return the settings that affect this trial's result, as JSON values, sorted by name."""
        return dict(self._canonical)

    def used(self) -> dict[str, Any]:
        """Return the settings that this trial uses, as JSON values, sorted by name: `canonical()` and paths."""
        return dict(self._used)

    def pruned(self) -> TrialConfig:
        """Return the same trial with every unused setting at its default."""
        return TrialConfig(**self._used)

    @functools.cached_property
    def _canonical(self) -> dict[str, Any]:
        return {name: value for name, value in self._used.items() if SETTINGS[name].metadata["identity"]}

    @functools.cached_property
    def _used(self) -> dict[str, Any]:
        """Return the settings that this trial uses, as JSON values, sorted by name."""
        values = {slot: self._flat[slot] for slot in SLOTS if _names_itself(SETTINGS[slot], self)}
        for part in self.parts:
            values |= {f.name: plain(getattr(part, f.name)) for f in fields(part) if uses(part, f, self)}
        if "private_metrics" in values:
            values["private_metrics"] = self.disclosure
        return dict(sorted(values.items()))

    @functools.cached_property
    def trial_key(self) -> str:
        """Return the identity of the trial: 16 hexadecimal digits of the SHA-256 of `canonical()`."""
        return digest(self.canonical())

    @property
    def pack_key(self) -> str:
        """Return the key of packs: trials with equal keys may train together, but a user's trainer trains alone."""
        if not self.parts.trainer.own:
            return self.trial_key
        return digest({k: v for k, v in self.canonical().items() if not SETTINGS[k].metadata["per_trial"]})

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> TrialConfig:
        """Return the trial of plain values.

        Raises:
            ConfigError: as the class, for example for an unknown field.
        """
        return cls(**values)


def _names_itself(f: dataclasses.Field[Any], trial: TrialConfig) -> bool:
    """Whether the name of a slot's part belongs to a trial's identity."""
    left_out = f.metadata["elide"] and getattr(trial, f.name) == f.default
    return not left_out and all(need.holds(trial) for need in f.metadata["needs"])


RESERVED |= {name for name in (*vars(TrialConfig), "given", "parts", "unused") if not name.startswith("_")}
