"""Sweeps as jobs of Ray: `photonic sweep FILE --address http://head:8265` hands the sweep to the head of a cluster.

Here, `submit_and_follow` sends this package, the file's text and its plugins, and prints what the job prints. There,
`photonic run-job` calls `sweep_as_sent`, in the folder that was sent. The sweep lives on the head: a laptop that is
closed ends nothing, and the same command follows the job again. Only the driver's side is here; the rest of a sweep
is the same as on the head itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import hashlib
import json
import logging
import os
import re
import secrets
import shlex
import shutil
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import aiohttp
from ray.job_submission import JobDetails, JobSubmissionClient

from pipeline.experiment.experiment import Experiment, parse_experiment
from pipeline.experiment.plugins import LOADED, load_plugins
from pipeline.package import JOB, ROOT
from pipeline.sweep.checks import ResourceError
from pipeline.sweep.cluster import PACKAGE, WORKERS_OF_CLUSTER
from pipeline.sweep.progress import SweepResult
from pipeline.sweep.run import git_commit, run_sweep
from pipeline.terminal import INTERRUPTED
from pipeline.tracking.backend import redacted
from pipeline.trials.config import ConfigError
from pipeline.trials.datasets import DATASETS
from pipeline.trials.declared_table import TableSpec
from pipeline.trials.fields import refuse
from pipeline.trials.guard import one_line

Answer = TypeVar("Answer")

ORDER = "order.json"  # the file of an `Order` in what is sent
# The command of the job, for a shell: by the Python beside the head's `ray`, as the PATH may have another one first.
RUN = f'ray=$(command -v ray); exec "${{ray%ray}}python" -m pipeline run-job {ORDER}'
TRIAL_FAILED = 3  # exit code of `run-job` for failed trials; Python's own for a traceback is 1
SWEEP_CODES = {0: 0, TRIAL_FAILED: 1, 2: 2, INTERRUPTED: INTERRUPTED}  # exit code of the job -> of the command here
ASK_SECONDS = 20.0  # longest wait for an answer of the head
QUIET_SECONDS = 60.0  # silence of a log after which the head is asked whether the job still runs
LOST_SECONDS = 120.0  # time without an answer of the head after which the command here ends
PAUSE_SECONDS = 2.0  # between two questions
GO_ON = "run the same command again to go on"
FOLLOW = "the same command follows it"
# What Ray's client raises, of itself and of the libraries that it calls: one that is no Ray answers anything.
ERRORS = (RuntimeError, ConnectionError, ValueError, TypeError, KeyError, OSError, TimeoutError, aiohttp.ClientError)
PROCESS = re.compile(r"^job \S+: process (\d+) on ", re.MULTILINE)


@dataclass(frozen=True)
class Order:
    """What a job sweeps: the content of `ORDER`, in JSON. Folders are those of the head; an empty one is the default.

    Attributes:
        text: the experiment file's, with changes applied.
        plugins: name -> digest.
    """

    name: str
    text: str
    plugins: Mapping[str, str]
    checkpoint_seconds: float
    commit: str
    mlruns: str
    data: str
    private: str
    lost: bool

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.as_json().encode()).hexdigest()[:16]

    def as_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), indent=1)


def submit_and_follow(experiment: Experiment, address: str, *, mlruns: Path, data: Path | None, private: Path | None,
                      workers: int | None, lost: bool, detach: bool) -> int:
    """Sweep in a job on the cluster at `http://host:port`, or follow the job that does; return the exit code.

    With `detach` the job goes on without anybody who follows it. Ctrl-C asks the sweep to close, and waits for it.
    """
    _check(experiment, workers)
    logging.disable(logging.INFO)  # Ray's client says what it uploads
    order = Order(name=experiment.name, text=experiment.text, commit=git_commit(), lost=lost,
                  plugins={name: LOADED[name] for name in experiment.plugins},
                  checkpoint_seconds=experiment.resources.checkpoint_seconds,
                  mlruns=str(mlruns), data=str(data or ""), private=str(private or ""))
    store = _public_store()
    marks = {"sweep": order.name, "store": store, "digest": order.digest}
    head = Head(address)
    job = head.running(marks)
    if job:
        _say(f"job {job} on {address} runs this sweep")
    else:
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / ORDER).write_text(order.as_json(), encoding="utf-8")
            _copy_plugins(experiment, Path(folder))
            job = head.submit(Path(folder), marks)
        _say(f"job {job} on {address} sweeps '{order.name}', tracked in {store}; it goes on if this ends")
    if detach:
        _say(f"`photonic status {shlex.quote(order.name)}` shows it, and {FOLLOW}")
        return 0
    return Follower(head, job).follow_to_the_end()


def _check(experiment: Experiment, workers: int | None) -> None:
    """Refuse a sweep that a head cannot run as it would run here."""
    if workers is not None:
        raise ConfigError(f"workers: {WORKERS_OF_CLUSTER}, got {workers}; leave it out")
    if not experiment.plan.publishes_all:
        raise ConfigError("selection: random stopping must keep the number of its trials secret, which a job's log "
                          "shows to all who reach the cluster; sweep it on the head, with --address auto")
    text = experiment.text
    for trial in experiment.possible:
        refuse(trial.feature_file and trial.feature_file not in text, "feature_file",
               "must be an absolute path, which every node has, as no data travels with a job", trial.feature_file)
    for name in {trial.dataset for trial in experiment.possible}:
        spec = DATASETS[name].spec
        if not isinstance(spec, TableSpec):
            continue
        declared = "".join((experiment.folder / plugin).read_text(encoding="utf-8") for plugin in experiment.plugins
                           if plugin.endswith(".yaml"))
        files: dict[str, object] = {"data_file": spec.file}
        if spec.test[0] == "file":
            files["test.file"] = spec.test[1]
        for entry, path in files.items():
            refuse(str(path) not in declared, entry, f"must be an absolute path in the declaration of {name}, which "
                   "every node has, as no data travels with a job", str(path))


def _public_store() -> str:
    """Return the address of the tracking server without user and password, as a job's page shows its environment."""
    uri = os.environ.get("MLFLOW_TRACKING_URI", "")
    if not uri:
        raise ConfigError("MLFLOW_TRACKING_URI: must name a tracking server that the cluster reaches, because a job "
                          "drives the sweep from there, got none")
    if "?" in uri:
        raise ConfigError(f"MLFLOW_TRACKING_URI: must have no query, as it stands on the job's page, got "
                          f"{redacted(uri)}")
    return re.sub("(?<=://)[^/]*@", "", uri)


def _copy_plugins(experiment: Experiment, folder: Path) -> None:
    """Copy what the experiment's plugins consist of to a folder: declarations, and loaded modules beside the file.

    An installed module is not copied: every node needs it installed.
    """
    home = experiment.folder.resolve()
    files = {home / name for name in experiment.plugins if name.endswith(".yaml")}
    for module in list(sys.modules.values()) if experiment.plugins else ():
        path = Path(getattr(module, "__file__", None) or ".").resolve()
        is_beside = path.is_relative_to(home) and path.is_file() and "site-packages" not in path.parts
        if is_beside and not any(path.is_relative_to(ROOT.with_name(package)) for package in ("pipeline", "analysis")):
            files.add(path)
    for file in files:
        target = folder / file.relative_to(home)
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, target)
        except OSError as error:
            raise ConfigError(f"plugins: {file} cannot be sent ({error.strerror or error})") from None


class Head:
    """The head of a cluster, which takes jobs at `http://host:port`; what it refuses is a `ResourceError`."""

    def __init__(self, address: str) -> None:
        self.address = address
        # Ray would prefer an address in the environment to the one that is given.
        hidden = {name: os.environ.pop(name) for name in ("RAY_ADDRESS", "RAY_API_SERVER_ADDRESS")
                  if name in os.environ}
        try:
            self.client: JobSubmissionClient = self.ask(lambda: JobSubmissionClient(address))
        finally:
            os.environ.update(hidden)

    def ask(self, question: Callable[[], Answer]) -> Answer:
        """Return the answer to a call of Ray's client; an error, or no answer in time, is refused in one line."""
        try:
            return _in_thread(question).result(ASK_SECONDS)
        except ERRORS as error:
            reason = f"no answer for {ASK_SECONDS:.0f} s" if isinstance(error, TimeoutError) else one_line(error)
            raise ResourceError(f"address: no Ray that takes jobs answers at '{self.address}' ({reason}); it must be "
                                "the dashboard of a head with `pip install 'ray[default]'`, such as "
                                "http://10.0.0.1:8265; RAY_AUTH_MODE=token and RAY_AUTH_TOKEN hand in its token"
                                ) from None

    def running(self, marks: Mapping[str, str]) -> str:
        """Return the running job with these marks, empty for none; refuse one of the same sweep with another digest."""
        for job in self.ask(self.client.list_jobs):
            theirs = job.metadata or {}
            is_same_sweep = all(theirs.get(name) == marks[name] for name in ("sweep", "store"))
            if not is_same_sweep or job.status.is_terminal() or not job.submission_id:
                continue
            if theirs["digest"] != marks["digest"]:
                raise ResourceError(
                    f"address: job {job.submission_id} on '{self.address}' sweeps '{marks['sweep']}' with another "
                    "file, plugin, commit or option; wait for its end, or end it with `ray job stop "
                    f"{job.submission_id} --address {self.address}`, which loses no ended trial")
            return job.submission_id
        return ""

    def submit(self, folder: Path, marks: Mapping[str, str]) -> str:
        job = f"photonic-{marks['sweep']}-{secrets.token_hex(4)}"
        environment = {"working_dir": str(folder), **PACKAGE,
                       "env_vars": {"MLFLOW_TRACKING_URI": marks["store"], JOB: job}}
        self.ask(lambda: self.client.submit_job(entrypoint=RUN, submission_id=job, runtime_env=environment,
                                                metadata=dict(marks)))
        return job

    def interrupt(self, job: str, pid: str) -> None:
        """Ask a sweep to close, by SIGTERM to its process, from a second job beside it.

        Ray's own stop kills after 3 s, which is enough only before the sweep has begun, as without a `pid`.
        """
        if pid:
            self.ask(lambda: self.client.submit_job(entrypoint=f"kill -TERM {pid}"))
        else:
            self.ask(lambda: self.client.stop_job(job))


class Follower:
    """Prints what a job prints, each part once, over lost connections, until the job ends."""

    def __init__(self, head: Head, job: str) -> None:
        self._head, self._job = head, job
        self._printed = 0  # characters of the log
        self._begin = ""  # of the log, until the line with the pid
        self._pid = ""

    def follow_to_the_end(self) -> int:
        """Return the exit code of the sweep. Ctrl-C asks it to close; a second Ctrl-C does not wait for that."""
        try:
            return self._follow()
        except KeyboardInterrupt:
            _say(f"\nstopping: asking job {self._job} to close the sweep; Ctrl-C again leaves it to that")
        try:
            self._head.interrupt(self._job, self._pid)
            return self._follow()
        except KeyboardInterrupt:
            _say(f"job {self._job} is closing the sweep")
            return INTERRUPTED

    def _follow(self) -> int:
        """Print the log until the job ends, and return its exit code; end with an error once the head is lost."""
        answered = time.monotonic()
        was_told = False
        while True:
            with contextlib.suppress(*ERRORS):
                asyncio.run(self._print_log())
            try:
                found = self._head.ask(lambda: self._head.client.get_job_info(self._job))
            except ResourceError:
                silence = time.monotonic() - answered
                if silence > LOST_SECONDS:
                    raise ResourceError(f"address: '{self._head.address}' has not answered for {silence:.0f} s; job "
                                        f"{self._job} goes on if the head does, and {FOLLOW}") from None
                if not was_told:
                    _say(f"'{self._head.address}' does not answer; job {self._job} goes on; trying again")
                was_told = True
            else:
                if found.status.is_terminal():
                    self._print(self._head.ask(lambda: self._head.client.get_job_logs(self._job)), 0)
                    return self._exit_code(found)
                answered = time.monotonic()
                was_told = False
            time.sleep(PAUSE_SECONDS)

    async def _print_log(self) -> None:
        """Print the log from its begin, until it ends or is silent for `QUIET_SECONDS`."""
        seen = 0
        log = self._head.client.tail_job_logs(self._job)
        while (text := await asyncio.wait_for(anext(log, None), QUIET_SECONDS)) is not None:
            self._print(text, seen)
            seen += len(text)

    def _print(self, text: str, start: int) -> None:
        """Print the new part of a text, which begins at character `start` of the log, and look for the pid in it."""
        new = text[max(0, self._printed - start):]
        self._printed = max(self._printed, start + len(text))
        print(new, end="", file=sys.stderr, flush=True)
        if not self._pid:
            self._begin += new
            if match := PROCESS.search(self._begin):
                self._pid = match[1]

    def _exit_code(self, job: JobDetails) -> int:
        if job.driver_exit_code in SWEEP_CODES:
            return SWEEP_CODES[job.driver_exit_code]
        last = (job.message or "").strip().splitlines()[-1:] or ["no message"]
        raise ResourceError(f"address: job {self._job} on '{self._head.address}' ended without a result "
                            f"({job.status.value}: {last[0]}); what is tracked stays; {GO_ON}")


def sweep_as_sent(order_file: Path) -> SweepResult:
    """Sweep what an order says, in a job on the head; relative folders start at the home folder of Ray's user."""
    order = Order(**json.loads(order_file.read_text(encoding="utf-8")))
    _say(f"job {os.environ[JOB]}: process {os.getpid()} on {socket.gethostname()}")
    experiment = experiment_of(order, order_file.absolute().parent)
    os.chdir(Path.home())
    return run_sweep(experiment, root=Path(order.mlruns), address="auto", data_folder=_folder(order.data),
                     commit=order.commit, lost=order.lost, private=_folder(order.private))


def experiment_of(order: Order, folder: Path) -> Experiment:
    """Return the experiment of an order, whose plugins lie in `folder` or are installed; refuse other plugins."""
    load_plugins(tuple(order.plugins), folder)
    for name, digest in order.plugins.items():
        refuse(LOADED[name] != digest, "plugins", f"{name} must be on {socket.gethostname()} what it is where the "
               "sweep was sent from", f"the digest {LOADED[name]} in place of {digest}", "install the same there")
    # As for a stored text, nothing else is read: it was checked where it was sent from.
    experiment = parse_experiment(order.text, folder / f"{order.name}.yaml", stored=True)
    resources = dataclasses.replace(experiment.resources, checkpoint_seconds=order.checkpoint_seconds)
    return dataclasses.replace(experiment, name=order.name, resources=resources)


def _folder(path: str) -> Path | None:
    return Path(path) if path else None


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _in_thread(function: Callable[[], Answer]) -> Future[Answer]:
    """Run a function that may block for ever in a thread that no exit waits for; return the future of its result."""
    future: Future[Answer] = Future()

    def run() -> None:
        try:
            future.set_result(function())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future
