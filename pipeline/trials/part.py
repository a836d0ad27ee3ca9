"""Parts: a trial has one part for each slot, and each part declares its own settings.

A slot is a question (which features, which mechanism), and a part is an answer. A part is a frozen dataclass, as every
subclass of `Part` is, and `setting` makes its fields. `check` says what it needs of the other parts. `works` names the
class that does the work; it is imported only when needed. Built-in parts and extensions are registered alike:

    @part("mechanism", "per_example")
    class PerExample(Gaussian):
        clipping_norm: float = setting(1.0, "C, bound on the norm of a record's contribution", low=0, open_low=True)
        works = "pipeline.learning.mechanisms.gaussian:PerExample"
"""

from __future__ import annotations

import dataclasses
import importlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import Field
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeVar, cast, dataclass_transform

from pipeline.trials.fields import ConfigError, always, check, coerce, listed_or
from pipeline.trials.fields import setting as setting

if TYPE_CHECKING:
    from pipeline.trials.config import TrialConfig

SETTINGS: dict[str, Field[Any]] = {}  # by name, for all slots and parts
RESERVED: set[str] = set()  # attributes of trials, so no setting may have these names


class OfSlot(dict[str, "type[Part]"]):
    """The parts of a slot, by name. Parts that only a trainer brings are found by name but not listed."""

    def __init__(self) -> None:
        super().__init__()
        self.held: dict[str, type[Part]] = {}

    def __missing__(self, name: str) -> type[Part]:
        return self.held[name]

    def __contains__(self, name: object) -> bool:
        return super().__contains__(name) or name in self.held

    def get(self, name: str, default: Any = None) -> Any:
        """Return a part, as `dict.get`."""
        return self[name] if name in self else default  # noqa: SIM401  (its rewrite would call this method)


PARTS: dict[str, OfSlot] = {}  # by slot; a slot has the name of the setting that chooses its part


class Need(NamedTuple):
    """A condition under which a part uses a setting, in the words of a message: `tau_h_min > 0`."""

    wanted: str
    now: Callable[[TrialConfig], str]  # the trial's actual value, for messages
    holds: Callable[[TrialConfig], bool]

    @property
    def slot(self) -> bool:
        """Whether the condition asks for another part."""
        return self.wanted.partition(" ")[0] in PARTS


def positive(name: str) -> Need:
    """Return the condition that a number is > 0."""
    return Need(f"{name} > 0", lambda c: f"{name} {getattr(c, name):g}", lambda c: getattr(c, name) > 0)


def zero(name: str) -> Need:
    """Return the condition that a number is 0."""
    return Need(f"{name} 0", lambda c: f"{name} {getattr(c, name):g}", lambda c: not getattr(c, name))


def chosen(name: str, *values: Any) -> Need:
    """Return the condition that a setting has one of these values."""
    words = listed_or([_word(value) for value in values])
    return Need(f"{name} {words}", lambda c: f"{name} '{_word(getattr(c, name))}'",
                lambda c: getattr(c, name) in values)


def not_chosen(name: str, *values: Any) -> Need:
    """Return the condition that a setting has none of these values."""
    return Need(f"{name} other than {listed_or(values)}", lambda c: f"{name} '{getattr(c, name)}'",
                lambda c: getattr(c, name) not in values)


def _word(value: Any) -> str:
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else value


def again(name: str, *needs: Need, elide: bool = False) -> Any:
    """Return a field for a setting that another part has declared, with conditions of its own.

    Args:
        needs: conditions under which this part uses the setting.
        elide: whether the setting is left out of a trial's identity at its default.
    """
    f = SETTINGS[name]
    return dataclasses.field(default=f.default, metadata={
        **f.metadata, "applies": always, "needs": needs, "elide": elide})


@dataclass_transform(frozen_default=True, field_specifiers=(setting, again))
class Part:
    """An answer to the question of a slot.

    Attributes:
        slot: name of the setting that chooses the part.
        name: value of this setting.
        label: in tables and figures.
        held: whether only a trainer brings it.
        works: the object that does the work, or its `module:attribute`.
        instead: this part's replacements for settings of other parts, for messages.
        not_integer: why it cannot be used with integer arithmetic; empty if it can.
    """

    slot: ClassVar[str] = ""
    name: ClassVar[str] = ""
    label: ClassVar[str] = ""
    held: ClassVar[bool] = False
    works: ClassVar[Any] = None
    instead: ClassVar[Mapping[str, str]] = {}
    not_integer: ClassVar[str] = ""
    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]  # set by `dataclass` in every subclass

    def __init_subclass__(cls) -> None:
        dataclasses.dataclass(frozen=True)(cls)

    def check(self, trial: TrialConfig) -> None:
        """Refuse settings that are incompatible with this part.

        Raises:
            ConfigError: naming a setting of the trial, its value, the reason, and what would be accepted.
        """

    def settled(self, trial: TrialConfig) -> dict[str, Any]:
        """Return the settings whose values follow from other settings.

        Raises:
            ConfigError: for a file that cannot be used.
        """
        return {}

    @classmethod
    def load(cls) -> Any:
        """Return the object that does the work."""
        return load(cls.works)


P = TypeVar("P", bound=Part)


def parts_of(slot: str, base: type[P]) -> Mapping[str, type[P]]:
    """Return the parts of a slot by name, typed as subclasses of the slot's base class; unlisted parts are included."""
    return cast("Mapping[str, type[P]]", PARTS[slot])  # a dict of slots cannot say which slot has which base


def load(works: Any) -> Any:
    """Return the object named `module:attribute`, which is imported; any other value is returned as it is."""
    if not isinstance(works, str):
        return works
    module, name = works.split(":")
    return getattr(importlib.import_module(module), name)


def fields(part: Part | type[Part]) -> tuple[Field[Any], ...]:
    """Return the settings of a part, in the order of declaration."""
    return dataclasses.fields(part)


def declares(part: Part | type[Part], name: str) -> bool:
    """Whether a part has a setting."""
    return name in getattr(part, "__dataclass_fields__", ())


def uses(part: Part, f: Field[Any], trial: TrialConfig) -> bool:
    """Whether a setting of a part affects the result of a trial that has the part.

    It does if all its conditions hold, except at the default of a setting that is left out of the identity there.
    """
    meta = f.metadata
    if meta["elide"] and getattr(part, f.name) == f.default:
        return False
    return bool(meta["applies"](trial)) and all(need.holds(trial) for need in meta["needs"])


def part(slot: str, name: str, held: bool = False) -> Callable[[type[Part]], type[Part]]:
    """Register a class as a part: `<slot>: <name>` is accepted from then on.

    The same class may be registered again, as a notebook cell does that runs twice.

    Args:
        held: only a trainer brings the part, so messages do not offer it.

    Raises:
        ConfigError: for an unknown slot, or a name that another class has or that is not made of small letters, digits
            and '_'; for a setting that another part declares with a different default, text or range.
    """
    def enter(cls: type[Part]) -> type[Part]:
        """Register the class `cls` under `name`, and forget settings that no part has any more."""
        if slot not in PARTS:
            raise ConfigError(f"slot: must be one of {', '.join(PARTS)}, got {slot!r}")
        if not re.fullmatch("[a-z][a-z0-9_]*", name):
            raise ConfigError(f"{slot}: must be small letters, digits and '_', and begin with a letter, got {name!r}")
        if name in PARTS[slot] and (taken_by := origin(PARTS[slot][name])) != origin(cls):
            raise ConfigError(f"{slot}: '{name}' is taken by {taken_by}, got {origin(cls)}; choose another name")
        _enter_settings(cls, [other for other in all_parts() if (other.slot, other.name) != (slot, name)])
        cls.slot, cls.name, cls.label, cls.held = slot, name, cls.label or name, held
        (PARTS[slot].held if held else PARTS[slot])[name] = cls
        for unowned in [known for known in SETTINGS if known not in PARTS and not owners(known)]:
            del SETTINGS[unowned]
        return cls
    return enter


def extension(slot: str, name: str, base: type[Part], settings: Sequence[str] | Mapping[str, Field[Any] | None],
              **attributes: Any) -> type[Part]:
    """Register a part that is described by its settings and attributes, and return its class.

    Args:
        base: the class with the settings and attributes of all such parts.
        settings: names of existing settings that it uses; or, by name, the result of `setting` for a new one and None
            for an existing one.
        attributes: of the class.

    Raises:
        ConfigError: as `part`, and for an unknown setting.
    """
    entries = dict(settings if isinstance(settings, Mapping) else dict.fromkeys(settings))
    for known, entry in entries.items():
        if entry is None and (known not in SETTINGS or known in PARTS):
            raise ConfigError(f"settings: must be fields of a trial, got {known!r}; they are {', '.join(SETTINGS)}; of "
                              "a new one say what it is: settings={'" + str(known) + "': setting(...)}")
        if entry is not None and not (isinstance(entry, Field) and "doc" in entry.metadata):
            raise ConfigError(f"settings: '{known}' must be what `pipeline.trials.fields.setting` makes, got {entry!r}")
    declared = {known: again(known) if entry is None else entry for known, entry in entries.items()}
    annotations = {known: type(entry.default) for known, entry in declared.items()}
    return part(slot, name)(type(name, (base,), {**attributes, **declared, "__annotations__": annotations}))


def origin(cls: type[Part]) -> str:
    """Return the qualified name of the code that does a part's work, or of the part without such code."""
    if isinstance(cls.works, str):
        return cls.works.replace(":", ".")
    entry = getattr(cls.works, "function", cls.works) or cls
    entry = getattr(entry, "func", entry)  # the function that a `partial` calls
    return f"{entry.__module__}.{entry.__qualname__}"


class View(Mapping[str, Any]):
    """One attribute of all parts of a slot, by their names; extensions appear when they are registered."""

    def __init__(self, slot: str, attribute: str) -> None:
        self.slot, self.attribute = slot, attribute

    def __getitem__(self, name: str) -> Any:
        return getattr(PARTS[self.slot][name], self.attribute)

    def __iter__(self) -> Iterator[str]:
        return iter(PARTS[self.slot])

    def __len__(self) -> int:
        return len(PARTS[self.slot])


def all_parts() -> Iterator[type[Part]]:
    """Return all registered parts, slot by slot."""
    return (cls for of_slot in PARTS.values() for cls in of_slot.values())


def _enter_settings(cls: type[Part], others: Sequence[type[Part]]) -> None:
    """Register the settings of a part.

    Args:
        cls: the part.
        others: all other parts. A setting that another part has too must be declared alike.

    Raises:
        ConfigError: for a field that is no setting, a name that is taken or malformed, or a default out of range.
    """
    for f in fields(cls):
        if "doc" not in f.metadata:
            raise ConfigError(f"settings: '{f.name}' must be what `pipeline.trials.fields.setting` makes, got "
                              f"{f.default!r}")
        if f.name in PARTS or f.name in RESERVED or not re.fullmatch("[a-z][a-z0-9_]*", f.name):
            raise ConfigError("settings: a new one must be small letters, digits and '_', and no name that a trial "
                              f"has, got '{f.name}'")
        for other in (other for other in others if declares(other, f.name)):
            if _said(other.__dataclass_fields__[f.name]) != _said(f):
                raise ConfigError(f"settings: '{f.name}' is another part's, with another default, text or range; "
                                  "choose another name, or make them equal")
        if f.default != "":  # an empty text leaves the choice open
            check(f, coerce(f, f.default))
    for f in fields(cls):
        SETTINGS[f.name] = f


def _said(f: Field[Any]) -> tuple[Any, ...]:
    """Return everything declared about a setting, except when it is used."""
    when = ("applies", "needs", "elide")
    return f.default, *(value for name, value in f.metadata.items() if name not in when)


def owners(name: str) -> dict[str, list[str]]:
    """Return the parts that have a setting, by slot."""
    found = {slot: [part for part, cls in of_slot.items() if declares(cls, name)] for slot, of_slot in PARTS.items()}
    return {slot: names for slot, names in found.items() if names}


def having(name: str) -> str:
    """Return `; of mechanism 'photonic'`: the parts that have a setting; empty if all parts of a slot have it."""
    found = owners(name)
    if not found or any(len(names) == len(PARTS[slot]) for slot, names in found.items()):
        return ""
    return "; of " + ", ".join(f"{slot} {listed_or(names)}" for slot, names in found.items())


def private() -> Need:
    """Return the condition that a trial has a mechanism."""
    return Need("mechanism other than 'none'", lambda c: f"mechanism '{c.mechanism}'",
                lambda c: c.parts.mechanism.private)


def own() -> Need:
    """Return the condition that a trial trains this package's networks."""
    return Need("trainer 'built_in'", lambda c: f"trainer '{c.trainer}'", lambda c: c.parts.trainer.own)


def slot(name: str, attribute: str, default: str, doc: str, **rules: Any) -> str:
    """Create a slot with the setting that chooses its part, and return `attribute`.

    Args:
        name: of the setting.
        attribute: the slot's name in `config.Parts`.
        default, doc: of the setting.
        rules: further arguments of `setting`.
    """
    PARTS[name] = OfSlot()
    f = setting(default, doc, choices=PARTS[name], **rules)
    f.name = name
    SETTINGS[name] = f
    return attribute


# Trials are composed, and settings are listed, in this order.
_SLOTS: Sequence[tuple[str, str, str, str, dict[str, Any]]] = (
    ("dataset", "data", "fashion_mnist", "data set", {}),
    ("features", "features", "pixels",
     "what the network takes in: pixels, or a public map of single records: scattering coefficients (Tramer and Boneh "
     "2021), responses to patches of synthetic images, activations of an encoder trained on synthetic objects, random "
     "features of an OPU, or those of a file",
     {"elide": True}),
    ("network", "network", "mlp",
     "architecture: fully connected, or `convnet`, convolutions with 2 x 2 max pools before those layers", {}),
    ("algorithm", "feedback", "dfa",
     "feedback: back-propagation, DFA, ternarized DFA, that projected by an OPU, or DFA in fully connected layers with "
     "back-propagation from them through convolutions", {}),
    ("projector", "projector", "",
     "who computes B e; by default `opu_simulated` for pdfa, `gaussian` for dfa, tdfa and hybrid, `none` for bp", {}),
    ("loss", "loss", "cross_entropy",
     "what is minimized: cross-entropy with labels, or with labels of which a share is spread over all classes "
     "(Szegedy et al. 2016)", {"elide": True}),
    ("mechanism", "mechanism", "none", "how the update is privatized", {}),
    ("noise", "release", "research",
     "noise and batches are drawn by seed (`research`), so that the trial can be repeated and whoever knows the seed "
     "can subtract the noise, or from the operating system, recorded nowhere (`secure`)", {"needs": [private()]}),
    ("sampler", "sampler", "shuffled", "how batches are drawn", {}),
    ("optimizer", "optimizer", "sgd", "how an update moves the weights", {}),
    ("matmul_precision", "arithmetic", "float32",
     "numbers that a trial is computed in, called `arithmetic` in files: `float32`; products of factors rounded to "
     "`bfloat16`, fast where the processor has it (AVX512-BF16, AMX, GPUs) and slow elsewhere; or `integer`, for "
     "Gaussian mechanisms, whose sums are exact, with weights of the same bits on every processor",
     {"needs": [own()], "called": "arithmetic"}),
    ("trainer", "trainer", "built_in",
     "who trains: this package's own networks, or a trainer of a plugin, which brings along all but data, features and "
     "what is released", {"elide": True}),
)
SLOTS: Mapping[str, str] = {name: slot(name, attribute, default, doc, **rules)
                            for name, attribute, default, doc, rules in _SLOTS}


def settings() -> tuple[Field[Any], ...]:
    """Return all settings that a trial may have: for each slot the choice of its part, then the parts' settings."""
    found: dict[str, Field[Any]] = {}
    for slot_name, of_slot in PARTS.items():
        found.setdefault(slot_name, SETTINGS[slot_name])
        for cls in of_slot.values():
            for f in fields(cls):
                found.setdefault(f.name, f)
    return tuple(found.values())
