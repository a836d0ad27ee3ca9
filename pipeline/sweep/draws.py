"""Decide which draws of secret noise may begin: a second draw of released epochs is a second release.

A worker asks before it draws (`pipeline.trials.records.Draw`). The driver, the only writer of the tracking store,
agrees after the store has recorded the charge. A draw that another one replaces costs its published epochs. If it
failed, it costs all of its epochs, because the failure may depend on the noise. It costs them again if it resumes from
its checkpoint with fresh noise (docs/privacy.md, section 10).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence

from pipeline.accounting.budget import Filter, epochs_by_draw
from pipeline.sweep.checkpoints import PublishedState
from pipeline.tracking.reader import Reader
from pipeline.tracking.store import Store
from pipeline.trials.config import TrialConfig
from pipeline.trials.records import Draw, Release

BUDGET_REFUSES = "that does not fit the budget"


class Draws:
    """Answers the questions of workers.

    Args:
        store: the store with the sweep open.
        filter: privacy filter of its budget, if it has one.
        redraw: whether noise may be drawn again without a budget.
        left: returns the trials of this round that have not ended; each may continue to its last epoch.
    """

    def __init__(self, store: Store, filter: Filter | None, redraw: bool,
                 left: Callable[[], Sequence[TrialConfig]]) -> None:
        self._store, self._filter, self._redraw, self._left = store, filter, redraw, left

    def before(self, trial: TrialConfig, draw: Draw) -> list[int]:
        """Return the epochs that count in addition to this draw's published ones.

        Every other draw with a release counts with all of its epochs, because its end may depend on the release. The
        lost epochs of this draw's failed attempts count too.
        """
        released = self._store.released(trial.trial_key)
        lost = sum(release.lost for release in released if release.draw == draw.name)
        others = epochs_by_draw(release for release in released if release.draw != draw.name)
        return [*(max(epochs, trial.epochs) for epochs in others), *([lost] if lost else [])]

    def is_live(self, trial: TrialConfig, draw: Draw) -> bool:
        """Whether a run that is not deleted has releases of another draw."""
        return any(release.epochs and not release.deleted and release.draw != draw.name
                   for release in self._store.released(trial.trial_key))

    def lost(self, trial: TrialConfig) -> int:
        """Return the epochs that a trial's failed draw counts as released without having published them.

        The failure may depend on the noise of all of its epochs, so the draw counts to its end.
        """
        live = [release for release in self._store.released(trial.trial_key) if not release.deleted][-1]
        return live.lost + trial.epochs - live.published

    def refusal(self, trials: Sequence[TrialConfig], draw: Draw) -> tuple[str, list[str]]:
        """Return why a draw may not begin or resume, and trial_keys that do not fit the budget; ("", []) if it may.

        Args:
            trials: the trials of its pack that have not ended.
            draw: the draw.
        """
        if draw.epoch:
            if problem := self._not_the_latest(trials, draw):
                return problem, []
            again = [trial for trial in trials if self._has_failed(trial, draw)]
            why = "it failed, so it counts as released to its end, and its remaining epochs would need new noise"
        else:
            again = [trial for trial in trials if self.before(trial, draw)]
            why = f"it would need new noise ({draw.reason or 'no checkpoint is to be found here'})"
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
        """Whether a failed attempt of the draw has lost epochs that its epsilon does not include yet."""
        released = self._store.released(trial.trial_key)
        return bool(released) and sum(self.before(trial, draw)) > latest(released).earlier

    def _not_the_latest(self, trials: Iterable[TrialConfig], draw: Draw) -> str:
        """Return why a checkpoint may not resume a draw; empty if it may.

        It must belong to each trial's latest draw, and contain all published epochs: an epoch trained again has other
        noise.

        Args:
            trials: the trials of the checkpoint's pack.
            draw: its draw, with its epoch.
        """
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
        """Return the largest set of releases if these trials draw again; with `anew`, from their first epoch."""
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


def known(store: Reader, done: Collection[str] = ()) -> dict[str, PublishedState]:
    """Return the store's state of each secure trial with releases that is not done; older checkpoints are refused."""
    found: dict[str, list[Release]] = {}
    for release in store.released(exclude=done) if store.has_begun else ():
        if release.trial.draws_fresh_noise:
            found.setdefault(release.trial.trial_key, []).append(release)
    return {key: PublishedState(latest(releases).draw, published(releases)) for key, releases in found.items()}


def latest(releases: Sequence[Release]) -> Release:
    """Return the release of a trial's latest draw: it composes most epochs. Clocks of several hosts may differ."""
    return max(enumerate(releases), key=lambda entry: (entry[1].earlier, entry[0]))[1]


def published(releases: Sequence[Release]) -> int:
    """Return the number of epochs of the latest draw in the store."""
    return max(release.published for release in releases if release.draw == latest(releases).draw)
