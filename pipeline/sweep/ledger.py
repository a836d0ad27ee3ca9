"""What a sweep has released, what its budget covers, and what other sweeps have trained for it (`reuse`).

A trial with secret noise is one release of all its planned epochs under each name that its runs have, however it ended;
a trial with recorded noise is one of the epochs that its runs have. What is spent never goes down, whatever is deleted,
restored or trained again: test_budget.py::test_the_odometer_never_goes_down_whatever_is_deleted_or_trained_again.
"""

from __future__ import annotations

from collections.abc import Iterable

from pipeline.accounting.budget import Filter, make_filter, require_unchanged
from pipeline.experiment.experiment import Experiment
from pipeline.experiment.plan import Plan
from pipeline.tracking.artifacts import BY_SCORES, DONE, REUSED, REUSED_FROM, TrackedRun, config_of
from pipeline.tracking.reader import Reader
from pipeline.tracking.store import Store
from pipeline.trials.config import ConfigError, TrialConfig
from pipeline.trials.fields import refuse
from pipeline.trials.naming import counted
from pipeline.trials.records import Release

ALIKE = ("dataset", "sampler", "delta", "noise")  # settings that all trials under one budget share


class Odometer:
    """Logs to a sweep's parent run the epsilon that its budget has spent; without a budget (`filter`) it does nothing.
    """

    def __init__(self, store: Store, filter: Filter | None) -> None:
        self._store, self._filter = store, filter
        self._released: dict[tuple[str, str], Release] = {}  # by trial_key and name
        self.read_again()

    def read_again(self) -> None:
        """Count all releases of the store, and log epsilon."""
        if self._filter:
            self.add(self._store.released(), always=True)

    def add(self, released: Iterable[Release], always: bool = False) -> None:
        """Count releases, some perhaps for a second time; log epsilon if there are new ones, or `always`.

        The step of epsilon is the number of released epochs.
        """
        if not self._filter:
            return
        before = dict(self._released)
        for release in released:
            key = release.trial.trial_key, release.name
            self._released[key] = max(release, self._released.get(key, release), key=lambda each: each.epochs)
        if always or self._released != before:
            known = list(self._released.values())
            spent = self._filter.epsilon(self._filter.spent(known))
            self._store.log_sweep({"epsilon/spent": spent}, {}, step=sum(release.epochs for release in known))


def filter_of(plan: Plan, store: Reader) -> Filter | None:
    """Return the filter (accountant) of a sweep's budget, with the Renyi order it began with; None without a budget.

    A budget is refused if it has changed, if it is overspent, or if it cannot cover trials in the store.
    """
    stored_budget = store.budget() if store.has_begun else None
    if stored_budget:
        require_unchanged(plan.budget, stored_budget)
    if not plan.budget:
        return None
    released = store.released()
    if released and not stored_budget:
        raise ConfigError(f"budget: must be there from the beginning, but {counted(len(released), 'trial')} of the "
                          f"sweep began without one, got {plan.budget}; give the experiment another name")
    for trial in (release.trial for release in released):
        if name := unlike(plan, trial):
            raise ConfigError(f"{name}: must be that of all trials under a budget, got {getattr(trial, name)} of "
                              f"trial {trial.trial_key}, which the sweep has; give the experiment another name")
    order = int(stored_budget[2]) if stored_budget else None
    filter = make_filter(plan.budget, plan.possible, plan.planned, order)
    if not filter.admits(released):
        spent = filter.epsilon(filter.spent(released))
        raise ConfigError(f"budget: of {plan.budget}, {spent:.4g} was spent, so that nothing covers the sweep "
                          "any more; give the experiment another name")
    return filter


def unlike(plan: Plan, trial: TrialConfig) -> str:
    """Return the first setting of `ALIKE` in which a trial differs from a plan's trials; empty for none."""
    for name in ALIKE:
        if getattr(trial, name) not in {getattr(planned, name) for planned in plan.possible}:
            return name
    return ""


def elsewhere(experiment: Experiment, store: Reader) -> dict[str, TrackedRun]:
    """Return trial_key -> run of the trials that an experiment with `reuse` takes over; open its own sweep in `store`.

    These trials have ended by themselves, with recorded noise. A trial that the own sweep has begun is left out, as
    taking it over would release it twice. `reuse` is refused (`ConfigError`) with secret noise.
    """
    if not experiment.reuse:
        return {}
    refuse(any(trial.secure for trial in experiment.possible), "reuse", "is for trials with recorded noise",
           f"{', '.join(experiment.reuse)} with noise 'secure'", "leave it out")
    found = _ended_in(experiment, Reader(store.uri, store.root))
    store.find(experiment.name)
    for begun in store.runs() if store.has_begun else ():
        if REUSED not in begun.tags:
            found.pop(begun.trial_key, None)
    for release in store.released():  # in the trash, too: noise of another size is another release
        key = release.trial.trial_key
        if key in found and release.trial.recorded_noise != config_of(found[key]).recorded_noise:
            del found[key]
    return found


def _ended_in(experiment: Experiment, others: Reader) -> dict[str, TrackedRun]:
    """Return trial_key -> run of the ended trials of the sweeps in `reuse`; the first sweep with a trial counts.

    A sweep is refused if it is not there, or if scores of its trials decided which of them may be seen.
    """
    known = [name for name in others.sweeps() if name != experiment.name]
    accepted = f"must name other sweeps of this store, {', '.join(known) or 'which has none'}"
    found: dict[str, TrackedRun] = {}
    for name in experiment.reuse:
        refuse(name not in known, "reuse", accepted, repr(name), "leave it out, or train that sweep first")
        others.attach(name)
        # The file is that of the last command; the tag tells of earlier ones.
        refuse(BY_SCORES in others.tags() or not others.kept_experiment(), "reuse", "must name sweeps with a file in "
               "the store, which never had random stopping: it publishes its best trial alone", repr(name),
               "leave it out")
        for run in others.runs():
            if run.status in DONE:
                # A run that was itself taken over keeps the tags of its origin.
                run.tags = {REUSED: run.run_id, REUSED_FROM: name, **run.tags}
                found.setdefault(run.trial_key, run)
    return found
