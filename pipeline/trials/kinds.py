"""The kinds of epsilon: what each of them guarantees, and that noise from a recorded seed only simulates it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pipeline.trials.config import TrialConfig


class Kind(NamedTuple):
    """What a kind of epsilon guarantees (proofs: docs/privacy.md)."""

    holds: bool  # whether it guarantees anything about a model
    meaning: str  # the guarantee in words, or why there is none
    protects: str = "no guarantee"  # what is protected, in a few words
    noise: tuple[str, ...] = ()  # settings that determine it, which differ between points of a frontier


KINDS = {
    "certified": Kind(
        True, "Features and labels of every record are protected: whoever sees the weights after every step tells two "
        "neighbouring training sets apart no better than (ε, δ)-differential privacy permits. It covers one trial, not "
        "the choice among trials.", "features and labels", noise=("target_epsilon", "noise_multiplier")),
    "selected": Kind(
        True, "As certified, and it also covers having picked the best trial of the sweep. It covers the validation "
        "scores by which that trial was picked only if its note says so.", "features and labels"),
    "label": Kind(
        True, "Labels alone are protected; features count as public, and of them, or of whether a record took part, "
        "nothing is guaranteed. It covers one trial, not the choice among trials.", "labels only",
        noise=("target_label_epsilon", "sigma")),
    "audited": Kind(
        False, "A lower bound, measured by attack with 95% confidence, and no guarantee: the true ε is at least this. "
        "A low value proves nothing; one above certified would prove an error."),
    "column": Kind(
        False, "Holds for one column of one layer in one step (the corrected Proposition 3 of Ohana et al. 2021). "
        "Nothing about the model follows."),
    "claimed": Kind(
        False, "No guarantee: the value of the formula printed in Ohana et al. 2021. The photonic mechanism has no "
        "finite ε for features at any σ, as one observed update tells who was in its batch.",
        noise=("target_label_epsilon", "sigma")),
    "imported": Kind(False, "Said by its source; nothing was trained or accounted for here."),
}
GUARANTEED = ("certified", "label")  # of a single trial, the stronger one first
UP_TO_ROUNDING = "up to rounding"  # standing of a certified trial if last bits of its contributions are not covered
RECORDED = "simulate the guarantee, and a release needs secret noise"
SECRET = "come from the operating system, and nothing of them is recorded"


def is_certified(trial: TrialConfig) -> bool:
    """Whether a trial has a finite certified epsilon, by its settings."""
    return trial.parts.mechanism.kind(trial) == "certified"


def certified_trials(trials: Iterable[TrialConfig]) -> list[TrialConfig]:
    """Return the trials that have a finite certified epsilon."""
    return [trial for trial in trials if is_certified(trial)]


def noise_statement(sources: Iterable[str]) -> str:
    """Return a clause on what follows from the noise sources (`research` or `secure`) of trials; empty for no trial."""
    sources = list(sources)
    n_secret = sources.count("secure")
    n_recorded = len(sources) - n_secret
    if not sources:
        return ""
    if not n_secret:
        return f"the noise comes from a recorded seed, so these trials {RECORDED}"
    if not n_recorded:
        return f"noise and batches {SECRET}"
    return (f"the noise of {n_recorded} of {len(sources)} trials comes from a recorded seed, so these {RECORDED}; "
            f"noise and batches of the other {n_secret} {SECRET}")


def standing(sources: Iterable[str]) -> str:
    """Return `certified` if no source of noise is a recorded seed, `simulated` if all are, else `partly simulated`."""
    are_secret = [source == "secure" for source in sources]
    if all(are_secret):
        return "certified"
    return "partly simulated" if any(are_secret) else "simulated"


def sentence(clause: str) -> str:
    """Return a clause with a capital letter and a full stop; an empty clause stays empty."""
    return f"{clause[0].upper()}{clause[1:]}." if clause else ""
