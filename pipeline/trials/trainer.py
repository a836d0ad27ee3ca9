"""Trainers: this package's own networks, or a trainer of the user (docs/trainers.md).

A user's trainer decides some slots itself: network, loss and optimizer. Its trials have its name as `algorithm`, which
tables and figures show. There are two kinds.

    stated      It trains by itself and states a privacy event. The event is accounted for here, and nobody checks it.
    certified   It returns each record's contribution, for batches that are drawn here. This package bounds and sums
                them and adds noise. The trainer states that a row depends on one record alone.
"""

from __future__ import annotations

import importlib.util
import inspect
import math
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import Field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from pipeline.trials import loss, mechanism, sampler
from pipeline.trials.feedback import Feedback
from pipeline.trials.fields import ConfigError
from pipeline.trials.part import PARTS, SETTINGS, Part, again, extension, part, parts_of, setting
from pipeline.trials.shapes import LayerShape, dense_shapes

if TYPE_CHECKING:
    from pipeline.trials.config import TrialConfig

Train = TypeVar("Train", bound=Callable[..., Iterator[Any]])  # `harness` reads the yielded values
STEP, EPOCH = "step", "epoch"
SEED, OWN = "seed", "own"


class Trainer(Part):
    """The configuration's view of a trainer.

    Attributes:
        runs: `module:attribute` of the `pipeline.learning.run.Run` that trains a pack; `run` may choose by trial.
        built_in: whether it trains this package's networks, many trials at once.
        brings: by slot, the part that its trials always have.
        version: of its results.
        calibrates: the setting that a target epsilon sets; a larger value is more noise. Empty for none.
        requires: packages that must be installed on the training host.
        public: by metric name, why its own metric may be logged when private records are not.
        redraws: whether its noise does not come from the trial's seed, so that a second run is a second draw.
        source: file of the function, for messages.
        event: function from a trial with its noise to the `dp_accounting.DpEvent` of a step or an epoch.
        per: whether the event is for a step or an epoch.
        relation: neighbouring relation of the event.
        parameters: function to the length of a record's contribution; certified trainers only.
        step: function that releases one step, for its audit.
    """

    runs: ClassVar[str] = ""
    built_in: ClassVar[bool] = False
    brings: ClassVar[Mapping[str, type[Part]]] = {}
    version: ClassVar[int] = 0
    calibrates: ClassVar[str] = ""
    requires: ClassVar[tuple[str, ...]] = ()
    public: ClassVar[Mapping[str, str]] = {}
    redraws: ClassVar[bool] = False
    source: ClassVar[str] = ""
    event: ClassVar[staticmethod[[Any], Any] | None] = None
    per: ClassVar[str] = STEP
    relation: ClassVar[str] = "add/remove"
    parameters: ClassVar[staticmethod[[Any], int] | None] = None
    step: ClassVar[staticmethod[..., Any] | None] = None

    def stated_event(self, trial: TrialConfig) -> Any:
        """Return the privacy event (`dp_accounting.DpEvent`) that the trainer states for a trial with its noise.

        Raises:
            ConfigError: if the trainer states no event.
        """
        if self.event is None:
            raise ConfigError(f"event: trainer '{self.name}' states none, so nothing can be accounted for")
        return self.event(trial)

    def run(self, trial: TrialConfig) -> str:
        """Return `module:attribute` of the code that trains a trial."""
        return self.runs

    def layers(self, trial: TrialConfig) -> tuple[LayerShape, ...]:
        """Return the shapes of the trained layers, as far as they are known."""
        raise NotImplementedError


@part("trainer", "built_in")
class BuiltIn(Trainer):
    """This package's networks, with a part in every other slot."""

    built_in = True

    def run(self, trial: TrialConfig) -> str:
        """Return the training code of the trial's arithmetic."""
        return trial.parts.arithmetic.works

    def layers(self, trial: TrialConfig) -> tuple[LayerShape, ...]:
        """Return the layers of the network."""
        return trial.parts.network.layers(trial.parts.features.shape(trial), trial.parts.data.spec.n_classes)


class _TrainerPart(Part):
    """A part that only trials of a user's trainer can have."""

    def check(self, trial: TrialConfig) -> None:
        """Refuse the part in a trial without its trainer."""
        if trial.parts.trainer.built_in:
            trainer_name = self.name if self.slot == "algorithm" else "NAME"
            raise ConfigError(f"{self.slot}: '{self.name}' is what trials of a trainer have, got it without one; write "
                              f"`trainer: {trainer_name}` and leave {self.slot} out")
        super().check(trial)


@part("network", "by_trainer", trainer_only=True)
class _Network(_TrainerPart):
    """A placeholder for the trainer's own network."""

    convolutional = False


@part("loss", "by_trainer", trainer_only=True)
class _Loss(_TrainerPart, loss.Loss):
    """A placeholder for the trainer's own loss; `per_record` of its algorithm states the assumption."""

    per_record = ""


@part("optimizer", "by_trainer", trainer_only=True)
class _Optimizer(_TrainerPart):
    """A placeholder for the trainer's own optimizer."""


class _Stated(_TrainerPart, mechanism.Mechanism):
    """A privacy event that the trainer states."""

    composed = True

    def kind(self, trial: TrialConfig) -> str:
        """Return `stated` if the trainer states a privacy event and the trial has noise; else an empty text."""
        trainer = trial.parts.trainer
        noise_is_off = trainer.calibrates and not trial.target_epsilon and not getattr(trial, trainer.calibrates)
        return "stated" if trainer.event and not noise_is_off else ""

    @classmethod
    def noise_setting(cls, fields: Mapping[str, Any]) -> str:
        """Return a trial's noise in words, from its settings: `epsilon=3`, `z=1.1`, `stated` or `non-private`."""
        if target := fields.get("target_epsilon"):
            return f"epsilon={target:g}"
        trainer = PARTS["trainer"].get(fields["trainer"], Trainer)  # the default is for a trainer that is not loaded
        setting_name = trainer.calibrates  # of the setting for the noise
        if not setting_name:
            return "stated" if trainer.event else "non-private"
        symbol = "z" if setting_name == "noise_multiplier" else setting_name
        return f"{symbol}={fields.get(setting_name) or 0:g}"


@part("mechanism", "by_trainer", trainer_only=True)
class Stated(_Stated):
    """A stated event with a setting that a target epsilon calibrates."""

    target = "target_epsilon"
    target_epsilon: float = again("target_epsilon")

    def check(self, trial: TrialConfig) -> None:
        """Refuse a target epsilon together with a given noise, because the target determines the noise."""
        super().check(trial)
        name = trial.parts.trainer.calibrates  # of the setting for the noise
        noise_is_given = name in dict(trial.given) and getattr(trial, name) != SETTINGS[name].default
        if self.target_epsilon and noise_is_given:
            raise ConfigError(f"target_epsilon: sets {name}; give one of the two, got target_epsilon "
                              f"{self.target_epsilon} and {name} {getattr(trial, name)}")


@part("sampler", "by_trainer", trainer_only=True)
class _Sampler(_TrainerPart, sampler.Sampler):
    """A placeholder for the trainer's own batches; its event states the neighbouring relation."""

    part_in_step = "as its trainer states"


class External(Trainer):
    """A user's trainer.

    Attributes:
        user_check: the user's function that refuses incompatible settings.
    """

    runs: ClassVar[str] = "pipeline.learning.harness:Harness"
    user_check: ClassVar[staticmethod[[Any], None] | None] = None

    trainer_version: int = setting(0, "version of a user's trainer; by default that which is loaded", low=0)

    def settled(self, trial: TrialConfig) -> dict[str, Any]:
        """Return the loaded version if none is given."""
        return {} if self.trainer_version else {"trainer_version": self.version}

    def layers(self, trial: TrialConfig) -> tuple[LayerShape, ...]:
        """Return the shapes of layers for planning, as far as they are known.

        A certified trainer gets one layer without inputs; its biases are the numbers that a record contributes. Another
        trainer counts as softmax regression, which only affects the order in which trials start.
        """
        if self.parameters:
            return dense_shapes((0, _contribution_length(self.name, self.parameters, trial)))
        n_inputs, n_classes = math.prod(trial.parts.features.shape(trial)), trial.parts.data.spec.n_classes
        return dense_shapes((n_inputs, n_classes))

    def check(self, trial: TrialConfig) -> None:
        """Refuse settings that do not go with this user's trainer.

        The trainer decides some slots itself, for example the network, and nothing else may be given for these. Secure
        noise needs a trainer that returns each record's contribution. A mechanism must bound such contributions as flat
        vectors, because they have no layers.

        Raises:
            ConfigError: naming the setting.
        """
        is_certified = self.parameters is not None  # it returns contributions, and does not state an event
        given = dict(trial.given)
        for slot, own_part in self.brings.items():
            given_name = given.get(slot, own_part.name)
            if given_name != own_part.name:
                raise ConfigError(f"{slot}: is the affair of trainer '{self.name}', got '{given_name}'; leave it out "
                                  "or, of trials with another trainer, give it in `cases`")
        if trial.parts.release.secret and not is_certified:
            raise ConfigError(f"noise: nobody checked what trainer '{self.name}' states, got 'secure'; use 'research', "
                              "or a trainer that hands in contributions (per_record)")
        if is_certified and not trial.parts.mechanism.flat:
            flat = [name for name, cls in parts_of("mechanism", mechanism.Mechanism).items() if cls.flat]
            raise ConfigError(f"mechanism: must be one of {', '.join(flat)} with trainer '{self.name}', whose "
                              f"contributions have no layers, got '{trial.mechanism}'")
        if self.user_check:
            self.user_check(trial)


def check_packages(trial: TrialConfig) -> None:
    """Refuse a trainer if a package that it requires is not installed here.

    Raises:
        ConfigError: naming the package and the host.
    """
    for package in trial.parts.trainer.requires:
        if importlib.util.find_spec(package) is None:
            raise ConfigError(f"trainer: '{trial.trainer}' needs the package '{package}', which is not installed on "
                              f"{socket.gethostname()}")


def is_stated(algorithm: str) -> bool:
    """Whether an algorithm is a trainer with a stated epsilon."""
    cls = PARTS["trainer"].get(algorithm)
    return cls is not None and not cls.built_in and cls.parameters is None


def trainer(name: str, *, version: int, event: Callable[[Any], Any] | None = None, per: str = STEP,
            relation: str = "add/remove", calibrates: str = "", settings: Mapping[str, Field[Any] | None] | None = None,
            label: str = "", requires: Sequence[str] = (), randomness: str = SEED,
            public: Mapping[str, str] | None = None, per_record: str = "",
            parameters: Callable[[TrialConfig], int] | None = None, step: Callable[..., Any] | None = None,
            check: Callable[[TrialConfig], None] | None = None) -> Callable[[Train], Train]:
    """Register a generator function as a trainer: `trainer: <name>` is accepted from then on (docs/trainers.md).

    A stated one is called as `train(trial, records, labels, device)`, a certified one as `train(trial, device)`;
    `trial` is a `pipeline.learning.harness.TrialContext`. Both yield after each of `trial.epochs` epochs.

    Args:
        version: from 1; part of its trials' identity. Raise it when results change.
        event: for a stated one, a function from a trial with its noise to the `dp_accounting.DpEvent` of one step or
            epoch.
        per: `step` (an epoch has N // m steps) or `epoch`.
        relation: neighbouring relation of the event, `add/remove` or `replace-one`.
        calibrates: the setting that `target_epsilon` sets; a larger value gives a smaller epsilon.
        settings: its own settings: by name the result of `setting`, or None for existing ones such as `learning_rate`.
        label: in tables and figures.
        requires: packages that it imports when it trains.
        randomness: `seed` if it draws from `trial.generator(...)` and from the global generators of torch, numpy and
            Python, which are seeded for it; `own` if it draws from elsewhere, so that a restart is another draw.
        public: by name of its own metric, why it may be logged when private records are not.
        per_record: for a certified one, why row i is computed from record i alone.
        parameters: for a certified one, a function from a trial to the length of a record's contribution.
        step: for a stated one, `step(trial, records, labels, device)` releases the update of one step [d] for a batch
            of any size, with fresh noise at each call. `photonic audit` uses it to distinguish neighbouring batches.
            `train` has to call the same function; nobody checks this.
        check: raises a `ConfigError` for incompatible settings.

    Raises:
        ConfigError: naming the fault, and what would be accepted.

    Example:
        >>> import torch
        >>> @trainer("constant", version=1, settings={"answer": setting(3.0, "the class that it always gives")})
        ... def constant(trial, records, labels, device):
        ...     logits = -(torch.arange(10) - trial.answer).abs()
        ...     for epoch in range(trial.epochs):
        ...         yield lambda records: logits.repeat(len(records), 1)
        >>> last = [*train(TrialConfig(dataset="digits", trainer="constant", epochs=1))][-1]
        >>> round(last.metrics["test/accuracy"], 2)
        0.08
    """
    if isinstance(version, bool) or not isinstance(version, int) or version < 1:
        raise ConfigError(f"version: must be a whole number >= 1, got {version!r}")
    for argument, value, choices in (("per", per, (STEP, EPOCH)), ("relation", relation, sampler.RELATIONS),
                                     ("randomness", randomness, (SEED, OWN))):
        if value not in choices:
            raise ConfigError(f"{argument}: must be one of {', '.join(choices)}, got {value!r}")
    _check_certified(name, event, calibrates, per_record, parameters)
    if step:
        _check_step(name, event, per, per_record)
    own_settings = _own_settings(settings, event, calibrates)

    def register(function: Train) -> Train:
        """Register a generator function as a trainer, with the parts that it decides itself, and return it unchanged.

        A trainer that states its own event also brings a mechanism and a sampler. The others use this package's.

        Raises:
            ConfigError: for a function that yields nothing.
        """
        yields = inspect.isgeneratorfunction(function)
        if not yields:
            raise ConfigError(f"trainer: '{name}' must be a generator function, which yields after each epoch, got "
                              f"{function!r}")
        shown_label = (label or name) + ("" if per_record else " (stated)")  # shown next to certified results
        algorithm = part("algorithm", name)(type(name, (_TrainerPart, Feedback), dict(
            works=staticmethod(function), label=shown_label, per_record=per_record or None)))
        brings: dict[str, type[Part]] = {"algorithm": algorithm}
        for slot in ("network", "loss", "optimizer"):
            brings[slot] = PARTS[slot]["by_trainer"]
        if not per_record:
            brings["mechanism"] = Stated if calibrates else _with_name_of(Stated, _Stated)
            own_sampler = type("Sampler", (_Sampler,), dict(relation=relation, independent=relation == "add/remove"))
            brings["sampler"] = _with_name_of(_Sampler, own_sampler)
        extension("trainer", name, External, own_settings, works=staticmethod(function), label=shown_label,
                  brings=brings, version=version, event=event and staticmethod(event), per=per, relation=relation,
                  calibrates=calibrates, requires=tuple(requires), redraws=randomness == OWN, public=dict(public or {}),
                  parameters=parameters and staticmethod(parameters), step=step and staticmethod(step),
                  user_check=check and staticmethod(check), source=inspect.getsourcefile(function) or "")
        return function
    return register


def _check_certified(name: str, event: Callable[[Any], Any] | None, calibrates: str, per_record: str,
                     parameters: Callable[[TrialConfig], int] | None) -> None:
    """Refuse a trainer `name` that mixes two kinds: certified (`per_record`, `parameters`) and stated (`event`)."""
    if per_record and (event or calibrates or not parameters):
        raise ConfigError(f"per_record: needs `parameters`, and neither `event` nor `calibrates`, which follow from "
                          f"mechanism and sampler, got it for trainer '{name}'")
    if parameters and not per_record:
        raise ConfigError(f"per_record: must say why row i is computed from record i alone, got nothing for trainer "
                          f"'{name}' with `parameters`")


def _check_step(name: str, event: Callable[[Any], Any] | None, per: str, per_record: str) -> None:
    """Refuse the argument `step` of a trainer `name` without a privacy event of one step, which its audit needs."""
    if event and per == STEP:
        return
    fault = "whose event is of an epoch" if event else "without event"
    if per_record and not event:
        fault += ", whose releases are audited without it"
    raise ConfigError(f"step: is audited against the event of a step, got it for trainer '{name}' {fault}")


def _own_settings(settings: Mapping[str, Field[Any] | None] | None, event: Callable[[Any], Any] | None,
                  calibrates: str) -> dict[str, Field[Any] | None]:
    """Return a trainer's settings by name, with `calibrates`, the setting for its noise; None for existing settings.

    Raises:
        ConfigError: for such a setting without an event, or without a floating-point number.
    """
    if calibrates and not event:
        raise ConfigError(f"event: must be given with calibrates, got only that, '{calibrates}'")
    own_settings = dict(settings or {})
    if calibrates:
        own_settings.setdefault(calibrates, None)
        noise = own_settings[calibrates] or SETTINGS.get(calibrates)
        if noise is not None and not isinstance(noise.default, float):
            raise ConfigError(f"calibrates: must be a setting with a number that is no whole one, got '{calibrates}'")
    return own_settings


def _with_name_of(registered: type[Part], cls: type[Part]) -> type[Part]:
    """Give a class the slot, name and label of a registered class, and return it."""
    cls.slot, cls.name, cls.label = registered.slot, registered.name, registered.label
    return cls


@lru_cache(maxsize=1024)
def _contribution_length(name: str, parameters: Callable[[TrialConfig], int], trial: TrialConfig) -> int:
    """Return the length of the vector that each record contributes, from the trainer's function `parameters`.

    Raises:
        ConfigError: unless the function returns a whole number >= 1.
    """
    length = parameters(trial)
    if isinstance(length, bool) or not isinstance(length, int) or length < 1:
        raise ConfigError(f"parameters: must give a whole number >= 1, got {length!r} of trainer '{name}'")
    return length
