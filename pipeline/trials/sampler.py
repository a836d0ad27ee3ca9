"""Samplers of batches: the neighbouring relation, and a record's participation in a step."""

from __future__ import annotations

from typing import ClassVar, TypedDict, cast

from pipeline.trials.condition import Trial
from pipeline.trials.fields import refuse
from pipeline.trials.part import Part, part, parts_of, setting

RELATIONS = ("add/remove", "replace-one")


class Rates(TypedDict, total=False):
    """A privacy event's numbers for a record's participation in a step: q, or m out of N; none for shuffled batches."""

    sampling_rate: float
    N: int
    m: int


class Sampler(Part):
    """A way to draw batches; all have the public rate m/N, expected batch m and floor(N/m) steps an epoch."""

    # The neighbouring relation: Poisson batches keep the number of records private, others take it as public.
    relation: ClassVar[str] = "replace-one"
    counted: ClassVar[bool] = False  # whether a record's participations are known, if the number of records is public
    full: ClassVar[bool] = False  # whether every place of a batch has a record
    independent: ClassVar[bool] = False  # whether a record is drawn independently of all other records
    amplified: ClassVar[bool] = True  # whether sampling amplifies privacy, so that losses of steps are composed
    part_in_step: ClassVar[str] = ""  # a record's participation; braces for trial and event
    rate_names: ClassVar[tuple[str, ...]] = ()  # the numbers of a privacy event that determine the participations
    accountants: ClassVar[tuple[str, ...]] = ()  # proved for its batches under this relation, the tightest first

    batch_size: int = setting(256, "m, records per step", low=1)
    epochs: int = setting(15, "passes over the training records", low=1)

    def rates(self, n: int) -> Rates:
        """Return the numbers in `rate_names` of a privacy event, for n training records."""
        known: Rates = {"N": n, "m": self.batch_size, "sampling_rate": self.batch_size / n}
        return cast("Rates", {name: value for name, value in known.items() if name in self.rate_names})

    def participations(self, trial: Trial, epochs: int) -> tuple[int, float, str]:
        """Return (n, q, words for notes): a record takes part Bin(n, q) times in so many epochs; only if `counted`."""
        raise ValueError(f"sampler: participations are known of shuffled and without_replacement, got {self.name}")

    def check(self, trial: Trial) -> None:
        """Refuse a batch larger than the training set."""
        n_train = trial.split_sizes[0]
        refuse(self.batch_size > n_train, "batch_size",
               f"must be at most the {n_train} training records of {trial.dataset}", self.batch_size)


@part("sampler", "shuffled")
class Shuffled(Sampler):
    """A fresh permutation every epoch, cut into batches: a record takes part at most once an epoch."""

    counted = full = True
    amplified = False
    accountants = ("gdp",)
    part_in_step = "a record takes part once per epoch (epochs: {event.epochs}), no amplification"

    def participations(self, trial: Trial, epochs: int) -> tuple[int, float, str]:
        """Return `epochs` participations for certain, the most there can be."""
        return epochs, 1.0, "a record takes part once per epoch"


@part("sampler", "without_replacement")
class WithoutReplacement(Sampler):
    """Every step draws m distinct records afresh: a record takes part in each step with rate m/N."""

    counted = full = True
    accountants = ("pld", "rdp/improved", "rdp/classic")
    rate_names = ("N", "m")
    part_in_step = "batches of {event.m} out of {event.N} records, drawn anew for every step (steps: {event.steps})"

    def participations(self, trial: Trial, epochs: int) -> tuple[int, float, str]:
        """Return as many draws as steps, with q = m/N."""
        draws, q = epochs * trial.steps_per_epoch, self.batch_size / trial.split_sizes[0]
        return draws, q, f"participations are binomial ({draws} draws, q = {q:.4g})"


@part("sampler", "poisson")
class Poisson(Sampler):
    """Every step takes every record with probability q = m/N, independently: batches vary in size."""

    relation, independent = "add/remove", True
    accountants = ("pld",)
    rate_names = ("sampling_rate",)
    part_in_step = ("a record takes part in a step with probability q = {trial.batch_size}/{trial.split_sizes[0]} = "
                    "{event.q:.4g} (steps: {event.steps})")


def relation_of(sampler: str) -> str:
    """Return the neighbouring relation of a sampler's batches."""
    return parts_of("sampler", Sampler)[sampler].relation
