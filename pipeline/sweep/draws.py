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
    """Decides for workers whether a draw of secret noise may begin or resume, and what it costs.

    Without a budget (`filter`) noise is drawn again only with `redraw`. Each `unfinished` trial of this round may
    continue to its last epoch.
    """

    def __init__(self, store: Store, filter: Filter | None, redraw: bool,
                 unfinished: Callable[[], Sequence[TrialConfig]]) -> None:
        self._store, self._filter, self._redraw, self._unfinished = store, filter, redraw, unfinished

    def before(self, trial: TrialConfig, draw: Draw) -> list[int]:
        """Return the epochs that epsilon must count besides those that this draw of the trial's noise has published.

        One entry is for every other draw with a release. It counts with all of the trial's epochs, because its end may
        depend on the release. The last entry is for lost epochs, of failed attempts of this draw, if there are any.
        """
        released = self._store.released(trial.trial_key)
        others = epochs_by_draw(release for release in released if release.draw != draw.name)
        costs = [*(max(epochs, trial.epochs) for epochs in others)]
        lost = sum(release.lost for release in released if release.draw == draw.name)
        return [*costs, lost] if lost else costs

    def is_live(self, trial: TrialConfig, draw: Draw) -> bool:
        """Whether the store has a run of this trial with epochs of another draw; deleted runs do not count."""
        return any(release.epochs and not release.deleted and release.draw != draw.name
                   for release in self._store.released(trial.trial_key))

    def lost(self, trial: TrialConfig) -> int:
        """Return the unpublished epochs of a trial's failed draw, which counts to its end: all its noise may show."""
        live = [release for release in self._store.released(trial.trial_key) if not release.deleted][-1]
        return live.lost + trial.epochs - live.published

    def refusal(self, trials: Sequence[TrialConfig], draw: Draw) -> tuple[str, list[str]]:
        """Return (reason, trial_keys): why a draw may not begin or resume, and the trials that do not fit the budget.

        Both are empty if it may. Epochs that were released before with other noise are released a second time. This
        needs room in the budget, or the user's consent (`redraw`) without one. `trials` are those of the pack that have
        not ended.
        """
        if draw.epoch:
            if problem := self._not_the_latest(trials, draw):
                return problem, []
            redrawn = [trial for trial in trials if self._has_failed(trial, draw)]
            reason = "it failed, so it counts as released to its end, and its remaining epochs would need new noise"
        else:
            redrawn = [trial for trial in trials if self.before(trial, draw)]
            reason = f"it would need new noise ({draw.reason or 'no checkpoint is to be found here'})"
        if not redrawn or (self._filter is None and self._redraw):
            return "", []
        if self._filter is None:
            return (f"{reason}, which releases its records once more; `photonic sweep FILE --redraw` does that, and "
                    "epsilon then composes all draws"), []
        if self._filter.admits(self._releases_if_redrawn(redrawn, from_start=not draw.epoch)):
            return "", []
        return (f"{reason}, and {BUDGET_REFUSES}; the same command goes on without it",
                [trial.trial_key for trial in redrawn])

    def _has_failed(self, trial: TrialConfig, draw: Draw) -> bool:
        """Whether a failed attempt of the draw has lost epochs that its epsilon does not include yet."""
        released = self._store.released(trial.trial_key)
        return bool(released) and sum(self.before(trial, draw)) > latest(released).earlier

    def _not_the_latest(self, trials: Iterable[TrialConfig], draw: Draw) -> str:
        """Return why a draw may not resume from its checkpoint; empty if it may.

        The checkpoint must belong to each trial's latest draw. It must contain all published epochs, because an epoch
        that is trained again has other noise.
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

    def _releases_if_redrawn(self, redrawn: Sequence[TrialConfig], from_start: bool) -> list[Release]:
        """Return the largest possible releases of the sweep if these trials draw noise again and all trials finish.

        The store's releases count, and the unfinished one of each trial in training counts to its last epoch. A trial
        without a release, or with a new draw (`from_start`), adds a whole run.
        """
        unfinished = {trial.trial_key: trial for trial in self._unfinished()}
        restarted = {trial.trial_key for trial in redrawn} if from_start else set()
        releases, continued = [], set(restarted)
        for release in self._store.released():
            key = release.trial.trial_key
            if not release.deleted and key in unfinished and key not in continued:
                continued.add(key)
                release = release.whole()
            releases.append(release)
        for key, trial in unfinished.items():
            if key in restarted or key not in continued:
                releases.append(Release(trial, trial.epochs))
        return releases


def known(store: Reader, done: Collection[str] = ()) -> dict[str, PublishedState]:
    """Return what the store has published of each trial with secret noise that is not `done`: draw and epochs.

    A checkpoint that is older than this state must not be resumed.
    """
    if not store.has_begun:
        return {}
    releases_by_key: dict[str, list[Release]] = {}
    for release in store.released(exclude=done):
        if release.trial.draws_fresh_noise:
            releases_by_key.setdefault(release.trial.trial_key, []).append(release)
    return {key: PublishedState(latest(releases).draw, published(releases))
            for key, releases in releases_by_key.items()}


def latest(releases: Sequence[Release]) -> Release:
    """Return the release of a trial's latest draw: the last one whose epsilon composes the most earlier epochs.

    Times are not compared, because the clocks of several hosts may differ.
    """
    max_earlier = max(release.earlier for release in releases)
    return [release for release in releases if release.earlier == max_earlier][-1]


def published(releases: Sequence[Release]) -> int:
    """Return the number of epochs that a trial's latest draw has published."""
    latest_draw = latest(releases).draw
    return max(release.published for release in releases if release.draw == latest_draw)
