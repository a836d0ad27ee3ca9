"""Which settings of a trial go together: what cannot be run, or not be accounted for, is refused before it starts."""

from __future__ import annotations

import math
from typing import Any

from pipeline.trials.bounds import excess, least_target_norm
from pipeline.trials.choices import ALGORITHMS, DIRECT, GAUSSIAN, PER_RECORD, PHOTONIC
from pipeline.trials.datasets import DATASETS
from pipeline.trials.features import check_features, record_shape
from pipeline.trials.fields import ConfigError, listed_or
from pipeline.trials.shapes import n_parameters

LEAST_NOISE_OVER_C = 0.2  # noise_multiplier, where there is noise
# The same over what a record contributes, where that is more than the noise is measured by: of Poisson batches, whose
# privacy-loss distribution ends there, and of others.
LEAST_NOISE_OVER_EXCESS = {"poisson": 0.1, "without_replacement": 0.01, "shuffled": 0.01}
# Of delta, for every step of which a privacy-loss distribution is composed: ten times what rounding may take from it.
LEAST_DELTA_PER_STEP = 1e-14
LARGEST_BOUND = 1e15  # of norms and noise in secure trials; 1/LARGEST_BOUND is the least
LEAST_CANARIES = 30  # fewer make fewer than 6 guesses, and even 5 right ones bound nothing
LEAST_LABEL_EPSILON = 1e-3  # of target_label_epsilon, where there is one


def check_combinations(c: Any) -> None:
    """Refuse settings that do not go together.

    Args:
        c: a `TrialConfig` whose fields are in range, one by one.

    Raises:
        ConfigError: naming a field, its value, the reason, and what would be accepted.
    """
    accepted = ALGORITHMS[c.algorithm].projectors
    if c.projector not in accepted:
        raise ConfigError(f"projector: {c.algorithm} takes {listed_or(accepted)}, got "
                          f"'{c.projector}' (tdfa through an OPU is what is called pdfa)")
    _check_camera(c)
    check_features(c)
    _check_network(c)
    _check_extensions(c)
    if c.train_records > (there_are := DATASETS[c.dataset].n_train):
        raise ConfigError(f"train_records: must be at most the {there_are} of {c.dataset}, "
                          f"got {c.train_records}")
    n_train, n_validation = c.split_sizes
    if c.batch_size > n_train:
        raise ConfigError(f"batch_size: must be at most the {n_train} training records of {c.dataset}, "
                          f"got {c.batch_size}")
    if c.validation_fraction and n_validation < 1:
        raise ConfigError(f"validation_fraction: leaves no validation record, got {c.validation_fraction}; "
                          "0 does without")
    if c.mechanism == "photonic" and c.sampler == "poisson":
        raise ConfigError("sampler: nothing is claimed or proved of the photonic mechanism with poisson batches; "
                          "use 'shuffled' or 'without_replacement', or mechanism 'per_example'")
    if 0 < c.canaries < LEAST_CANARIES or c.canaries > n_train:
        raise ConfigError(f"canaries: must be 0, or at least {LEAST_CANARIES}, with fewer of which nothing can be "
                          f"bounded, and at most the {n_train} training records, got {c.canaries}")
    if c.canaries and c.sampler != "poisson":
        raise ConfigError("canaries: need sampler 'poisson', which never draws a record that is left out and draws "
                          "all others as before; with others another record would take its place, got sampler "
                          f"'{c.sampler}'")
    if c.mechanism == "component" and c.projector == "opu_hardware":
        raise ConfigError("mechanism: component clipping needs the norm of the feedback matrix, which is not known "
                          "of a real OPU, got projector 'opu_hardware'; use 'per_example'")
    if c.mechanism == "component":
        _check_component(c)
    if c.mechanism in GAUSSIAN and c.target_epsilon and c.noise_multiplier:
        raise ConfigError(f"target_epsilon: sets the noise multiplier; give one of the two, got target_epsilon "
                          f"{c.target_epsilon} and noise_multiplier {c.noise_multiplier}")
    if c.mechanism in GAUSSIAN and 0 < max(c.noise_multiplier, c.noise_multiplier / excess(c)) < LEAST_NOISE_OVER_C:
        raise ConfigError(f"noise_multiplier: must be 0 (no noise, no guarantee) or at least {LEAST_NOISE_OVER_C}, "
                          f"below which nothing useful can be accounted for, got {c.noise_multiplier}")
    if c.mechanism in GAUSSIAN and c.sampler != "shuffled" and (c.noise_multiplier or c.target_epsilon):
        steps = c.epochs * c.steps_per_epoch
        if c.delta < (least := steps * LEAST_DELTA_PER_STEP):
            raise ConfigError(f"delta: must be at least {least:.3g} with sampler '{c.sampler}' and {steps} steps, "
                              "below which rounding errors of the privacy-loss distribution count, got "
                              f"{c.delta:g}; use a larger one, or sampler 'shuffled', whose epsilon is exact")
    if c.mechanism in GAUSSIAN and c.matmul_precision != "float32":
        raise ConfigError(f"matmul_precision: must be 'float32' with mechanism '{c.mechanism}', whose bound on "
                          f"contributions does not cover rounding, got '{c.matmul_precision}'")
    if c.mechanism == "photonic" and c.tau_h_min > c.tau_h:
        raise ConfigError(f"tau_h_min: must be at most tau_h = {c.tau_h}, got {c.tau_h_min}")
    _check_release(c)
    _check_secrecy(c)


def epsilon_kind(config: Any) -> str:
    """The kind of finite epsilon that a trial has: `certified`, `label`, or empty for none that guarantees anything."""
    if config.mechanism in GAUSSIAN and (config.target_epsilon or config.noise_multiplier):
        return "certified"
    if config.physical:
        return "label" if config.mechanism == "photonic" and config.joint_release else ""
    noisy = config.mechanism == "photonic" and (config.target_label_epsilon or config.sigma)
    return "label" if noisy and (config.output_noise or config.algorithm == "bp") else ""


def _check_camera(c: Any) -> None:
    """`opu_physical` has the noise of its light and its camera, on what it projects and on nothing else."""
    if not c.physical:
        return
    for name in ("sigma", "target_label_epsilon"):
        if value := getattr(c, name):
            raise ConfigError(f"{name}: must be 0 with projector 'opu_physical', whose noise is that of its light "
                              f"(photons, read_noise), got {value}")
    if c.adc_bits and not c.full_well:
        raise ConfigError(f"adc_bits: needs full_well > 0, which is the highest of its levels, got {c.adc_bits} with "
                          "full_well 0.0")
    if c.mechanism == "component":
        raise ConfigError("mechanism: component clipping sets the norm of the feedback matrix, which is the device's "
                          "own, got projector 'opu_physical'; use 'per_example'")
    if c.mechanism == "photonic" and c.output_noise and not c.joint_release:
        raise ConfigError("output_noise: the device's noise reaches what it projects, not the output layer's error, "
                          "got true with projector 'opu_physical'; use false, or joint_release true, which decodes "
                          "that error from the projection")
    if c.secure:
        raise ConfigError("noise: its proof covers neither photons nor a camera, got 'secure' with projector "
                          "'opu_physical'; use 'research'")


def _check_secrecy(c: Any) -> None:
    """What `noise: secure` promises of the numbers that are handed out, it must be able to keep."""
    guaranteed = bool(epsilon_kind(c))
    if c.disclosure == "noisy" and not guaranteed:
        name, value = ("noise", "secure") if c.secure else ("private_metrics", "noisy")
        raise ConfigError(f"{name}: needs a guarantee that it can keep: mechanism {listed_or(GAUSSIAN)} with noise, or "
                          f"'photonic' with noise on every layer, got '{value}' with mechanism '{c.mechanism}'")
    if c.canaries and c.disclosure != "plain":
        raise ConfigError("canaries: their audit is computed from private records, and no epsilon covers it; must be 0 "
                          f"with private_metrics '{c.disclosure}', got {c.canaries}; use noise 'research' and "
                          "private_metrics 'plain'")
    if not c.secure:
        return
    if not guaranteed:
        raise ConfigError(f"noise: 'secure' keeps a guarantee, and mechanism '{c.mechanism}' has none with these "
                          "settings, got 'secure'; use 'research', or settings with noise on every layer")
    if c.disclosure == "plain":
        raise ConfigError("private_metrics: must be 'noisy' or 'withheld' with noise 'secure', whose epsilon covers "
                          "all that is logged, got 'plain'")
    for name in ("clipping_norm", "target_norm", "tau_e", "tau_h", "tau_f", "sigma"):
        if (value := getattr(c, name)) and not 1 / LARGEST_BOUND <= value <= LARGEST_BOUND:
            raise ConfigError(f"{name}: must be at least {1 / LARGEST_BOUND:g} and at most {LARGEST_BOUND:g} with "
                              f"noise 'secure', so that its grid stays far from where float64 ends, got {value:g}")
    if c.projector == "opu_hardware":
        raise ConfigError("projector: nobody has shown that a real OPU projects a record without a trace of others, on "
                          "which a guarantee to the last bit rests, got 'opu_hardware' with noise 'secure'; use "
                          "'opu_simulated'")
    if c.on_hardware:
        raise ConfigError("optical_device: nobody has shown that a real OPU maps a record without a trace of others, "
                          "on which a guarantee to the last bit rests, got 'hardware' with noise 'secure'; use "
                          "'simulated'")
    grid = 2.0**30 / math.sqrt(n_parameters(c.layers))
    if c.noise_multiplier / excess(c) > grid:
        raise ConfigError(f"noise_multiplier: must be at most {grid:.3g} with noise 'secure', whose grid would be too "
                          f"coarse for {n_parameters(c.layers)} weights, got {c.noise_multiplier}")


def _check_release(c: Any) -> None:
    """What is released of the optical signals, and the noise that a label epsilon asks for."""
    for name, mechanisms in (("joint_release", ("photonic",)), ("denoise", ("photonic", *GAUSSIAN)),
                             ("target_label_epsilon", ("photonic",))):
        if getattr(c, name) and c.mechanism not in mechanisms:
            raise ConfigError(f"{name}: is of mechanism {listed_or(mechanisms)}, got mechanism '{c.mechanism}'")
    if c.denoise and c.algorithm not in ("bp", *DIRECT):
        raise ConfigError(f"denoise: needs the feedback matrix B of {listed_or(DIRECT)}, got true with algorithm "
                          f"'{c.algorithm}'")
    if c.denoise and c.network == "convnet" and c.algorithm != "hybrid":
        raise ConfigError("denoise: puts signals of fully connected layers on the column space of B; a filter sums "
                          f"over positions, got true with network 'convnet' and algorithm '{c.algorithm}'; use "
                          "algorithm 'hybrid'")
    for name in ("joint_release", "denoise"):
        if getattr(c, name) and c.algorithm == "bp":
            raise ConfigError(f"{name}: must be false with bp, whose error is released once and never projected, "
                              "got true")
        if getattr(c, name) and c.projector == "opu_hardware":
            raise ConfigError(f"{name}: needs the feedback matrix B, which is not known of a real OPU, got "
                              "projector 'opu_hardware'; use 'opu_simulated'")
    if c.joint_release and not c.output_noise:
        raise ConfigError("output_noise: must be true with joint_release, which decodes the output layer's error "
                          "from the noisy projection, got false")
    if c.joint_release and sum(c.hidden) < c.layer_sizes[-1]:
        raise ConfigError(f"hidden: must sum to at least the {c.layer_sizes[-1]} classes with joint_release, or "
                          f"their error cannot be decoded from the projection, got {list(c.hidden)}")
    if 0 < c.target_label_epsilon < LEAST_LABEL_EPSILON:
        raise ConfigError(f"target_label_epsilon: must be 0 (sigma is given) or at least {LEAST_LABEL_EPSILON}, "
                          f"below which nothing can be learnt, got {c.target_label_epsilon}")
    if c.target_label_epsilon and c.sigma:
        raise ConfigError(f"target_label_epsilon: sets sigma; give one of the two, got target_label_epsilon "
                          f"{c.target_label_epsilon} and sigma {c.sigma}")
    if c.target_label_epsilon and not c.output_noise and c.algorithm != "bp":
        raise ConfigError("target_label_epsilon: cannot be met with output_noise false, which leaves the output "
                          f"layer's error bare and label epsilon infinite, got {c.target_label_epsilon}")


def _check_extensions(c: Any) -> None:
    """An extension has no epsilon but by what it states when it is registered (docs/extending.md)."""
    if c.mechanism == "photonic" and c.algorithm not in PHOTONIC:
        raise ConfigError(f"mechanism: 'photonic' is described for {listed_or(PHOTONIC)}, and nothing is known of it "
                          f"with algorithm '{c.algorithm}', got 'photonic'; use 'none' or {listed_or(GAUSSIAN)}")
    if c.mechanism in GAUSSIAN and c.algorithm not in PER_RECORD:
        raise ConfigError(f"mechanism: '{c.mechanism}' bounds what each record contributes, if its learning signals "
                          f"depend on no other record, which algorithm '{c.algorithm}' does not state (per_record of "
                          f"register_feedback), got '{c.mechanism}'; use 'none'")
    if c.target_epsilon and c.mechanism not in ("none", "photonic", *GAUSSIAN):
        raise ConfigError(f"target_epsilon: mechanism '{c.mechanism}' states no guarantee (guarantee of "
                          f"register_mechanism), so nothing can be accounted for, got {c.target_epsilon}")


def _check_network(c: Any) -> None:
    if not c.hidden and (c.network == "convnet" or c.algorithm != "bp"):
        raise ConfigError("hidden: without hidden layers there is nothing to project an error to, and all algorithms "
                          "are the softmax regression that 'bp' with network 'mlp' trains, got [] with algorithm "
                          f"'{c.algorithm}' and network '{c.network}'")
    if c.output_init == "feedback" and c.projector in ("none", "opu_hardware"):
        raise ConfigError("output_init: 'feedback' needs a feedback matrix B that is known, got it with algorithm "
                          f"'{c.algorithm}' and projector '{c.projector}'; use 'uniform' or 'zero'")
    if c.network != "convnet":
        if c.algorithm == "hybrid":
            raise ConfigError("algorithm: hybrid back-propagates through convolutions, of which network 'mlp' has "
                              "none, got 'hybrid'; use network 'convnet', or algorithm 'dfa'")
        return
    if c.kernel % 2 == 0:
        raise ConfigError(f"kernel: must be odd, so that padding keeps the size of an image, got {c.kernel}")
    if not all(layer.n_out for layer in c.layers):
        raise ConfigError(f"channels: every convolution halves rows and columns, of which what the "
                          f"network takes in has {record_shape(c)[1]}; got {len(c.channels)} convolutions, which leave "
                          "nothing")
    if c.mechanism == "photonic":
        raise ConfigError("mechanism: Eq. 8 clips every component of h by the width of its layer, and nothing is "
                          "claimed of weights that convolutions share, got 'photonic' with network 'convnet'; use "
                          f"{listed_or(GAUSSIAN)}")


def _check_component(c: Any) -> None:
    """Readings of Lee & Kifer's algorithm: what they leave to activations, to the accountants, and to a grid."""
    _check_target_norm(c)
    least = LEAST_NOISE_OVER_EXCESS[c.sampler] * (longer := excess(c))
    if longer > 1 and 0 < c.noise_multiplier < least:
        raise ConfigError(f"noise_multiplier: must be at least {least:.3g} with sampler '{c.sampler}' where a record "
                          f"contributes up to {longer:.4g} times the norm that noise is measured by (error_clip, "
                          f"tau_h_rule), or nothing is accounted for, got {c.noise_multiplier}")
    if c.secure and c.bounding == "scale":
        raise ConfigError("bounding: the proof of noise 'secure' is of contributions that are shortened, got 'scale'; "
                          "use 'clip', or noise 'research'")
    if c.secure and c.conv_clip == "apart":
        raise ConfigError("conv_clip: the proof of noise 'secure' is of a convolution's weights and bias under one "
                          "factor, got 'apart'; use 'together', or noise 'research'")


def _check_target_norm(c: Any) -> None:
    if not c.target_norm:
        if c.network == "convnet":
            raise ConfigError("target_norm: must be > 0 with mechanism 'component' and network 'convnet', as the "
                              "part of a record in a convolution is clipped to target_norm/sqrt(L), got 0.0")
        return
    least = least_target_norm(c)
    if c.target_norm <= least:
        raise ConfigError(f"target_norm: must be > {least:.4g}, which ||delta|| <= {least / len(c.layers)**0.5:.4g} in "
                          f"each of {len(c.layers)} layers takes without any activation (lower tau_e or "
                          f"feedback_norm to lower it), got {c.target_norm}")
