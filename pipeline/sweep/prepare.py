"""Prepare a sweep: find its missing trials in the store, and check them before anything expensive starts."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pipeline.experiment.experiment import Experiment
from pipeline.experiment.past import NO_PAST
from pipeline.experiment.prices import scope, without_amplification
from pipeline.sweep.checks import changed_networks, check_trials
from pipeline.sweep.clock import Clock
from pipeline.sweep.ledger import elsewhere
from pipeline.sweep.lock import Lease
from pipeline.sweep.private import PrivateFolder
from pipeline.sweep.progress import SweepProgress, SweepResult
from pipeline.sweep.rounds import Rounds
from pipeline.sweep.worker import Plugins
from pipeline.tracking.artifacts import TrackedRun, done_of, waiting
from pipeline.tracking.store import Store
from pipeline.trials.config import TrialConfig
from pipeline.trials.naming import counted, run_name


@dataclass(frozen=True)
class Sweep:
    """What the phases of a sweep share, prepared once: its trials, and the objects of its driver."""

    experiment: Experiment
    store: Store
    lease: Lease
    clock: Clock
    progress: SweepProgress
    folder: PrivateFolder
    rounds: Rounds
    missing: Sequence[TrialConfig]  # trials of the first round that are not done, with those to take over
    possible: Sequence[TrialConfig]  # all that may be trained; a search's corners stand for those not asked for yet
    done: Mapping[str, str]  # trial_key -> status of trials that needed no more training at first
    result: SweepResult
    data_folder: Path | None  # on every node; None for each node's own
    digests: Mapping[str, str]  # of feature files, by their public names
    waits: bool = False  # whether trials were named whose result the store does not have
    elsewhere: Mapping[str, TrackedRun] = field(default_factory=dict)  # by trial_key: trained by a sweep of `reuse`

    @property
    def trial_keys(self) -> set[str]:
        """The trials of the file so far."""
        return {trial.trial_key for trial in self.rounds.trials}

    @property
    def plugins(self) -> Plugins:
        return plugins_of(self.experiment)

    @property
    def checkpoint_folder(self) -> Path:
        return self.folder.checkpoints(self.experiment.name)

    @property
    def failure_log(self) -> Path:
        return self.folder.root / "failures" / f"{self.experiment.name}.log"

    @property
    def private_log(self) -> Path:
        """The file for errors that may tell of records."""
        return self.folder.path / "failures" / f"{self.experiment.name}.log"


def plugins_of(experiment: Experiment) -> Plugins:
    """Return the names of an experiment's plugins, and the folder of its file."""
    return experiment.plugins, experiment.source.absolute().parent


def prepare(experiment: Experiment, store: Store, clock: Clock, folder: PrivateFolder, *, data_folder: Path | None,
            quiet: bool) -> Sweep:
    """Prepare the driver of a sweep once no other host runs it; the private folder is made if trials are missing."""
    lease = Lease(store, experiment.name, clock)
    lease.wait_until_free()
    plan = experiment.plan
    progress = SweepProgress(quiet, functools.partial(run_name, also=experiment.varied))
    if store.find(experiment.name):
        progress.phase("reading the trials that the tracking store has")
    runs = store.runs() if store.has_begun else []
    past = store.past(experiment, runs) if store.has_begun else NO_PAST
    for line in past.lines(experiment.trials):
        progress.say(line)
    # The store becomes patient only after its first answer, so that a wrong address fails at once.
    store.be_patient(experiment.resources.store_patience_seconds, progress.say)
    others = elsewhere(experiment, store)
    rounds = Rounds(plan, store, elsewhere=others.values())
    missing = rounds.next(runs)
    to_train = [trial for trial in missing if trial.trial_key not in others]
    result = SweepResult(plan.planned, skipped=rounds.n_done, passed_over=rounds.passed_over, others=len(runs))
    progress.add(to_train, rounds.later, result.skipped + len(missing) - len(to_train))
    if rounds.gone:
        progress.say(f"{counted(len(rounds.gone), 'trial')} of this name with secret noise released a result and "
                     f"{'was' if len(rounds.gone) == 1 else 'were'} deleted: MLflow's trash counts, so they are not "
                     "trained again; restore their runs")
    for line in store.relocate():
        progress.say(line)
    changed = changed_networks((*runs, *others.values()), (*experiment.possible, *rounds.trials))
    possible = plan.possible if plan.asks else to_train
    digests: Mapping[str, str] = {}
    if missing:
        check_trials(experiment, to_train, possible)
        folder.make(any(trial.hides_errors for trial in possible), store.artifact_folders())
        digests = folder.feature_digests(possible)
        lines = (*scope(experiment.name, plan, store.certified), *without_amplification(possible), *changed)
        for line in lines:
            progress.say(line)
    return Sweep(experiment, store, lease, clock, progress, folder, rounds, missing=missing, possible=possible,
                 done=done_of(runs), result=result, data_folder=data_folder, digests=digests, elsewhere=others,
                 waits=bool(waiting(runs)))
