"""The only writer of a sweep: passes the workers' records to the tracking store, the progress and the result."""

from __future__ import annotations

import contextlib
import platform
import subprocess
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path

from pipeline.accounting import account, describe
from pipeline.package import ROOT
from pipeline.sweep.draws import Draws
from pipeline.sweep.progress import SweepProgress
from pipeline.sweep.search import Odometer
from pipeline.sweep.worker import one_line, public_line
from pipeline.tracking.artifacts import LOST, REFUSED
from pipeline.tracking.store import Store
from pipeline.trials.config import TrialConfig
from pipeline.trials.naming import counted, duration, run_name, short_name
from pipeline.trials.packs import Pack
from pipeline.trials.records import DESCRIPTION, Draw, EpochRecord

WRITE_SECONDS = 1.0
NOT_RECORDED = "not recorded"
DRAWN = ("this is draw {number} of its noise, as {earlier} epochs of earlier draws were released; epsilon composes all "
         "of them")


@dataclass
class SweepResult:
    """Result of a sweep: numbers of trials, those that this sweep trained by status."""

    planned: int  # of the grid
    skipped: int = 0  # done before
    finished: int = 0
    diverged: int = 0
    stopped: int = 0
    failed: dict[str, str] = field(default_factory=dict)  # trial_key -> reason in one line
    passed_over: int = 0  # in a search, suggestions without a trial of their own
    held_back: int = 0  # in a search, suggestions that wait until a failed trial is done
    wall_seconds: float = 0.0
    compute_seconds: float = 0.0  # of training alone, summed over packs

    @property
    def remaining(self) -> int:
        """Number of trials that did not end, because the sweep was interrupted."""
        no_trial = self.passed_over + self.held_back
        return self.planned - no_trial - self.skipped - self.ended - len(self.failed)

    @property
    def ended(self) -> int:
        """Number of trials that ended in this sweep."""
        return self.finished + self.diverged + self.stopped

    def summary(self, failure_log: Path) -> str:
        """Return the result of a sweep as a line for people, with the file of tracebacks."""
        if self.skipped + self.passed_over == self.planned:
            if not self.skipped:
                return f"nothing to do: none of {counted(self.planned, 'suggestion')} fits the budget"
            done = "the trial is" if self.skipped == 1 else f"all {self.skipped} trials are"
            return f"nothing to do: {done} done"
        counts = {"done before": self.skipped, "finished": self.finished, "diverged": self.diverged,
                  "stopped early": self.stopped, "failed": len(self.failed), "passed over": self.passed_over}
        parts = [f"{count} {status}" for status, count in counts.items() if count]
        ended = ", ".join(parts) if parts else "none ended"
        text = (f"{counted(self.planned, 'trial')}: {ended}, in {duration(self.wall_seconds)} "
                f"({duration(self.compute_seconds)} of training)")
        if self.failed:
            text += f"; tracebacks are in {failure_log}; run the same command again to try the failed trials again"
        if self.held_back:
            text += f", and then to ask for the {self.held_back} suggestions that depend on them"
        if self.remaining:
            text += f"; interrupted with {self.remaining} left: run the same command again to continue"
        return text


class Recorder:
    """Writes every epoch of every trial to the store; the store takes each once, even if workers repeat them.

    MLflow takes as long for one epoch as for many. So a pack's epochs are collected, and written `wait` seconds after
    the last write for the pack. An epoch with the end of a trial is written at once. If this process is killed,
    collected epochs are sent or trained again when the sweep resumes. Epochs with secret noise are written at once:
    nobody sees an epoch that the store does not have, so the store knows all releases.
    """

    def __init__(self, store: Store, progress: SweepProgress, result: SweepResult,
                 failure_log: Path,  # for the tracebacks of failed packs, created on the first failure
                 tags: Mapping[str, str],  # of every trial
                 name: Callable[[TrialConfig], str] = run_name,  # of a trial in messages
                 done: Iterable[str] = (),  # trial_keys of trials that were done before; later records are ignored
                 short: Callable[[TrialConfig], str] = short_name,  # of a trial in the store
                 odometer: Odometer | None = None,  # gets the written epochs, in a sweep with a budget
                 # 0 if scores decide which trials are promoted: the store never has a score's effect without the score
                 wait: float = WRITE_SECONDS, draws: Draws | None = None,
                 private_log: Path | None = None) -> None:  # for tracebacks with numbers that noise protects
        self._store, self._progress, self._result = store, progress, result
        self._failure_log, self._tags, self._name, self._short = failure_log, tags, name, short
        self._odometer, self._wait = odometer, wait
        self._draws = draws or Draws(store, None, False, lambda: ())  # by default no second draw
        self._private_log = private_log or failure_log
        self._earlier_draws: dict[str, list[int]] = {}  # trials with a permitted draw: epochs of each earlier draw
        self._started: set[str] = set()
        self._ended: set[str] = set(done)
        self._waiting: dict[Pack, list[EpochRecord]] = {}
        self._written: dict[Pack, float] = {}  # time of the last write for a pack

    def start(self, pack: Pack) -> None:
        """Note that a worker starts a pack, for the first time or again after a worker died."""
        self._written[pack] = time.monotonic()
        for config in pack.trials:
            if config.trial_key not in self._started and config.trial_key not in self._ended:
                self._store.start(config, tags=self._public_tags(config), name=self._short(config))
                self._started.add(config.trial_key)
                self._progress.start(config)

    def _public_tags(self, config: TrialConfig) -> dict[str, str]:
        """Return a trial's tags; digests of plugins, which may contain records, only if its metrics are plain."""
        if config.disclosure == "plain":
            return dict(self._tags)
        return {name: NOT_RECORDED if name.startswith("plugin.") else text for name, text in self._tags.items()}

    def left(self, trials: Iterable[TrialConfig]) -> list[TrialConfig]:
        """Return the trials that have not ended."""
        return [config for config in trials if config.trial_key not in self._ended]

    def not_deleted(self, missing: Sequence[TrialConfig]) -> list[TrialConfig]:
        """Return the missing trials that have not ended in this sweep; report the others, whose runs were deleted."""
        deleted = [config for config in missing if config.trial_key in self._ended]
        if deleted:
            self._progress.say(f"deleted while the sweep ran: {', '.join(map(self._name, deleted))}; run the same "
                               "command again to train what is missing")
        return self.left(missing)

    def restart(self, pack: Pack) -> None:
        """Note that a worker died: the pack restarts from its checkpoint or from its first epoch."""
        self._write(pack)
        self._progress.say(f"a worker died; starting again: {self._names(pack)}")

    def begin_draw(self, pack: Pack, draw: Draw) -> bool:
        """Whether a worker may draw secret noise, or resume; if so the charge is stored, else the pack failed."""
        self.start(pack)
        left = self.left(pack.trials)
        reason, refused = self._draws.refusal(left, draw)
        if reason:
            self._fail(pack, reason, "", {key: {REFUSED: reason} for key in refused})
            return False
        for config in left:
            key, before = config.trial_key, self._draws.before(config, draw)
            if self._draws.is_live(config, draw):
                self._store.give_up(key)
                self._started.discard(key)
                self.start(pack)
            self._store.begin_draw(key, draw.name, before)
            self._earlier_draws[key] = before
            if before and not draw.epoch:
                self._progress.say(f"drawn anew, for the {len(before) + 1}. time: {self._name(config)}")
        if self._odometer:
            self._odometer.read_again()
        return True

    def record(self, pack: Pack, records: Iterable[EpochRecord], seconds: float) -> None:
        """Record epochs of a pack; some may be repeated. `seconds` is the training time of these epochs."""
        self._result.compute_seconds += seconds
        configs = {config.trial_key: config for config in pack.trials}
        records = [self._composed(configs[r.trial_key], r) for r in records if r.trial_key not in self._ended]
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
        if pack.shared.draws_fresh_noise or any(record.outcome for record in records):
            self._write(pack)
        self.write_due()
        for record in records:
            if record.outcome:
                self._ended.add(record.trial_key)
                self._result.finished += record.outcome.status == "finished"
                self._result.diverged += record.outcome.status == "diverged"
                self._result.stopped += record.outcome.status == "stopped"
            self._progress.record(record)

    def write_due(self) -> None:
        """Write the epochs of packs without a write for `wait` seconds."""
        now = time.monotonic()
        for pack in [p for p in self._waiting if now - self._written[p] >= self._wait]:
            self._write(pack)

    def write_all(self) -> None:
        for pack in list(self._waiting):
            self._write(pack)

    def _write(self, pack: Pack) -> None:
        """Write the collected epochs of a pack to the store, and charge them to the budget."""
        self._written[pack] = time.monotonic()
        records = self._waiting.pop(pack, ())
        self._store.log(records)
        if self._odometer:
            self._odometer.add(records)

    def _composed(self, config: TrialConfig, record: EpochRecord) -> EpochRecord:
        """Return an epoch's record with the epsilon of all draws of secret noise of its trial, composed."""
        earlier_draws = self._earlier_draws.get(record.trial_key)  # released epochs of each
        if not earlier_draws:
            return record
        earlier = sum(earlier_draws)
        epochs = config.epochs if record.outcome else record.epoch  # an early end is visible, and so costs all epochs
        metrics = {name: value for name, value in record.metrics.items() if not name.startswith("epsilon/")}
        metrics |= {e.metric_name: e.value for e in account(config, earlier + epochs) if e.is_finite}
        tags = dict(record.tags)
        if tags.get("privacy.notes"):
            tags["privacy.notes"] += f"; {DRAWN.format(number=len(earlier_draws) + 1, earlier=earlier)}"
        if DESCRIPTION in tags:
            tags[DESCRIPTION] = describe(config, earlier)
        if_stopped = record.if_stopped and self._composed(config, record.if_stopped)
        return replace(record, metrics=metrics, tags=tags, if_stopped=if_stopped)

    def fail(self, pack: Pack, reason: str, text: str) -> None:
        """Mark a pack's trials that have not ended as failed, and log the traceback `text`.

        A trial with secret noise is charged for all its epochs, as the failure itself may tell of their noise: the tag
        `LOST` has the number of epochs that it never published.
        """
        with_secret_noise = [config for config in self.left(pack.trials) if config.trial_key in self._earlier_draws]
        tags = {config.trial_key: {LOST: str(self._draws.lost(config))} for config in with_secret_noise}
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
        for config in left:
            self._store.fail(config.trial_key, reason, tags.get(config.trial_key))
        if self._odometer and tags:
            self._odometer.read_again()
        # The failure becomes visible only now, after the store has its charge.
        logs = [(self._failure_log, text)]
        if pack.shared.hides_errors:
            logs = [(self._failure_log, reason), (self._private_log, text)]
        with contextlib.suppress(OSError):  # a full disk; the store has the reason
            mode = "a" if self._result.failed else "w"
            for path, content in logs:
                if content:
                    path.parent.mkdir(parents=True, exist_ok=True)
                    with path.open(mode, encoding="utf-8") as log:
                        log.write(f"{names}\n{content}\n")
        for config in left:
            self._ended.add(config.trial_key)
            self._result.failed[config.trial_key] = reason
            self._progress.fail(config.trial_key, reason)

    def _names(self, pack: Pack) -> str:
        """Return the names of the pack's trials that have not ended."""
        return ", ".join(self._name(config) for config in self.left(pack.trials))


def git_commit() -> str:
    """Return the commit of this code, with `-dirty` if files have changed; `unknown` outside a repository."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True,
                              check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def versions() -> str:
    """Return the installed versions, as `python 3.11.7, torch 2.13.0, ray 2.60.0, mlflow 3.17.2`."""
    packages = (f"{name} {version(name)}" for name in ("torch", "ray", "mlflow"))
    return ", ".join([f"python {platform.python_version()}", *packages])
