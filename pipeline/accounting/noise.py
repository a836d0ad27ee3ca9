"""Sentences on the source of the noise: noise from a recorded seed only simulates a guarantee."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pipeline.experiment.stopping import Selection
from pipeline.trials.config import TrialConfig
from pipeline.trials.kinds import certified_trials

RECORDED = "simulate the guarantee, and a release needs secret noise"
SECRET = "came from the operating system, and nothing of them was recorded"


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
    are_secret = {source == "secure" for source in sources}
    if False not in are_secret:
        return "certified"
    return "partly simulated" if True in are_secret else "simulated"


def choice_statement(trials: Sequence[TrialConfig], selection: Selection) -> str:
    """Return sentences on the noise behind the choice among trials, and on what a simulation leaves out."""
    trials = certified_trials(trials)  # no epsilon covers a choice among others
    statement = sentence(noise_statement([trial.noise for trial in trials]))
    seeds = [trial.seed for trial in trials if not trial.secure]
    if selection.is_random or len(set(seeds)) == len(seeds):  # random stopping draws every trial under its own seed
        return statement
    return (f"{statement} The simulation leaves out that trials of one seed share noise and batches, so composing them "
            "as independent does not describe them.")


def sentence(clause: str) -> str:
    """Return a clause with a capital letter and a full stop; an empty clause stays empty."""
    return f"{clause[0].upper()}{clause[1:]}." if clause else ""
