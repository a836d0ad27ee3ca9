"""Parts: a trial has one part for each slot, and each part declares its own settings.

A slot is a question (which features, which mechanism), and a part is an answer. A part is a frozen dataclass, as every
subclass of `Part` is, and `setting` makes its fields. `check` says what it needs of the other parts. Built-in parts and
extensions are registered alike, and so is the code that does their work, which a part knows nothing of:

    @part("optimizer", "sgd")
    class Sgd(Optimizer):
        momentum: float = setting(0.9, "momentum: share of the last step that goes on", low=0, high=1, open_high=True)

    @UPDATES.of(Sgd)  # in `pipeline.learning.updates`
    class SgdUpdate(Update):
        ...
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import Field
from functools import lru_cache
from typing import Any, ClassVar, Generic, TypeVar, cast, dataclass_transform

from pipeline.trials.condition import PRIVATE, Need, Trial
from pipeline.trials.fields import ConfigError, check, coerce, listed_or, refuse
from pipeline.trials.fields import setting as setting

SETTINGS: dict[str, Field[Any]] = {}  # by name, for all slots and parts
RESERVED: set[str] = set()  # attributes of trials, so no setting may have these names
NAME = re.compile("[a-z][a-z0-9_]*")  # of parts and settings
NO_SETTING = "'{}' must be what `pipeline.trials.fields.setting` makes"


# By slot and by name; a slot has the name of the setting that chooses its part.
PARTS: dict[str, dict[str, type[Part]]] = {}


def again(name: str, *needs: Need, elide: bool = False) -> Any:
    """Return the field for a setting that another part declared first; only its conditions and `elide` are its own."""
    declared = SETTINGS[name]
    own_rules = {"applies": None, "needs": needs, "elide": elide}
    return dataclasses.field(default=declared.default, metadata={**declared.metadata, **own_rules})


@dataclass_transform(frozen_default=True, field_specifiers=(setting, again))
class Part:
    """An answer to the question of a slot; subclasses become frozen dataclasses, whose fields are their settings."""

    slot: ClassVar[str] = ""  # name of the setting that chooses the part
    name: ClassVar[str] = ""  # value of this setting
    label: ClassVar[str] = ""  # in tables and figures
    origin: ClassVar[str] = ""  # qualified name of its code: its own, or what an extension was given
    instead: ClassVar[Mapping[str, str]] = {}  # its replacements for settings of other parts, for messages
    not_integer: ClassVar[str] = ""  # why it cannot be used with integer arithmetic; empty if it can
    version: ClassVar[int] = 0  # of the results of a user's code; 0 for built-in code
    source: ClassVar[str] = ""  # file of a user's code, for messages
    settings: ClassVar[tuple[Field[Any], ...]] = ()  # that it declares, in order
    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]  # set by `dataclass` in every subclass

    def __init_subclass__(cls) -> None:
        dataclasses.dataclass(frozen=True)(cls)
        cls.settings = dataclasses.fields(cls)  # which looks through all attributes of the class at every call

    def check(self, trial: Trial) -> None:
        """Refuse settings that do not go with this part: naming one, its value, the reason, and what is accepted."""

    def settled(self, trial: Trial) -> dict[str, Any]:
        """Return {setting: value} of those that follow from others: here the version of a user's code if left open."""
        name = f"{self.slot}_version"
        return {name: self.version} if declares(self, name) and not getattr(self, name) else {}


P = TypeVar("P", bound=Part)
W = TypeVar("W")


class Workers(Generic[W]):
    """The code that does the work of a slot's parts; it enters itself (`of`), and serves subclasses of its part too."""

    def __init__(self) -> None:
        self._by_part: dict[type[Part], W] = {}

    def of(self, *parts: type[Part]) -> Callable[[Any], Any]:
        """Return a decorator that enters a class or function as what does the work of these parts."""
        def enter(worker: Any) -> Any:
            self._by_part.update(dict.fromkeys(parts, worker))
            return worker
        return enter

    def __getitem__(self, part: Part | type[Part]) -> W:
        cls = part if isinstance(part, type) else type(part)
        for base in cls.__mro__:
            if base in self._by_part:
                return self._by_part[base]
        raise ConfigError(cls.slot, f"'{cls.name}' must have code that does its work", "none",
                          "enter a class or function for it (docs/extending.md)")


def parts_of(slot: str, base: type[P]) -> Mapping[str, type[P]]:
    """Return the parts of a slot by name, typed as subclasses of the slot's base class."""
    return cast("Mapping[str, type[P]]", PARTS[slot])  # a dict of slots cannot say which slot has which base


def names_with(slot: str, attribute: str) -> list[str]:
    """Return the names of a slot's parts whose class attribute is true."""
    return [name for name, cls in PARTS[slot].items() if getattr(cls, attribute)]


def declares(part: Part | type[Part], name: str) -> bool:
    """Whether a part has the setting `name`, used or not; False for what is no part."""
    return name in getattr(part, "__dataclass_fields__", ())


def unmet(f: Field[Any], trial: Trial) -> list[Need]:
    """Return the `needs` of a setting's field that a trial does not meet, for messages; `applies` is not among them."""
    return [need for need in f.metadata["needs"] if not need.holds(trial)]


def uses(part: Part | Trial, f: Field[Any], trial: Trial) -> bool:
    """Whether a trial uses a setting of its `part`, or a choice of a part (then `part` is the trial itself)."""
    rules = f.metadata
    if rules["elide"] and getattr(part, f.name) == f.default:
        return False  # so that trials that were stored before the field existed keep their identity
    return (rules["applies"] is None or bool(rules["applies"](trial))) and not unmet(f, trial)


def part(slot: str, name: str) -> Callable[[type[Part]], type[Part]]:
    """Return a class decorator that registers a part: from then on, experiment files accept `<slot>: <name>`.

    The same class may be registered again, because a notebook cell may run twice.
    """
    def register(cls: type[Part]) -> type[Part]:
        """Register the class `cls` under `name`, and forget settings that no part has any more."""
        refuse(slot not in PARTS, "slot", f"must be one of {', '.join(PARTS)}", repr(slot))
        refuse(not NAME.fullmatch(name), slot, "must be small letters, digits and '_', and begin with a letter",
               repr(name))
        cls.origin = vars(cls).get("origin") or origin(cls)
        registered = PARTS[slot].get(name)
        if registered and registered.origin != cls.origin:
            raise ConfigError(slot, f"'{name}' is taken by {registered.origin}", cls.origin, "choose another name")
        others = [other for slot_parts in PARTS.values() for other in slot_parts.values()
                  if (other.slot, other.name) != (slot, name)]
        for field in cls.settings:
            _check_declaration(field, others)
        SETTINGS.update({field.name: field for field in cls.settings})
        cls.slot, cls.name, cls.label = slot, name, cls.label or name
        PARTS[slot][name] = cls
        for setting_name in list(SETTINGS):
            if setting_name not in PARTS and not owners(setting_name):
                del SETTINGS[setting_name]
        return cls
    return register


def extension(slot: str, name: str, base: type[Part], settings: Sequence[str] | Mapping[str, Field[Any] | None],
              code: Any, **attributes: Any) -> type[Part]:
    """Register a subclass of `base` with these settings and class attributes, and return it.

    `settings` are names of existing settings; or, by name, the result of `setting` for a new one and None for an
    existing one. `code` is the user's class or function, by which a second registration is known.
    """
    given: Mapping[str, Any] = settings if isinstance(settings, Mapping) else dict.fromkeys(settings)
    declared: dict[str, Field[Any]] = {}
    for setting_name, field in given.items():
        if field is None and (setting_name in PARTS or setting_name not in SETTINGS):
            raise ConfigError("settings", "must be fields of a trial", repr(setting_name),
                              f"they are {', '.join(SETTINGS)}; of a new one say what it is: "
                              f"settings={{'{setting_name}': setting(...)}}")
        if field is not None and not (isinstance(field, Field) and "doc" in field.metadata):
            raise ConfigError("settings", NO_SETTING.format(setting_name), repr(field))
        declared[setting_name] = again(setting_name) if field is None else field
    annotations = {setting_name: type(field.default) for setting_name, field in declared.items()}
    cls = type(name, (base,), {"origin": origin(code), **attributes, **declared, "__annotations__": annotations})
    return part(slot, name)(cls)


def origin(code: Any) -> str:  # Any: of a user, who may give any callable
    """Return the qualified name of a class or function; of any other callable, that of its class."""
    code = getattr(code, "func", code)  # the function that a `partial` calls
    code = code if hasattr(code, "__qualname__") else type(code)
    return f"{code.__module__}.{code.__qualname__}"


def _check_declaration(field: Field[Any], others: Sequence[type[Part]]) -> None:
    """Refuse a faulty declaration of a setting, or one that contradicts that of another part, among `others`."""
    def shared(declared: Field[Any]) -> tuple[Any, ...]:
        """Return what parts must declare equally: all but when a part uses the setting."""
        of_part = ("applies", "needs", "elide")
        return declared.default, *(value for key, value in declared.metadata.items() if key not in of_part)

    name = field.name
    refuse("doc" not in field.metadata, "settings", NO_SETTING.format(name), repr(field.default))
    refuse(name in PARTS or name in RESERVED or not NAME.fullmatch(name), "settings",
           "a new one must be small letters, digits and '_', and no name that a trial has", f"'{name}'")
    if any(declares(other, name) and shared(other.__dataclass_fields__[name]) != shared(field) for other in others):
        raise ConfigError(f"settings: '{name}' is another part's, with another default, text or range; choose another "
                          "name, or make them equal")
    if field.default != "":  # an empty text leaves the choice open
        check(field, coerce(field, field.default))


def owners(name: str) -> dict[str, list[str]]:
    """Return by slot the names of the parts that have a setting; slots without such parts are left out."""
    found = {slot: [part for part, cls in slot_parts.items() if declares(cls, name)]
             for slot, slot_parts in PARTS.items()}
    return {slot: names for slot, names in found.items() if names}


def owners_text(name: str) -> str:
    """Return `; of mechanism 'photonic'`: the parts that have a setting; empty if all of a slot have it, or none."""
    found = owners(name)
    if not found or any(len(names) == len(PARTS[slot]) for slot, names in found.items()):
        return ""
    return "; of " + ", ".join(f"{slot} {listed_or(names)}" for slot, names in found.items())


# By slot: its name in `config.Parts`, and the setting that chooses its part (default, text, rules).
# Trials are composed, and settings are listed, in this order.
_SLOTS: Sequence[tuple[str, str, str, str, dict[str, Any]]] = (
    ("dataset", "data", "fashion_mnist", "data set", {}),
    ("features", "features", "pixels",
     "what the network takes in: pixels, or a public map of single records: scattering coefficients (Tramer and Boneh "
     "2021), responses to patches of synthetic images, activations of an encoder trained on synthetic objects, or "
     "those of a file", {}),
    ("network", "network", "mlp",
     "architecture: fully connected, or `convnet`, convolutions with 2 x 2 max pools before those layers", {}),
    ("algorithm", "feedback", "dfa",
     "feedback: back-propagation, DFA, ternarized DFA, that projected by an OPU, or DFA in fully connected layers with "
     "back-propagation from them through convolutions", {}),
    ("projector", "projector", "",
     "who computes B e; by default `opu_simulated` for pdfa, `gaussian` for dfa, tdfa and hybrid, `none` for bp", {}),
    ("loss", "loss", "cross_entropy",
     "what is minimized: cross-entropy with labels, or with labels of which a share is spread over all classes "
     "(Szegedy et al. 2016)", {}),
    ("mechanism", "mechanism", "none", "how the update is privatized", {}),
    ("noise", "release", "research",
     "noise and batches are drawn by seed (`research`), so that the trial can be repeated and whoever knows the seed "
     "can subtract the noise, or from the operating system, recorded nowhere (`secure`)", {"needs": [PRIVATE]}),
    ("sampler", "sampler", "shuffled", "how batches are drawn", {}),
    ("optimizer", "optimizer", "sgd", "how an update moves the weights", {}),
    ("arithmetic", "arithmetic", "float32",
     "numbers that a trial is computed in: `float32`; products of factors rounded to `bfloat16`, fast where the "
     "processor has it (AVX512-BF16, AMX, GPUs) and slow elsewhere; or `integer`, for Gaussian mechanisms, whose sums "
     "are exact, with weights of the same bits on every processor", {}),
)
SLOTS: Mapping[str, str] = {name: attribute for name, attribute, *_ in _SLOTS}
for _name, _, _default, _doc, _rules in _SLOTS:
    PARTS[_name] = {}
    SETTINGS[_name] = setting(_default, _doc, choices=PARTS[_name], **_rules)
    SETTINGS[_name].name = _name


def settings() -> tuple[Field[Any], ...]:
    """Return all settings that a trial may have: for each slot the choice of its part, then the parts' settings."""
    return _settings(tuple((slot_name, tuple(slot_parts.values())) for slot_name, slot_parts in PARTS.items()))


@lru_cache
def _settings(parts: tuple[tuple[str, tuple[type[Part], ...]], ...]) -> tuple[Field[Any], ...]:
    """Return the settings of slots with these parts, cached because reports ask for every field of every run."""
    found: dict[str, Field[Any]] = {}
    for slot_name, slot_parts in parts:
        found.setdefault(slot_name, SETTINGS[slot_name])
        for field in (field for cls in slot_parts for field in cls.settings):
            found.setdefault(field.name, field)
    return tuple(found.values())
