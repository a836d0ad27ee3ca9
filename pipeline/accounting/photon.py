"""Information about a label in the counts of `opu_physical`: Renyi divergence of photons, worst case over errors.

With a_k row k of the matrix, r the reference and phi photo-electrons per unit, an exposure of a binary pattern x gives
counts y_k ~ Poisson(phi |r +- a_k.x|^2 + dark), independent given x, and

    D_alpha(Poi(a) || Poi(b)) = (a^alpha b^(1-alpha) - alpha a + (alpha - 1) b)/(alpha - 1),

which adds up over pixels and exposures. All that follows the counts is post-processing.

Which errors can two labels y and y' give? Features and weights are the same, so the softmax p is the same. Let S be the
components other than y and y' with p_c > t; they are +1 for both labels. Component y is -1 or 0 for label y and +1 or 0
for label y', and component y' the other way round. So, with a, b, c, d in {0, 1},

    positive part: S and, if b, y'  ->  S and, if a, y        negative part: y, if c  ->  y', if d

and as p sums to 1, |S| + a + b <= 1/t. The two parts are exposed one after the other, so their divergences add. The
maximum over all choices of a, b, c, d and S is too large only if no p attains the choices together.
"""

from __future__ import annotations

import itertools
import math
from functools import lru_cache

import numpy as np

from pipeline.trials.camera import camera_of
from pipeline.trials.config import TrialConfig
from pipeline.trials.streams import integer_seed, transmission

MOST_CLASSES = 11  # up to here all 2^n patterns are compared; above it `least_intensity_bound` is used
PIXELS = 1024  # pixels in memory at once
ROUNDING = 1 + 1e-5  # factor on 1/t: softmax sums to 1 only in float32
SMALL = 1e-3  # relative change of a mean's root; below it g is bounded by n(d)


def most_positive(threshold: float, n_classes: int) -> int:
    """Return the largest possible number of +1 components of an error ternarized at t: those with softmax above t."""
    return n_classes if threshold == 0 else min(n_classes, math.floor(ROUNDING / threshold))


def label_divergence(alpha: float, trial: TrialConfig) -> float:
    """Return the Renyi divergence, alpha > 1, of a record's photon counts in one pass, for the worst two labels.

    The trial has projector `opu_physical`.
    """
    camera, n_classes = camera_of(trial), trial.layer_sizes[-1]
    reference_counts = camera.photons_per_unit * camera.reference**2  # from the reference beam alone
    per_count = _label_divergence(
        alpha, seed=integer_seed(trial.seed, "feedback"), n_classes=n_classes, n_pixels=sum(trial.hidden),
        ratio=camera.reference_ratio, dark=camera.dark_counts / reference_counts, threshold=trial.threshold)
    return reference_counts * per_count


@lru_cache(maxsize=4096)
def _label_divergence(alpha: float, seed: int, n_classes: int, n_pixels: int, ratio: float, dark: float,
                      threshold: float) -> float:
    """Return `label_divergence`, which is proportional to the light, over the counts from the reference beam alone."""
    matrix = transmission(seed, n_classes, n_pixels) / (ratio * math.sqrt(2 * n_classes))
    worst_divergence = exact_bound if n_classes <= MOST_CLASSES else least_intensity_bound
    return worst_divergence(alpha, matrix, dark, most_positive(threshold, n_classes))


def exact_bound(alpha: float, matrix: np.ndarray, dark: float, most: int) -> float:
    """Return the largest Renyi divergence of photon counts over all pairs of labels and their possible errors.

    `matrix` is a_k/r, complex [n_classes, n_pixels]; `dark` has the counts without light, over those of the reference
    beam alone. At most `most` components of an error are +1. Labels y and y' change only the mirrors y and y': in the
    positive part the mirrors `common` can be on for both labels, and in the negative part only y or y' can be on.
    """
    n = len(matrix)
    masks = [mask for mask in range(2**n) if mask.bit_count() <= max(most, 1)]  # bit c: mirror c is on
    index = {mask: number for number, mask in enumerate(masks)}
    divergences = _pairwise(alpha, matrix, dark, masks)
    worst = 0.0
    for y, other in itertools.permutations(range(n), 2):
        bit, other_bit = 1 << y, 1 << other
        # c, d: whether y is on in the negative part of the first label's error, and y' in that of the second
        negative = max(divergences[index[c * bit], index[d * other_bit]] for c in (0, 1) for d in (0, 1))
        positive = 0.0
        for a, b in ((1, 1), (1, 0), (0, 1)):  # whether y is on for the second label, and y' for the first
            common = [mask for mask in masks if not mask & (bit | other_bit) and mask.bit_count() + a + b <= most]
            first_label = [index[mask | b * other_bit] for mask in common]
            second_label = [index[mask | a * bit] for mask in common]
            positive = max(positive, divergences[first_label, second_label].max(initial=0.0))
        worst = max(worst, positive + negative)
    return float(worst)


def _pairwise(alpha: float, matrix: np.ndarray, dark: float, masks: list[int]) -> np.ndarray:
    """Return D_alpha(pattern i || pattern j) of photon counts at [i, j], [len(masks), len(masks)].

    Patterns are bit masks of mirrors; `matrix` and `dark` are as in `exact_bound`. Divergences are summed over pixels
    and both exposures, over the counts from the reference beam alone. They are infinite where float64 overflows or a
    mean is 0, which claims no more than holds.
    """
    n_classes, n_pixels = matrix.shape
    patterns = np.array([[mask >> c & 1 for c in range(n_classes)] for mask in masks], dtype=np.float64)
    mixed, total = np.zeros((len(masks), len(masks))), np.zeros(len(masks))
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        for start in range(0, n_pixels, PIXELS):
            field = patterns @ matrix[:, start:start + PIXELS].astype(np.complex128)
            for phase in (1.0, -1.0):  # of the reference, in the two exposures
                log_mean = np.log(np.abs(phase + field) ** 2 + dark)
                # the sum of a^alpha b^(1-alpha) over pixels, for means a and b, is a matrix product
                mixed += np.exp(alpha * log_mean) @ np.exp((1 - alpha) * log_mean).T
                total += np.exp(log_mean).sum(axis=1)
        divergences = (mixed - alpha * total[:, None] + (alpha - 1) * total) / (alpha - 1)
    return np.where(np.isnan(divergences), np.inf, np.maximum(divergences, 0.0))


def least_intensity_bound(alpha: float, matrix: np.ndarray, dark: float, most: int) -> float:
    """Return an upper bound on `exact_bound`, with the same arguments, from the smallest possible intensity of a pixel.

    `exact_bound` compares all patterns of mirrors, which is too slow for many classes. With v^2 and w^2 two means of a
    pixel and d = (w - v)/v, the divergence is D_alpha = (w - v)^2 g(d) where

        g(d) = ((1 + d)^(2 alpha) - alpha (1 + d)^2 + alpha - 1)/((alpha - 1) d^2)

    grows with d. It is a weighted average over x from 0 to d of n(x) = alpha ((2 alpha - 1) (1 + x)^(2 alpha - 2) -
    1)/(alpha - 1), half the second derivative of the numerator, and n grows. For small d, n(d) replaces g(d). |w - v|
    is at most the change |delta| of the field. v^2 is at least (1 - A)^2 + dark with A the largest signal, and at least
    dark if A >= 1.
    """
    amplitudes = np.sort(np.abs(matrix).astype(np.float64), axis=0)[::-1]
    largest_positive, largest_negative = amplitudes[:max(most, 1)].sum(axis=0), amplitudes[0]  # signals [n_pixels]
    worst = 0.0
    for y, other in itertools.combinations(range(len(matrix)), 2):
        pair = matrix[[y, other]].astype(np.complex128)
        field_changes = np.abs([pair[0] - pair[1], pair[0], pair[1]])  # both mirrors switch, or one of them
        positive_bound = _part_bound(alpha, field_changes, largest_positive, dark).max()
        negative_bound = _part_bound(alpha, field_changes, largest_negative, dark).max()
        worst = max(worst, positive_bound + negative_bound)
    return worst


def _part_bound(alpha: float, deltas: np.ndarray, largest_signal: np.ndarray, dark: float) -> np.ndarray:
    """Return `least_intensity_bound` of the error's positive or negative part, [k], for k changes of the field.

    `deltas` [k, n_pixels] are the changes, `largest_signal` [n_pixels] is A. It is infinite where float64 overflows.
    """
    min_intensity = np.maximum(1 - largest_signal, 0.0) ** 2 + dark
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        d = deltas / np.sqrt(min_intensity)
        upper = alpha * ((2 * alpha - 1) * (1 + d) ** (2 * alpha - 2) - 1)  # (alpha - 1) n(d), accurate for small d
        numerator = np.expm1(2 * alpha * np.log1p(d)) - alpha * d * (2 + d)
        g = np.where(d < SMALL, upper, numerator / d**2) / (alpha - 1)
        bounds = np.where(deltas == 0, 0.0, deltas**2 * g)
    return 2 * np.where(np.isnan(bounds), np.inf, bounds).sum(axis=1)  # 2 exposures
