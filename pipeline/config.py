"""One trial: every setting that affects its result, documented, validated, and identified by `trial_key`."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pipeline.datasets import DATASETS

ALGORITHMS = ("bp", "dfa", "tdfa", "pdfa")
MECHANISMS = ("none", "photonic", "component", "per_example")
PROJECTORS = ("none", "gaussian", "opu_simulated", "opu_hardware")
SAMPLERS = ("shuffled", "without_replacement", "poisson")
NETWORKS = ("mlp",)
ACTIVATION_SLOPES = {"tanh": 1.0, "sigmoid": 0.25, "relu": 1.0}  # gamma: the supremum of phi', whose infimum is 0
ACTIVATIONS = tuple(ACTIVATION_SLOPES)
INPUTS = ("centered", "standardized", "unit")
OPTIMIZERS = ("sgd", "adam")
LEAST_NOISE = 0.2  # of noise_multiplier, where there is noise
LEAST_CANARIES = 30  # fewer make fewer than 6 guesses, and even 5 right ones bound nothing
PRECISIONS = ("float32", "bfloat16")
NOISE_SOURCES = ("research", "secure")

TERNARY = ("tdfa", "pdfa")
GAUSSIAN = ("component", "per_example")
OPU_PROJECTORS = ("opu_simulated", "opu_hardware")


class ConfigError(ValueError):
    """A setting that cannot be run; the message names the field, the value and what would be accepted."""


def _always(config: TrialConfig) -> bool:
    return True


def setting(
    default: Any,
    doc: str,
    *,
    choices: tuple[str, ...] | None = None,
    low: float | None = None,
    high: float | None = None,
    open_low: bool = False,
    open_high: bool = False,
    per_trial: bool = False,
    applies: Callable[[TrialConfig], bool] = _always,
) -> Any:
    """A documented field of `TrialConfig`.

    Args:
        default: value where the experiment file is silent; its type is the field's type.
        doc: one line for the reader (`photonic fields` prints it).
        choices, low, high, open_low, open_high: what is accepted.
        per_trial: trials that differ only in such fields share tensor shapes and train in one pack.
        applies: whether the field affects the result at all; where it does not, it is no part of the identity.
    """
    meta = dict(doc=doc, choices=choices, low=low, high=high, open_low=open_low, open_high=open_high,
                per_trial=per_trial, applies=applies)
    return dataclasses.field(default=default, metadata=meta)


def _photonic(c: TrialConfig) -> bool:
    return c.mechanism == "photonic"


def _gaussian(c: TrialConfig) -> bool:
    return c.mechanism in GAUSSIAN


def _component(c: TrialConfig) -> bool:
    return c.mechanism == "component"


def _optical(c: TrialConfig) -> bool:
    return _photonic(c) or (_gaussian(c) and c.algorithm == "pdfa")


@dataclass(frozen=True)
class TrialConfig:
    """The settings of one trial (Ohana et al. 2021, sections 3 and 4, give the defaults).

    Raises:
        ConfigError: for a value outside what its field accepts, or a combination that cannot be run.
    """

    dataset: str = setting("fashion_mnist", "data set", choices=tuple(DATASETS))
    validation_fraction: float = setting(
        0.1, "share of the training records held out for validation, drawn by seed", low=0, high=0.5, open_low=True)
    inputs: str = setting(
        "centered", "pixels on [0, 1] (`unit`), on [-1, 1] (`centered`), or shifted and scaled by published constants",
        choices=INPUTS)
    input_norm: float = setting(
        0.0, "Euclidean norm to which every record's input is scaled; 0 leaves it as it is", low=0,
        applies=lambda c: c.input_norm > 0)
    network: str = setting("mlp", "architecture", choices=NETWORKS)
    hidden: tuple[int, ...] = setting((512, 512), "widths of the hidden layers")
    activation: str = setting("tanh", "hidden activation phi", choices=ACTIVATIONS)
    algorithm: str = setting(
        "dfa", "feedback: back-propagation, DFA, ternarized DFA, or ternarized DFA projected by an OPU",
        choices=ALGORITHMS)
    projector: str = setting(
        "", "who computes B e; by default `opu_simulated` for pdfa, `gaussian` for dfa and tdfa, `none` for bp",
        choices=PROJECTORS)
    feedback_std: float = setting(
        1.0, "standard deviation of the entries of B (of the hardware: of its rescaled output)", low=0, open_low=True,
        applies=lambda c: c.algorithm != "bp")
    threshold: float = setting(
        0.15, "t: an error beyond +-t becomes +-1, others 0", low=0, high=1, open_high=True, per_trial=True,
        applies=lambda c: c.algorithm in TERNARY)
    mechanism: str = setting("none", "how the update is privatized", choices=MECHANISMS)
    sigma: float = setting(
        0.0, "standard deviation of the optical noise g, per component (Eq. 10)", low=0, per_trial=True,
        applies=_optical)
    tau_f: float = setting(
        1.0, "s = tau_f: bound on ||B e||, and on ||e|| in the output layer (Eq. 9, tau_B)", low=0, open_low=True,
        per_trial=True, applies=lambda c: _photonic(c) or _optical(c) and c.sigma > 0)
    tau_h: float = setting(
        1.0, "tau_h^max: activations are clipped at c = tau_h/sqrt(n) (Eq. 9); under component clipping, bound on "
        "||h||", low=0, open_low=True, per_trial=True, applies=lambda c: _photonic(c) or _component(c))
    tau_h_min: float = setting(
        0.0, "tau_h^min: offset nu = tau_h_min/sqrt(n) of the activations (Eq. 9)", low=0, per_trial=True,
        applies=_photonic)
    gamma_min: float = setting(
        0.0, "enforced variant: phi' is clamped to at least gamma_min in the update; 0 leaves it", low=0,
        per_trial=True, applies=_photonic)
    activation_floor: bool = setting(
        False, "enforced variant: h <- sign(h) clip(|h|, nu, c) in place of offset and clip",
        applies=lambda c: _photonic(c) and c.tau_h_min > 0)
    output_noise: bool = setting(
        True, "scale and noise for the output layer's error as well; without it nothing at all is claimed",
        applies=lambda c: _photonic(c) and c.algorithm != "bp")
    tau_e: float = setting(
        0.1, "component clipping: bound on ||e||", low=0, open_low=True, per_trial=True, applies=_component)
    feedback_norm: float = setting(
        0.9, "component clipping: beta, spectral norm of the feedback matrix of every layer", low=0, open_low=True,
        applies=_component)
    clipping_norm: float = setting(
        1.0, "per-example clipping: C, bound on the norm of a record's contribution to the update", low=0,
        open_low=True, per_trial=True, applies=lambda c: c.mechanism == "per_example")
    noise_multiplier: float = setting(
        0.0, "z: standard deviation of the noise on the sum of the contributions, over C", low=0, per_trial=True,
        applies=_gaussian)
    target_epsilon: float = setting(
        0.0, "certified epsilon that the whole run may cost; sets the noise multiplier. 0 leaves that to "
        "noise_multiplier", low=0, per_trial=True, applies=_gaussian)
    delta: float = setting(
        1e-5, "delta of every (epsilon, delta)", low=0, high=1, open_low=True, open_high=True,
        applies=lambda c: c.mechanism != "none" or c.canaries > 0)
    noise: str = setting(
        "research", "noise and batches are drawn by seed (`research`), so that the trial can be repeated and whoever "
        "knows the seed can subtract the noise, or from the operating system, recorded nowhere (`secure`)",
        choices=NOISE_SOURCES, applies=lambda c: c.mechanism != "none")
    canaries: int = setting(
        0, "training records that get a wrong label and take part with probability 1/2, to audit the run; 0 audits "
        "nothing", low=0, applies=lambda c: c.canaries > 0)
    sampler: str = setting("shuffled", "how batches are drawn", choices=SAMPLERS)
    batch_size: int = setting(256, "m, records per step", low=1)
    epochs: int = setting(15, "passes over the training records", low=1)
    optimizer: str = setting("sgd", "torch.optim optimizer", choices=OPTIMIZERS)
    learning_rate: float = setting(0.01, "step size eta", low=0, open_low=True)
    momentum: float = setting(
        0.9, "momentum of sgd", low=0, high=1, open_high=True, applies=lambda c: c.optimizer == "sgd")
    averaging: float = setting(
        0.0, "decay of the exponential moving average of the iterates that is evaluated and kept; 0 takes the last "
        "iterate", low=0, high=1, open_high=True,
        applies=lambda c: c.averaging > 0)
    matmul_precision: str = setting(
        "float32", "type to which the factors of matrix products are rounded; bfloat16 is faster where the processor "
        "has it (AVX512-BF16, AMX, GPUs) and slow elsewhere", choices=PRECISIONS)
    alignment_batches: int = setting(
        4, "batches per epoch on which the update is compared with the true gradient; 0 measures none", low=0)
    seed: int = setting(0, "seed of split, initialisation and feedback and, in research, of sampling and noise",
                        low=0, high=2**63 - 1, per_trial=True)

    def __post_init__(self) -> None:
        for f in dataclasses.fields(self):
            object.__setattr__(self, f.name, _coerce(f, getattr(self, f.name)))
        if not self.projector:
            default = {"bp": "none", "pdfa": "opu_simulated"}.get(self.algorithm, "gaussian")
            object.__setattr__(self, "projector", default)
        for f in dataclasses.fields(self):
            _check(f, getattr(self, f.name))
        self._check_combinations()

    def _check_combinations(self) -> None:
        accepted = {"bp": ("none",), "dfa": ("gaussian",), "tdfa": ("gaussian",), "pdfa": OPU_PROJECTORS}
        if self.projector not in accepted[self.algorithm]:
            raise ConfigError(f"projector: {self.algorithm} takes {_or(accepted[self.algorithm])}, got "
                              f"'{self.projector}' (tdfa through an OPU is what is called pdfa)")
        n_train, n_validation = self.split_sizes
        if self.batch_size > n_train:
            raise ConfigError(f"batch_size: must be at most the {n_train} training records of {self.dataset}, "
                              f"got {self.batch_size}")
        if n_validation < 1:
            raise ConfigError(f"validation_fraction: leaves no validation record, got {self.validation_fraction}")
        if self.mechanism == "photonic" and self.sampler == "poisson":
            raise ConfigError("sampler: nothing is claimed or proved of the photonic mechanism with poisson batches; "
                              "use 'shuffled' or 'without_replacement', or mechanism 'per_example'")
        if 0 < self.canaries < LEAST_CANARIES or self.canaries > n_train:
            raise ConfigError(f"canaries: must be 0, or at least {LEAST_CANARIES}, with fewer of which nothing can be "
                              f"bounded, and at most the {n_train} training records, got {self.canaries}")
        if self.canaries and self.sampler != "poisson":
            raise ConfigError("canaries: need sampler 'poisson', which never draws a record that is left out and draws "
                              "all others as before; with others another record would take its place, got sampler "
                              f"'{self.sampler}'")
        if self.mechanism == "component" and self.projector == "opu_hardware":
            raise ConfigError("mechanism: component clipping needs the norm of the feedback matrix, which is not known "
                              "of a real OPU, got projector 'opu_hardware'; use 'per_example'")
        if self.mechanism in GAUSSIAN and self.target_epsilon and self.noise_multiplier:
            raise ConfigError(f"target_epsilon: sets the noise multiplier; give one of the two, got target_epsilon "
                              f"{self.target_epsilon} and noise_multiplier {self.noise_multiplier}")
        if self.mechanism in GAUSSIAN and 0 < self.noise_multiplier < LEAST_NOISE:
            raise ConfigError(f"noise_multiplier: must be 0 (no noise, no guarantee) or at least {LEAST_NOISE}, below "
                              f"which nothing useful can be accounted for, got {self.noise_multiplier}")
        if self.mechanism in GAUSSIAN and self.matmul_precision != "float32":
            raise ConfigError(f"matmul_precision: must be 'float32' with mechanism '{self.mechanism}', whose bound on "
                              f"contributions does not cover rounding, got '{self.matmul_precision}'")
        if self.mechanism == "photonic" and self.tau_h_min > self.tau_h:
            raise ConfigError(f"tau_h_min: must be at most tau_h = {self.tau_h}, got {self.tau_h_min}")

    @property
    def split_sizes(self) -> tuple[int, int]:
        """(training, validation) records."""
        return DATASETS[self.dataset].split_sizes(self.validation_fraction)

    @property
    def steps_per_epoch(self) -> int:
        """Full batches in one pass; a last, smaller batch is left out so that every step has m records."""
        return self.split_sizes[0] // self.batch_size

    @property
    def layer_sizes(self) -> tuple[int, ...]:
        """(n_0, ..., n_L): input, hidden widths, classes."""
        spec = DATASETS[self.dataset]
        return (spec.n_features, *self.hidden, spec.n_classes)

    @property
    def secure(self) -> bool:
        """Whether noise and batches come from the operating system."""
        return self.mechanism != "none" and self.noise == "secure"

    @property
    def needs_opu(self) -> bool:
        """Whether the trial must hold an `OPU` resource."""
        return self.projector in OPU_PROJECTORS

    def canonical(self) -> dict[str, Any]:
        """The fields that affect this trial's result, as JSON values, sorted by name."""
        return {f.name: _plain(getattr(self, f.name)) for f in sorted(dataclasses.fields(self), key=lambda f: f.name)
                if f.metadata["applies"](self)}

    @property
    def trial_key(self) -> str:
        """Identity of the trial: 16 hexadecimal digits of the SHA-256 of `canonical()`."""
        return _digest(self.canonical())

    @property
    def pack_key(self) -> str:
        """Trials with equal pack keys may be trained in one pack."""
        per_trial = {f.name for f in dataclasses.fields(self) if f.metadata["per_trial"]}
        return _digest({k: v for k, v in self.canonical().items() if k not in per_trial})

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> TrialConfig:
        """A configuration from plain values.

        Raises:
            ConfigError: also for a field that does not exist.
        """
        names = [f.name for f in dataclasses.fields(cls)]
        for name in values:
            if name not in names:
                raise ConfigError(f"{name}: unknown field, got {values[name]!r}; the fields are {', '.join(names)}")
        return cls(**values)


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _digest(values: Mapping[str, Any]) -> str:
    text = json.dumps(values, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _or(choices: tuple[str, ...]) -> str:
    return " or ".join(f"'{c}'" for c in choices)


def _coerce(f: dataclasses.Field, value: Any) -> Any:
    """`value` as the type of the field's default; only conversions that lose nothing."""
    kind = type(f.default)
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
            hint = " (YAML reads 1e-5 as text; write 1.0e-5)" if re.fullmatch(r"[-+]?\d+e[-+]?\d+", value) else ""
            raise ConfigError(f"{f.name}: must be a number, got the text {value!r}{hint}")
        if kind is tuple and isinstance(value, list | tuple):
            return tuple(value)
    wanted = {int: "a whole number", float: "a finite number", bool: "true or false", str: "text",
              tuple: "a list of whole numbers"}[kind]
    hint = "; several values go to grid" if isinstance(value, list) else ""
    raise ConfigError(f"{f.name}: must be {wanted}, got {value!r}{hint}")


def _check(f: dataclasses.Field, value: Any) -> None:
    meta = f.metadata
    if meta["choices"] and value not in meta["choices"]:
        raise ConfigError(f"{f.name}: must be one of {', '.join(meta['choices'])}, got {value!r}")
    if f.name == "hidden":
        if not value or any(not isinstance(n, int) or isinstance(n, bool) or n < 1 for n in value):
            raise ConfigError(f"hidden: must be a list of at least one positive width, got {list(value)!r}")
        return
    low, high = meta["low"], meta["high"]
    if low is not None and (value < low or (meta["open_low"] and value == low)):
        raise ConfigError(f"{f.name}: must be {'>' if meta['open_low'] else '>='} {low:g}, got {value}")
    if high is not None and (value > high or (meta["open_high"] and value == high)):
        raise ConfigError(f"{f.name}: must be {'<' if meta['open_high'] else '<='} {high:g}, got {value}")
