"""Measurements of a projector from outside: gain, noise, bias, correlations, crosstalk, normality and drift.

Errors with one +1 and one -1 are projected repeatedly, in batches of m records. In every second batch the second half
of the records is negated and the first half unchanged. A change in the first half is crosstalk.

An unknown matrix, as in a real device, is estimated from the first half of the repetitions by least squares. The report
then covers the second half, and the gain is relative to the estimate. Projections are [repeats, m records, n pixels].
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from scipy import stats

from pipeline.learning.feedback.projection import make_projector
from pipeline.trials.config import ConfigError, TrialConfig

LEAST_REPEATS = 8
LEAST_RECORDS = 4
MAX_RESIDUALS = 50_000  # standardised residuals that are kept for a plot
NO_NOISE = 1e-5  # effective sigma over the signal's standard deviation; below it noise is rounding


@dataclass(frozen=True)
class Quantity:
    """One number of the report."""

    name: str
    value: float  # nan if there is no noise to measure
    error: float = math.nan  # standard error under the null hypothesis, or of the estimate; nan if none is stated
    ideal: float = math.nan  # of a linear device with independent noise; nan if there is no expected value


@dataclass(frozen=True)
class Characterisation:
    """The measurements of a projector."""

    trial: TrialConfig
    quantities: tuple[Quantity, ...]  # in the order of the report
    known: bool  # whether the matrix was known
    repeats: int
    records: int  # of each batch
    pixels: int
    target: np.ndarray  # B e of some pixels of the first batch [k]
    mean: np.ndarray  # the mean projection at the same pixels [k]
    residuals: np.ndarray  # some standardised residuals [k]; empty without noise
    gains: np.ndarray  # of every batch [reported repeats]


def characterise(trial: TrialConfig, repeats: int = 64, records: int = 32) -> Characterisation:
    """Return the measurements of a trial's projector, from repeated batches of ternary errors."""
    for name, value, minimum in (("repeats", repeats, LEAST_REPEATS), ("records", records, LEAST_RECORDS)):
        if value < minimum or value % 4:
            raise ConfigError(f"{name}: must be a multiple of 4 and at least {minimum}, got {value}")
    if not trial.parts.projector.on_opu:
        raise ConfigError(f"projector: must be one of an OPU, got '{trial.projector}'")
    errors = _errors(records, trial.layer_sizes[-1])
    signs = torch.where(torch.arange(records) < records // 2, 1.0, -1.0)
    half_negated = errors * signs[:, None]
    batches = [half_negated if k % 2 else errors for k in range(repeats)]
    with make_projector([trial], sum(trial.hidden), "cpu") as projector:
        measured = np.stack([projector.project(batch[None])[0].numpy().astype(np.float64)
                             for batch in batches])  # [repeats, m, n]
        matrices = projector.matrices
        matrix = None if matrices is None else matrices[0].double().numpy()  # [classes, n]
    inputs = np.stack([batch.double().numpy() for batch in batches])  # [repeats, m, classes]
    is_known = matrix is not None
    if matrix is None:  # estimate it from the first half, and report the second half
        half = repeats // 2
        first_inputs = inputs[:half].reshape(-1, inputs.shape[2])
        first_measured = measured[:half].reshape(-1, measured.shape[2])
        matrix, *_ = np.linalg.lstsq(first_inputs, first_measured, rcond=None)
        measured, inputs = measured[half:], inputs[half:]
    return _characterisation(trial, measured, target=inputs @ matrix, known=is_known)


def _errors(records: int, n_classes: int) -> torch.Tensor:
    """Return errors [records, n_classes] with one +1 and one -1 in every record, at random from a fixed seed."""
    generator = torch.Generator().manual_seed(0)
    order = torch.rand(records, n_classes, generator=generator).argsort(dim=1)  # a random permutation in every row
    errors = torch.zeros(records, n_classes)
    errors.scatter_(1, order[:, :1], 1.0)
    errors.scatter_(1, order[:, 1:2], -1.0)
    return errors


def _characterisation(trial: TrialConfig, measured: np.ndarray, target: np.ndarray, known: bool) -> Characterisation:
    """Return all measurements of a projector; the target is of a linear device without noise."""
    repeats, records, pixels = measured.shape
    gains = (measured * target).sum(axis=(1, 2)) / (target**2).sum(axis=(1, 2))  # least squares, per repeat
    gain = float(gains.mean())
    residual = measured - gain * target
    even, odd = residual[::2], residual[1::2]  # repeats of the two batches that alternate
    fluctuation = np.concatenate([part - part.mean(axis=0) for part in (even, odd)])
    free_repeats = repeats - 2  # degrees of freedom: two means per record and pixel
    sigma = math.sqrt((fluctuation**2).sum() / (free_repeats * records * pixels))
    rounding = NO_NOISE * float(target.std())
    drift = stats.linregress(np.arange(repeats), gains)
    quantities = [
        Quantity("gain", gain, math.hypot(float(gains.std(ddof=1)) / math.sqrt(repeats), NO_NOISE), 1.0),
        Quantity("effective sigma", sigma, sigma / math.sqrt(2 * free_repeats * records * pixels)),
        Quantity("bias: mean of all residuals", float(residual.mean()),
                 math.hypot(sigma / math.sqrt(residual.size), rounding), 0.0),
        Quantity("drift of the gain, per batch", float(drift.slope),
                 math.hypot(float(drift.stderr), NO_NOISE / repeats), 0.0)]
    standardised = np.array([])
    if sigma > rounding:  # there is noise to describe
        quantities += _noise_quantities(residual, fluctuation, sigma)
        standardised = (fluctuation / fluctuation.std()).ravel()
    return Characterisation(
        trial=trial, quantities=tuple(quantities), known=known, repeats=repeats, records=records, pixels=pixels,
        target=target[0].ravel(), mean=measured[::2].mean(axis=0).ravel(), residuals=standardised[:MAX_RESIDUALS],
        gains=gains)


def _noise_quantities(residual: np.ndarray,  # measured minus expected projections; two batches alternate
                      fluctuation: np.ndarray,  # residuals minus their mean over the repeats of the same batch
                      sigma: float) -> list[Quantity]:  # standard deviation of the noise
    """Return the measurements of a projector's noise: offsets, crosstalk, correlations and normality."""
    repeats, records, pixels = residual.shape
    free_repeats = repeats - 2
    mean_variance = sigma**2 / repeats  # of a mean over all repeats, from noise alone
    offsets = float((residual.mean(axis=0) ** 2).mean()) / mean_variance
    # The first half of the records is the same in both batches, so its means differ only by noise and crosstalk.
    crosstalk = (residual[::2].mean(axis=0) - residual[1::2].mean(axis=0))[: records // 2]
    crosstalk_variance = 4 * sigma**2 / repeats  # from noise alone: two means over half of the repeats each
    by_pixel = fluctuation.reshape(-1, pixels)  # a column per pixel
    by_record = fluctuation.swapaxes(0, 1).reshape(records, -1)  # a row per record
    standardised = (fluctuation / fluctuation.std()).ravel()
    size = standardised.size
    return [
        Quantity("mean residual of a pixel, squared, over what noise gives", offsets,
                 math.sqrt(2 / (records * pixels)), 1.0),
        Quantity("crosstalk: change of the mean with the other records, squared, over what noise gives",
                 float((crosstalk**2).mean()) / crosstalk_variance, math.sqrt(2 / crosstalk.size), 1.0),
        Quantity("correlation between pixels, squared, over what chance gives",
                 *_correlation(by_pixel, free_repeats * records), 1.0),
        Quantity("correlation between records, squared, over what chance gives",
                 *_correlation(by_record.T, free_repeats * pixels), 1.0),
        Quantity("skewness of the noise", float(stats.skew(standardised)), math.sqrt(6 / size), 0.0),
        Quantity("excess kurtosis of the noise", float(stats.kurtosis(standardised)), math.sqrt(24 / size), 0.0),
    ]


def _correlation(samples: np.ndarray, degrees_of_freedom: int) -> tuple[float, float]:
    """Return (ratio, standard error) of the mean squared correlation between the columns of `samples`.

    The ratio is to 1/degrees_of_freedom, which independent columns have on average.
    """
    correlation = np.corrcoef(samples, rowvar=False)
    pairs = correlation[np.triu_indices_from(correlation, 1)]
    return float((pairs**2).mean() * degrees_of_freedom), math.sqrt(2 / pairs.size)
