"""The only writer of a sweep: it passes the workers' records to the tracking store, the progress and the result.

The order of writes is a promise: a driver that dies at any moment finds in the store all that anybody saw. Each line
has a test, which is test_order_of_writes.py::test_each_write_comes_before_what_depends_on_it if no other is named.
Lines 1 to 4 and 11 are kept by `pipeline.sweep.run`, line 12 by `pipeline.tracking.store`, and the rest here.

1. A sweep's parent run has its budget before a trial begins.
2. A round's suggestions are stored before one of its trials begins.
3. A driver confirms that it holds the sweep before it writes to a trial.
   test_tracking.py::test_of_drivers_that_begin_at_the_same_time_on_two_hosts_one_goes_on
4. It looks at least every heartbeat, and before its last writes, whether it still holds the sweep.
   test_sweep.py::test_a_driver_that_stood_still_looks_whose_the_sweep_is_before_it_writes
5. A trial's run is begun before its first step.
6. A draw of secret noise is charged before noise is drawn.
7. An epoch with secret noise is stored before anybody sees it, and its time, by which epochs are counted, comes first.
   test_redraws.py::test_what_is_shown_is_in_the_store_before, test_redraws.py::test_the_clock_is_written_first
8. The last epoch of a trial is stored before its checkpoint is removed.
9. The charge of a failure is stored before the failure is told.
   test_redraws.py::test_a_failure_is_paid_for_before_it_is_seen
10. The epochs that a pack has sent are stored before its failure.
    test_sweep.py::test_a_pack_that_fails_keeps_the_epochs_that_waited
11. All sent epochs are stored before the sweep is closed, after Ctrl-C too.
    test_order_of_writes.py::test_what_waits_is_written_before_the_sweep_is_closed
12. What a trial of another sweep released is charged here before the trial counts as taken over.
    test_reuse.py::test_a_driver_that_dies_while_it_takes_over_leaves_no_trial_half_taken
"""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from pipeline.accounting import account, describe
from pipeline.sweep.checks import NOT_RECORDED
from pipeline.sweep.ledger import Ledger
from pipeline.sweep.prepare import Sweep
from pipeline.sweep.reuse import in_words
from pipeline.tracking.artifacts import LOST, REFUSED
from pipeline.trials.config import TrialConfig
from pipeline.trials.feedback import COLOURS
from pipeline.trials.guard import one_line, public_line
from pipeline.trials.naming import method, short_name
from pipeline.trials.packs import Pack
from pipeline.trials.records import DESCRIPTION, Draw, EpochRecord

DRAWN = ("this is draw {number} of its noise, as {earlier} epochs of earlier draws were released; epsilon composes all "
         "of them")

RUN_COLOUR = "mlflow.runColor"  # tag that MLflow's page reads


class Recorder:
    """Writes every epoch of every trial to the store; the store takes each once, even if workers repeat them.

    MLflow takes as long for one epoch as for many. So a pack's epochs are collected, and written some time after the
    last write for the pack. An epoch with the end of a trial is written at once. If this process is killed,
    collected epochs are sent or trained again when the sweep resumes. Epochs with secret noise are written at once:
    nobody sees an epoch that the store does not have, so the store knows all releases.
    """

    def __init__(self, sweep: Sweep, ledger: Ledger, tags: Mapping[str, str]) -> None:  # tags: of every trial
        self._sweep, self._ledger, self._tags = sweep, ledger, tags
        self._store, self._progress, self._result = sweep.store, sweep.progress, sweep.result
        self._round: Sequence[TrialConfig] = ()
        self._earlier_draws: dict[str, list[int]] = {}  # trials with a permitted draw: epochs of each earlier draw
        self._started: set[str] = set()
        self._ended = set(sweep.done)  # trial_keys; later records of these trials are ignored
        self._waiting: dict[Pack, list[EpochRecord]] = {}

    def start(self, pack: Pack) -> None:
        """Note that a worker starts a pack, for the first time or again after a worker died."""
        self._sweep.clock.restart("write", of=pack)
        for trial in pack.trials:
            if trial.trial_key not in self._started and trial.trial_key not in self._ended:
                name = short_name(trial, also=self._sweep.experiment.varied)
                self._store.start(trial, tags=self._public_tags(trial), name=name)
                self._started.add(trial.trial_key)
                self._progress.start(trial)

    def _public_tags(self, trial: TrialConfig) -> dict[str, str]:
        """Return a trial's tags; digests of plugins, which may contain records, only if its metrics are plain."""
        colour = {RUN_COLOUR: COLOURS[name]} if (name := method(trial)) in COLOURS else {}
        hidden = {} if trial.disclosure == "plain" else {
            name: NOT_RECORDED for name in self._tags if name.startswith("plugin.")}
        return {**self._tags, **hidden, **colour}

    def begin_round(self, trials: Sequence[TrialConfig]) -> None:
        """Count the trials of a round as started in the sweep's budget."""
        self._round = trials
        self._ledger.begin(trials)

    def take_over(self, trials: Iterable[TrialConfig]) -> bool:
        """Take over the trials that a sweep of `reuse` has trained, each once; return whether there were any."""
        others = self._sweep.elsewhere
        taken = {trial: others[trial.trial_key] for trial in self.left(trials) if trial.trial_key in others}
        for trial, other in taken.items():
            self._store.take_over(trial, other, short_name(trial, also=self._sweep.experiment.varied))
            self._ended.add(trial.trial_key)
        if taken:
            self._ledger.read_again()
            self._progress.say(f"taken over, not trained again: {in_words(taken.values())}")
        return bool(taken)

    @property
    def unfinished(self) -> list[TrialConfig]:
        """Trials of the current round that have not ended."""
        return self.left(self._round)

    def left(self, trials: Iterable[TrialConfig]) -> list[TrialConfig]:
        """Return the trials that have not ended."""
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

    def begin_draw(self, pack: Pack, draw: Draw) -> bool:
        """Whether a worker may draw secret noise, or resume; if so the charge is stored, else the pack failed."""
        self.start(pack)
        left = self.left(pack.trials)
        refusal = self._ledger.refusal(left, draw, self.unfinished)
        if refusal:
            self._fail(pack, refusal.reason, "", {key: {REFUSED: refusal.reason} for key in refusal.over_budget})
            return False
        for trial in left:
            key, before = trial.trial_key, self._ledger.before(trial, draw)
            if self._ledger.is_live(trial, draw):
                self._store.give_up(key)
                self._started.discard(key)
                self.start(pack)
            self._store.begin_draw(key, draw.name, before)
            self._earlier_draws[key] = before
            if before and not draw.epoch:
                self._progress.say(f"drawn anew, for the {len(before) + 1}. time: {self._progress.name(trial)}")
        self._ledger.read_again()
        return True

    def record(self, pack: Pack, records: Iterable[EpochRecord], seconds: float) -> None:
        """Record epochs of a pack; some may be repeated. `seconds` is the training time of these epochs."""
        self._result.compute_seconds += seconds
        trials = {trial.trial_key: trial for trial in pack.trials}
        records = [self._composed(trials[r.trial_key], r) for r in records if r.trial_key not in self._ended]
        if not records:
            return
        for note in dict.fromkeys(r.tags["checkpoint"] for r in records if "checkpoint" in r.tags):
            self._progress.say(f"{note}: {self._names(pack)}")
        try:
            for record in records:
                self._store.check(record)
        except ValueError as error:  # a metric that cannot be stored fails the pack, not the sweep
            self.fail(pack, (public_line if pack.shared.hides_errors else one_line)(error), traceback.format_exc())
            return
        self._waiting.setdefault(pack, []).extend(records)
        if pack.shared.secure or any(record.outcome for record in records):
            self._write(pack)
        self.write_due()
        for record in records:
            if record.outcome:
                self._ended.add(record.trial_key)
                self._result.finished += record.outcome.status == "finished"
                self._result.diverged += record.outcome.status == "diverged"
            self._progress.record(record)

    def write_due(self) -> None:
        """Write the epochs of packs without a write for some time."""
        for pack in [pack for pack in self._waiting if self._sweep.clock.is_due("write", of=pack)]:
            self._write(pack)

    def write_all(self) -> None:
        for pack in list(self._waiting):
            self._write(pack)

    def _write(self, pack: Pack) -> None:
        """Write the collected epochs of a pack to the store, and charge them to the budget."""
        self._sweep.clock.restart("write", of=pack)
        records = self._waiting.pop(pack, ())
        self._store.log(records)
        self._ledger.add(records)

    def _composed(self, trial: TrialConfig, record: EpochRecord) -> EpochRecord:
        """Return an epoch's record with the epsilon of all draws of secret noise of its trial, composed."""
        earlier_draws = self._earlier_draws.get(record.trial_key)  # released epochs of each
        if not earlier_draws:
            return record
        earlier = sum(earlier_draws)
        epochs = trial.epochs if record.outcome else record.epoch  # an early end is visible, and so costs all epochs
        metrics = {name: value for name, value in record.metrics.items() if not name.startswith("epsilon/")}
        metrics |= {e.metric_name: e.value for e in account(trial, earlier + epochs) if e.is_finite}
        tags = dict(record.tags)
        if tags.get("privacy.notes"):
            tags["privacy.notes"] += f"; {DRAWN.format(number=len(earlier_draws) + 1, earlier=earlier)}"
        if DESCRIPTION in tags:
            tags[DESCRIPTION] = describe(trial, earlier)
        return replace(record, metrics=metrics, tags=tags)

    def fail(self, pack: Pack, reason: str, text: str) -> None:
        """Mark a pack's trials that have not ended as failed, and log the traceback `text`.

        A trial with secret noise is charged for all its epochs, as the failure itself may tell of their noise: the tag
        `LOST` has the number of epochs that it never published.
        """
        with_secret_noise = [trial for trial in self.left(pack.trials) if trial.trial_key in self._earlier_draws]
        tags = {trial.trial_key: {LOST: str(self._ledger.lost(trial))} for trial in with_secret_noise}
        self._fail(pack, reason, text, tags)

    def died(self, pack: Pack, reason: str, text: str) -> None:
        """Mark the pack's trials as failed after its worker died; the machine is outside the guarantee: no charge."""
        self._fail(pack, reason, text, {})

    def _fail(self, pack: Pack, reason: str, text: str, tags: Mapping[str, Mapping[str, str]]) -> None:
        """Mark the pack's trials that have not ended as failed, in the store, the logs and the progress.

        The store comes first: a failure may depend on secret noise, so it is shown only after its charge (`tags`) is
        recorded. `reason` may be public; the traceback `text` goes to the private log alone if errors may be private.
        """
        self.start(pack)  # a worker may die before its pack has started
        self._write(pack)
        left = self.left(pack.trials)
        names = self._names(pack)
        for trial in left:
            self._store.fail(trial.trial_key, reason, tags.get(trial.trial_key))
        if tags:
            self._ledger.read_again()
        # The failure becomes visible only now, after the store has its charge.
        logs = [(self._sweep.failure_log, text)]
        if pack.shared.hides_errors:
            logs = [(self._sweep.failure_log, reason), (self._sweep.private_log, text)]
        with contextlib.suppress(OSError):  # a full disk; the store has the reason
            mode = "a" if self._result.failed else "w"
            for path, content in logs:
                if content:
                    path.parent.mkdir(parents=True, exist_ok=True)
                    with path.open(mode, encoding="utf-8") as log:
                        log.write(f"{names}\n{content}\n")
        for trial in left:
            self._ended.add(trial.trial_key)
            self._result.failed[trial.trial_key] = reason
            self._progress.fail(trial.trial_key, reason)

    def _names(self, pack: Pack) -> str:
        """Return the names of the pack's trials that have not ended."""
        return ", ".join(self._progress.name(trial) for trial in self.left(pack.trials))
