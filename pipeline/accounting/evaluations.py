"""The cost of validation with noisy accuracy: calibrated noise makes it nothing on top of training.

After every epoch the number of correctly classified validation records is released with Gaussian noise of standard
deviation s. Adding, removing or changing one record moves this number by at most 1, so E evaluations are
(sqrt(E)/s)-GDP for the validation records. A record is in training or in validation, by a split that does not look at
it. So it pays for one of them, and epsilon is the larger of the two (parallel composition). s makes the two equal at
the end of the run.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence
from functools import lru_cache

from scipy import optimize

from pipeline.accounting.certified import certified_epsilons, event_of, with_noise
from pipeline.accounting.curves import gdp_delta, gdp_eps
from pipeline.accounting.epsilon import Epsilon
from pipeline.accounting.finite_precision import accounted_delta, with_sampler_error, within_delta
from pipeline.accounting.label import label_epsilons
from pipeline.accounting.selected import common, selected_by_composition, selected_by_random_stopping
from pipeline.trials.config import ConfigError, TrialConfig
from pipeline.trials.kinds import certified_trials

LARGEST_EPSILON = 1e8  # largest epsilon of training that score noise can match


def holds_out(trial: TrialConfig) -> bool:
    """Whether a trial holds records out, for validation."""
    _, n_validation = trial.split_sizes
    return n_validation > 0


def is_noisy(trial: TrialConfig) -> bool:
    """Whether a trial logs validation accuracy with noise."""
    return trial.disclosure == "noisy" and holds_out(trial)


@lru_cache(maxsize=1024)
def evaluation_noise(trial: TrialConfig) -> float:
    """Return s, the noise's standard deviation in records; refuse a trial whose training has too large an epsilon."""
    trial = with_noise(trial)
    # By mechanism, training costs a certified or a label epsilon.
    epsilons_of = certified_epsilons if trial.parts.mechanism.certified else label_epsilons
    training_epsilon = epsilons_of(trial, trial.epochs)[0].value  # the tightest comes first
    if training_epsilon > LARGEST_EPSILON:  # or infinite
        raise ConfigError("private_metrics: 'noisy' takes noise from an epsilon that is finite and, with noise "
                          "'secure', not so large that the sampler of the noise would count (above some 130); use more "
                          "noise, or 'withheld'")
    delta = accounted_delta(trial)

    def excess(log_mu: float) -> float:  # of delta at the epsilon of training; it grows with mu
        return float(gdp_delta(math.exp(log_mu), training_epsilon)) - delta

    mu = math.exp(optimize.brentq(excess, -40.0, 10.0, xtol=1e-13))  # of all evaluations together
    return math.sqrt(trial.epochs) / mu * (1 + 1e-9)  # the margin covers the error of the root


def score_noise(trial: TrialConfig) -> float:
    """Return the standard deviation of the noise of a validation accuracy, as a fraction; 0 for one without noise."""
    _, n_validation = trial.split_sizes
    return evaluation_noise(trial) / n_validation if is_noisy(trial) else 0.0


def check_evaluations(trials: Iterable[TrialConfig]) -> None:
    """Refuse, before training, trials whose target no noise attains, or whose evaluations no epsilon can cover."""
    for trial in trials:
        with_noise(trial)  # refuses the target
        if is_noisy(trial):
            try:
                evaluation_noise(trial)
            except ConfigError as error:
                raise ConfigError(f"{error} (trial {trial.trial_key})") from None


def cover(trial: TrialConfig, epsilons: Sequence[Epsilon], epochs_done: int) -> list[Epsilon]:
    """Return the epsilons of `epochs_done` epochs of training, raised to cover noisy validation accuracies if any."""
    if not epsilons or not is_noisy(trial):
        return list(epsilons)
    noise = evaluation_noise(trial)  # standard deviation, in records
    evaluation_epsilon = with_sampler_error(trial, gdp_eps(math.sqrt(epochs_done) / noise, accounted_delta(trial)))
    note = f"validation accuracy is released with noise of {score_noise(trial):.2%} and covered"
    # A record is in training or in validation, so the larger of the two costs counts.
    return [dataclasses.replace(epsilon, value=max(epsilon.value, evaluation_epsilon), note=f"{epsilon.note}; {note}")
            for epsilon in epsilons]


def selected_epsilon(trials: Sequence[TrialConfig], distribution: tuple[float, float] | None = None) -> Epsilon:
    """Return epsilon of publishing the best certified trial of a fixed grid; `trials` are all of it, with every seed.

    For random stopping they are the candidates, not the drawn trials, and `distribution` is (mean, shape) of the number
    of drawn ones. Trials without a certified epsilon are left out; the others must have one data set and one delta.
    """
    trials = certified_trials(trials)
    if not trials:
        raise ValueError("trials: must be at least one with a certified epsilon, got none")
    for name in ("dataset", "delta"):
        common(name, (getattr(trial, name) for trial in trials))
    events = [event_of(with_noise(trial), trial.epochs) for trial in trials]
    scores: list[float] = []  # by trial, mu of all its noisy evaluations together
    if scores_are_covered(trials):
        scores = [math.sqrt(trial.epochs) / evaluation_noise(trial) if is_noisy(trial) else 0.0 for trial in trials]
    delta = min(accounted_delta(trial) for trial in trials)
    runs: float = len(trials)  # of which the noise sampler's errors add up
    if distribution:
        mean, shape = distribution
        runs *= max(mean, 1)
        epsilon = selected_by_random_stopping(events, delta, mean, shape, scores)
    else:
        # Seed and sizes determine the held-out records.
        splits = {(trial.seed, trial.split_sizes) for trial in trials if holds_out(trial)}
        epsilon = selected_by_composition(events, delta, scores, one_split=len(splits) == 1)
    sampler_fits = all(within_delta(trial, epsilon.value, runs) for trial in trials)
    return dataclasses.replace(epsilon, delta=trials[0].delta,  # all trials have one
                               value=epsilon.value if sampler_fits else math.inf)


def scores_are_covered(trials: Sequence[TrialConfig]) -> bool:
    """Whether some certified trials hold records out, and all these release their scores with noise."""
    scored = [trial for trial in certified_trials(trials) if holds_out(trial)]
    return bool(scored) and all(is_noisy(trial) for trial in scored)
