"""Which draws of secret noise may begin: a draw of epochs that were released before is another release of them.

A worker asks before it draws anything (`pipeline.trials.records.Draw`). The driver, which alone writes the tracking
store, says yes once the store has the charge. A draw in whose place another begins costs what it has published, or all
of its epochs if it failed, as why it failed may depend on what was drawn (docs/privacy.md, section 10).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace

from pipeline.accounting.budget import Filter, draws_of
from pipeline.sweep.checkpoints import Known
from pipeline.tracking.artifacts import REFUSED
from pipeline.tracking.reader import Reader
from pipeline.tracking.store import Store
from pipeline.trials.config import TrialConfig
from pipeline.trials.records import Draw, Release

BUDGET_REFUSES = "another draw of all its epochs does not fit the budget"


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
        """Epochs that every draw of the trial but this one has released."""
        return draws_of(release for release in self._store.released(trial.trial_key)
                        if release.draw != draw.name)

    def is_live(self, trial: TrialConfig, draw: Draw) -> bool:
        """Whether a run that is not deleted has released something of another draw."""
        return any(release.epochs and not release.deleted and release.draw != draw.name
                   for release in self._store.released(trial.trial_key))

    def refusal(self, trials: Sequence[TrialConfig], draw: Draw) -> tuple[str, dict[str, str]]:
        """Why a draw may not begin or go on, and tags that say so; ("", {}) if it may.

        Args:
            trials: of its pack, those that have not ended.
        """
        if draw.epoch:
            return self._not_the_latest(trials, draw), {}
        again = [trial for trial in trials if self.before(trial, draw)]
        if not again:
            return "", {}
        reason = f"its noise would have to be drawn anew ({draw.reason or 'no checkpoint is to be found here'}), "
        if not self._filter:
            return ("" if self._redraw else f"{reason}which releases its records once more; `photonic sweep FILE "
                    "--redraw` does that, and epsilon then composes all draws"), {}
        if self._filter.admits(self._with_another(again)):
            return "", {}
        return f"{reason}and {BUDGET_REFUSES}; the same command goes on without it", {REFUSED: BUDGET_REFUSES}

    def _not_the_latest(self, trials: Iterable[TrialConfig], draw: Draw) -> str:
        for trial in trials:
            released = self._store.released(trial.trial_key)
            if released and released[-1].draw != draw.name:
                return ("the checkpoint that was found is of an earlier draw; run the same command again, which leaves "
                        "it")
            if released and released[-1].published > draw.epoch:
                return ("the checkpoint that was found is older than what was published; run the same command again, "
                        "which leaves it")
        return ""

    def _with_another(self, again: Sequence[TrialConfig]) -> list[Release]:
        """All that will have been released at most, if these trials are drawn anew."""
        left, anew = {trial.trial_key: trial for trial in self._left()}, {trial.trial_key for trial in again}
        released, live = [], set(anew)
        for release in self._store.released():
            key = release.trial.trial_key
            if not release.deleted and key in left and key not in live:
                live.add(key)
                release = replace(release, epochs=release.trial.epochs)
            released.append(release)
        whole = [Release(trial, trial.epochs) for key, trial in left.items() if key in anew or key not in live]
        return [*released, *whole]


def known(store: Reader, done: Collection[str] = ()) -> dict[str, Known]:
    """Of every secure trial that has released something, but is not done: what a checkpoint must not be older than."""
    found: dict[str, list[Release]] = {}
    for release in store.released(but=done) if store.began else ():
        if release.trial.secure:
            found.setdefault(release.trial.trial_key, []).append(release)
    return {key: Known(frozenset(r.draw for r in releases if r.draw != releases[-1].draw), _published(releases))
            for key, releases in found.items()}


def _published(releases: Sequence[Release]) -> int:
    """Epochs of the latest draw that the store has."""
    return max(release.published for release in releases if release.draw == releases[-1].draw)
