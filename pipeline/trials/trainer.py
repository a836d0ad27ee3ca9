"""Who trains: this package's own networks, or a trainer that a user brings along (docs/trainers.md).

A trainer holds slots of its own: what network, loss and optimizer a trial has is its affair, and `algorithm` is its
name, by which tables and figures call it. There are two kinds.

    stated      It trains by itself and states a privacy event, which is accounted for here and checked by nobody.
    certified   It hands in what every record contributes, from batches that are drawn here; bounding, summing and noise
                are this package's. That a row belongs to one record alone is stated.
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

Train = TypeVar("Train", bound=Callable[..., Iterator[Any]])  # what it yields, `harness` reads
STEP, EPOCH = "step", "epoch"
SEED, OWN = "seed", "own"


class Trainer(Part):
    """What the configuration knows of a trainer.

    Attributes:
        runs: `module:attribute` of the `pipeline.learning.run.Run` that trains a pack; `run` says which of a trial's.
        own: whether it trains this package's networks, many trials at once.
        brings: by slot, the part that its trials have, whatever else there is.
        version: of what it computes.
        calibrates: the setting that a target sets, more of which is more noise; empty for none.
        requires: packages that must be installed where it trains.
        public: by name, why a metric of its own may be logged where private records are not.
        redraws: whether its noise comes from elsewhere than the trial's seed, so that a second run is a second draw.
        source: file of the function, for messages.
        event: of a trial with its noise, the `dp_accounting.DpEvent` of a step or an epoch.
        per: which of the two it is of.
        relation: of neighbours, for which the event holds.
        parameters: of a certified one, how many numbers a record contributes.
        step: what one step releases, for its audit.
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
        """The event of a trial with its noise, as the trainer gives it.

        Raises:
            ConfigError: of a trainer that states none.
        """
        if self.event is None:
            raise ConfigError(f"event: trainer '{self.name}' states none, so nothing can be accounted for")
        return self.event(trial)

    def run(self, trial: TrialConfig) -> str:
        """`module:attribute` of what trains a trial."""
        return self.runs

    def layers(self, trial: TrialConfig) -> tuple[LayerShape, ...]:
        """Shapes of what is trained, as far as they are known."""
        raise NotImplementedError


@part("trainer", "built_in")
class BuiltIn(Trainer):
    """This package's networks, with everything else that a trial has parts for."""

    own = True

    def run(self, trial: TrialConfig) -> str:
        """That of the trial's arithmetic."""
        return trial.parts.arithmetic.works

    def layers(self, trial: TrialConfig) -> tuple[LayerShape, ...]:
        """Those of the network."""
        return trial.parts.network.layers(trial.parts.features.shape(trial), trial.parts.data.spec.n_classes)


class _OfTrainer(Part):
    """A part that trials of a trainer have, and others cannot."""

    def check(self, trial: TrialConfig) -> None:
        """Refuse it without its trainer."""
        if trial.parts.trainer.own:
            wanted = self.name if self.slot == "algorithm" else "NAME"
            raise ConfigError(f"{self.slot}: '{self.name}' is what trials of a trainer have, got it without one; write "
                              f"`trainer: {wanted}` and leave {self.slot} out")
        super().check(trial)


@part("network", "by_trainer", held=True)
class _Network(_OfTrainer):
    """Whatever the trainer trains."""

    convolutional = False


@part("loss", "by_trainer", held=True)
class _Loss(_OfTrainer, loss.Loss):
    """Whatever the trainer minimizes; what its contributions rest on, `per_record` of its algorithm says."""

    per_record = ""


@part("optimizer", "by_trainer", held=True)
class _Optimizer(_OfTrainer):
    """However the trainer steps."""


class _Stated(_OfTrainer, mechanism.Mechanism):
    """A privacy event that the trainer states."""

    composed = True

    def kind(self, trial: TrialConfig) -> str:
        """`stated`, where there is an event, and noise."""
        trainer = trial.parts.trainer
        noisy = not trainer.calibrates or trial.target_epsilon or getattr(trial, trainer.calibrates)
        return "stated" if trainer.event and noisy else ""

    @classmethod
    def noise_setting(cls, fields: Mapping[str, Any]) -> str:
        """`epsilon=3` or, by the name of what sets the noise, `z=1.1`; `stated` where nothing does."""
        if target := fields.get("target_epsilon"):
            return f"epsilon={target:g}"
        trainer = PARTS["trainer"].get(fields["trainer"], Trainer)  # or one that is not loaded
        if not (calibrates := trainer.calibrates):
            return "stated" if getattr(trainer, "event", True) else "non-private"
        return f"{'z' if calibrates == 'noise_multiplier' else calibrates}={fields.get(calibrates) or 0:g}"


@part("mechanism", "by_trainer", held=True)
class Stated(_Stated):
    """As it is stated, with a setting by which a wanted epsilon sets the noise."""

    target = "target_epsilon"
    target_epsilon: float = again("target_epsilon")

    def check(self, trial: TrialConfig) -> None:
        """One of target and noise."""
        super().check(trial)
        name = trial.parts.trainer.calibrates
        if self.target_epsilon and name in dict(trial.given) and getattr(trial, name) != SETTINGS[name].default:
            raise ConfigError(f"target_epsilon: sets {name}; give one of the two, got target_epsilon "
                              f"{self.target_epsilon} and {name} {getattr(trial, name)}")


@part("sampler", "by_trainer", held=True)
class _Sampler(_OfTrainer, sampler.Sampler):
    """However the trainer draws, what it states says how neighbours differ."""

    part_in_step = "as its trainer states"


class External(Trainer):
    """A user's trainer.

    Attributes:
        also: refuses what does not go with it.
    """

    runs: ClassVar[str] = "pipeline.learning.harness:Harness"
    also: ClassVar[staticmethod[[Any], None] | None] = None

    trainer_version: int = setting(0, "version of a user's trainer; by default that which is loaded", low=0)

    def settled(self, trial: TrialConfig) -> dict[str, Any]:
        """The version that is loaded, where none is given."""
        return {} if self.trainer_version else {"trainer_version": self.version}

    def layers(self, trial: TrialConfig) -> tuple[LayerShape, ...]:
        """Of a certified one a layer of so many units without inputs, whose biases a record contributes to; of others
        as if it were softmax regression, for the order in which trials start."""
        if self.parameters:
            return dense_shapes((0, _whole(self.name, self.parameters, trial)))
        return dense_shapes((math.prod(trial.parts.features.shape(trial)), trial.parts.data.spec.n_classes))

    def check(self, trial: TrialConfig) -> None:
        """Refuse parts that the trainer holds, and noise that nobody could vouch for."""
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
    """Raises:
        ConfigError: for a trainer that needs a package which is not installed here.
    """
    for package in trial.parts.trainer.requires:
        if importlib.util.find_spec(package) is None:
            raise ConfigError(f"trainer: '{trial.trainer}' needs the package '{package}', which is not installed on "
                              f"{socket.gethostname()}")


def is_stated(algorithm: str) -> bool:
    """Whether an algorithm is a trainer whose epsilon is what it states."""
    cls = PARTS["trainer"].get(algorithm)
    return cls is not None and not cls.own and cls.parameters is None


def trainer(name: str, *, version: int, event: Callable[[Any], Any] | None = None, per: str = STEP,
            relation: str = "add/remove", calibrates: str = "", settings: Mapping[str, Field[Any] | None] | None = None,
            label: str = "", requires: Sequence[str] = (), randomness: str = SEED,
            public: Mapping[str, str] | None = None, per_record: str = "",
            parameters: Callable[[TrialConfig], int] | None = None, step: Callable[..., Any] | None = None,
            check: Callable[[TrialConfig], None] | None = None) -> Callable[[Train], Train]:
    """Enter a generator function as a trainer: `trainer: <name>` is accepted from then on (docs/trainers.md).

    A stated one is called as `train(trial, records, labels, device)`, a certified one as `train(trial, device)`
    (`pipeline.learning.harness.Handed` is what `trial` is); both yield after each of `trial.epochs` epochs.

    Args:
        version: from 1; in the identity of its trials. Raise it when results change.
        event: of a stated one, from a trial with its noise to the `dp_accounting.DpEvent` of one step or epoch.
        per: `step`, of which an epoch has N // m, or `epoch`.
        relation: of neighbours for which the event holds, `add/remove` or `replace-one`.
        calibrates: the setting that `target_epsilon` sets: the larger, the less epsilon.
        settings: its own, by name what `setting` makes; None for those that exist, such as `learning_rate`.
        label: in tables and figures.
        requires: packages that are imported when it trains.
        randomness: `seed` of one that draws from `trial.generator(...)` and the global generators of torch, numpy and
            Python, which are seeded for it; `own` of one that draws from elsewhere, whose restart is another draw.
        public: by name of a metric of its own, why it may be logged where private records are not.
        per_record: of a certified one, why row i is computed from record i alone.
        parameters: of a certified one, from a trial to how many numbers a record contributes.
        step: of a stated one, `step(trial, records, labels, device)` releases the update of one step [d] from a batch
            of any size, with fresh noise at each call; by it `photonic audit` tells neighbouring batches apart. It has
            to be what `train` calls: that it is, nobody checks.
        check: refuses with a `ConfigError` what does not go with it.

    Raises:
        ConfigError: naming what is wrong, and what would be accepted.

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
        raise ConfigError(f"step: is audited against the event of a step, got it for trainer '{name}' "
                          + ("whose event is of an epoch" if event else "without event"
                             + (", whose releases are audited without" if per_record else "")))
    if calibrates and not event:
        raise ConfigError(f"event: must be given with calibrates, got only that, '{calibrates}'")
    entries = dict(settings or {})
    if calibrates:
        entries.setdefault(calibrates, None)
        kind = entries[calibrates] or SETTINGS.get(calibrates)
        if kind is not None and not isinstance(kind.default, float):
            raise ConfigError(f"calibrates: must be a setting with a number that is no whole one, got '{calibrates}'")

    def enter(function: Train) -> Train:
        entered: object = function
        if not inspect.isgeneratorfunction(entered):
            raise ConfigError(f"trainer: '{name}' must be a generator function, which yields after each epoch, got "
                              f"{function!r}")
        shown = (label or name) + ("" if per_record else " (stated)")  # wherever it stands beside what is certified
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
    """A class under the name of one that is entered."""
    cls.slot, cls.name, cls.label = entered.slot, entered.name, entered.label
    return cls


@lru_cache(maxsize=1024)
def _whole(name: str, parameters: Callable[[TrialConfig], int], trial: TrialConfig) -> int:
    """How many numbers a record contributes.

    Raises:
        ConfigError: where the trainer says something else.
    """
    number = parameters(trial)
    if isinstance(number, bool) or not isinstance(number, int) or number < 1:
        raise ConfigError(f"parameters: must give a whole number >= 1, got {number!r} of trainer '{name}'")
    return number
