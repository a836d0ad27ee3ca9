"""The command `photonic audit`: attack trials, print what is found, and log the findings that may be published."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from pipeline.auditing.audit import Finding, audit_experiment, audit_trial, findings_to_log, table
from pipeline.experiment.experiment import load_experiment
from pipeline.tracking.artifacts import config_of
from pipeline.tracking.store import Store
from pipeline.trials.config import ConfigError

LOG_FILE = "audit.txt"  # artifact of the sweep or of the trial


def audit_file(path: str, number: int | None, data_folder: Path | None, steps: int,
               store_folder: Path | None) -> list[Finding]:
    """Attack a file's trials, or its trial `number`; print and return all findings, and log the publishable ones."""
    experiment = load_experiment(path)
    store = None
    if store_folder:
        store = Store(root=store_folder, create=False)
        store.attach(experiment.name)
    findings = list(audit_experiment(experiment, number, data_folder, steps))
    print(table(findings))
    if store:
        with _log_file(_publishable(findings)) as file:
            store.log_report([file])
    return findings


def audit_run(run: str, data_folder: Path | None, steps: int, store_folder: Path) -> list[Finding]:
    """Attack the trial of a trial_key or MLflow run id; print and return all findings, and log the publishable ones.

    A trial with plugins is refused, because code that a store names is never imported.
    """
    store = Store(root=store_folder, create=False)
    tracked_run = store.trial(run)
    plugins = [tag.removeprefix("plugin.") for tag in tracked_run.tags if tag.startswith("plugin.")]
    if plugins:
        raise ConfigError(f"{run}: must be a trial without plugins, as nothing that a store names is imported, got one "
                          f"with {', '.join(plugins)}; audit it by its experiment file "
                          "(`photonic audit FILE --trial N`)")
    findings = audit_trial(config_of(tracked_run), data_folder, steps)
    print(table(findings))
    public = _publishable(findings)
    with _log_file(public) as file:
        store.log_audit(tracked_run.run_id, *findings_to_log(public), file)
    return findings


def _publishable(findings: Sequence[Finding]) -> list[Finding]:
    """Return the findings that may be logged, and print a note if some are left out."""
    public = [finding for finding in findings if finding.public]
    if len(public) < len(findings):
        print(f"logged: {len(public)} of {len(findings)} rows; the others are computed from private records of trials "
              "whose private_metrics are not plain, and no epsilon covers them")
    return public


@contextlib.contextmanager
def _log_file(findings: Sequence[Finding]) -> Iterator[Path]:
    """Yield a temporary file `LOG_FILE` with the table of these findings; it is deleted afterwards."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, LOG_FILE)
        file.write_text(table(findings) + "\n", encoding="utf-8")
        yield file
