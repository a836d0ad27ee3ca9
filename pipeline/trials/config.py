"""One trial, composed of parts from flat settings, and identified by `trial_key`."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from pipeline.trials.arithmetic import Arithmetic
from pipeline.trials.component import Component as Component
from pipeline.trials.datasets import Data
from pipeline.trials.features import Features
from pipeline.trials.feedback import Feedback, Projector
from pipeline.trials.fields import ConfigError, check, coerce, digest, known_fields, plain
from pipeline.trials.loss import Loss
from pipeline.trials.mechanism import Mechanism
from pipeline.trials.network import Network
from pipeline.trials.network import Own as Own
from pipeline.trials.optimizer import Optimizer
from pipeline.trials.part import PARTS, RESERVED, SETTINGS, SLOTS, Part, declares, settings, uses
from pipeline.trials.release import ReleaseSettings
from pipeline.trials.sampler import Sampler
from pipeline.trials.shapes import LayerShape

__all__ = ["ConfigError", "TrialConfig", "settings"]


@dataclass(frozen=True)
class Parts:
    """One part for each slot of `part.SLOTS`, in its order."""

    data: Data
    features: Features
    network: Network
    feedback: Feedback
    projector: Projector
    loss: Loss
    mechanism: Mechanism
    release: ReleaseSettings
    sampler: Sampler
    optimizer: Optimizer
    arithmetic: Arithmetic

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
        recorded_noise: (setting, value) of calibrated noise that a run of the trial records; not part of its identity.

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
    recorded_noise: tuple[tuple[str, float], ...] = field(init=False, default=())

    def __init__(self, given: tuple[tuple[str, Any], ...] = (), **values: Any) -> None:
        """Compose a trial from the `given` of an earlier one and settings that replace or extend them."""
        values = {**dict(given), **values}
        for name, value in values.items():
            if name not in SETTINGS:
                raise ConfigError(name, "unknown field", repr(value), known_fields(name, SETTINGS))
            values[name] = coerce(SETTINGS[name], value)
        for name, value in values.items():
            if value != SETTINGS[name].default:
                check(SETTINGS[name], value)
        self._compose(values)
        settled: dict[str, Any] = {}  # values that follow from others
        for part in self.parts:
            settled |= part.settled(self)
        if settled:
            self._compose({**values, **settled})
        for part in self.parts:
            part.check(self)

    def _compose(self, values: Mapping[str, Any]) -> None:
        """Choose a part for each slot, give it its settings, and set all attributes of the trial; checks nothing."""
        chosen: dict[str, Any] = {}  # by attribute: a part of its slot
        # In the order of SLOTS an algorithm precedes its projector, whose empty default is the algorithm's first one.
        for slot, attribute in SLOTS.items():
            name: Any = values.get(slot) or SETTINGS[slot].default or chosen["feedback"].projectors[0]
            cls = PARTS[slot][name]
            chosen[attribute] = cls(**{f.name: values[f.name] for f in cls.settings if f.name in values})
        parts = Parts(**chosen)
        value_of = {f.name: getattr(part, f.name) for part in parts for f in part.settings}
        unused = {name: value for name, value in values.items()  # no part has it, and it is not at its default
                  if name not in value_of and name not in SLOTS and value != SETTINGS[name].default}
        value_of |= unused | {part.slot: part.name for part in parts}
        self.__dict__.update(given=tuple(sorted(values.items())), parts=parts, unused=tuple(sorted(unused.items())),
                             _flat=value_of)  # as the dataclass is frozen; `__getattr__` reads `_flat`

    def __getattr__(self, name: str) -> Any:
        """Return a setting's value: that of the trial's part, or if no part has it the given one, else the default."""
        if name in ("parts", "unused", "_flat") and "given" in self.__dict__:  # of a trial that was pickled
            self._compose(dict(self.given))
            return self.__dict__[name]
        if not name.startswith("_"):
            if name in self._flat:
                return self._flat[name]
            if name in SETTINGS:
                return SETTINGS[name].default
        raise AttributeError(f"'TrialConfig' object has no attribute '{name}'")

    def __getstate__(self) -> dict[str, Any]:
        """Return no classes: the other process composes the parts after it has loaded the plugins."""
        return {"given": self.given, "recorded_noise": self.recorded_noise}

    def with_recorded_noise(self, noise: Mapping[str, float]) -> TrialConfig:
        """Return the trial with the calibrated noise that a run of it records, by setting."""
        if not noise:
            return self
        trial = object.__new__(TrialConfig)
        trial.__dict__.update(self.__dict__, recorded_noise=tuple(sorted(noise.items())))
        return trial

    def __repr__(self) -> str:
        return f"TrialConfig({', '.join(f'{name}={value!r}' for name, value in self.given)})"

    @property
    def split_sizes(self) -> tuple[int, int]:
        """Return the numbers of (training, validation) records; none is a test record."""
        return self.parts.data.split_sizes

    @property
    def steps_per_epoch(self) -> int:
        """Return the steps in one pass over the training records; a last batch of less than m records is left out."""
        return self.split_sizes[0] // self.batch_size

    @property
    def sampling_rate(self) -> float:
        """Return q = m/N, with m the batch size and N the number of training records."""
        return self.batch_size / self.split_sizes[0]

    @property
    def layers(self) -> tuple[LayerShape, ...]:
        """Return the shapes of layers 1..L, convolutions first."""
        return self.parts.network.layers(self.parts.features.shape(self), self.parts.data.spec.n_classes)

    @property
    def layer_sizes(self) -> tuple[int, ...]:
        """Return the widths (n_0, ..., n_L): input, hidden layers (convolutions after pooling), and classes."""
        layers = self.layers
        return (layers[0].n_in, *(layer.n_out for layer in layers))

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
        """Return how private records are logged, one of `release.DISCLOSURES`; the default follows from the noise."""
        return self.private_metrics or self.parts.release.default_metrics(self)

    @property
    def hides_errors(self) -> bool:
        """Whether exception messages stay in the private folder, because they may contain private records."""
        return self.secure or (self.parts.network.own and self.disclosure != "plain")

    @property
    def needs_opu(self) -> bool:
        """Whether the trial must reserve an `OPU` resource."""
        return self.parts.projector.on_opu

    def values(self) -> dict[str, Any]:
        """Return {name: value} of all settings that exist, of the trial's own parts or not; see `__getattr__`."""
        return {f.name: getattr(self, f.name) for f in settings()}

    def canonical(self) -> dict[str, Any]:
        """Return {name: JSON value} of the settings that affect this trial's result, sorted by name: its identity."""
        return dict(self._canonical)

    def used(self) -> dict[str, Any]:
        """Return {name: JSON value} of the settings that this trial uses, sorted by name: `canonical()` and paths.

        `TrialConfig(**used)` is the same trial.
        """
        return dict(self._used)

    def pruned(self) -> TrialConfig:
        """Return the same trial with every setting that it does not use at its default.

        So noise 'secure', which a trial without a mechanism does not use, becomes 'research'.
        """
        trial = object.__new__(TrialConfig)  # without `__init__`, as the settings were checked
        trial._compose({name: self._flat[name] for name in self._used})
        if [*map(type, trial.parts)] == [*map(type, self.parts)]:
            trial.__dict__["_used"] = self._used  # the same settings: need not be found again
        trial.__dict__["ignored"] = ()
        return trial

    @functools.cached_property
    def ignored(self) -> tuple[str, ...]:
        """Names of given settings that the trial does not use, except those that nobody expects an effect of.

        These are a default of 0 or false (`sigma: 0`), and another default (`schedule: constant`) if a part of the
        trial has the setting.
        """
        def is_harmless(name: str, value: Any) -> bool:
            is_default = value == SETTINGS[name].default
            return is_default and (not value or any(declares(part, name) for part in self.parts))

        return tuple(name for name, value in self.given if name not in self._used and not is_harmless(name, value))

    @functools.cached_property
    def _canonical(self) -> dict[str, Any]:
        return {name: value for name, value in self._used.items() if SETTINGS[name].metadata["identity"]}

    @functools.cached_property
    def _used(self) -> dict[str, Any]:
        """`used()`, kept because every comparison of trials asks for it; not to be changed."""
        values = {slot: self._flat[slot] for slot in SLOTS if uses(self, SETTINGS[slot], self)}
        for part in self.parts:
            values |= {f.name: plain(getattr(part, f.name)) for f in part.settings if uses(part, f, self)}
        if "private_metrics" in values:
            values["private_metrics"] = self.disclosure  # in words, where an empty text stands for the default
        return dict(sorted(values.items()))

    @functools.cached_property
    def trial_key(self) -> str:
        """Return the identity of the trial: 16 hexadecimal digits of the SHA-256 of `canonical()`."""
        return digest(self.canonical())

    @property
    def pack_key(self) -> str:
        """Return a key that is equal for trials that may train together: their tensors have the same shapes."""
        if self.parts.network.own:
            return self.trial_key  # it trains alone
        return digest({name: value for name, value in self.canonical().items()
                       if not SETTINGS[name].metadata["per_trial"]})


RESERVED |= {name for name in (*vars(TrialConfig), "given", "parts", "unused") if not name.startswith("_")}
