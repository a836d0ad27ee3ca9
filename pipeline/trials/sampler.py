"""How batches are drawn: what that says of neighbours, and of a record's part in a step."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, TypedDict

from pipeline.trials.fields import ConfigError
from pipeline.trials.part import Part, part, parts_of, setting

if TYPE_CHECKING:
    from pipeline.trials.config import TrialConfig

RELATIONS = ("add/remove", "replace-one")


class Rates(TypedDict, total=False):
    """What a privacy event says of a record's part in a step: q, or m out of N."""

    sampling_rate: float
    N: int
    m: int


class Sampler(Part):
    """The public numbers of a schedule are the same for all: rate m/N, expected batch m, floor(N/m) steps an epoch.

    Attributes:
        relation: the neighbouring relation of batches that are drawn so: Poisson batches leave the number of records
            open, others take it as public.
        counted: whether it is known how often a record takes part, the number of records being public.
        full: whether every place of a batch has a record.
        independent: whether a record is drawn as it would be if others were left out.
        amplified: whether sampling amplifies privacy, so that losses of steps are composed.
        least_noise: over what a record contributes, where that is more than the noise is measured by.
        part_in_step: of a record, for notes.
        rate_names: the numbers by which a privacy event tells how often a record takes part.
        accountants: that are proved for its batches under this relation, the tightest first.
        losses: `module:attribute` of the privacy-loss distribution of a step, where sampling amplifies.
        other_relation: why nothing is accounted for under the other relation.
    """

    relation: ClassVar[str] = "replace-one"
    counted: ClassVar[bool] = False
    full: ClassVar[bool] = False
    independent: ClassVar[bool] = False
    amplified: ClassVar[bool] = True
    least_noise: ClassVar[float] = 0.01
    part_in_step: ClassVar[str] = ""
    rate_names: ClassVar[tuple[str, ...]] = ()
    accountants: ClassVar[tuple[str, ...]] = ()
    losses: ClassVar[str] = ""
    other_relation: ClassVar[str] = ""

    batch_size: int = setting(256, "m, records per step", low=1)
    epochs: int = setting(15, "passes over the training records", low=1)

    def rates(self, n: int) -> Rates:
        """What a privacy event says of a record's part in a step, of n training records."""
        raise NotImplementedError

    def participations(self, trial: TrialConfig, epochs: int) -> tuple[int, float, str]:
        """(draws, q, in words): a record takes part Bin(draws, q) times in so many epochs."""
        raise ValueError(f"sampler: participations are known of shuffled and without_replacement, got {self.name}")

    def check(self, trial: TrialConfig) -> None:
        """A batch is no larger than the training records."""
        n_train = trial.split_sizes[0]
        if self.batch_size > n_train:
            raise ConfigError(f"batch_size: must be at most the {n_train} training records of {trial.dataset}, got "
                              f"{self.batch_size}")


@part("sampler", "shuffled")
class Shuffled(Sampler):
    """A fresh permutation every epoch, cut into batches: a record takes part at most once an epoch."""

    counted = full = True
    amplified = False
    works = "pipeline.learning.data.sampling:SHUFFLED"
    accountants = ("gdp",)
    other_relation = "one record more or less moves all others between the batches of an epoch; use replace-one"
    part_in_step = "a record takes part once per epoch, no amplification"

    def rates(self, n: int) -> Rates:
        """None: participations alone are known."""
        return {}

    def participations(self, trial: TrialConfig, epochs: int) -> tuple[int, float, str]:
        """One in an epoch."""
        return epochs, 1.0, "a record takes part once per epoch"


@part("sampler", "without_replacement")
class WithoutReplacement(Sampler):
    """Every step draws m distinct records anew: a record takes part in any step with rate m/N."""

    counted = full = True
    works = "pipeline.learning.data.sampling:WITHOUT_REPLACEMENT"
    accountants = ("pld", "rdp/improved", "rdp/classic")
    losses = "pipeline.accounting.curves:without_replacement_losses"
    other_relation = "batches of fixed size take the number of records as public; use replace-one"
    rate_names = ("N", "m")
    part_in_step = "batches of m out of N records, drawn anew for every step"

    def rates(self, n: int) -> Rates:
        """N and m."""
        return {"N": n, "m": self.batch_size}

    def participations(self, trial: TrialConfig, epochs: int) -> tuple[int, float, str]:
        """Binomial."""
        draws, q = epochs * trial.steps_per_epoch, self.batch_size / trial.split_sizes[0]
        return draws, q, f"participations are binomial ({draws} draws, q = {q:.4g})"


@part("sampler", "poisson")
class Poisson(Sampler):
    """Every step takes every record with probability q = m/N, independently: batches vary in size."""

    relation, independent = "add/remove", True
    least_noise = 0.1  # a privacy-loss distribution ends there
    works = "pipeline.learning.data.sampling:POISSON"
    accountants = ("pld",)
    losses = "pipeline.accounting.curves:poisson_losses"
    other_relation = "Poisson batches are accounted for under add/remove only"
    rate_names = ("sampling_rate",)
    part_in_step = "a record takes part in a step with probability q"

    def rates(self, n: int) -> Rates:
        """q."""
        return {"sampling_rate": self.batch_size / n}


def relation_of(sampler: str) -> str:
    """The neighbouring relation of a sampler's batches."""
    return parts_of("sampler", Sampler)[sampler].relation
