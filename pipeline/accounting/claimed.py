"""`claimed` epsilon: Proposition 3 of Ohana et al. (2021) and its variants, exactly as printed, with their assumptions.

None of these numbers is a guarantee. The formulas bound one column of one layer in one step, and only for one of the
two orders of the neighbours. The papers multiply them by the number of columns, although the columns share their noise.
They are reproduced for comparison with published numbers, together with a report of their assumptions.

P1 is the first printing of the paper. P2 is the second printing, with appendix A. All formulas have the same arguments:

    alpha                   order, > 1, of the Renyi divergence
    m, n_out                batch size, and rows n_l of the column
    sigma                   standard deviation of the optical noise
    tau_B                   bound on ||B e||, the norm of an error e that the feedback matrix B projects
    gamma_min, gamma_max    bounds of phi', the slope of the activation function
    tau_h_min, tau_h_max    bounds of every |h_k|, times sqrt(number of activations h_k)

U = gamma_max tau_h_max and L = gamma_min tau_h_min bound the factors phi' h of an update, and rho = U/L.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from pipeline.accounting.curves import classic_conversion
from pipeline.accounting.epsilon import Epsilon, check_delta
from pipeline.trials.config import TrialConfig
from pipeline.trials.naming import abridged
from pipeline.trials.network import ACTIVATION_SLOPES

Curve = float | np.ndarray
Bound = Callable[..., Curve]  # from the arguments above, by name

RELATION = "replace-one"
MOST_LAYERS = 20  # named in a note
ALPHAS = 1 + 10 ** (np.arange(-80, 61) / 20)
ALPHAS.setflags(write=False)


def column_bound(formula: Callable[[Curve, int, int, float, float], Curve]) -> Bound:
    """Turn a formula of alpha, m, n = n_out, snr = tau_B/sigma (infinite without noise) and rho into a `Bound`."""
    @functools.wraps(formula)
    def of_arguments(alpha: Curve, m: int, n_out: int, sigma: float, tau_B: float, gamma_min: float, gamma_max: float,
                     tau_h_min: float, tau_h_max: float) -> Curve:
        return formula(alpha, m, n_out, tau_B / sigma if sigma > 0 else math.inf,
                       rho_of(gamma_min, gamma_max, tau_h_min, tau_h_max))

    return of_arguments


# Squares are products here and powers in `column`: the two differ in last bits, which stored epsilons have.
@column_bound
def prop3_first(alpha: Curve, m: int, n: int, snr: float, rho: float) -> Curve:
    """Return the Renyi divergence of one column and one step by P1, Eq. 17; infinite unless m + 1 > rho^2."""
    return 2 * n * alpha * (rho * rho) * (snr * snr) / m + _log_term(alpha, m, n, rho * rho)


@column_bound
def prop3_second(alpha: Curve, m: int, n: int, snr: float, rho: float) -> Curve:
    """Return the Renyi divergence of one column and one step by P2, Eq. 17; infinite unless m + 1 > rho^2."""
    # The first term of P1 has a factor n_out too many.
    return 2 * alpha * (rho * rho) * (snr * snr) / m + _log_term(alpha, m, n, rho * rho)


@column_bound
def a1_alt(alpha: Curve, m: int, n: int, snr: float, rho: float) -> Curve:
    """Return the Renyi divergence of one column and one step by P2, appendix A.1, finite for every finite rho."""
    log = math.log((m - 1) / m + rho * rho / m)
    return 2 * alpha * (rho * rho) * (snr * snr) / m + n * alpha / (2 * (alpha - 1)) * log


@column_bound
def a2_equal_cov(alpha: Curve, m: int, n: int, snr: float, rho: float) -> Curve:
    """Return the Renyi divergence of one column and one step, for equal covariances, by P2, appendix A.2, epsilon_2."""
    return 2 * alpha * (rho * rho) * (snr * snr) / m


@column_bound
def a3_saturating(alpha: Curve, m: int, n: int, snr: float, rho: float) -> Curve:
    """Return the Renyi divergence of one column and one step, phi' and h at their bounds, by P2, appendix A.3."""
    return 2 * alpha * (snr * snr) / m


def rho_of(gamma_min: float, gamma_max: float, tau_h_min: float, tau_h_max: float) -> float:
    """Return rho = U/L = gamma_max tau_h_max/(gamma_min tau_h_min); infinite if L = 0."""
    L = gamma_min * tau_h_min
    return gamma_max * tau_h_max / L if L > 0 else math.inf


def _log_term(alpha: Curve, m: int, n: int, rho2: float) -> Curve:
    """Return n alpha/(2 (alpha - 1)) log[m L^2/((m + 1) L^2 - U^2)] of Prop. 3; infinite unless m + 1 > rho^2."""
    log = math.log(m / (m + 1 - rho2)) if m + 1 > rho2 else math.inf
    return n * alpha / (2 * (alpha - 1)) * log


@dataclass(frozen=True)
class Layer:
    """The arguments of a `Bound` (module docstring) that one layer determines, and its number of columns."""

    n_in: int  # n_(l-1), columns
    n_out: int  # n_l, rows
    sigma: float  # 0 without noise
    tau_B: float
    gamma_min: float  # 0 if nothing bounds it, as tau_h_min
    gamma_max: float
    tau_h_min: float
    tau_h_max: float

    def __post_init__(self) -> None:
        for low, high in (("gamma_min", "gamma_max"), ("tau_h_min", "tau_h_max")):
            if not 0 <= getattr(self, low) <= getattr(self, high):
                raise ValueError(f"{low}: must be >= 0 and at most {high} = {getattr(self, high)}, "
                                 f"got {getattr(self, low)}")

    @property
    def of_column(self) -> dict[str, float]:
        """The arguments of a `Bound` by name, without alpha and m."""
        return {name: value for name, value in vars(self).items() if name != "n_in"}


def network_epsilon(bound: Bound, layers: Sequence[Layer], T: int, delta: float, m: int) -> tuple[float, float | None]:
    """Return (epsilon, Renyi order), or (inf, None), of T steps, composed as Ohana et al. (2021) do, Theorem 2."""
    if T < 1:
        raise ValueError(f"T: must be >= 1, got {T}")
    check_delta(delta)
    epsilon, order = classic_conversion(ALPHAS, T * _step_curve(bound, tuple(layers), m), delta)
    return (epsilon, order) if math.isfinite(epsilon) else (math.inf, None)


@lru_cache(maxsize=4096)
def _step_curve(bound: Bound, layers: tuple[Layer, ...], m: int) -> np.ndarray:
    """Return the claimed divergence of one step, `bound` added over the columns of every layer, [len(ALPHAS)]."""
    # This is no valid composition, as the columns of a layer share their noise.
    curve = np.asarray(sum(layer.n_in * bound(ALPHAS, m, **layer.of_column) for layer in layers))
    curve.setflags(write=False)
    return curve


@dataclass(frozen=True)
class Assumption:
    """An assumption of a formula, whether a trial's update rule satisfies it, and why (one line)."""

    name: str
    holds: bool
    reason: str


SIGMA, OUTPUT, FEEDBACK = "sigma > 0", "noise in the output layer", "independent noise in every layer"
GAMMA, FLOOR, OFFSET, RHO = "gamma_min > 0", "|h_k| >= tau_h_min/sqrt(n_(l-1))", "tau_h_min > 0", "m + 1 > rho^2"
EQUAL, SATURATING, EXACT = "equal covariances", "saturating covariances", "products in float32"


@dataclass(frozen=True)
class Variant:
    """A printed formula with its place in the paper."""

    name: str
    bound: Bound
    source: str
    needs: tuple[str, ...]  # assumptions without which it is infinite
    trusts: tuple[str, ...] = ()  # assumptions that nothing enforces


NOISE, BOUNDS = (SIGMA, OUTPUT), (GAMMA, FLOOR, OFFSET)
VARIANTS = (
    Variant("first", prop3_first, "Prop. 3, first printing", (*NOISE, *BOUNDS, RHO)),
    Variant("second", prop3_second, "Prop. 3, second printing", (*NOISE, *BOUNDS, RHO)),
    Variant("alternative", a1_alt, "appendix A.1", (*NOISE, *BOUNDS)),
    Variant("equal_covariance", a2_equal_cov, "appendix A.2", (*NOISE, *BOUNDS), (EQUAL,)),
    Variant("saturating", a3_saturating, "appendix A.3", NOISE, (EQUAL, SATURATING)),
)

_NON_NEGATIVE = ("sigmoid", "relu", "unit")  # with an offset these stay away from 0


def layers_of(trial: TrialConfig) -> tuple[Layer, ...]:
    """Return each layer's size and the bounds that the update rule of a calibrated photonic trial guarantees."""
    # The setting tau_f is tau_B, and tau_h is tau_h_max. A gamma_min above all slopes is also the largest.
    slopes = trial.gamma_min, max(ACTIVATION_SLOPES[trial.activation], trial.gamma_min)
    layers = []
    for number, (n_in, n_out) in enumerate(itertools.pairwise(trial.layer_sizes)):
        is_output = number == len(trial.hidden)  # it gets the error e itself, so phi' = 1 there
        gamma_min, gamma_max = (1.0, 1.0) if is_output else slopes
        sigma = trial.sigma if trial.output_noise or not is_output else 0.0
        away_from_zero = trial.activation_floor or _input_kinds(trial)[number] in _NON_NEGATIVE
        tau_h_min = trial.tau_h_min if away_from_zero else 0.0
        layers.append(Layer(n_in, n_out, sigma, trial.tau_f, gamma_min, gamma_max, tau_h_min, trial.tau_h))
    return tuple(layers)


def _input_kinds(trial: TrialConfig) -> tuple[str, ...]:
    """Return for each layer what enters it: the setting `inputs` or `features`, then the activation's name."""
    first = trial.inputs if trial.parts.features.raw else trial.features
    return (first, *[trial.activation] * len(trial.hidden))


def not_described(trial: TrialConfig) -> str:
    """Return why Prop. 3 of Ohana et al. (2021) does not describe a photonic trial's noise; empty if it does."""
    # It assumes independent noise in every component of every layer.
    if trial.parts.feedback.exact:
        return ("bp: the noise enters once, with the output error, and is propagated from layer to layer; Prop. 3 does "
                "not describe that")
    if trial.denoise:
        return ("denoise: the noise that is left lies in the column space of B and is correlated between the rows of a "
                "column; Prop. 3 does not describe that")
    if trial.joint_release:
        return ("joint_release: the output layer's error is decoded from the hidden layers' projections and has their "
                "noise, and one bound holds for all of them together; Prop. 3 does not describe that")
    return ""


@lru_cache(maxsize=1024)
def assumptions(trial: TrialConfig) -> tuple[Assumption, ...]:
    """Return the formulas' assumptions, checked for a trial with its calibrated sigma; none without optical noise.

    For noise that the formulas do not describe it is a single assumption, which fails.
    """
    if not trial.parts.mechanism.optical:
        return ()  # without optical noise there is nothing to check
    if reason := not_described(trial):
        return (Assumption(FEEDBACK, False, reason),)
    output_error = "a scaled and noisy e" if trial.output_noise else "e itself, without noise"
    slope = f"the infimum of phi' is 0 for {trial.activation}, gamma_min clamps nothing"
    if trial.gamma_min > 0:
        slope = f"phi' is clamped to at least {trial.gamma_min:g}"
    rho = max(rho_of(layer.gamma_min, layer.gamma_max, layer.tau_h_min, layer.tau_h_max)
              for layer in layers_of(trial))
    is_float32 = trial.arithmetic == "float32"
    rounding = "" if is_float32 else ": bounds hold, and the noise is Gaussian, to a relative 2^-8"
    return (
        Assumption(FEEDBACK, True, "every layer's projected error gets a noise of its own"),
        Assumption(SIGMA, trial.sigma > 0, f"sigma = {trial.sigma:g}"),
        Assumption(OUTPUT, trial.output_noise,
                   f"output_noise = {str(trial.output_noise).lower()}: the output layer gets {output_error}"),
        Assumption(GAMMA, trial.gamma_min > 0, slope),
        _floor(trial),
        Assumption(OFFSET, trial.tau_h_min > 0, f"tau_h_min = {trial.tau_h_min:g}"),
        Assumption(RHO, trial.batch_size + 1 > rho * rho, f"m = {trial.batch_size}, rho^2 = {rho * rho:.4g}"),
        Assumption(EQUAL, False, "assumed, not enforced: phi' and h differ between neighbouring data sets"),
        Assumption(SATURATING, False, "assumed, not enforced: phi' and h need not reach their bounds"),
        Assumption(EXACT, is_float32, f"arithmetic = {trial.arithmetic}{rounding}"),
    )


def _floor(trial: TrialConfig) -> Assumption:
    """Return the assumption that every activation h_k of a trial has |h_k| >= nu = tau_h_min/sqrt(n_(l-1))."""
    if trial.activation_floor:
        return Assumption(FLOOR, True, "activation_floor: h <- sign(h) clip(|h|, nu, c)")
    kinds = {str(layer): kind for layer, kind in enumerate(_input_kinds(trial), start=1)}
    signed = {layer: kind for layer, kind in kinds.items() if kind not in _NON_NEGATIVE}
    if not signed:  # the offset nu is only added to h >= 0
        names = ", ".join(dict.fromkeys(kinds.values()))  # each once
        return Assumption(FLOOR, True, f"no h is negative ({names}), so offset and clip keep every |h_k| above nu")
    names = ", ".join(dict.fromkeys(signed.values()))
    noun = "layer" if len(signed) == 1 else "layers"
    return Assumption(FLOOR, False, f"h can be negative ({names}) in {noun} {abridged([*signed], MOST_LAYERS)}: h = "
                                    "-nu gives 0 after the offset; activation_floor is off")


def _missing(trial: TrialConfig, variant: Variant) -> list[Assumption]:
    """Return the assumptions that a formula needs and the trial does not satisfy; with any, its epsilon is infinite."""
    return [assumption for assumption in assumptions(trial)
            if not assumption.holds and assumption.name in variant.needs]


def claimed_epsilons(trial: TrialConfig, epochs_done: int) -> list[Epsilon]:
    """Return the claimed epsilons of a trial's first `epochs_done` epochs, by every formula and way to count steps.

    The trial has its calibrated sigma. There are none without optical noise that Prop. 3 describes.
    """
    if not trial.parts.mechanism.optical or not_described(trial):
        return []
    layers = layers_of(trial)
    # T as the first printing counts steps, and as the second does
    counts = {"epochs": epochs_done, "iterations": epochs_done * trial.steps_per_epoch}
    return [Epsilon(network_epsilon(variant.bound, layers, T, trial.delta, trial.batch_size)[0], kind="claimed",
                    variant=f"{variant.name}/{convention}", relation=RELATION, sampler=trial.sampler,
                    delta=trial.delta, conversion="classic", note=_note(trial, variant, convention))
            for variant in VARIANTS for convention, T in counts.items()]


@lru_cache(maxsize=4096)
def _note(trial: TrialConfig, variant: Variant, convention: str) -> str:  # what T counts: `epochs` or `iterations`
    parts = [f"no guarantee: the formula as printed ({variant.source}), T = {convention}, times n_(l-1) columns that "
             "share their noise, biases not counted"]
    if convention == "epochs" and trial.parts.sampler.amplified:
        parts.append(f"T = epochs presupposes a partition per epoch, which {trial.sampler} is not")
    if trial.arithmetic != "float32":  # no formula needs this assumption, so that `_missing` does not tell it
        parts.append(f"{EXACT}: fails")
    if variant.trusts:
        parts.append(f"assumed, not enforced: {', '.join(variant.trusts)}")
    if failing := [assumption.name for assumption in _missing(trial, variant)]:
        parts.append(f"infinite, for want of: {', '.join(failing)}")
    return "; ".join(parts)


def claimed_notes(trial: TrialConfig) -> list[str]:
    """Return notes on a photonic trial's claimed epsilons: which are finite, and why others are infinite or missing."""
    if reason := not_described(trial):
        return [f"nothing is claimed: {reason}"]
    names_by_reasons: dict[tuple[str, ...], list[str]] = {}
    for variant in VARIANTS:
        reasons = tuple(assumption.reason for assumption in _missing(trial, variant))
        names_by_reasons.setdefault(reasons, []).append(variant.name)
    finite = names_by_reasons.pop((), [])  # no reason to be infinite
    notes = [f"claimed epsilon of {', '.join(names)} is infinite ({'; '.join(reasons)})"
             for reasons, names in names_by_reasons.items()]
    if finite:
        notes.append(f"claimed epsilon of {', '.join(finite)} is finite, but only the printed formula's value")
        claimed = claimed_epsilons(trial, epochs_done=1)  # their notes do not depend on the number of epochs
        notes += dict.fromkeys(epsilon.note for epsilon in claimed if epsilon.is_finite)  # each note once
    return notes
