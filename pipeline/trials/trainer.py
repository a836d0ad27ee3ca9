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
from typing import Any, ClassVar, TypeVar

from pipeline.trials import loss, mechanism, sampler
from pipeline.trials.condition import Trial
from pipeline.trials.feedback import Feedback
from pipeline.trials.fields import ConfigError, is_whole, refuse
from pipeline.trials.part import PARTS, SETTINGS, Part, again, extension, names_with, part, setting
from pipeline.trials.shapes import LayerShape, dense_shapes

Train = TypeVar("Train", bound=Callable[..., Iterator[Any]])  # `harness` reads the yielded values
STEP, EPOCH = "step", "epoch"
SEED, OWN = "seed", "own"


class Trainer(Part):
    """A trainer's settings, the parts that it brings, and what it states of its privacy."""

    built_in: ClassVar[bool] = False  # whether it trains this package's networks, many trials at once
    brings: ClassVar[Mapping[str, type[Part]]] = {}  # by slot, the part that its trials always have
    calibrates: ClassVar[str] = ""  # the setting that a target epsilon sets; larger is more noise; empty for none
    requires: ClassVar[tuple[str, ...]] = ()  # packages that must be installed on the training host
    public: ClassVar[Mapping[str, str]] = {}  # why its own metrics may be logged when private records are not, by name
    redraws: ClassVar[bool] = False  # whether a second run draws other noise, as it does not come from the seed
    # Function from a trial with its noise to the `dp_accounting.DpEvent` of a step or an epoch (`per`).
    event: ClassVar[staticmethod[[Any], Any] | None] = None
    per: ClassVar[str] = STEP
    relation: ClassVar[str] = "add/remove"  # neighbouring relation of the event
    # Function to the length of a record's contribution; certified trainers only.
    parameters: ClassVar[staticmethod[[Any], int] | None] = None
    step: ClassVar[staticmethod[..., Any] | None] = None  # releases one step, for its audit

    def stated_event(self, trial: Trial) -> Any:
        """Return the `DpEvent` of a step or epoch (`per`) that the trainer states for a calibrated trial."""
        if self.event is None:
            raise ConfigError(f"event: trainer '{self.name}' states none, so nothing can be accounted for")
        return self.event(trial)

    def run(self, trial: Trial) -> str:
        """Return `module:attribute` of the `pipeline.learning.run.Run` that trains a pack."""
        raise NotImplementedError

    def layers(self, trial: Trial) -> tuple[LayerShape, ...]:
        """Return the shapes of the trained layers; of a user's trainer stand-ins with as many parameters, if known."""
        raise NotImplementedError


@part("trainer", "built_in")
class BuiltIn(Trainer):
    """This package's networks, with a part in every other slot."""

    built_in = True

    def run(self, trial: Trial) -> str:
        return trial.parts.network.runs

    def layers(self, trial: Trial) -> tuple[LayerShape, ...]:
        return trial.parts.network.layers(trial.parts.features.shape(trial), trial.parts.data.spec.n_classes)


class _TrainerPart(Part):
    """A part that only trials of a user's trainer can have."""

    def check(self, trial: Trial) -> None:
        """Refuse the part in a trial without its trainer."""
        trainer_name = self.name if self.slot == "algorithm" else "NAME"
        refuse(trial.parts.trainer.built_in, self.slot, f"'{self.name}' is what trials of a trainer have",
               "it without one", f"write `trainer: {trainer_name}` and leave {self.slot} out")
        super().check(trial)


@part("network", "by_trainer", trainer_only=True)
class _Network(_TrainerPart):
    """A placeholder for the trainer's own network."""

    convolutional = own = False


@part("loss", "by_trainer", trainer_only=True)
class _Loss(_TrainerPart, loss.Loss):
    """A placeholder for the trainer's own loss; `per_record` of its algorithm states the assumption."""

    per_record = ""


@part("optimizer", "by_trainer", trainer_only=True)
class _Optimizer(_TrainerPart):
    """A placeholder for the trainer's own optimizer."""


class _Stated(_TrainerPart, mechanism.Mechanism):
    """A privacy event that the trainer states."""

    slot, name, label = "mechanism", "by_trainer", "by_trainer"  # it is not registered, as `Stated` has this name
    composed = True

    def kind(self, trial: Trial) -> str:
        """Return `stated` if the trainer states a privacy event and the trial has noise; else an empty text."""
        trainer = trial.parts.trainer
        noise_is_off = trainer.calibrates and not trial.target_epsilon and not getattr(trial, trainer.calibrates)
        return "stated" if trainer.event and not noise_is_off else ""

    @classmethod
    def noise_setting(cls, fields: Mapping[str, Any]) -> str:
        """Return `epsilon=3` for a target, else the setting that scales noise (`z=1.1`), `stated` or `non-private`."""
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

    def check(self, trial: Trial) -> None:
        """Refuse a target epsilon together with a given noise, because the target determines the noise."""
        super().check(trial)
        name = trial.parts.trainer.calibrates  # of the setting for the noise
        noise_is_given = name in dict(trial.given) and getattr(trial, name) != SETTINGS[name].default
        refuse(self.target_epsilon and noise_is_given, "target_epsilon", f"sets {name}; give one of the two",
               f"target_epsilon {self.target_epsilon} and {name} {getattr(trial, name)}")


@part("sampler", "by_trainer", trainer_only=True)
class _Sampler(_TrainerPart, sampler.Sampler):
    """A placeholder for the trainer's own batches; its event states the neighbouring relation."""

    part_in_step = "as its trainer states"


class External(Trainer):
    """A user's trainer."""

    user_check: ClassVar[staticmethod[[Any], None] | None] = None  # the user's function, which refuses settings

    trainer_version: int = setting(0, "version of a user's trainer; by default that which is loaded", low=0)

    def run(self, trial: Trial) -> str:
        return "pipeline.learning.harness:Harness"

    def layers(self, trial: Trial) -> tuple[LayerShape, ...]:
        """Return layers for planning: a certified trainer's biases are the numbers that a record contributes."""
        if not self.parameters:  # softmax regression, which only affects the order in which trials start
            n_inputs = math.prod(trial.parts.features.shape(trial))
            return dense_shapes((n_inputs, trial.parts.data.spec.n_classes))
        return dense_shapes((0, _contribution_length(self.name, self.parameters, trial)))

    def check(self, trial: Trial) -> None:
        """Refuse settings that do not go with this user's trainer."""
        is_certified = self.parameters is not None  # it returns contributions, and does not state an event
        for slot, own_part in self.brings.items():
            name = dict(trial.given).get(slot, own_part.name)
            refuse(name != own_part.name, slot, f"is the affair of trainer '{self.name}'", f"'{name}'",
                   "leave it out or, of trials with another trainer, give it in `cases`")
        refuse(trial.parts.release.secret and not is_certified, "noise", f"nobody checked what trainer '{self.name}' "
               "states", "'secure'", "use 'research', or a trainer that hands in contributions (per_record)")
        refuse(is_certified and not trial.parts.mechanism.flat, "mechanism", "must be one of "
               f"{', '.join(names_with('mechanism', 'flat'))} with trainer '{self.name}', whose contributions have no "
               "layers", f"'{trial.mechanism}'")
        if self.user_check:
            self.user_check(trial)


def check_packages(trial: Trial) -> None:
    """Refuse a trial if a package that its trainer requires is not installed on this host."""
    for package in trial.parts.trainer.requires:
        if importlib.util.find_spec(package) is None:
            raise ConfigError(f"trainer: '{trial.trainer}' needs the package '{package}', which is not installed on "
                              f"{socket.gethostname()}")


def is_stated(algorithm: str) -> bool:
    """Whether an algorithm is the name of a loaded user's trainer whose epsilon, if any, is only stated."""
    cls = PARTS["trainer"].get(algorithm)
    return cls is not None and not cls.built_in and cls.parameters is None


def trainer(name: str, *, version: int, event: Callable[[Any], Any] | None = None, per: str = STEP,
            relation: str = "add/remove", calibrates: str = "", settings: Mapping[str, Field[Any] | None] | None = None,
            label: str = "", requires: Sequence[str] = (), randomness: str = SEED,
            public: Mapping[str, str] | None = None, per_record: str = "",
            parameters: Callable[[Trial], int] | None = None, step: Callable[..., Any] | None = None,
            check: Callable[[Trial], None] | None = None) -> Callable[[Train], Train]:
    """Register a generator function as a trainer: `trainer: <name>` is accepted from then on (docs/trainers.md).

    A stated one is called as `train(trial, records, labels, device)`, a certified one as `train(trial, device)`;
    `trial` is a `pipeline.learning.handed.TrialContext`. Both yield after each of `trial.epochs` epochs.

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
    refuse(not is_whole(version), "version", "must be a whole number >= 1", repr(version))
    for argument, value, choices in (("per", per, (STEP, EPOCH)), ("relation", relation, sampler.RELATIONS),
                                     ("randomness", randomness, (SEED, OWN))):
        refuse(value not in choices, argument, f"must be one of {', '.join(choices)}", repr(value))
    # A certified trainer has `per_record` and `parameters`, a stated one `event`.
    refuse(per_record and (event or calibrates or not parameters), "per_record", "needs `parameters`, and neither "
           "`event` nor `calibrates`, which follow from mechanism and sampler", f"it for trainer '{name}'")
    refuse(parameters and not per_record, "per_record", "must say why row i is computed from record i alone",
           f"nothing for trainer '{name}' with `parameters`")
    if step and not (event and per == STEP):
        fault = "whose event is of an epoch" if event else "without event"
        audited = ", whose releases are audited without it" if per_record else ""
        raise ConfigError("step", "is audited against the event of a step", f"it for trainer '{name}' {fault}{audited}")
    refuse(calibrates and not event, "event", "must be given with calibrates", f"only that, '{calibrates}'")
    own_settings = dict(settings or {})
    if calibrates:
        noise = own_settings.setdefault(calibrates, None) or SETTINGS.get(calibrates)
        refuse(noise is not None and not isinstance(noise.default, float), "calibrates",
               "must be a setting with a number that is no whole one", f"'{calibrates}'")

    def register(function: Train) -> Train:
        """Register a generator function with the parts that the trainer decides itself, and return it unchanged."""
        refuse(not inspect.isgeneratorfunction(function), "trainer", f"'{name}' must be a generator function, which "
               "yields after each epoch", repr(function))
        shown_label = (label or name) + ("" if per_record else " (stated)")  # shown next to certified results
        brings: dict[str, type[Part]] = {"algorithm": part("algorithm", name)(type(name, (_TrainerPart, Feedback), dict(
            works=staticmethod(function), label=shown_label, per_record=per_record or None)))}
        brings |= {slot: PARTS[slot]["by_trainer"] for slot in ("network", "loss", "optimizer")}
        if not per_record:  # it states its own event, and uses no mechanism and sampler of this package
            brings["mechanism"] = Stated if calibrates else _Stated
            brings["sampler"] = type("Sampler", (_Sampler,), dict(relation=relation,
                                                                  independent=relation == "add/remove"))
        extension("trainer", name, External, own_settings, works=staticmethod(function), label=shown_label,
                  brings=brings, version=version, event=event and staticmethod(event), per=per, relation=relation,
                  calibrates=calibrates, requires=tuple(requires), redraws=randomness == OWN, public=dict(public or {}),
                  parameters=parameters and staticmethod(parameters), step=step and staticmethod(step),
                  user_check=check and staticmethod(check), source=inspect.getsourcefile(function) or "")
        return function
    return register


@lru_cache(maxsize=1024)
def _contribution_length(name: str, parameters: Callable[[Trial], int], trial: Trial) -> int:
    """Return the length of the vector that each record contributes, from the trainer's function `parameters`."""
    length = parameters(trial)
    refuse(not is_whole(length), "parameters", "must give a whole number >= 1", f"{length!r} of trainer '{name}'")
    return length
