"""Which draws of secret noise may begin: a draw of epochs that were released before is another release of them.

A worker asks before it draws anything (`pipeline.trials.records.Draw`). The driver, which alone writes the tracking
store, says yes once the store has the charge. A draw in whose place another begins costs what it has published, or all
of its epochs if it failed, as why it failed may depend on what was drawn, and the same again where it goes on from its
checkpoint with fresh noise (docs/privacy.md, section 10).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence

from pipeline.accounting.budget import Filter, draws_of
from pipeline.sweep.checkpoints import Known
from pipeline.tracking.reader import Reader
from pipeline.tracking.store import Store
from pipeline.trials.config import TrialConfig
from pipeline.trials.records import Draw, Release

BUDGET_REFUSES = "that does not fit the budget"


class Draws:
    """Answers the questions of workers.

    Args:
        store: with the sweep open.
        filter: of its budget, if it has one.
        redraw: whether noise may be drawn anew without a budget.
        left: trials of this round that have not ended; each may go on to its last epoch.
    """

    def __init__(self, store: Store, filter: Filter | None, redraw: bool,
                 left: Callable[[], Sequence[TrialConfig]]) -> None:
        self._store, self._filter, self._redraw, self._left = store, filter, redraw, left

    def before(self, trial: TrialConfig, draw: Draw) -> list[int]:
        """Epochs beside those that this draw publishes: all of every other draw that has released something, as when it
        ended may have been seen in it, and those that attempts of this one lost."""
        released = self._store.released(trial.trial_key)
        lost = sum(release.lost for release in released if release.draw == draw.name)
        others = draws_of(release for release in released if release.draw != draw.name)
        return [*(max(epochs, trial.epochs) for epochs in others), *([lost] if lost else [])]

    def is_live(self, trial: TrialConfig, draw: Draw) -> bool:
        """Whether a run that is not deleted has released something of another draw."""
        return any(release.epochs and not release.deleted and release.draw != draw.name
                   for release in self._store.released(trial.trial_key))

    def lost(self, trial: TrialConfig) -> int:
        """`Release.lost` of a trial whose draw has failed now: why it did may depend on all of its epochs."""
        live = [release for release in self._store.released(trial.trial_key) if not release.deleted][-1]
        return live.lost + trial.epochs - live.published

    def refusal(self, trials: Sequence[TrialConfig], draw: Draw) -> tuple[str, list[str]]:
        """Why a draw may not begin or go on, and trial_keys of those that the budget has no room for; ("", []) if it
        may.

        Args:
            trials: of its pack, those that have not ended.
        """
        if draw.epoch:
            if problem := self._not_the_latest(trials, draw):
                return problem, []
            again = [trial for trial in trials if self._has_failed(trial, draw)]
            why = "it failed, which counts as released to its end, and the rest of it would have to be drawn anew"
        else:
            again = [trial for trial in trials if self.before(trial, draw)]
            why = f"its noise would have to be drawn anew ({draw.reason or 'no checkpoint is to be found here'})"
        if not again:
            return "", []
        if not self._filter:
            return ("" if self._redraw else f"{why}, which releases its records once more; `photonic sweep FILE "
                    "--redraw` does that, and epsilon then composes all draws"), []
        if self._filter.admits(self._with_another(again, anew=not draw.epoch)):
            return "", []
        return (f"{why}, and {BUDGET_REFUSES}; the same command goes on without it",
                [trial.trial_key for trial in again])

    def _has_failed(self, trial: TrialConfig, draw: Draw) -> bool:
        """Whether an attempt of the draw has lost epochs that its epsilon does not compose yet."""
        released = self._store.released(trial.trial_key)
        return bool(released) and sum(self.before(trial, draw)) > latest(released).earlier

    def _not_the_latest(self, trials: Iterable[TrialConfig], draw: Draw) -> str:
        for trial in trials:
            released = self._store.released(trial.trial_key)
            if released and latest(released).draw != draw.name:
                return ("the checkpoint that was found is of an earlier draw; run the same command again, which leaves "
                        "it")
            if released and published(released) > draw.epoch:
                return ("the checkpoint that was found is older than what was published; run the same command again, "
                        "which leaves it")
        return ""

    def _with_another(self, again: Sequence[TrialConfig], anew: bool) -> list[Release]:
        """All that will have been released at most, if these trials are drawn again, from their first epoch on if
        `anew`."""
        left = {trial.trial_key: trial for trial in self._left()}
        drawn = {trial.trial_key for trial in again} if anew else set()
        released, live = [], set(drawn)
        for release in self._store.released():
            key = release.trial.trial_key
            if not release.deleted and key in left and key not in live:
                live.add(key)
                release = release.whole()
            released.append(release)
        return [*released, *(Release(trial, trial.epochs) for key, trial in left.items()
                             if key in drawn or key not in live)]


def known(store: Reader, done: Collection[str] = ()) -> dict[str, Known]:
    """Of every secure trial that has released something, but is not done: what a checkpoint must not be older than."""
    found: dict[str, list[Release]] = {}
    for release in store.released(but=done) if store.began else ():
        if release.trial.redrawn:
            found.setdefault(release.trial.trial_key, []).append(release)
    return {key: Known(latest(releases).draw, published(releases)) for key, releases in found.items()}


def latest(releases: Sequence[Release]) -> Release:
    """Of the draw of a trial that began last: the one that composes most, as clocks of several hosts may differ."""
    return max(enumerate(releases), key=lambda entry: (entry[1].earlier, entry[0]))[1]


def published(releases: Sequence[Release]) -> int:
    """Epochs of the latest draw that the store has."""
    return max(release.published for release in releases if release.draw == latest(releases).draw)
