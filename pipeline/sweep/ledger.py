"""What a sweep has released, what its budget still admits, and whether a worker may draw secret noise.

A second draw of released epochs is a second release. The protocol of draws keeps these promises; each has a test in
tests/sweep, and those of `pipeline.sweep.recorder` hold too:

1. A worker asks before it draws secret noise, and before it resumes a draw (`pipeline.trials.records.Draw`).
   test_checkpoints.py::test_secure_records_wait_for_a_checkpoint_or_the_end
2. It goes on only after the driver, the only writer of the tracking store, has recorded the charge.
   test_order_of_writes.py::test_each_write_comes_before_what_depends_on_it
3. A draw resumes only from a checkpoint of the trial's latest draw that has all published epochs.
   test_redraws.py::test_a_checkpoint_of_an_earlier_draw_or_behind_what_was_published_is_not_gone_on_with
4. A draw that another one replaces costs all epochs of its trial if it released any, and else nothing.
   test_redraws.py::test_without_a_budget_nothing_is_drawn_anew_unless_it_is_asked_for
5. A failed draw costs all of its epochs, because the failure may depend on the noise. It costs them again if it resumes
   from its checkpoint with fresh noise (docs/privacy.md, section 10).
   test_redraws.py::test_a_draw_that_failed_counts_as_released_to_its_end_and_the_rest_of_it_is_drawn_anew
6. Another draw needs room in the budget for all that may still be released, or consent (`--redraw`) without a budget.
   test_redraws.py::test_within_a_budget_another_draw_is_charged_at_its_worst_or_passed_over
7. What is spent never goes down, whatever is deleted, restored or trained again.
   test_budget.py::test_the_odometer_never_goes_down_whatever_is_deleted_or_trained_again
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

from pipeline.accounting.budget import Filter, epochs_by_draw, make_filter, require_unchanged
from pipeline.experiment.plan import Plan
from pipeline.sweep.checkpoints import PublishedState
from pipeline.tracking.backend import TrackingError
from pipeline.tracking.reader import Reader
from pipeline.tracking.store import Store
from pipeline.trials.config import ConfigError, TrialConfig
from pipeline.trials.naming import counted
from pipeline.trials.records import Draw, EpochRecord, Release

BUDGET_REFUSES = "that does not fit the budget"


class Refusal(NamedTuple):
    """Why a draw may not begin or resume."""

    reason: str
    over_budget: Collection[str] = ()  # trial_keys of the trials that do not fit the budget


class Ledger:
    """What a sweep has released and may still release; with a budget it logs `epsilon/spent` to the parent run.

    Without a budget (`filter`) noise is drawn again only with `redraw`.
    """

    def __init__(self, store: Store, filter: Filter | None, redraw: bool = False) -> None:
        self._store, self._filter, self._redraw = store, filter, redraw
        self._live, self._others = apart(released_by(store)) if filter else ({}, [])

    def begin(self, trials: Iterable[TrialConfig]) -> None:
        """Count the trials of a new round as started, with no released epochs yet."""
        for trial in trials:
            self._live.setdefault(trial.trial_key, Release(trial, 0))
        self._log()

    def add(self, records: Iterable[EpochRecord]) -> None:
        """Count epochs that the store has now, some perhaps for a second time; log epsilon if there are new ones."""
        if not self._filter:
            return
        before = dict(self._live)
        for record in records:
            release = self._live[record.trial_key]
            epochs = max(release.published, record.epoch) + release.lost
            self._live[record.trial_key] = replace(release, epochs=epochs)
        if self._live != before:
            self._log()

    def read_again(self) -> None:
        """Read all releases again, after a draw began or failed: the store then has runs or charges without epochs."""
        if self._filter:
            live, self._others = apart(released_by(self._store))
            self._live = {key: Release(release.trial, 0) for key, release in self._live.items()} | live
            self._log()

    def _log(self) -> None:
        """Log the epsilon spent so far; its step is the number of released epochs."""
        if self._filter:
            released = [*self._others, *self._live.values()]
            spent = self._filter.epsilon(self._filter.spent(released))
            self._store.log_sweep({"epsilon/spent": spent}, {}, step=sum(release.epochs for release in released))

    def before(self, trial: TrialConfig, draw: Draw) -> list[int]:
        """Return the epochs that epsilon must count besides those that this draw of the trial's noise has published.

        Each other draw with a release has one entry. It counts with all of the trial's epochs, because its end may
        depend on the release. If failed attempts of this draw have lost epochs, their number is the last entry.
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
        """Return the number of epochs that a trial's draw has lost, now that it has failed.

        They are the lost epochs of its earlier attempts, and all unpublished ones: a failure may tell of their noise.
        """
        # The last live run is the newest: `Store.begin_draw` has noted the failed draw in it.
        live = [release for release in self._store.released(trial.trial_key) if not release.deleted]
        if not live:  # nothing was told of the failure, and another draw counts the deleted one with all of its epochs
            raise TrackingError(f"trial {trial.trial_key}: its run was deleted while it trained, and cannot note that "
                                "it failed; restore the run, or run the same command again")
        return live[-1].lost + trial.epochs - live[-1].published

    def refusal(self, trials: Sequence[TrialConfig], draw: Draw,  # trials: those of the pack that have not ended
                unfinished: Iterable[TrialConfig]) -> Refusal | None:  # of the round: each may run to its last epoch
        """Return why a draw may not begin or resume; None if it may."""
        if draw.epoch:
            if problem := self._not_the_latest(trials, draw):
                return Refusal(problem)
            redrawn = [trial for trial in trials if self._has_failed(trial, draw)]
            reason = "it failed, so it counts as released to its end, and its remaining epochs would need new noise"
        else:
            redrawn = [trial for trial in trials if self.before(trial, draw)]
            reason = f"it would need new noise ({draw.reason or 'no checkpoint is to be found here'})"
        if not redrawn or (self._filter is None and self._redraw):
            return None
        if self._filter is None:
            return Refusal(f"{reason}, which releases its records once more; `photonic sweep FILE --redraw` does that, "
                           "and epsilon then composes all draws")
        if self._filter.admits(self._releases_if_redrawn(redrawn, not draw.epoch, unfinished)):
            return None
        return Refusal(f"{reason}, and {BUDGET_REFUSES}; the same command goes on without it",
                       [trial.trial_key for trial in redrawn])

    def _has_failed(self, trial: TrialConfig, draw: Draw) -> bool:
        """Whether a failed attempt of the draw has lost epochs that its epsilon does not include yet."""
        released = self._store.released(trial.trial_key)
        return bool(released) and sum(self.before(trial, draw)) > latest(released).earlier

    def _not_the_latest(self, trials: Iterable[TrialConfig], draw: Draw) -> str:
        """Return why a draw may not resume from its checkpoint; empty if it may."""
        for trial in trials:
            released = self._store.released(trial.trial_key)
            if released and latest(released).draw != draw.name:
                return ("the checkpoint that was found is of an earlier draw; run the same command again, which leaves "
                        "it")
            if released and published(released) > draw.epoch:  # an epoch that is trained again has other noise
                return ("the checkpoint that was found is older than what was published; run the same command again, "
                        "which leaves it")
        return ""

    def _releases_if_redrawn(self, redrawn: Sequence[TrialConfig], from_start: bool,
                             unfinished: Iterable[TrialConfig]) -> list[Release]:
        """Return the largest possible releases of the sweep if these trials draw noise again and all trials finish.

        The store's releases count, and the unfinished one of each trial in training counts to its last epoch. A trial
        without a release, or with a new draw (`from_start`), adds a whole run.
        """
        in_training = {trial.trial_key: trial for trial in unfinished}
        restarted = {trial.trial_key for trial in redrawn} if from_start else set()
        releases, continued = [], set(restarted)
        for release in self._store.released():
            key = release.trial.trial_key
            if not release.deleted and key in in_training and key not in continued:
                continued.add(key)
                release = release.whole()
            releases.append(release)
        for key, trial in in_training.items():
            if key in restarted or key not in continued:
                releases.append(Release(trial, trial.epochs))
        return releases


def released_by(store: Reader) -> list[Release]:
    """Return the releases of the store's current sweep; empty if it never began."""
    return store.released() if store.has_begun else []


def apart(released: Iterable[Release]) -> tuple[dict[str, Release], list[Release]]:
    """Return each trial's live release, by trial_key, and all others: of runs deleted, or restored beside another."""
    live: dict[str, Release] = {}
    others = []
    for release in released:
        if release.deleted or release.trial.trial_key in live:
            others.append(release)
        else:
            live[release.trial.trial_key] = release
    return live, others


def known(store: Reader, done: Collection[str] = ()) -> dict[str, PublishedState]:
    """Return what the store has published of each trial with secret noise that is not `done`: draw and epochs.

    A checkpoint that is older than this state must not be resumed.
    """
    if not store.has_begun:
        return {}
    releases_by_key: dict[str, list[Release]] = {}
    for release in store.released(exclude=done):
        if release.trial.secure:
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


def filter_of(plan: Plan, store: Reader) -> Filter | None:
    """Return the filter of a sweep with a budget, with the order from its beginning; None without a budget.

    A budget is refused if it has changed, if it is overspent, or if it cannot cover trials in the store.
    """
    stored_budget = store.budget() if store.has_begun else None
    if stored_budget:
        require_unchanged(plan.budget, stored_budget)
    if not plan.budget:
        return None
    released = released_by(store)
    if released and not stored_budget:
        raise ConfigError(f"budget: must be there from the beginning, but {counted(len(released), 'trial')} of the "
                          f"sweep began without one, got {plan.budget}; give the experiment another name")
    for name in ("dataset", "sampler", "delta", "noise"):
        allowed = {getattr(corner, name) for corner in plan.possible}
        for trial in (release.trial for release in released):
            if getattr(trial, name) not in allowed:
                raise ConfigError(f"{name}: must be that of all trials under a budget, got {getattr(trial, name)} of "
                                  f"trial {trial.trial_key}, which the sweep has; give the experiment another name")
    order = int(stored_budget[2]) if stored_budget else None  # Renyi order, fixed when the sweep began
    filter = make_filter(plan, order)
    if not filter.admits(released):
        spent = filter.epsilon(filter.spent(released))
        raise ConfigError(f"budget: of {plan.budget}, {spent:.4g} was spent, so that nothing covers the sweep "
                          "any more; give the experiment another name")
    return filter
