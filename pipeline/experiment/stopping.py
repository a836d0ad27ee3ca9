"""Random stopping: the number of trials and the trials are drawn before anything is trained.

Publishing the best trial of a sweep costs less if the number of trials is unknown to everybody (Papernot & Steinke
2022, "Hyperparameter tuning with Renyi differential privacy"). K is drawn from the distribution of
`accounting.repetitions`, and K candidates uniformly with replacement; `accounting.selected` has the cost of the best.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.accounting.repetitions import GEOMETRIC, LOGARITHMIC, draw_number
from pipeline.experiment.grid import check_number, entries, read_as
from pipeline.experiment.yaml_text import placed
from pipeline.trials.config import ConfigError, TrialConfig
from pipeline.trials.fields import check_whole, is_number, refuse
from pipeline.trials.kinds import is_certified
from pipeline.trials.unused import Written

RULES = ("composition", "random_stopping")
LEAST_SHAPE = 0.01  # below it nearly every negative binomial draw is 0 and rejected


@dataclass(frozen=True)
class Selection:
    """How the best trial of an experiment is chosen, which determines the cost of the choice.

    Under `composition`, of a fixed grid, every trial is paid for. Under `random_stopping` K trials are drawn, and only
    the best may be published.
    """

    rule: str = "composition"
    mean: float | None = None  # expected K, >= 1; for Poisson of all draws, K = 0 included
    shape: float | None = None  # eta; geometric if it is left out
    # Determines K and all draws; None means 0. It reveals K, and the guarantee assumes that nobody knows K.
    seed: int | None = None

    def __post_init__(self) -> None:
        refuse(self.rule not in RULES, "selection.rule", f"must be one of {', '.join(RULES)}", repr(self.rule))
        if not self.is_random:
            for name in ("mean", "shape", "seed"):
                value = getattr(self, name)
                refuse(value is not None, f"selection.{name}", "has no meaning with rule 'composition'", repr(value),
                       "leave it out, or use rule 'random_stopping'")
            return
        if self.shape is None:
            object.__setattr__(self, "shape", GEOMETRIC)
        refuse(not is_number(self.mean) or not 1 <= self.mean < math.inf, "selection.mean",
               "must be a finite number >= 1", repr(self.mean))
        refuse(not is_number(self.shape) or not (self.shape == LOGARITHMIC or self.shape >= LEAST_SHAPE),
               "selection.shape", f"must be 0 (logarithmic), a number >= {LEAST_SHAPE} (1 is geometric) or .inf "
               "(Poisson)", repr(self.shape))
        if self.seed is not None:
            check_whole("selection.seed", self.seed, 0)

    @property
    def is_random(self) -> bool:
        return self.rule == "random_stopping"

    @property
    def distribution(self) -> tuple[float, float]:
        """Return (mean, shape) of the distribution of K, the random number of trials under random stopping."""
        if self.mean is None or self.shape is None:
            raise ValueError(f"selection.rule: must be 'random_stopping', which draws K, got {self.rule!r}")
        return self.mean, self.shape


def read_selection(top: Mapping[str, Any], candidates: Sequence[Written]) -> Selection:
    """Return how a file's best trial is chosen, at a cost that can be computed; without an entry, from a fixed grid."""
    if "selection" not in top:
        return Selection()
    selection = read_as(Selection, top["selection"], "selection")
    for field, place, value in entries(top):
        refuse(selection.is_random and field == "seed", place, "every trial of random stopping gets a seed of its own",
               repr(value), "leave it out (selection.seed fixes them all)")
    certified = [(trial, places) for trial, places in candidates if is_certified(trial)]
    refuse(not certified, "selection.rule", f"'{selection.rule}' needs trials with a certified epsilon (a mechanism "
           "such as per_example, and noise)", "none")
    for trial, places in certified:
        with placed(places):
            refuse(not trial.validation_fraction, "validation_fraction", "must be > 0, as the best trial is chosen by "
                   "validation accuracy", "0.0")
    if not selection.is_random:
        return selection
    check_alike(candidates, "candidate", "of random stopping")
    refuse(selection.seed is None and any(trial.secure for trial, _ in candidates), "selection.seed",
           "must be given with noise 'secure'", "none", "whoever knows it knows K, so draw it (python -c 'import "
           "secrets; print(secrets.randbits(128))') and keep it as private as the trials that are not published")
    return selection


def check_alike(trials: Sequence[Written], noun: str, of: str) -> None:
    """Refuse trials unless all have a certified epsilon, and one data set, sampler and delta."""
    # A message calls them by `noun` and `of`, for example `candidate` and `of random stopping`.
    for trial, places in trials:
        with placed(places):
            refuse(not is_certified(trial), "mechanism", f"every {noun} {of} must have a certified, finite epsilon (a "
                   "mechanism such as per_example, with target_epsilon or noise_multiplier > 0)",
                   f"mechanism '{trial.mechanism}', target_epsilon {trial.target_epsilon:g}, noise_multiplier "
                   f"{trial.noise_multiplier:g}")
    for name in ("dataset", "sampler", "delta"):  # the sampler fixes the neighbouring relation
        # reversed, so that a value keeps the place of its first trial
        places_by_value = {str(getattr(trial, name)): places for trial, places in reversed(trials)}
        with placed(next(iter(places_by_value.values()))):
            values = [*places_by_value][::-1]
            refuse(len(values) > 1, name, f"must be one for all {noun}s {of}", ", ".join(values))


def draw(candidates: Sequence[TrialConfig], selection: Selection) -> tuple[TrialConfig, ...]:
    """Return K trials, each a candidate drawn uniformly with replacement, with its own seed; K = 0 is refused."""
    import numpy as np  # imported here, because most files draw nothing

    generator = np.random.default_rng(selection.seed or 0)
    mean, shape = selection.distribution
    check_number("selection.mean", mean, "trials")
    k = draw_number(generator, mean, shape)
    if k == 0:
        raise ConfigError(f"selection.shape: .inf (Poisson) with mean {mean:g} drew K = 0, so nothing is to "
                          "be trained or published; to take another seed for that reason is no Poisson stopping any "
                          "more; a finite shape draws at least one trial")
    picks = generator.integers(len(candidates), size=k)
    # not 0 to K - 1: the best trial is published with its seed, which must not reveal K
    seeds = generator.choice(2**31, size=k, replace=False)
    return tuple(TrialConfig(candidates[i].given, seed=int(seed)) for i, seed in zip(picks, seeds, strict=True))
