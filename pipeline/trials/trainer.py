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
        own: whether it trains this package's networks, many trials at once.
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
    own: ClassVar[bool] = False
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

    def states(self, trial: TrialConfig) -> Any:
        """Return the event that the trainer states for a trial with its noise.

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

    own = True

    def run(self, trial: TrialConfig) -> str:
        """Return the training code of the trial's arithmetic."""
        return trial.parts.arithmetic.works

    def layers(self, trial: TrialConfig) -> tuple[LayerShape, ...]:
        """Return the layers of the network."""
        return trial.parts.network.layers(trial.parts.features.shape(trial), trial.parts.data.spec.n_classes)


class _OfTrainer(Part):
    """A part that only trials of a user's trainer can have."""

    def check(self, trial: TrialConfig) -> None:
        """Refuse the part without its trainer."""
        if trial.parts.trainer.own:
            wanted = self.name if self.slot == "algorithm" else "NAME"
            raise ConfigError(f"{self.slot}: '{self.name}' is what trials of a trainer have, got it without one; write "
                              f"`trainer: {wanted}` and leave {self.slot} out")
        super().check(trial)


@part("network", "by_trainer", held=True)
class _Network(_OfTrainer):
    """A placeholder for the trainer's own network."""

    convolutional = False


@part("loss", "by_trainer", held=True)
class _Loss(_OfTrainer, loss.Loss):
    """A placeholder for the trainer's own loss; `per_record` of its algorithm states the assumption."""

    per_record = ""


@part("optimizer", "by_trainer", held=True)
class _Optimizer(_OfTrainer):
    """A placeholder for the trainer's own optimizer."""


class _Stated(_OfTrainer, mechanism.Mechanism):
    """A privacy event that the trainer states."""

    composed = True

    def kind(self, trial: TrialConfig) -> str:
        """Return `stated` if there are an event and noise."""
        trainer = trial.parts.trainer
        noisy = not trainer.calibrates or trial.target_epsilon or getattr(trial, trainer.calibrates)
        return "stated" if trainer.event and noisy else ""

    @classmethod
    def noise_setting(cls, fields: Mapping[str, Any]) -> str:
        """Return `epsilon=3`, or the value of the setting for the noise, `z=1.1`; `stated` without such a setting."""
        if target := fields.get("target_epsilon"):
            return f"epsilon={target:g}"
        trainer = PARTS["trainer"].get(fields["trainer"], Trainer)  # the default is for a trainer that is not loaded
        if not (calibrates := trainer.calibrates):
            return "stated" if getattr(trainer, "event", True) else "non-private"
        return f"{'z' if calibrates == 'noise_multiplier' else calibrates}={fields.get(calibrates) or 0:g}"


@part("mechanism", "by_trainer", held=True)
class Stated(_Stated):
    """A stated event with a setting that a target epsilon calibrates."""

    target = "target_epsilon"
    target_epsilon: float = again("target_epsilon")

    def check(self, trial: TrialConfig) -> None:
        """Refuse a target together with a given noise."""
        super().check(trial)
        name = trial.parts.trainer.calibrates
        if self.target_epsilon and name in dict(trial.given) and getattr(trial, name) != SETTINGS[name].default:
            raise ConfigError(f"target_epsilon: sets {name}; give one of the two, got target_epsilon "
                              f"{self.target_epsilon} and {name} {getattr(trial, name)}")


@part("sampler", "by_trainer", held=True)
class _Sampler(_OfTrainer, sampler.Sampler):
    """A placeholder for the trainer's own batches; its event states the neighbouring relation."""

    part_in_step = "as its trainer states"


class External(Trainer):
    """A user's trainer.

    Attributes:
        also: the trainer's own check, which refuses incompatible settings.
    """

    runs: ClassVar[str] = "pipeline.learning.harness:Harness"
    also: ClassVar[staticmethod[[Any], None] | None] = None

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
            return dense_shapes((0, _whole(self.name, self.parameters, trial)))
        return dense_shapes((math.prod(trial.parts.features.shape(trial)), trial.parts.data.spec.n_classes))

    def check(self, trial: TrialConfig) -> None:
        """Refuse parts that the trainer decides itself, and secure noise for an unchecked statement."""
        for slot, cls in self.brings.items():
            if (given := dict(trial.given).get(slot, cls.name)) != cls.name:
                raise ConfigError(f"{slot}: is the affair of trainer '{self.name}', got '{given}'; leave it out or, of "
                                  "trials with another trainer, give it in `cases`")
        if trial.parts.release.secret and not self.parameters:
            raise ConfigError(f"noise: nobody checked what trainer '{self.name}' states, got 'secure'; use 'research', "
                              "or a trainer that hands in contributions (per_record)")
        if self.parameters and not trial.parts.mechanism.flat:
            flat = [name for name, cls in parts_of("mechanism", mechanism.Mechanism).items() if cls.flat]
            raise ConfigError(f"mechanism: must be one of {', '.join(flat)} with trainer '{self.name}', whose "
                              f"contributions have no layers, got '{trial.mechanism}'")
        if self.also:
            self.also(trial)


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
    return cls is not None and not cls.own and cls.parameters is None


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
    for given, value, accepted in (("per", per, (STEP, EPOCH)), ("relation", relation, sampler.RELATIONS),
                                   ("randomness", randomness, (SEED, OWN))):
        if value not in accepted:
            raise ConfigError(f"{given}: must be one of {', '.join(accepted)}, got {value!r}")
    if per_record and (event or calibrates or not parameters):
        raise ConfigError(f"per_record: needs `parameters`, and neither `event` nor `calibrates`, which follow from "
                          f"mechanism and sampler, got it for trainer '{name}'")
    if parameters and not per_record:
        raise ConfigError(f"per_record: must say why row i is computed from record i alone, got nothing for trainer "
                          f"'{name}' with `parameters`")
    if step and (not event or per != STEP):
        fault = "whose event is of an epoch" if event else "without event"
        if per_record and not event:
            fault += ", whose releases are audited without it"
        raise ConfigError(f"step: is audited against the event of a step, got it for trainer '{name}' {fault}")
    if calibrates and not event:
        raise ConfigError(f"event: must be given with calibrates, got only that, '{calibrates}'")
    entries = dict(settings or {})
    if calibrates:
        entries.setdefault(calibrates, None)
        kind = entries[calibrates] or SETTINGS.get(calibrates)
        if kind is not None and not isinstance(kind.default, float):
            raise ConfigError(f"calibrates: must be a setting with a number that is no whole one, got '{calibrates}'")

    def enter(function: Train) -> Train:
        """Register a generator function as a trainer, with the parts that it brings, and return it unchanged.

        A trainer that states its own event also brings a mechanism and a sampler. The others use this package's.

        Raises:
            ConfigError: for a function that yields nothing.
        """
        entered: object = function
        if not inspect.isgeneratorfunction(entered):
            raise ConfigError(f"trainer: '{name}' must be a generator function, which yields after each epoch, got "
                              f"{function!r}")
        shown = (label or name) + ("" if per_record else " (stated)")  # shown next to certified results
        algorithm = part("algorithm", name)(type(name, (_OfTrainer, Feedback), dict(
            works=staticmethod(function), label=shown, per_record=per_record or None)))
        brings: dict[str, type[Part]] = {"algorithm": algorithm, **{
            slot: PARTS[slot]["by_trainer"] for slot in ("network", "loss", "optimizer")}}
        if not per_record:
            of_kind = Stated if calibrates else _named(_Stated, Stated)
            of_relation = type("Sampler", (_Sampler,), dict(relation=relation, independent=relation == "add/remove"))
            brings |= {"mechanism": of_kind, "sampler": _named(of_relation, _Sampler)}
        extension("trainer", name, External, entries, works=staticmethod(function), label=shown, brings=brings,
                  version=version, event=event and staticmethod(event), per=per, relation=relation,
                  calibrates=calibrates, requires=tuple(requires), redraws=randomness == OWN, public=dict(public or {}),
                  parameters=parameters and staticmethod(parameters), step=step and staticmethod(step),
                  also=check and staticmethod(check),
                  source=inspect.getsourcefile(function) or "")
        return function
    return enter


def _named(cls: type[Part], entered: type[Part]) -> type[Part]:
    """Give a class the slot, name and label of a registered one."""
    cls.slot, cls.name, cls.label = entered.slot, entered.name, entered.label
    return cls


@lru_cache(maxsize=1024)
def _whole(name: str, parameters: Callable[[TrialConfig], int], trial: TrialConfig) -> int:
    """Return the length of a record's contribution, by the trainer's function `parameters`.

    Raises:
        ConfigError: unless the trainer gives a whole number >= 1.
    """
    number = parameters(trial)
    if isinstance(number, bool) or not isinstance(number, int) or number < 1:
        raise ConfigError(f"parameters: must give a whole number >= 1, got {number!r} of trainer '{name}'")
    return number
