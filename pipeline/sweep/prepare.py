"""Prepare a sweep: find its missing trials in the store, and check them before anything expensive starts.

`pipeline.sweep.run` calls it once. Everything that drives the sweep afterwards takes the `Sweep` from here.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pipeline.experiment.experiment import Experiment
from pipeline.experiment.prices import scope, without_amplification
from pipeline.sweep.checkpoints import Checkpoints
from pipeline.sweep.checks import check_trials
from pipeline.sweep.clock import Clock
from pipeline.sweep.ledger import elsewhere
from pipeline.sweep.lock import Lease
from pipeline.sweep.private import PrivateFolder
from pipeline.sweep.progress import SweepProgress, SweepResult
from pipeline.sweep.rounds import Rounds
from pipeline.sweep.worker import Plugins
from pipeline.tracking.artifacts import TrackedRun, changed_networks, done_of, waiting
from pipeline.tracking.store import Store
from pipeline.trials.config import TrialConfig
from pipeline.trials.naming import counted, run_name
from pipeline.trials.packs import Pack


@dataclass(frozen=True)
class Sweep:
    """What the phases of a sweep share: its trials, and the objects of its driver."""

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
    commit: str  # of this code
    digests: Mapping[str, str] = field(default_factory=dict)  # of feature files, by their public names
    waits: bool = False  # whether trials were named whose result the store does not have
    elsewhere: Mapping[str, TrackedRun] = field(default_factory=dict)  # by trial_key: trained by a sweep of `reuse`

    @property
    def trial_keys(self) -> set[str]:
        """The trials of the file so far."""
        return {trial.trial_key for trial in self.rounds.trials}

    @property
    def plugins(self) -> Plugins:
        return self.experiment.plugins, self.experiment.folder

    @property
    def checkpoints(self) -> Checkpoints:
        name, seconds = self.experiment.name, self.experiment.resources.checkpoint_seconds
        return Checkpoints(self.folder.checkpoints(name), seconds)

    @property
    def failure_log(self) -> Path:
        return self.folder.root / "failures" / f"{self.experiment.name}.log"

    @property
    def private_log(self) -> Path:
        """The file for errors that may tell of records."""
        return self.folder.path / "failures" / f"{self.experiment.name}.log"

    def to_train(self, trials: Iterable[TrialConfig]) -> list[TrialConfig]:
        """Return the trials that no sweep of `reuse` has trained."""
        return [trial for trial in trials if trial.trial_key not in self.elsewhere]

    def resumable(self) -> list[Pack]:
        """Return the packs that resume from checkpoints; delete the checkpoints from which no trial resumes."""
        rounds = self.rounds
        return self.checkpoints.resumable(rounds.trials, rounds.done, self.progress.say, rounds.named)


def prepare(experiment: Experiment, store: Store, clock: Clock, folder: PrivateFolder, *, data_folder: Path | None,
            quiet: bool, commit: str) -> Sweep:
    """Prepare the driver of a sweep once no other host runs it.

    If trials are missing, they are checked and the private folder is made; otherwise nothing is written.
    """
    lease = Lease(store, experiment.name, clock)
    lease.wait_until_free()
    progress = SweepProgress(quiet, functools.partial(run_name, also=experiment.varied))
    if store.find(experiment.name):
        progress.phase("reading the trials that the tracking store has")
    runs = store.runs() if store.has_begun else []
    for line in store.past(experiment, runs).lines(experiment.trials) if store.has_begun else ():
        progress.say(line)
    # The store becomes patient only after its first answer, so that a wrong address fails at once.
    store.be_patient(experiment.resources.store_patience_seconds, progress.say)
    others = elsewhere(experiment, store)
    rounds = Rounds(experiment.plan, store, elsewhere=others.values())
    missing = rounds.next(runs)
    to_train = [trial for trial in missing if trial.trial_key not in others]
    possible = experiment.possible if experiment.plan.asks else to_train
    result = SweepResult(experiment.planned, skipped=rounds.n_done, passed_over=rounds.passed_over, others=len(runs))
    sweep = Sweep(experiment, store, lease, clock, progress, folder, rounds, missing, possible, done_of(runs), result,
                  data_folder, commit, elsewhere=others, waits=bool(waiting(runs)))

    progress.add(to_train, rounds.later, already_done=result.skipped + len(missing) - len(to_train))
    if rounds.gone:
        progress.say(f"{counted(len(rounds.gone), 'trial')} of this name with secret noise released a result and "
                     f"{'was' if len(rounds.gone) == 1 else 'were'} deleted: MLflow's trash counts, so they are not "
                     "trained again; restore their runs")
    for line in store.relocate():
        progress.say(line)
    return checked(sweep, to_train, runs) if missing else sweep


def checked(sweep: Sweep, to_train: Sequence[TrialConfig], runs: Sequence[TrackedRun]) -> Sweep:
    """Return the sweep once its trials are checked and its private folder is there; say what one should know first."""
    check_trials(sweep.experiment, to_train, sweep.possible)
    sweep.folder.make(any(trial.hides_errors for trial in sweep.possible), sweep.store.artifact_folders())
    digests = sweep.folder.feature_digests(sweep.possible)
    experiment = sweep.experiment
    own_trials = (*experiment.possible, *sweep.rounds.trials)
    for line in (*scope(experiment.name, experiment.plan, sweep.store.certified),
                 *without_amplification(sweep.possible),
                 *changed_networks((*runs, *sweep.elsewhere.values()), own_trials)):
        sweep.progress.say(line)
    return dataclasses.replace(sweep, digests=digests)
