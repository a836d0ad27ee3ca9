"""What a sweep tells: its progress and its result.

On a terminal, progress is a bar and a line for each trial that trains; elsewhere a line per ended trial, and one of
progress every half minute at most.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich import progress as bars
from rich.console import Console
from rich.table import Column

from pipeline.experiment.search import nothing_fits
from pipeline.trials.config import TrialConfig
from pipeline.trials.naming import computed_features, counted, duration, noise_setting, run_name
from pipeline.trials.ranking import joined, leaders
from pipeline.trials.records import ACCURACY, Computing, EpochRecord

LINE_SECONDS = 30.0  # least time between two lines of progress, where there is no terminal
MOST_LIVE = 8  # trials and features with a line of their own on a terminal


@dataclass
class SweepResult:
    """Result of a sweep: numbers of trials, those that this sweep trained by status."""

    planned: int  # of the grid
    skipped: int = 0  # done before
    finished: int = 0
    diverged: int = 0
    failed: dict[str, str] = field(default_factory=dict)  # trial_key -> reason in one line
    lost: dict[str, str] = field(default_factory=dict)  # as `failed`, of trials that are trained no more
    passed_over: int = 0  # in a search, suggestions without a trial of their own
    held_back: int = 0  # in a search, suggestions that wait until a failed trial is done
    others: int = 0  # trials that the sweep's name had before, of this search or of another space
    wall_seconds: float = 0.0
    compute_seconds: float = 0.0  # of training alone, summed over packs

    @property
    def remaining(self) -> int:
        """Number of trials that did not end, because the sweep was interrupted."""
        no_trial = self.passed_over + self.held_back
        return self.planned - no_trial - self.skipped - self.ended - len(self.failed)

    @property
    def ended(self) -> int:
        return self.finished + self.diverged + len(self.lost)

    def summary(self, failure_log: Path) -> str:
        """Return the result of a sweep as a line for people, with the file of tracebacks."""
        if self.skipped + self.passed_over == self.planned:
            if not self.skipped:
                return f"nothing to do: {nothing_fits(self.planned, self.others)}"
            done = "the trial is" if self.skipped == 1 else f"all {self.skipped} trials are"
            return f"nothing to do: {done} done"
        counts = {"done before": self.skipped, "finished": self.finished, "diverged": self.diverged,
                  "lost": len(self.lost), "failed": len(self.failed), "passed over": self.passed_over}
        parts = [f"{count} {status}" for status, count in counts.items() if count]
        ended = ", ".join(parts) if parts else "none ended"
        text = (f"{counted(self.planned, 'trial')}: {ended}, in {duration(self.wall_seconds)} "
                f"({duration(self.compute_seconds)} of training)")
        if self.lost or self.failed:
            text += f"; tracebacks are in {failure_log}"
        if self.failed:
            text += "; run the same command again to try the failed trials again"
        if self.held_back:
            text += f", and then to ask for the {self.held_back} suggestions that depend on them"
        if self.remaining:
            text += f"; interrupted with {self.remaining} left: run the same command again to continue"
        return text


class SweepProgress:
    """Progress of a sweep, on stderr: stdout stays free for results. The bar is shown in the context only."""

    def __init__(self, quiet: bool = False, name: Callable[[TrialConfig], str] = run_name,  # of a trial in messages
                 console: Console | None = None) -> None:
        self.name = name
        self._trials: dict[str, TrialConfig] = {}  # by trial_key, as the next two
        self._started: dict[str, float] = {}
        self._epochs_left_by_trial: dict[str, int] = {}
        # Sums over all trials are kept, as there may be many.
        self._epochs_left = self._total_epochs = 0
        self._later_epochs = 0.0  # of trials that later rounds may add, about
        self._ended = self._total = 0  # trials: with those of an earlier sweep, and with those of later rounds
        self._best: dict[str, dict[str, float]] = {}  # noise setting -> algorithm -> its best accuracy
        self._latest_noise = ""  # noise setting of the latest epoch's trial
        self._begin = self._spoke = time.monotonic()  # when training began, and when a line was printed last

        self._live: dict[str, bars.TaskID] = {}  # terminal lines, by a trial's trial_key or the features' name
        self._console = console or Console(stderr=True, highlight=False, quiet=quiet)
        self._bar = bars.Progress(
            bars.BarColumn(bar_width=6), _text("trials"), _text("eta"),
            _text("best", Column(no_wrap=True, overflow="ellipsis", ratio=1)), bars.TimeElapsedColumn(),
            console=self._console, disable=not self._console.is_terminal, expand=True)
        self._task = self._bar.add_task("", total=0, trials="", eta="", best="")

    def __enter__(self) -> SweepProgress:
        self._refresh()
        self._bar.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._bar.stop()

    def say(self, text: str) -> None:
        self._spoke = time.monotonic()
        self._bar.console.print(text, markup=False, soft_wrap=True)

    def phase(self, text: str) -> None:
        """Show the phase that begins: in the live line until it has accuracies, or as a line of its own elsewhere."""
        if not self._console.is_terminal:
            self._console.print(text, markup=False, soft_wrap=True)
        self._bar.update(self._task, best=text, refresh=True)

    def training(self, trials: Sequence[TrialConfig], n_packs: int, at_once: int) -> None:
        """Show that training begins: `training 8 trials in 2 packs, 2 at a time`."""
        text = f"training {counted(len(trials), 'trial')} in {counted(n_packs, 'pack')}, {at_once} at a time"
        if features := computed_features(trials):
            text += f"; first features are computed, or read from the cache: {', '.join(features)}"
        self.phase(text)

    def add(self, trials: Sequence[TrialConfig], later: int = 0, already_done: int = 0) -> None:
        """Add the next round's trials; `later` more may follow in other rounds, `already_done` ones count as ended."""
        self._ended += already_done
        for trial in trials:
            key = trial.trial_key
            known_epochs = self._trials[key].epochs if key in self._trials else 0
            self._total_epochs += trial.epochs - known_epochs
            self._trials[key] = trial
            self._set_left(key, trial.epochs)
        self._total = self._ended + later + sum(left > 0 for left in self._epochs_left_by_trial.values())
        self._later_epochs = later * self._total_epochs / max(1, len(self._trials))
        self._bar.update(self._task, total=self._total_epochs + self._later_epochs)

    def start(self, trial: TrialConfig) -> None:
        self._started[trial.trial_key] = time.monotonic()
        if len(self._started) == 1:
            self._begin = self._spoke = time.monotonic()  # the estimate must not include the start of Ray

    def computing(self, features: Computing) -> None:
        """Show how far features are that a worker computes: in a live line, or in one every half minute."""
        if self._epochs_left == self._total_epochs:
            self._begin = time.monotonic()  # as in `start`
        self._say_if_due(str(features))
        if features.done < features.total:
            self._show(features.features, str(features), features.done / features.total)
        elif features.features in self._live:
            self._bar.remove_task(self._live.pop(features.features))

    def record(self, record: EpochRecord) -> None:
        key = record.trial_key
        trial, accuracy = self._trials[key], record.metrics.get(ACCURACY)
        if accuracy is not None:
            self._latest_noise = noise_setting(trial)
            best = self._best.setdefault(self._latest_noise, {})
            best[trial.algorithm] = max(accuracy, best.get(trial.algorithm, accuracy))
        if record.outcome:
            status = record.outcome.status
            parts = [] if status == "finished" else [f"{status} in epoch {record.epoch}"]
            parts += [f"{split} {record.metrics[f'{split}/accuracy']:.1%}" for split in ("validation", "test")
                      if f"{split}/accuracy" in record.metrics]
            self._end(key, ", ".join(parts))
        else:
            self._advance(trial, record.epoch, "" if accuracy is None else f"{accuracy:.1%}")
        self._tell()

    def hidden(self, trial: TrialConfig, epoch: int) -> None:
        """Count an epoch of a trial whose results are not known yet."""
        self._advance(trial, epoch)
        self._tell()

    def _advance(self, trial: TrialConfig, epoch: int, note: str = "") -> None:
        self._set_left(trial.trial_key, trial.epochs - epoch)
        self._show(trial.trial_key, self.name(trial), epoch / trial.epochs, f"{epoch}/{trial.epochs} epochs", note)

    def _tell(self) -> None:
        """Show how far the sweep is: in the bar, or in a line every half minute."""
        self._refresh()
        done = self._total_epochs - self._epochs_left
        self._say_if_due(f"{done} of {self._total_epochs + self._later_epochs:.0f} epochs, {self._ended}/{self._total} "
                         f"trials, {duration(self.eta_seconds() or 0.0)} left")

    def _show(self, key: str, name: str, share: float, count: str = "", note: str = "") -> None:
        """Show on a terminal what is done of a trial or of features, by `key`, in a live line."""
        if key not in self._live:
            if len(self._live) == MOST_LIVE or not self._console.is_terminal:
                return
            self._live[key] = self._bar.add_task("", total=1, trials="", eta="", best="")
        self._bar.update(self._live[key], completed=share, trials=count, eta=note, best=name)

    def _say_if_due(self, text: str) -> None:
        """Print a line where there is no terminal, if none was printed for `LINE_SECONDS`."""
        if not self._console.is_terminal and time.monotonic() - self._spoke >= LINE_SECONDS:
            self.say(text)

    def fail(self, trial_key: str, reason: str, status: str = "failed") -> None:
        """Report that a trial has no result, in a line of its own, on a terminal too."""
        self._end(trial_key, f"{status}: {reason}", always=True)
        self._refresh()

    def eta_seconds(self) -> float | None:
        """Return the estimated seconds left, from epochs done and epochs left; None before the first epoch."""
        done = self._total_epochs - self._epochs_left
        if not done:
            return None
        return (time.monotonic() - self._begin) * (self._epochs_left + self._later_epochs) / done

    def _set_left(self, key: str, epochs: int) -> None:
        self._epochs_left += epochs - self._epochs_left_by_trial.get(key, 0)
        self._epochs_left_by_trial[key] = epochs

    def _end(self, key: str, text: str, always: bool = False) -> None:
        """Count a trial that has ended and, without live lines or `always`, print how it ended."""
        self._ended += 1
        if key in self._live:
            self._bar.remove_task(self._live.pop(key))
        self._set_left(key, 0)
        if always or not self._console.is_terminal:
            seconds = time.monotonic() - self._started.get(key, self._begin)
            self.say(f"[{self._ended}/{self._total}] {self.name(self._trials[key])}: {text}, {seconds:.0f} s")

    def _refresh(self) -> None:
        """Show the current counts, the best accuracy at the latest trial's noise, and the estimated time left."""
        eta = self.eta_seconds()
        best = self._bar.tasks[0].fields["best"]  # the first task is that of the whole sweep
        if self._latest_noise:  # accuracies with different noise have different guarantees, so they are not compared
            percent = {algorithm: 100 * accuracy for algorithm, accuracy in self._best[self._latest_noise].items()}
            names = joined(leaders(percent, digits=1))
            best = f"best at {self._latest_noise}: {max(percent.values()):.1f}% {names}"
        self._bar.update(self._task, completed=self._total_epochs - self._epochs_left, best=best,
                         trials=f"{self._ended}/{self._total} trials",
                         eta="" if eta is None else f"{duration(eta)} left,")


def _text(field: str, column: Column | None = None) -> bars.TextColumn:
    return bars.TextColumn(f"{{task.fields[{field}]}}", markup=False,
                           table_column=column or Column(no_wrap=True))
