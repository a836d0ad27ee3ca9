"""The only writer of a sweep: it passes the workers' records to the tracking store, the progress and the result.

The order of writes is a promise: a driver that dies at any moment finds in the store all that anybody saw. Each line
has a test, which is test_order_of_writes.py::test_each_write_comes_before_what_depends_on_it if no other is named.
Lines 1 to 4 and 10 are kept by `pipeline.sweep.run`, lines 11 and 12 by `pipeline.tracking.store`, and the rest here.

1. A sweep's parent run has its budget before a trial begins.
2. A round's suggestions are stored before one of its trials begins.
3. A driver confirms that it holds the sweep before it writes to a trial.
   test_tracking.py::test_of_drivers_that_begin_at_the_same_time_on_two_hosts_one_goes_on
4. It looks at least every heartbeat, and before its last writes, whether it still holds the sweep.
   test_sweep.py::test_a_driver_that_stood_still_looks_whose_the_sweep_is_before_it_writes
5. A trial's run is begun before its first step.
6. Before a result of secret noise is asked for, its name is stored, and then it is read that this driver holds the
   sweep and that no other name is there.
   test_sealed.py::test_of_two_drivers_that_name_two_results_of_a_trial_one_at_most_releases_its_own
7. What is shown was stored before; of secret noise, first all epochs of a trial in one file, then its metrics.
8. The last epoch of a trial is stored before its checkpoint and its sealed result are removed.
9. The epochs that a pack has sent are stored before its failure.
   test_sweep.py::test_a_pack_that_fails_keeps_the_epochs_that_waited
10. All sent epochs are stored before the sweep is closed, after Ctrl-C too.
    test_order_of_writes.py::test_what_waits_is_written_before_the_sweep_is_closed
11. What a trial of another sweep released is charged here before the trial counts as taken over.
    test_reuse.py::test_a_driver_that_dies_while_it_takes_over_leaves_no_trial_half_taken
12. The metrics, the files and the status of a trial are stored before it counts as done.
    test_calls.py::test_a_driver_may_die_after_any_call_of_a_trial
"""

from __future__ import annotations

import contextlib
import platform
import traceback
from collections.abc import Iterable, Sequence
from importlib.metadata import version

from pipeline.accounting import account, privacy_tags
from pipeline.accounting.certified import calibrated
from pipeline.experiment.plugins import LOADED
from pipeline.package import wheel_version
from pipeline.sweep.ledger import Odometer
from pipeline.sweep.prepare import Sweep
from pipeline.tracking.artifacts import NOT_RECORDED, reused_text
from pipeline.trials.config import TrialConfig
from pipeline.trials.feedback import COLOURS
from pipeline.trials.guard import one_line, public_line
from pipeline.trials.naming import method
from pipeline.trials.packs import Pack
from pipeline.trials.records import EpochRecord, Hidden, Release, Result, Sealed

OTHER_NAME = ("another draw of its noise was released, or may have been, so that this one was thrown away; it counts, "
              "and `photonic sweep FILE --lost` ends the trial")
RUN_COLOUR = "mlflow.runColor"  # tag that MLflow's page reads


class Recorder:
    """Writes every epoch of every trial to the store; the store takes each once, even if workers repeat them.

    MLflow takes as long for one epoch as for many. So a pack's epochs are collected, and written some time after the
    last write for the pack. An epoch with the end of a trial is written at once. If this process is killed,
    collected epochs are sent or trained again when the sweep resumes. A pack with secret noise sends one result, at its
    end, which is written at once.
    """

    def __init__(self, sweep: Sweep, odometer: Odometer) -> None:
        self._sweep, self._odometer = sweep, odometer
        self._store, self._progress, self._result = sweep.store, sweep.progress, sweep.result
        self._versions = ", ".join([*filter(None, [wheel_version()]), f"python {platform.python_version()}",
                                    *(f"{name} {version(name)}" for name in ("torch", "ray", "mlflow"))])
        self._named: dict[Pack, Sealed] = {}  # packs whose sealed result may be sent
        self._started: set[str] = set()
        self._ended = {*sweep.done, *sweep.result.failed}  # trial_keys; later records of these trials are ignored
        self._waiting: dict[Pack, list[EpochRecord]] = {}

    def of(self, sweep: Sweep) -> Recorder:
        """Return a recorder of the same store for another view of the sweep; both know which trials have ended."""
        other = Recorder(sweep, self._odometer)
        other._ended = self._ended
        return other

    def start(self, pack: Pack) -> None:
        """Note that a worker starts a pack, for the first time or again after a worker died."""
        self._sweep.clock.restart("write", of=pack)
        experiment = self._sweep.experiment
        for trial in self.left(pack.trials):
            if trial.trial_key in self._started:
                continue
            # A plugin's digest may tell of records, and is recorded only if metrics are plain.
            digests = {f"plugin.{name}": LOADED[name] if trial.disclosure == "plain" else NOT_RECORDED
                       for name in experiment.plugins}
            tags = {"git_commit": self._sweep.commit, "versions": self._versions, **digests}
            if method(trial) in COLOURS:
                tags[RUN_COLOUR] = COLOURS[method(trial)]
            self._store.start(trial, tags=tags, also=experiment.varied)
            self._started.add(trial.trial_key)
            self._progress.start(trial)

    def take_over(self, trials: Iterable[TrialConfig]) -> bool:
        """Take over the trials that a sweep of `reuse` has trained, each once; return whether there were any."""
        others = self._sweep.elsewhere
        taken = {trial: others[trial.trial_key] for trial in self.left(trials) if trial.trial_key in others}
        for trial, other in taken.items():
            self._store.take_over(trial, other, self._sweep.experiment.varied)
            self._ended.add(trial.trial_key)
        if taken:
            self._odometer.read_again()
            self._progress.say(f"taken over, not trained again: {reused_text(taken.values())}")
        return bool(taken)

    def left(self, trials: Iterable[TrialConfig]) -> list[TrialConfig]:
        return [trial for trial in trials if trial.trial_key not in self._ended]

    def not_deleted(self, missing: Sequence[TrialConfig]) -> list[TrialConfig]:
        """Return the missing trials that have not ended in this sweep; report the others, whose runs were deleted."""
        deleted = [trial for trial in missing if trial.trial_key in self._ended]
        if deleted:
            names = ", ".join(map(self._progress.name, deleted))
            self._progress.say(f"deleted while the sweep ran: {names}; run the same command again to train what is "
                               "missing")
        return self.left(missing)

    def restart(self, pack: Pack) -> None:
        """Note that a worker died: the pack restarts from its checkpoint or from its first epoch."""
        self._write(pack)
        self._progress.say(f"a worker died; starting again: {self._names(pack)}")

    def hidden(self, pack: Pack, progress: Hidden, seconds: float) -> bool:
        """Show the progress of a pack with secret noise; return whether it may go on: not once a result was named."""
        self._result.compute_seconds += seconds
        if progress.note:
            self._progress.say(f"{progress.note}: {self._names(pack)}")
        if pack in self._named:
            self.wait(pack, self._named[pack])
            return False
        left = self.left(pack.trials)
        for trial in left:
            self._progress.hidden(trial, progress.epoch)
        return bool(left)

    def name(self, pack: Pack, sealed: Sealed) -> bool:
        """Record the name of a pack's sealed result; return whether it may be asked for.

        To look at the lease and then write is not enough: this process may sleep in between while another driver
        releases another draw. So the name is written first, and what others have written is read after it.
        """
        self.start(pack)
        named = self._named.get(pack, sealed)
        if named.name != sealed.name:  # of an earlier worker, whose file has gone
            self.wait(pack, named)
            return False
        left = self.left(pack.trials)
        for trial in left:
            epsilons = {e.metric_name: e.value for e in account(trial, trial.epochs) if e.is_finite}
            self._store.name(trial.trial_key, sealed, epsilons, {**privacy_tags(trial), **calibrated(trial)})
            self._odometer.add([Release(trial, trial.epochs, name=sealed.name)])
        self._sweep.lease.require_own()
        for trial in left:
            if self._store.names(trial.trial_key) - {sealed.name}:
                self.fail(Pack((trial,)), OTHER_NAME)
        if left and not self.left(left):
            return False
        self._named[pack] = sealed
        return True

    def release(self, pack: Pack, result: Result) -> None:
        """Store and then show the result of a pack with secret noise, whose name was recorded."""
        left = [trial.trial_key for trial in self.left(pack.trials)]  # an earlier driver may have stored the others
        records = [record for record in result.records if record.trial_key in left]
        reason, text = result.failure, result.traceback
        try:
            for record in records:
                self._store.check(record)
        except ValueError as error:  # a metric that cannot be stored
            reason, text = public_line(error), traceback.format_exc()
        if reason:
            self.fail(pack, f"{reason}; it was released and counts, and is trained no more", text, "lost")
            return
        for key in left:
            self._store.keep(key, [record for record in records if record.trial_key == key])
        self.record(pack, records, 0.0)

    def record(self, pack: Pack, records: Iterable[EpochRecord], seconds: float) -> None:
        """Record epochs of a pack; some may be repeated. `seconds` is the training time of these epochs."""
        self._result.compute_seconds += seconds
        records = [record for record in records if record.trial_key not in self._ended]
        if not records:
            return
        for note in dict.fromkeys(r.tags["checkpoint"] for r in records if "checkpoint" in r.tags):
            self._progress.say(f"{note}: {self._names(pack)}")
        try:
            for record in records:
                self._store.check(record)
        except ValueError as error:  # a metric that cannot be stored fails the pack, not the sweep
            reason = public_line(error) if pack.shared.hides_errors else one_line(error)
            self.fail(pack, reason, traceback.format_exc())
            return
        self._waiting.setdefault(pack, []).extend(records)
        if any(record.outcome for record in records):
            self._write(pack)
        self.write_due()

    def write_due(self) -> None:
        for pack in [pack for pack in self._waiting if self._sweep.clock.is_due("write", of=pack)]:
            self._write(pack)

    def write_all(self) -> None:
        for pack in list(self._waiting):
            self._write(pack)

    def _write(self, pack: Pack) -> None:
        """Write the collected epochs of a pack to the store, charge them to the budget, and only then show them."""
        self._sweep.clock.restart("write", of=pack)
        records = self._waiting.pop(pack, ())
        self._store.log(records)
        trials = {trial.trial_key: trial for trial in pack.trials if not trial.secure}
        self._odometer.add(Release(trials[r.trial_key], r.epoch) for r in records if r.trial_key in trials)
        for record in records:
            if record.outcome:
                self._ended.add(record.trial_key)
                self._result.finished += record.outcome.status == "finished"
                self._result.diverged += record.outcome.status == "diverged"
            self._progress.record(record)

    def died(self, pack: Pack, reason: str, text: str) -> None:
        """Mark a pack's trials that have not ended after its workers died; without a name nothing was released."""
        if pack in self._named:
            self.wait(pack, self._named[pack])
        elif pack.shared.secure:
            self.fail(pack, f"{reason}; nothing of it was released", text, "interrupted")
        else:
            self.fail(pack, reason, text)

    def wait(self, pack: Pack, sealed: Sealed) -> None:
        """Report named trials whose sealed result is not to be found: they count, and are not trained for now."""
        if any(self._store.names(key) - {sealed.name} for key in pack.trial_keys):
            self.fail(pack, OTHER_NAME)
            return
        self.fail(pack, f"it counts, and nothing of it was shown: its sealed result {sealed.name}, which was named, is "
                  f"not to be found; it was in the private folder of {sealed.host}; with that folder the same command "
                  "goes on, and with `--lost` it ends the trial")

    def lose(self, pack: Pack, sealed: Sealed) -> None:
        """End named trials whose sealed result is not to be found: they count, and are never trained again."""
        self.fail(pack, f"its sealed result {sealed.name}, which was named, was given up; it counts, and is trained no "
                  "more", status="lost")

    def fail(self, pack: Pack, reason: str, text: str = "", status: str = "failed") -> None:
        """Mark the pack's open trials as ended without a result, in the store, the logs and the progress.

        `reason` shows no private record; the traceback `text`, which may, then goes to the private log alone. `status`
        is that of the runs: `failed`, `interrupted` or `lost`.
        """
        self.start(pack)  # a worker may die before its pack has started
        self._write(pack)  # which may end trials
        left = self.left(pack.trials)
        for trial in left:
            self._store.fail(trial.trial_key, reason, status)
        with contextlib.suppress(OSError):  # a full disk; the store has the reason. The log names trials still open
            self._log_failure(pack, reason, text)
        reasons = self._result.lost if status == "lost" else self._result.failed
        for trial in left:
            self._ended.add(trial.trial_key)
            reasons[trial.trial_key] = reason
            self._progress.fail(trial.trial_key, reason, status)

    def _log_failure(self, pack: Pack, reason: str, text: str) -> None:
        """Write a pack's traceback to the log; if errors may be private, to the private log, and `reason` to the other.
        """
        logs = [(self._sweep.failure_log, text)]
        if pack.shared.hides_errors:
            logs = [(self._sweep.failure_log, reason), (self._sweep.private_log, text)]
        mode = "a" if self._result.failed or self._result.lost else "w"
        for path, content in logs:
            if content:
                path.parent.mkdir(parents=True, exist_ok=True)
                with path.open(mode, encoding="utf-8") as log:
                    log.write(f"{self._names(pack)}\n{content}\n")

    def _names(self, pack: Pack) -> str:
        return ", ".join(self._progress.name(trial) for trial in self.left(pack.trials))
