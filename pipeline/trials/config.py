"""One trial: every setting that affects its result, documented, validated, and identified by `trial_key`."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pipeline.trials.choices import (
    ACTIVATIONS,
    ALGORITHMS,
    BOUNDINGS,
    CONV_CLIPS,
    CONV_ERRORS,
    DISCLOSURES,
    GAUSSIAN,
    INITS,
    INPUTS,
    MECHANISMS,
    NETWORKS,
    NOISE_SOURCES,
    OPTIMIZERS,
    OPU_PROJECTORS,
    OUTPUT_INITS,
    PRECISIONS,
    PROJECTORS,
    SAMPLERS,
    SCHEDULES,
    TAU_H_RULES,
    TERNARY,
    own_settings,
)
from pipeline.trials.combinations import check_combinations
from pipeline.trials.datasets import DATASETS
from pipeline.trials.features import (
    FEATURE_REFERENCES,
    FEATURES,
    MOST_FEATURES,
    OPTICAL_DEVICES,
    record_shape,
    settled,
)
from pipeline.trials.fields import ConfigError, check, coerce, digest, known_fields, plain, setting
from pipeline.trials.shapes import LayerShape, conv_shapes, dense_shapes

__all__ = ["ConfigError", "TrialConfig"]


def settings() -> tuple[dataclasses.Field, ...]:
    """The settings of a trial, then those that registered extensions have for themselves."""
    return (*FIELDS, *own_settings().values())


def _photonic(c: TrialConfig) -> bool:
    return c.mechanism == "photonic"


def _gaussian(c: TrialConfig) -> bool:
    return c.mechanism in GAUSSIAN


def _component(c: TrialConfig) -> bool:
    return c.mechanism == "component"


def _convnet(c: TrialConfig) -> bool:
    return c.network == "convnet"


def _of_a_map(c: TrialConfig) -> bool:
    return False  # but for features that depend on it: see `uses`


def _optical(c: TrialConfig) -> bool:
    return (_photonic(c) or _gaussian(c) and c.algorithm == "pdfa") and not _physical(c)


def _physical(c: TrialConfig) -> bool:
    return c.projector == "opu_physical"


@dataclass(frozen=True)
class TrialConfig:
    """The settings of one trial (Ohana et al. 2021, sections 3 and 4, give the defaults).

    Raises:
        ConfigError: for a value outside what its field accepts, or a combination that cannot be run.

    Example:
        >>> trial = TrialConfig(dataset="digits", algorithm="dfa", mechanism="per_example", noise_multiplier=2)
        >>> trial.noise_multiplier, trial.clipping_norm  # what is left out has its default
        (2.0, 1.0)
    """

    dataset: str = setting("fashion_mnist", "data set", choices=DATASETS)
    validation_fraction: float = setting(
        0.1, "share of the training records held out for validation, drawn by seed; 0 trains on all, and test "
        "accuracy is logged after every epoch in place of validation accuracy: choose nothing by it", low=0, high=0.5)
    train_records: int = setting(
        0, "training records that are used at all, validation included, drawn by seed; 0 takes all", low=0,
        applies=lambda c: c.train_records > 0)
    features: str = setting(
        "pixels", "what the network takes in: pixels, or a public map of single records: scattering coefficients "
        "(Tramer and Boneh 2021), responses to patches of synthetic images, random features of an OPU, or those of a "
        "file", choices=FEATURES, applies=lambda c: c.features != "pixels")
    scattering_scales: int = setting(
        2, "J: scattering averages over 2^J x 2^J pixels", low=1, high=5, applies=_of_a_map)
    scattering_angles: int = setting(8, "L: orientations of the wavelets", low=1, applies=_of_a_map)
    patch_filters: int = setting(
        64, "filters, each a patch of a synthetic image (dead leaves), which give two channels each (Coates and Ng "
        "2011)", low=1, high=10_000, applies=_of_a_map)
    patch_size: int = setting(5, "rows and columns of a patch", low=2, high=16, applies=_of_a_map)
    patch_threshold: float = setting(
        1.0, "a: channels are averages of max(0, z - a) and max(0, -z - a), z a whitened patch times a filter", low=0,
        applies=_of_a_map)
    patch_pools: int = setting(6, "rows and columns of averages that a channel has", low=1, applies=_of_a_map)
    optical_width: int = setting(
        4096, "intensities |R x|^2 of a record x, R complex Gaussian", low=1, high=MOST_FEATURES, applies=_of_a_map)
    optical_thresholds: int = setting(
        4, "an OPU takes bits: a pixel becomes so many, each whether it is above a threshold; these are at equal "
        "distances", low=1, applies=_of_a_map)
    optical_device: str = setting(
        "simulated", "who computes |R x|^2: lightonml's simulated device, or an OPU, whose matrix is its own",
        choices=OPTICAL_DEVICES, applies=_of_a_map)
    optical_seed: int = setting(
        0, "seed of R, the same for trials of all seeds", low=0, high=2**32 - 1, applies=_of_a_map)
    feature_file: str = setting(
        "", "safetensors file with the features of all records, one row each, in the data set's order: train [N, d] "
        "and test [M, d]; relative paths are from the experiment file", applies=_of_a_map, identity=False)
    feature_source: str = setting(
        "", "statement that the encoder of these features is public, and which it is, for privacy.notes",
        applies=_of_a_map)
    feature_name: str = setting(
        "", "name that stands for that file in the tracking store, in place of its digest, which stays in the private "
        "folder; must be given where private_metrics is not plain", applies=_of_a_map)
    feature_sha256: str = setting("", "digest of that file, which it must have; by default as found", applies=_of_a_map)
    feature_width: int = setting(0, "d of that file; by default as found", low=0, applies=_of_a_map)
    feature_groups: int = setting(
        -1, "channels (of flat features, components) of a record's features are normalised in so many groups, each to "
        "mean 0 and variance 1; 0 leaves them; -1 takes 27 for scattering (1 with a reference), 1 for patches "
        "and optical, 0 for file", low=-1, applies=_of_a_map)
    feature_reference: str = setting(
        "none", "images over which every channel of the scattering coefficients has mean 0 and variance 1 before it "
        "is normalised in groups: none, or synthetic ones (dead leaves; Lee, Mumford and Huang 2001)",
        choices=FEATURE_REFERENCES, applies=_of_a_map)
    feature_mirrored: bool = setting(
        False, "features are the mean of those of an image and of the same with left and right exchanged",
        applies=_of_a_map)
    inputs: str = setting(
        "centered", "pixels on [0, 1] (`unit`), on [-1, 1] (`centered`), or shifted and scaled by published constants",
        choices=INPUTS, applies=lambda c: c.features == "pixels")
    input_norm: float = setting(
        0.0, "Euclidean norm to which every record's input is scaled; 0 leaves it as it is", low=0,
        applies=lambda c: c.input_norm > 0)
    network: str = setting(
        "mlp", "architecture: fully connected, or `convnet`, convolutions with 2 x 2 max pools before those layers",
        choices=NETWORKS)
    channels: tuple[int, ...] = setting((64, 64), "filters of the convolutions", applies=_convnet)
    kernel: int = setting(5, "rows and columns of a filter, odd", low=1, applies=_convnet)
    conv_activation: str = setting("tanh", "activation phi of the convolutions", choices=ACTIVATIONS, applies=_convnet)
    hidden: tuple[int, ...] = setting((512, 512), "widths of the hidden fully connected layers")
    activation: str = setting("tanh", "activation phi of the hidden fully connected layers", choices=ACTIVATIONS)
    init: str = setting(
        "uniform", "layers at the start: weights and biases `uniform` on +-1/sqrt(inputs of a unit), or weights "
        "uniform on +-sqrt(6/(fan_in + fan_out)) and biases 0 (`glorot`; Glorot and Bengio 2010)", choices=INITS,
        applies=lambda c: c.init != "uniform")
    init_gain: float = setting(
        1.0, "factor on the weights and biases with which layers start", low=0, open_low=True,
        applies=lambda c: c.init_gain != 1)
    output_init: str = setting(
        "uniform", "output layer at the start: as `init` says of all layers (`uniform`); at `zero`; or a multiple of "
        "the last hidden layer's B (`feedback`), with which feedback is aligned from the start",
        choices=OUTPUT_INITS, applies=lambda c: c.output_init != "uniform")
    output_std: float = setting(
        0.2, "standard deviation of the entries of an output layer that starts as a multiple of B", low=0,
        open_low=True, applies=lambda c: c.output_init == "feedback")
    algorithm: str = setting(
        "dfa", "feedback: back-propagation, DFA, ternarized DFA, that projected by an OPU, or DFA in fully connected "
        "layers with back-propagation from them through convolutions", choices=ALGORITHMS)
    projector: str = setting(
        "", "who computes B e; by default `opu_simulated` for pdfa, `gaussian` for dfa, tdfa and hybrid, `none` for bp",
        choices=PROJECTORS)
    feedback_std: float = setting(
        1.0, "standard deviation of the entries of B (of the hardware: of its rescaled output)", low=0, open_low=True,
        applies=lambda c: c.projector != "none")
    photons: float = setting(
        1000.0, "light of opu_physical: mean photo-electrons of a pixel in one exposure with reference and all mirrors "
        "on", low=0, open_low=True, high=1e8, per_trial=True, applies=_physical)
    reference_ratio: float = setting(
        2.0, "amplitude of the reference beam over the root mean square of the signal's with all mirrors on", low=0,
        open_low=True, high=1e3, per_trial=True, applies=_physical)
    dark_counts: float = setting(
        0.0, "mean of the counts without light, per pixel and exposure", low=0, high=1e8, per_trial=True,
        applies=_physical)
    read_noise: float = setting(
        0.0, "standard deviation of the camera's read noise, in electrons", low=0, high=1e8, per_trial=True,
        applies=_physical)
    full_well: float = setting(
        0.0, "electrons at which a pixel saturates; 0 sets no limit", low=0, applies=_physical)
    adc_bits: int = setting(
        0, "the camera rounds to 2^bits levels from 0 to the full well; 0 does not round", low=0, high=24,
        applies=_physical)
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
        "||h||", low=0, open_low=True, per_trial=True,
        applies=lambda c: _photonic(c) or _component(c) and not c.target_norm)
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
    joint_release: bool = setting(
        False, "the projections of all layers are scaled and get noise as one vector, of norm tau_f at most, and the "
        "output layer's error is decoded from it", applies=lambda c: c.joint_release)
    denoise: bool = setting(
        False, "what was projected or, with a Gaussian mechanism, every contribution and the noise on their sum is put "
        "on the column space of B, which takes away the noise outside it", applies=lambda c: c.denoise)
    target_label_epsilon: float = setting(
        0.0, "label epsilon that the whole run may cost; sets sigma of the photonic mechanism. 0 leaves that to sigma",
        low=0, high=1e6, per_trial=True, applies=lambda c: c.target_label_epsilon != 0)
    tau_e: float = setting(
        0.1, "component clipping: bound on ||e||", low=0, open_low=True, per_trial=True, applies=_component)
    feedback_norm: float = setting(
        0.9, "component clipping: beta, spectral norm of the feedback matrix of every layer", low=0, open_low=True,
        applies=_component)
    target_norm: float = setting(
        0.0, "component clipping: C, bound on the norm of a record's contribution, of which every layer gets "
        "C/sqrt(L); sets tau_h of every layer, and clips each record's part in a convolution. 0 leaves C to tau_h",
        low=0, per_trial=True, applies=lambda c: _component(c) and c.target_norm > 0)
    bounding: str = setting(
        "clip", "component clipping with target_norm: a record's part in a layer is shortened where it exceeds "
        "C/sqrt(L) (`clip`), or made just as long as that, however short it was (`scale`)", choices=BOUNDINGS,
        applies=lambda c: _component(c) and c.target_norm > 0 and c.bounding == "scale")
    error_clip: bool = setting(
        True, "component clipping: e is clipped to tau_e; `off` leaves e and the noise as they are, and epsilon is of "
        "||e|| <= sqrt 2", applies=lambda c: _component(c) and c.bounding == "clip" and not c.error_clip)
    tau_h_rule: str = setting(
        "per_layer", "component clipping with target_norm: tau_h of every layer such that it gets C/sqrt(L), or one "
        "for all by the formula of Lee and Kifer, gamma beta tau_e sqrt((1 + tau_h^2) L) = C (`published`), which the "
        "output layer may exceed; epsilon is of what it comes to", choices=TAU_H_RULES,
        applies=lambda c: _component(c) and c.target_norm > 0 and c.tau_h_rule == "published")
    conv_error: str = setting(
        "clipped", "component clipping of hybrid: convolutions learn from the error that was clipped to tau_e, or from "
        "e itself (`raw`); what a record contributes to them is clipped either way", choices=CONV_ERRORS,
        applies=lambda c: (_component(c) and c.algorithm == "hybrid" and c.bounding == "clip" and c.error_clip
                           and c.conv_error == "raw"))
    conv_clip: str = setting(
        "together", "component clipping: weights and bias of a convolution are clipped to C/sqrt(L) together, or each "
        "to C/sqrt(2 L) (`apart`), which leaves C as it is", choices=CONV_CLIPS,
        applies=lambda c: _component(c) and _convnet(c) and c.bounding == "clip" and c.conv_clip == "apart")
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
    private_metrics: str = setting(
        "", "what is logged of private records: training loss, validation accuracy, and alignment on training batches "
        "(`plain`); validation accuracy alone, with noise that epsilon covers, and alignment on test batches "
        "(`noisy`); or alignment on test batches alone (`withheld`). By default `plain`, with noise `secure` `noisy`",
        choices=DISCLOSURES, applies=lambda c: c.disclosure != "plain")
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
    schedule: str = setting(
        "constant", "learning rate over the run: `constant`, or falling from eta to 0, `linear` or as a `cosine`",
        choices=SCHEDULES, applies=lambda c: c.schedule != "constant")
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
    # Settings of extensions, (name, value) in the order of their names; who makes a trial gives them as all others.
    extra: tuple[tuple[str, Any], ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "extra", _checked_extra(dict(self.extra)))
        for f in FIELDS:
            object.__setattr__(self, f.name, coerce(f, getattr(self, f.name)))
        if not self.projector and self.algorithm in ALGORITHMS:
            object.__setattr__(self, "projector", ALGORITHMS[self.algorithm].projectors[0])
        default = "noisy" if self.secure else "plain"
        object.__setattr__(self, "private_metrics", self.private_metrics or default)
        for f in FIELDS:
            check(f, getattr(self, f.name))
        for name, value in settled(self).items():
            object.__setattr__(self, name, value)
        if self.private_metrics == default:  # and stays so where another source of noise is put in its place
            object.__setattr__(self, "private_metrics", "")
        check_combinations(self)

    def __getattr__(self, name: str) -> Any:
        """The value of an extension's own setting."""
        if name.startswith("_") or name not in (own := own_settings()):
            raise AttributeError(f"'TrialConfig' object has no attribute '{name}'")
        return dict(self.extra).get(name, own[name].default)

    @property
    def split_sizes(self) -> tuple[int, int]:
        """(training, validation) records."""
        return DATASETS[self.dataset].split_sizes(self.validation_fraction, self.train_records)

    @property
    def steps_per_epoch(self) -> int:
        """Full batches in one pass; a last, smaller batch is left out so that every step has m records."""
        return self.split_sizes[0] // self.batch_size

    @property
    def layers(self) -> tuple[LayerShape, ...]:
        """Shapes of layers 1..L, convolutions first."""
        spec = DATASETS[self.dataset]
        shape = record_shape(self)
        convolutions = conv_shapes(shape, self.channels, self.kernel) if _convnet(self) else ()
        n_in = convolutions[-1].n_out if convolutions else math.prod(shape)
        return (*convolutions, *dense_shapes((n_in, *self.hidden, spec.n_classes)))

    @property
    def layer_sizes(self) -> tuple[int, ...]:
        """(n_0, ..., n_L): input, outputs of hidden layers (of convolutions, pooled), classes."""
        return (self.layers[0].n_in, *(layer.n_out for layer in self.layers))

    @property
    def physical(self) -> bool:
        """Whether a camera counts light: the noise of what is projected is the device's own, and not sigma."""
        return _physical(self)

    @property
    def secure(self) -> bool:
        """Whether noise and batches come from the operating system."""
        return self.mechanism != "none" and self.noise == "secure"

    @property
    def disclosure(self) -> str:
        """What is logged of private records: one of `choices.DISCLOSURES`."""
        return self.private_metrics or ("noisy" if self.secure else "plain")

    @property
    def needs_opu(self) -> bool:
        """Whether the trial must hold an `OPU` resource."""
        return self.projector in OPU_PROJECTORS or self.on_hardware

    @property
    def on_hardware(self) -> bool:
        """Whether the trial takes a real OPU, which one process holds."""
        return self.projector == "opu_hardware" or self.features == "optical" and self.optical_device == "hardware"

    def canonical(self) -> dict[str, Any]:
        """The fields that affect this trial's result, as JSON values, sorted by name."""
        return dict(self._canonical)

    def used(self) -> dict[str, Any]:
        """The fields that this trial uses, as JSON values, sorted by name: `canonical()`, and paths."""
        return dict(self._used)

    @functools.cached_property
    def _canonical(self) -> dict[str, Any]:
        identity = {f.name for f in settings() if f.metadata["identity"]}
        return {name: value for name, value in self._used.items() if name in identity}

    @functools.cached_property
    def _used(self) -> dict[str, Any]:
        values = {f.name: plain(getattr(self, f.name)) for f in sorted(settings(), key=lambda f: f.name)
                  if uses(self, f)}
        return values | ({"private_metrics": self.disclosure} if "private_metrics" in values else {})

    @functools.cached_property
    def trial_key(self) -> str:
        """Identity of the trial: 16 hexadecimal digits of the SHA-256 of `canonical()`."""
        return digest(self.canonical())

    @property
    def pack_key(self) -> str:
        """Trials with equal pack keys may be trained in one pack."""
        per_trial = {f.name for f in settings() if f.metadata["per_trial"]}
        return digest({k: v for k, v in self.canonical().items() if k not in per_trial})

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> TrialConfig:
        """A configuration from plain values.

        Raises:
            ConfigError: also for a field that does not exist.
        """
        names = [f.name for f in settings()]
        for name in values:
            if name not in names:
                raise ConfigError(f"{name}: unknown field, got {values[name]!r}; {known_fields(name, names)}")
        return cls(**values)


FIELDS = tuple(f for f in dataclasses.fields(TrialConfig) if f.name != "extra")


def uses(config: Any, f: dataclasses.Field) -> bool:
    """Whether a setting affects the result of a trial with the settings `config`."""
    choices = ALGORITHMS[config.algorithm], MECHANISMS[config.mechanism]
    if any(f.name in choice.settings for choice in choices) or f.name in FEATURES[config.features].settings(config):
        return True
    own = any(f.name in choice.own for choice in (*choices, FEATURES[config.features]))
    return (f in FIELDS or own) and f.metadata["applies"](config)


def _checked_extra(given: dict[str, Any]) -> tuple[tuple[str, Any], ...]:
    own = own_settings()
    for name, value in given.items():
        if name not in own:
            raise ConfigError(f"{name}: unknown field, got {value!r}; no extension that is imported has it")
        given[name] = coerce(own[name], value)
        check(own[name], given[name])
    return tuple(sorted((name, value) for name, value in given.items() if value != own[name].default))


def _taking_settings_of_extensions(init: Callable) -> Callable:
    """`init`, with the settings of extensions among its keywords."""
    @functools.wraps(init)
    def with_extra(self: TrialConfig, *values: Any, **given: Any) -> None:
        if own := {name: given.pop(name) for name in own_settings().keys() & given.keys()}:
            given["extra"] = {**dict(given.get("extra", ())), **own}
        init(self, *values, **given)
    return with_extra


TrialConfig.__init__ = _taking_settings_of_extensions(TrialConfig.__init__)
