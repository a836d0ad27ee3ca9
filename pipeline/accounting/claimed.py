"""`claimed` epsilon: Proposition 3 of Ohana et al. (2021) and its variants, exactly as printed, with their assumptions.

None of these numbers is a guarantee. The formulas bound one column of one layer in one step, and only for one of the
two orders of the neighbours. The papers multiply them by the number of columns, although the columns share their noise.
They are reproduced for comparison with published numbers, together with a report of their assumptions.

P1 is the first printing of the paper. P2 is the second printing, with appendix A. Notation: m batch size, n_out = n_l
rows of the column, U = gamma_max tau_h_max, L = gamma_min tau_h_min, rho = U / L.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from pipeline.accounting.epsilon import Epsilon
from pipeline.trials.config import TrialConfig
from pipeline.trials.network import ACTIVATION_SLOPES

Curve = float | np.ndarray
Bound = Callable[..., Curve]

RELATION = "replace-one"
ALPHAS = 1 + 10 ** (np.arange(-80, 61) / 20)
ALPHAS.setflags(write=False)


def prop3_first(alpha: Curve, m: int, n_out: int, sigma: float, tau_B: float, gamma_min: float, gamma_max: float,
                tau_h_min: float, tau_h_max: float) -> Curve:
    """Return the Renyi divergence of one column and one step by Ohana et al. (2021), first printing (P1), Eq. 17.

    Infinite unless m + 1 > rho^2. rho = gamma_max tau_h_max/(gamma_min tau_h_min).

    Args:
        alpha: order, > 1.
        m, n_out: batch size, and rows of the column.
        sigma: standard deviation of the optical noise.
        tau_B: bound on ||B e||.
        gamma_min, gamma_max: bounds of phi'.
        tau_h_min, tau_h_max: bounds of every |h_k|, times sqrt(number of activations h_k).
    """
    rho2 = _rho2(gamma_min, gamma_max, tau_h_min, tau_h_max)
    return 2 * n_out * alpha * rho2 * _snr2(tau_B, sigma) / m + _log_term(alpha, m, n_out, rho2)


def prop3_second(alpha: Curve, m: int, n_out: int, sigma: float, tau_B: float, gamma_min: float, gamma_max: float,
                 tau_h_min: float, tau_h_max: float) -> Curve:
    """Return `prop3_first` as corrected in the second printing (P2), Eq. 17.

    The first term lacks the factor n_l = n_out, which the first printing counts twice.
    """
    rho2 = _rho2(gamma_min, gamma_max, tau_h_min, tau_h_max)
    return 2 * alpha * rho2 * _snr2(tau_B, sigma) / m + _log_term(alpha, m, n_out, rho2)


def a1_alt(alpha: Curve, m: int, n_out: int, sigma: float, tau_B: float, gamma_min: float, gamma_max: float,
           tau_h_min: float, tau_h_max: float) -> Curve:
    """Return the alternative to `prop3_second` in P2, appendix A.1, which is finite for every finite rho."""
    rho2 = _rho2(gamma_min, gamma_max, tau_h_min, tau_h_max)
    log = math.log((m - 1) / m + rho2 / m)
    return 2 * alpha * rho2 * _snr2(tau_B, sigma) / m + n_out * alpha / (2 * (alpha - 1)) * log


def a2_equal_cov(alpha: Curve, m: int, n_out: int, sigma: float, tau_B: float, gamma_min: float, gamma_max: float,
                 tau_h_min: float, tau_h_max: float) -> Curve:
    """Return `prop3_second` for neighbours with equal covariances (P2, appendix A.2, epsilon_2)."""
    rho2 = _rho2(gamma_min, gamma_max, tau_h_min, tau_h_max)
    return 2 * alpha * rho2 * _snr2(tau_B, sigma) / m


def a3_saturating(alpha: Curve, m: int, n_out: int, sigma: float, tau_B: float, gamma_min: float, gamma_max: float,
                  tau_h_min: float, tau_h_max: float) -> Curve:
    """Return `prop3_second` for equal covariances and every phi' and h at its bound (P2, appendix A.3, epsilon_3).

    The bounds gamma and tau_h then cancel, and n_out does not occur.
    """
    return 2 * alpha * _snr2(tau_B, sigma) / m


def _ratio(numerator: float, denominator: float) -> float:
    return numerator / denominator if denominator > 0 else math.inf


def _rho2(gamma_min: float, gamma_max: float, tau_h_min: float, tau_h_max: float) -> float:
    rho = _ratio(gamma_max * tau_h_max, gamma_min * tau_h_min)
    return rho * rho


def _snr2(tau_B: float, sigma: float) -> float:
    return _ratio(tau_B, sigma) * _ratio(tau_B, sigma)


def _log_term(alpha: Curve, m: int, n_out: int, rho2: float) -> Curve:
    """Return n alpha / (2 (alpha - 1)) log[m L^2 / ((m + 1) L^2 - U^2)], with the fraction reduced by L^2."""
    log = math.log(m / (m + 1 - rho2)) if m + 1 > rho2 else math.inf
    return n_out * alpha / (2 * (alpha - 1)) * log


@dataclass(frozen=True)
class Layer:
    """Bounds of one layer: n_in = n_(l-1) columns, n_out = n_l rows, noise `sigma`, and the constants of Eq. 9.

    A bound without a guarantee is 0 (gamma_min, tau_h_min, or sigma of a layer without noise).

    Raises:
        ValueError: if a lower bound exceeds its upper bound.
    """

    n_in: int
    n_out: int
    sigma: float
    tau_B: float
    gamma_min: float
    gamma_max: float
    tau_h_min: float
    tau_h_max: float

    def __post_init__(self) -> None:
        for low, high in (("gamma_min", "gamma_max"), ("tau_h_min", "tau_h_max")):
            if not 0 <= getattr(self, low) <= getattr(self, high):
                raise ValueError(f"{low}: must be >= 0 and at most {high} = {getattr(self, high)}, "
                                 f"got {getattr(self, low)}")


def network_epsilon(bound: Bound, layers: Sequence[Layer], T: int, delta: float, m: int) -> tuple[float, float | None]:
    """Return epsilon by the papers' composition: T times n_(l-1) columns, added over layers, with their Theorem 2.

    The columns of a layer share their noise, so multiplying by their number is not composition. The papers claim it.

    Returns:
        (epsilon, alpha): min over `ALPHAS` of T eps(alpha) + log(1/delta)/(alpha - 1), and the order that attains it;
        (inf, None) if the divergence is infinite at every order.

    Raises:
        ValueError: unless T >= 1 and 0 < delta < 1.
    """
    if T < 1:
        raise ValueError(f"T: must be >= 1, got {T}")
    if not 0 < delta < 1:
        raise ValueError(f"delta: must be > 0 and < 1, got {delta}")
    epsilons = T * _step_curve(bound, tuple(layers), m) + math.log(1 / delta) / (ALPHAS - 1)
    best = int(np.argmin(epsilons))
    return (float(epsilons[best]), float(ALPHAS[best])) if math.isfinite(epsilons[best]) else (math.inf, None)


@lru_cache(maxsize=4096)
def _step_curve(bound: Bound, layers: tuple[Layer, ...], m: int) -> np.ndarray:
    """Return the claimed divergence of one step of the whole network at every order of `ALPHAS`."""
    curve = np.asarray(sum(
        layer.n_in * bound(ALPHAS, m, layer.n_out, layer.sigma, layer.tau_B, layer.gamma_min, layer.gamma_max,
                           layer.tau_h_min, layer.tau_h_max) for layer in layers))
    curve.setflags(write=False)
    return curve


@dataclass(frozen=True)
class Assumption:
    """An assumption of a formula, whether this trial's update rule satisfies it, and why (one line)."""

    name: str
    holds: bool
    reason: str


SIGMA, OUTPUT, FEEDBACK = "sigma > 0", "noise in the output layer", "independent noise in every layer"
GAMMA, FLOOR, OFFSET, RHO = "gamma_min > 0", "|h_k| >= tau_h_min/sqrt(n_(l-1))", "tau_h_min > 0", "m + 1 > rho^2"
EQUAL, SATURATING = "equal covariances", "saturating covariances"
EXACT = "products in float32"


@dataclass(frozen=True)
class Variant:
    """A printed formula with its place in the paper.

    Attributes:
        name: key of the variant.
        bound: the formula.
        source: its place in the paper.
        needs: assumptions without which it is infinite.
        trusts: assumptions that nothing enforces.
    """

    name: str
    bound: Bound
    source: str
    needs: tuple[str, ...]
    trusts: tuple[str, ...] = ()


NOISE, BOUNDS = (SIGMA, OUTPUT), (GAMMA, FLOOR, OFFSET)
VARIANTS = (
    Variant("first", prop3_first, "Prop. 3, first printing", (*NOISE, *BOUNDS, RHO)),
    Variant("second", prop3_second, "Prop. 3, second printing", (*NOISE, *BOUNDS, RHO)),
    Variant("alternative", a1_alt, "appendix A.1", (*NOISE, *BOUNDS)),
    Variant("equal_covariance", a2_equal_cov, "appendix A.2", (*NOISE, *BOUNDS), (EQUAL,)),
    Variant("saturating", a3_saturating, "appendix A.3", NOISE, (EQUAL, SATURATING)),
)

_NON_NEGATIVE = ("sigmoid", "relu", "unit")  # with an offset these stay away from 0


def layers_of(config: TrialConfig) -> tuple[Layer, ...]:
    """Return the bounds that a trial guarantees for all its layers, for the formulas above.

    The output layer has no activation: it gets the error e itself, so phi' = 1 there. Lower bounds are 0 if nothing
    keeps activations away from 0.
    """
    sizes = config.layer_sizes
    gamma_max = max(ACTIVATION_SLOPES[config.activation], config.gamma_min)
    layers: list[Layer] = []
    for n_in, n_out, input_kind in zip(sizes[:-1], sizes[1:], _layer_inputs(config), strict=True):
        is_output = len(layers) == len(sizes) - 2
        away_from_zero = config.activation_floor or input_kind in _NON_NEGATIVE
        layers.append(Layer(
            n_in, n_out,
            sigma=0.0 if is_output and not config.output_noise else config.sigma,
            tau_B=config.tau_f,
            gamma_min=1.0 if is_output else config.gamma_min,
            gamma_max=1.0 if is_output else gamma_max,
            tau_h_min=config.tau_h_min if away_from_zero else 0.0,
            tau_h_max=config.tau_h))
    return tuple(layers)


def _layer_inputs(config: TrialConfig) -> tuple[str, ...]:
    """Return the kind of h that enters layers 1, 2, ..., L."""
    first = config.inputs if config.parts.features.raw else config.features
    return (first, *[config.activation] * len(config.hidden))


def assumptions(config: TrialConfig) -> list[Assumption]:
    """Return the formulas' assumptions, checked against this trial's update rule; [] without the photonic mechanism."""
    return list(_assumptions(config))


def not_described(config: TrialConfig) -> str:
    """Return why Prop. 3 and its variants do not describe the trial's noise; empty if they do.

    They assume independent noise in every component of every layer.
    """
    if config.parts.feedback.exact:
        return ("bp: the noise enters once, with the output error, and is propagated from layer to layer; Prop. 3 does "
                "not describe that")
    if config.physical:
        return ("opu_physical: the noise is that of counted photons, which depends on the signal; Prop. 3 describes "
                "Gaussian noise that does not")
    if config.denoise:
        return ("denoise: the noise that is left lies in the column space of B and is correlated between the rows of a "
                "column; Prop. 3 does not describe that")
    if config.joint_release:
        return ("joint_release: the output layer's error is decoded from the hidden layers' projections and has their "
                "noise, and one bound holds for all of them together; Prop. 3 does not describe that")
    return ""


@lru_cache(maxsize=1024)
def _assumptions(config: TrialConfig) -> tuple[Assumption, ...]:
    """Return the assumptions of the printed formulas, each with whether this trial satisfies it, and why.

    The tuple is empty without the photonic mechanism. If the formulas do not describe the trial's noise, it has one
    failing assumption.
    """
    if not config.parts.mechanism.optical:
        return ()
    if reason := not_described(config):
        return (Assumption(FEEDBACK, False, reason),)
    return (
        Assumption(FEEDBACK, True, "every layer's projected error gets a noise of its own"),
        Assumption(SIGMA, config.sigma > 0, f"sigma = {config.sigma:g}"),
        Assumption(OUTPUT, config.output_noise, f"output_noise = {str(config.output_noise).lower()}: the output layer "
                   f"gets {'a scaled and noisy e' if config.output_noise else 'e itself, without noise'}"),
        Assumption(GAMMA, config.gamma_min > 0, f"phi' is clamped to at least {config.gamma_min:g}"
                   if config.gamma_min > 0 else f"the infimum of phi' is 0 for {config.activation}, gamma_min clamps "
                   "nothing"),
        _floor(config),
        Assumption(OFFSET, config.tau_h_min > 0, f"tau_h_min = {config.tau_h_min:g}"),
        _rho(config),
        Assumption(EQUAL, False, "assumed, not enforced: phi' and h differ between neighbouring data sets"),
        Assumption(SATURATING, False, "assumed, not enforced: phi' and h need not reach their bounds"),
        Assumption(EXACT, config.matmul_precision == "float32", f"matmul_precision = {config.matmul_precision}"
                   + ("" if config.matmul_precision == "float32" else
                      ": bounds hold, and the noise is Gaussian, to a relative 2^-8")),
    )


def _floor(config: TrialConfig) -> Assumption:
    """Return whether the trial keeps every |h_k| of the activations h at or above nu = tau_h_min/sqrt(n_(l-1)).

    It does with `activation_floor`, or if no h can be negative, because the offset nu is then only added to h >= 0.
    """
    if config.activation_floor:
        return Assumption(FLOOR, True, "activation_floor: h <- sign(h) clip(|h|, nu, c)")
    kinds = _layer_inputs(config)  # by layer: an activation, or the kind of inputs
    signed = [str(layer) for layer, kind in enumerate(kinds, start=1) if kind not in _NON_NEGATIVE]
    if not signed:
        return Assumption(FLOOR, True, f"no h is negative ({', '.join(dict.fromkeys(kinds))}), so offset and clip "
                                       "keep every |h_k| above nu")
    what = ", ".join(dict.fromkeys(kind for kind in kinds if kind not in _NON_NEGATIVE))
    return Assumption(FLOOR, False, f"h can be negative ({what}) in layer{'s' if len(signed) > 1 else ''} "
                                    f"{abridged(signed)}: h = -nu gives 0 after the offset; activation_floor is off")


def abridged(items: Sequence[str], most: int = 20) -> str:
    """Join at most `most` items and the number of the remaining ones, so that a reason stays one readable line."""
    more = f" and {len(items) - most} more" if len(items) > most else ""
    return ", ".join(items[:most]) + more


def _rho(config: TrialConfig) -> Assumption:
    """Return whether m + 1 > rho^2 in every layer, without which Prop. 3 is infinite; m is the batch size."""
    rho2 = max(_rho2(layer.gamma_min, layer.gamma_max, layer.tau_h_min, layer.tau_h_max)
               for layer in layers_of(config))
    return Assumption(RHO, config.batch_size + 1 > rho2, f"m = {config.batch_size}, rho^2 = {rho2:.4g}")


def missing(config: TrialConfig, variant: Variant) -> list[Assumption]:
    """Return the failing assumptions that make `variant` infinite."""
    return [a for a in _assumptions(config) if not a.holds and a.name in (*variant.needs, FEEDBACK)]


def claimed_epsilons(config: TrialConfig, epochs_done: int) -> list[Epsilon]:
    """Return epsilon by the five formulas, each with T = epochs (as P1 counts) and with T = iterations (as P2 counts).

    The list is empty without the photonic mechanism, or if the formulas do not describe the noise (`not_described`).

    Raises:
        ValueError: unless epochs_done >= 1.
    """
    if epochs_done < 1:
        raise ValueError(f"epochs_done: must be >= 1, got {epochs_done}")
    if not config.parts.mechanism.optical or not_described(config):
        return []
    layers = layers_of(config)
    counts = {"epochs": epochs_done, "iterations": epochs_done * config.steps_per_epoch}
    return [
        Epsilon(network_epsilon(variant.bound, layers, T, config.delta, config.batch_size)[0], "claimed",
                f"{variant.name}/{convention}", RELATION, config.sampler, config.delta, "classic",
                _note(config, variant, convention))
        for variant in VARIANTS for convention, T in counts.items()
    ]


@lru_cache(maxsize=4096)
def _note(config: TrialConfig, variant: Variant, convention: str) -> str:
    """Return the note of one claimed epsilon: its formula, and which assumptions fail or are not enforced."""
    parts = [f"no guarantee: the formula as printed ({variant.source}), T = {convention}, times n_(l-1) columns that "
             "share their noise, biases not counted"]
    if convention == "epochs" and config.parts.sampler.amplified:
        parts.append(f"T = epochs presupposes a partition per epoch, which {config.sampler} is not")
    if config.matmul_precision != "float32":
        parts.append(f"{EXACT}: fails")
    if variant.trusts:
        parts.append(f"assumed, not enforced: {', '.join(variant.trusts)}")
    failing = [a.name for a in missing(config, variant)]
    if failing:
        parts.append(f"infinite, for want of: {', '.join(failing)}")
    return "; ".join(parts)
