"""Register and draw exhibits: those of this package, and those of a plugin. It imports no drawing library."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, TypeVar

from pipeline.experiment.exhibits import NEEDS, Fault, mismatch
from pipeline.trials.fields import ConfigError, refuse
from pipeline.trials.guard import name_of

if TYPE_CHECKING:
    import pandas as pd

    from analysis.exhibits.exhibit import Exhibit
    from pipeline.experiment.experiment import Experiment
    from pipeline.tracking.reader import Reader
    from pipeline.trials.config import TrialConfig

Draw = TypeVar("Draw", bound=Callable[..., "Exhibit"])

OURS = tuple(f"analysis.{module}" for module in (  # they register exhibits
    "exhibits.frontier.exhibit", "exhibits.frontier.slices", "exhibits.heatmaps", "exhibits.main_effects",
    "exhibits.means", "exhibits.sweeps", "exhibits.training_time", "papers.figure2", "papers.leekifer",
    "papers.table1"))
DRAWS: dict[str, Callable[..., Exhibit]] = {}


def exhibit(*names: str, needs: Callable[[Sequence[TrialConfig]], str] | None = None) -> Callable[[Draw], Draw]:
    """Register a function that draws exhibits: reports then have them (docs/reports.md).

    It is called as `draw(runs)`, with the last epoch of every trial as `load_runs` gives it, and returns an `Exhibit`.
    It may also take `name`, `experiment` and `store` (a reader, for histories). If the runs lack data for it, it raises
    `ReportError`; whatever it raises, the other exhibits are drawn.

    Args:
        names: of its exhibits, which are those of their files, and values of `report` in an experiment file.
        needs: returns why an exhibit cannot show these trials, as the end of a sentence that begins with its name;
            empty if it can. Without it, the exhibit shows all trials.

    Raises:
        ConfigError: for the name of another exhibit.

    Example:
        >>> @exhibit("last_losses", needs=lambda trials: "" if len(trials) > 1 else "needs two trials or more")
        ... def last_losses(runs):
        ...     return Exhibit.of_means("last_losses", "Losses", "Training loss of every trial", runs[["train/loss"]])
    """
    def register(function: Draw) -> Draw:
        for name in names:
            # Those of this package have needs before their modules are imported, and register drawings.
            owner = DRAWS[name].__module__ if name in DRAWS else "analysis" if name in NEEDS else function.__module__
            refuse(function.__module__ not in (owner, *OURS), "exhibit", "must have a name of its own",
                   f"'{name}', which {owner} has")
            DRAWS[name] = function
            NEEDS.setdefault(name, needs or (lambda trials: ""))
        return function
    return register


def draw(name: str, experiment: Experiment | None, runs: pd.DataFrame, store: Reader | None) -> Exhibit:
    """Draw an exhibit of an experiment. `ReportError` says what the runs lack for it, `ConfigError` what fails."""
    for module in OURS:
        import_module(module)
    available = {"name": name, "experiment": experiment, "store": store}
    function = DRAWS.get(name, DRAWS["batch_size_sweep"])  # which draws `by_<setting>` too
    wanted = inspect.signature(function).parameters.keys() & available
    fault = mismatch(name, experiment.trials) if experiment else ""
    if isinstance(fault, Fault):
        raise ConfigError(f"{name}: {fault}")
    exhibit = function(runs, **{key: available[key] for key in wanted})
    is_one = hasattr(exhibit, "marked")  # of a class that is not imported here, as it needs a drawing library
    refuse(not is_one, name, f"its function{name_of(function)} must return an Exhibit", repr(exhibit))
    return exhibit
