"""The register of exhibits: those of this package, and those of a plugin. It imports no drawing library.

Commands ask it before training whether a file's `report:` can be drawn (`check`), and reports draw from it. A function
that `exhibit` registers imports what it draws with.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from itertools import combinations
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from analysis.exhibits import needs as why_not
from analysis.exhibits.needs import AND, BY, axes_of
from analysis.layout import NOISE
from pipeline.experiment.experiment import Experiment
from pipeline.experiment.factors import differing
from pipeline.experiment.yaml_text import located, parse_yaml
from pipeline.trials.config import TrialConfig
from pipeline.trials.fields import ConfigError, UserError, refuse
from pipeline.trials.guard import guarded, name_of
from pipeline.trials.naming import method
from pipeline.trials.part import SETTINGS

if TYPE_CHECKING:
    import pandas as pd

    from analysis.exhibits.exhibit import Exhibit
    from pipeline.tracking.reader import Reader

Draw = TypeVar("Draw", bound=Callable[..., "Exhibit"])
SECRET = "shows every trial, but of random stopping only the best may be published (selection.md shows it)"


class Entry(NamedTuple):
    """A registered exhibit."""

    draw: Callable[..., Exhibit]
    needs: Callable[..., str]


class Fault(str):
    """Why nobody knows whether an exhibit can show trials: its own code failed. Only the report of it is lost."""


EXHIBITS: dict[str, Entry] = {}


def exhibit(*names: str, needs: Callable[..., str] | None = None) -> Callable[[Draw], Draw]:
    """Register a function that draws exhibits: reports then have them (docs/reports.md).

    It is called as `draw(runs)`, with the last epoch of every trial as `load_runs` gives it, and returns an `Exhibit`.
    It may also take `name`, `experiment` and `store` (a reader, for histories). If the runs lack data for it, it raises
    `ReportError`; whatever it raises, the other exhibits are drawn.

    Args:
        names: of its exhibits, which are those of their files, and values of `report` in an experiment file.
        needs: returns why an exhibit cannot show these trials, as the end of a sentence that begins with its name;
            empty if it can. It may also take `name` and `experiment`. Without it, the exhibit shows all trials.

    Raises:
        ConfigError: for the name of another exhibit.

    Example:
        >>> @exhibit("last_losses", needs=lambda trials: "" if len(trials) > 1 else "needs two trials or more")
        ... def last_losses(runs):
        ...     return Exhibit.of_means("last_losses", "Losses", "Training loss of every trial", runs[["train/loss"]])
    """
    def register(function: Draw) -> Draw:
        for name in names:
            owner = EXHIBITS[name].draw.__module__ if name in EXHIBITS else function.__module__
            refuse(function.__module__ != owner, "exhibit", "must have a name of its own",
                   f"'{name}', which {owner} has")
            EXHIBITS[name] = Entry(function, needs or (lambda trials: ""))
        return function
    return register


@exhibit("frontier", "frontier_worst_class", "frontier_alignment", "frontier_claimed", needs=why_not.frontier)
def frontier(runs: pd.DataFrame, name: str, experiment: Experiment) -> Exhibit:
    """A metric against epsilon."""
    from analysis.exhibits.frontier.by_epsilon import of_experiment

    return of_experiment(runs, name, experiment)


@exhibit("table1", needs=why_not.table1)
def table1(runs: pd.DataFrame) -> Exhibit:
    """Table 1 of Ohana et al. 2021."""
    from analysis.papers.table1 import draw

    return draw(runs)


@exhibit("figure2", needs=why_not.figure2)
def figure2(runs: pd.DataFrame, store: Reader) -> Exhibit:
    """Figure 2 of Ohana et al. 2021."""
    from analysis.papers.figure2 import draw

    return draw(runs, store)


@exhibit(BY, needs=why_not.by)
def by(runs: pd.DataFrame, name: str, experiment: Experiment) -> Exhibit:
    """Lines over one setting, `by_tau_h`, or a heatmap over two, `by_tau_h_and_batch_size`."""
    from analysis.exhibits.along import draw

    return draw(runs, name, axes_of(name), experiment)


@exhibit("means", needs=why_not.means)
def means(runs: pd.DataFrame) -> Exhibit:
    """A table of every setting."""
    from analysis.exhibits.means import draw

    return draw(runs)


@exhibit("leekifer", needs=why_not.leekifer)
def leekifer(runs: pd.DataFrame, store: Reader) -> Exhibit:
    """Figures 2 to 4 of Lee and Kifer 2020."""
    from analysis.papers.leekifer import draw

    return draw(runs, store)


def names() -> str:
    """Return the names of exhibits, for messages."""
    return f"{', '.join(name for name in EXHIBITS if name != BY)}, or {BY}A or {BY}A{AND}B of settings that are numbers"


def find(name: str) -> Entry | None:
    """Return the exhibit of a name, if there is one."""
    return EXHIBITS[BY] if axes_of(name) else EXHIBITS.get(name if name != BY else "")


def mismatch(name: str, experiment: Experiment, trials: Sequence[TrialConfig] | None = None) -> str:
    """Return why an exhibit cannot show these trials, or the experiment's; a `Fault` if its code cannot tell."""
    entry = find(name)
    if entry is None:
        return "is no exhibit"
    needs, trials = entry.needs, experiment.trials if trials is None else trials
    try:
        with guarded(lambda line: UserError(f"is left out, as its `needs`{name_of(needs)} raised {line}")):
            reason = _call(needs, trials, name=name, experiment=experiment) or ""
    except UserError as error:
        return Fault(error)
    if isinstance(reason, str):
        return reason
    return Fault(f"is left out, as its `needs`{name_of(needs)} must return a text, got {reason!r}")


def _call(function: Callable[..., Any], first: object, **available: object) -> Any:
    """Call a function with its first argument, and with those of the others that it takes."""
    wanted = inspect.signature(function).parameters.keys() & available
    return function(first, **{name: available[name] for name in wanted})


def refusal(name: str, experiment: Experiment, trials: Sequence[TrialConfig] | None = None) -> str:
    """Return why an exhibit must not be asked for; empty if it can show these trials, or drawing it will tell."""
    reason = mismatch(name, experiment, trials)
    return "" if isinstance(reason, Fault) else reason


def listed(experiment: Experiment) -> tuple[str, ...]:
    """Return the exhibits of an experiment that fit its trials: those that its file lists or, without a list, all."""
    trials, in_file = experiment.trials, experiment.report.exhibits
    if not trials or not experiment.plan.publishes_all:
        return in_file or ()
    if in_file is not None:
        return tuple(name for name in in_file if not refusal(name, experiment))
    varied = [name for name in differing(trials, method) if axes_of(f"{BY}{name}")]
    over = [name for name in varied if name not in NOISE] or varied
    of_settings = [f"{BY}{name}" for name in varied if not name.startswith("target_")]  # of targets it is the frontier
    of_settings += [f"{BY}{a}{AND}{b}" for a, b in combinations(over, 2)]
    return tuple(name for name in (*EXHIBITS, *of_settings) if name != BY and not refusal(name, experiment))


def check(experiment: Experiment) -> None:
    """Refuse a file that lists an exhibit which there is not, or which cannot show its trials."""
    found = experiment.report.exhibits or ()
    with located(experiment.source, parse_yaml(experiment.text, experiment.source) if experiment.text else None):
        for name in found:
            known = [*EXHIBITS, *(f"{BY}{setting}" for setting in SETTINGS)]
            near = get_close_matches(name, known, n=1)
            refuse(not find(name), "report", f"must be a list of {names()}", repr(name),
                   f"did you mean '{near[0]}'?" if near else "")
            reason = refusal(name, experiment) if experiment.plan.publishes_all else SECRET
            refuse(reason, "report", f"{name} {reason}", repr([*found]), "leave it out (`report: []` draws none)")


def undrawn(experiment: Experiment) -> list[tuple[str, str]]:
    """Return (exhibit, reason) of every named exhibit that a report does not draw."""
    drawn = listed(experiment)
    return [(name, mismatch(name, experiment) or "the `report` of the experiment file does not list it")
            for name in dict.fromkeys((*EXHIBITS, *(experiment.report.exhibits or ()))) if name not in (BY, *drawn)]


def draw(name: str, experiment: Experiment, runs: pd.DataFrame, store: Reader | None) -> Exhibit:
    """Draw an exhibit of an experiment. `ReportError` says what the runs lack for it, `ConfigError` what fails."""
    entry = find(name)
    refuse(entry is None, "exhibit", f"must be one of {names()}", name)
    fault = mismatch(name, experiment)
    if entry is None or isinstance(fault, Fault):
        raise ConfigError(f"{name}: {fault}")
    drawn = _call(entry.draw, runs, name=name, experiment=experiment, store=store)
    is_one = hasattr(drawn, "marked")  # of a class that is not imported here, as it needs a drawing library
    refuse(not is_one, name, f"its function{name_of(entry.draw)} must return an Exhibit", repr(drawn))
    return drawn
