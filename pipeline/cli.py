"""The commands of `photonic`: their options, actions and exit codes."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import io
import os
import re
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pipeline import machine, terminal
from pipeline.experiment.experiment import Experiment, load_experiment, sliced
from pipeline.experiment.yaml_text import parse_yaml
from pipeline.sweep.target import find_experiment, with_past
from pipeline.trials import knobs
from pipeline.trials.config import ConfigError, settings
from pipeline.trials.fields import UserError
from pipeline.trials.guard import is_of_users, one_line
from pipeline.trials.part import owners_text

if TYPE_CHECKING:
    from analysis.report.report import Report
    from pipeline.sweep.progress import SweepResult
    from pipeline.tracking.reader import Reader

# Exit codes: 0 done; 1 a trial or an exhibit failed or an audit exceeds its epsilon; 2 refused or impossible (one line
# says why); 130 interrupted.
REFUSED = 2
MAKE_ROOM = "make room and run the same command again to go on"  # where a disk, a quota or memory is full
WATCH_SECONDS = 5.0  # between two updates of `status --watch`


@click.group(cls=terminal.Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="photonic-dfa", message="photonic %(version)s")
@click.pass_context
def photonic(context: click.Context) -> None:
    """Sweeps for private training with direct feedback alignment."""
    if context.invoked_subcommand != "doctor":
        machine.refuse(machine.ends_commands())


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # an encoding without ε, as on Windows, ends no command
    os.environ["MPLBACKEND"] = "Agg"  # figures are files, also where a notebook's backend is inherited
    try:
        # click's own `main` has other exit codes for a closed output and for an interruption.
        with photonic.make_context("photonic", list(sys.argv[1:] if arguments is None else arguments)) as context:
            return photonic.invoke(context)
    except click.UsageError as error:
        error.show()
        return REFUSED
    except click.exceptions.Exit as ended:  # after --help or --version
        return ended.exit_code
    except BrokenPipeError:  # the reader of the output, `head` for example, has closed it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        print("interrupted; run the same command again to go on", file=sys.stderr)
        return terminal.INTERRUPTED
    except Exception as error:
        print(f"error: {_error_text(error)}", file=sys.stderr)
        return REFUSED


def _error_text(error: Exception) -> str:
    """Return one line on an error of the input, of users' code or of this machine; raise any other, a fault of ours."""
    if isinstance(error, MemoryError):
        return f"out of memory; {MAKE_ROOM}"
    if isinstance(error, UserError):
        return str(error)
    if is_of_users(error):
        return one_line(error)
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.ENOMEM):
        return f"{error}; {MAKE_ROOM}"
    if isinstance(error, OSError) and error.filename is not None:
        remedy = "; it must be in a folder that you may read and write" if isinstance(error, PermissionError) else ""
        return f"{error.filename}: {(error.strerror or '').lower()}{remedy}"
    raise error


@photonic.command()
@click.argument("file", type=Path, metavar="FILE", help="to write, for example mine.yaml")
@click.option("--dataset", metavar="NAME", help="data set (default: fashion_mnist)")
@click.option("--features", metavar="NAME", help="pixels, or a public map of records such as patches (default: pixels)")
@click.option("--private", metavar="WHAT", help="records (features and labels), labels, or nothing (default: records)")
@click.option("--epsilon", "epsilons", metavar="E,E,...", help="epsilons to train at (default: 1,3,8)")
@click.option("--minutes", metavar="N", help="that training may take here; decides how many algorithms are compared "
              "(default: 10)")
@click.option("--csv", type=Path, metavar="TABLE", help="your own table (CSV or Parquet): also writes a declaration of "
              "its columns, which you confirm")
@click.option("--label", metavar="COLUMN", help="with --csv: the column of the class")
def init(file: Path, csv: Path | None, label: str | None, **given: str | None) -> int:
    """Write a first experiment file that trains; what no option says is asked, where a person can answer, and else as
    by default."""
    from pipeline.sweep import first_file

    if (csv is None) != (label is None):
        raise ConfigError("--csv: must go with --label, got one without the other")
    if csv and any(given.values()):
        raise ConfigError("--csv: must go with --label and no other option, got others; edit the file that it writes")
    if csv and label:
        return _print_lines(first_file.write_for_table(file, csv, label))
    answers = first_file.read_answers(given, input if sys.stdin.isatty() else lambda question: "")  # "": by default
    return _print_lines(first_file.write(file, answers))


@photonic.command()
@terminal.with_target
@terminal.with_changes
@terminal.with_store
@click.option("--dry-run", is_flag=True, help="print an estimate, packs and resources, and end")
@click.option("--json", "as_json", is_flag=True, help="with --dry-run: as JSON, with every trial, for scripts")
@click.option("--workers", type=int, metavar="N", help="cores to use on this machine (default: all)")
@click.option("--address", metavar="ADDRESS", help="Ray cluster: 'auto' or 'host:port' where this machine is part of "
              "it, 'http://host:8265' from outside, as a job on its head (default: RAY_ADDRESS, else a local one is "
              "started)")
@click.option("--detach", is_flag=True, help="with http://host:8265: leave the job alone once it is submitted; the "
              "same command without it follows it")
@click.option("--checkpoint-seconds", type=float, metavar="S", help="least time between two checkpoints of a pack "
              "(default: resources.checkpoint_seconds, 30)")
@click.option("--lost", is_flag=True, help="end trials with secret noise whose sealed result was named and cannot be "
              "found; they count, and are never trained again")
@terminal.with_private
@terminal.with_data
def sweep(target: str, changes: tuple[str, ...], mlruns: Path, dry_run: bool, as_json: bool, workers: int | None,
          address: str | None, detach: bool, checkpoint_seconds: float | None, lost: bool, private: Path | None,
          data: Path | None) -> int:
    """Train the trials of an experiment that are not done yet.

    The exit code is 1 if a trial failed, and 130 if trials remain.
    """
    experiment = _reported(find_experiment(target, _assignments("--set", changes), mlruns))
    if workers is not None and workers < 1:
        raise ConfigError(f"--workers: must be at least 1, got {workers}")
    if checkpoint_seconds is not None:
        resources = dataclasses.replace(experiment.resources, checkpoint_seconds=checkpoint_seconds)
        experiment = dataclasses.replace(experiment, resources=resources)

    if dry_run:
        from pipeline.sweep import dry_run as previews

        if address:
            raise ConfigError(f"--address: must be left out with --dry-run, which is of this machine, got {address}")
        preview = previews.preview(experiment, workers, mlruns)
        return _print_lines([previews.as_json(preview)] if as_json else previews.as_lines(preview))
    if as_json:
        raise ConfigError("--json: is what --dry-run prints, got it without")

    from pipeline.sweep.cluster import is_of_jobs, read_address

    cluster = read_address(address)
    if is_of_jobs(cluster):
        from pipeline.sweep.jobs import submit_and_follow

        return submit_and_follow(experiment, cluster, mlruns=mlruns, data=data, private=private, workers=workers,
                                 lost=lost, detach=detach)
    if detach:
        raise ConfigError("--detach: must go with --address http://host:8265, which hands the sweep to a cluster, got "
                          f"{cluster}")

    from pipeline.sweep.run import run_sweep

    with terminal.quick_interrupt():
        return _code(run_sweep(experiment, root=mlruns, data_folder=data, address=address, workers=workers, lost=lost,
                               private=private))


def _reported(experiment: Experiment) -> Experiment:
    """Return the experiment, unless its file lists an exhibit that cannot show its trials, which is refused."""
    from analysis.catalogue import check

    check(experiment)
    return experiment


def _code(result: SweepResult, failed: int = 1) -> int:
    if result.remaining:
        return terminal.INTERRUPTED
    return failed if result.failed or result.lost else 0


@photonic.command(hidden=True)
@click.argument("order", type=Path)
def run_job(order: Path) -> int:
    """Sweep what `photonic sweep --address http://host:8265` has sent: the command of the job on the head."""
    from pipeline.sweep.jobs import TRIAL_FAILED, sweep_as_sent

    with terminal.quick_interrupt():
        return _code(sweep_as_sent(order), TRIAL_FAILED)


@photonic.command()
@click.argument("target", required=False, metavar="[FILE|NAME]", help="experiment file, or the name of a sweep in the "
                "store (default: all experiments in the store, as far as it knows them)")
@terminal.with_changes
@terminal.with_store
@terminal.with_private
@click.option("--watch", is_flag=True, help="look again every 5 s, as long as a sweep runs")
@click.option("--json", "as_json", is_flag=True, help="as JSON, for scripts")
def status(target: str | None, changes: tuple[str, ...], mlruns: Path, private: Path | None, watch: bool,
           as_json: bool) -> int:
    """Which trials are done, running, failed, diverged or missing, and why."""
    from pipeline.sweep import status as sweep_status
    from pipeline.tracking.reader import Reader

    if as_json and watch:
        raise ConfigError("--json: is printed once, got it with --watch")
    if changes and not target:
        raise ConfigError(f"--set: changes what FILE says, got none with {' '.join(changes)}")
    experiment = find_experiment(target, _assignments("--set", changes), mlruns) if target else None
    store = Reader(root=mlruns)
    arguments = [target] if target else []  # of the command that the state of a sweep suggests
    for change in changes:
        arguments += ["--set", change]

    def print_states() -> bool:
        """Print the state of every sweep; return whether any sweep is running."""
        if experiment:
            states = [sweep_status.read(store, experiment.name, experiment, arguments, private)]
            refusals: list[str] = []
        else:
            states, refusals = sweep_status.read_all(store, private)
        if watch and sys.stdout.isatty():
            print("\x1b[2J\x1b[H", end="")  # terminal codes: erase everything, and move the cursor to the top left
        if as_json:
            print(sweep_status.as_json(states), flush=True)
            for line in refusals:
                print(line, file=sys.stderr)
        else:
            print(sweep_status.as_text(states, refusals), flush=True)
        return any(state.running for state in states)

    if not watch:
        print_states()
        return 0
    with contextlib.suppress(KeyboardInterrupt):
        while print_states():
            time.sleep(WATCH_SECONDS)
    return 0


@photonic.command()
@terminal.with_target
@click.argument("other", required=False, metavar="[FILE|NAME]", help="another, to compare it with")
@terminal.with_changes
@terminal.with_store
@click.option("--mlruns-b", type=Path, metavar="DIR", help="folder of the tracking store of the second, for example of "
              "another commit's checkout")
@click.option("--out", type=Path, metavar="DIR", help="folder to write (default: reports/<name> or "
              "reports/<name>-and-<name>)")
@click.option("--with", "results", type=Path, multiple=True, metavar="CSV", help="mark results of others in the "
              "frontier, a row each: dataset, method, epsilon, delta, relation, seed (or empty), accuracy (a fraction) "
              "and source; may be repeated")
@click.option("--where", multiple=True, metavar="FIELD=VALUE", help="only trials with this value, or one of [A, B]; "
              "may be repeated; has its own folder")
@click.option("--width", type=float, default=0.0, metavar="INCHES", help="width of every figure, with text of "
              "unchanged size and legends below, for example 3.25")
@click.option("--font", default="", metavar="FAMILY", help="font of figures, for example 'DejaVu Serif'")
@click.option("--format", "formats", default="svg,pdf,png", metavar="A,B", show_default=True,
              help="formats of figures: svg, pdf, png, eps")
def report(target: str, other: str | None, changes: tuple[str, ...], mlruns: Path, mlruns_b: Path | None,
           out: Path | None, results: tuple[Path, ...], where: tuple[str, ...], width: float, font: str,
           formats: str) -> int:
    """Page, tables and figures of a swept experiment, or of how two differ.

    The exit code is 1 if drawing an exhibit raised an error.
    """
    from analysis.report import report as single
    from analysis.style import FigureFiles, written_as
    from pipeline.tracking.reader import Reader
    from pipeline.tracking.store import Store

    if mlruns_b and not other:
        raise ConfigError(f"--mlruns-b: is the store of a second experiment, and only one was given, got {mlruns_b}")
    experiment = _reported(find_experiment(target, _assignments("--set", changes), mlruns))
    store = Reader(root=mlruns)
    experiment = _with_suggestions(experiment, store)

    with written_as(FigureFiles(tuple(formats.split(",")), width, font, experiment.report.labels)):
        if other:
            for option, values in (("--set", changes), ("--where", where), ("--with", results)):
                if values:
                    raise ConfigError(f"{option}: is of one experiment, got it with two: {' '.join(map(str, values))}")
            found = _compare(experiment, store, other, mlruns_b, out)
        else:
            experiment = sliced(experiment, _assignments("--where", where)) if where else experiment
            found = single.write(experiment, Store(root=mlruns, create=False), out, ",".join(where), results)

    is_logged = not (other or found.notice or found.not_logged)  # neither a comparison nor an unfinished sweep
    _print_lines(_report_lines(found, ", and logged to the sweep's MLflow run" if is_logged else ""))
    if not found.raised:
        return 0
    print(f"error: drawing {', '.join(found.raised)} failed; the page has the reasons, and all else", file=sys.stderr)
    return 1


def _compare(experiment: Experiment, store: Reader, other_target: str, folder: Path | None, out: Path | None) -> Report:
    from analysis.report import comparison
    from pipeline.tracking.reader import Reader

    other_store = Reader(f"sqlite:///{folder.absolute() / 'mlflow.db'}", folder) if folder else store
    other = find_experiment(other_target, {}, other_store)
    return comparison.write(experiment, _with_suggestions(other, other_store), store, other_store, out)


def _with_suggestions(experiment: Experiment, store: Reader) -> Experiment:
    if not experiment.plan.asks:
        return experiment
    from analysis.runs import searched

    store.attach(experiment.name)
    return searched(store, experiment)


def _report_lines(found: Report, logged: str) -> Iterator[str]:
    """Yield what the report found, and its files by stem: `runs.csv`, `frontier.csv .md .svg`."""
    if found.notice:
        yield found.notice
    yield from found.headline.brief
    *files, page = found.files
    groups: dict[str, str] = {}
    for path in files:
        groups[path.stem] = f"{groups[path.stem]} {path.suffix}" if path.stem in groups else path.name
    yield f"page: {page}"
    yield f"beside it{logged}: {', '.join(groups.values())}"
    if found.not_logged:
        yield f"not logged: {found.not_logged}"
    if found.lacking:
        yield f"left out, for reasons that the page has: {', '.join(found.lacking)}"
    yield from (f"{name}: {reason}" for name, reason in found.left_out if name in found.raised)


def _assignments(option: str, texts: Sequence[str]) -> dict[str, object]:
    """Return the `FIELD=VALUE` pairs of a repeated option as field -> value, with values as in an experiment file."""
    values: dict[str, object] = {}
    for text in texts:
        field, sign, value = text.partition("=")
        if not sign or not field or field in values:
            raise ConfigError(f"{option}: must be FIELD=VALUE, once for each field, got {text!r}")
        values[field] = parse_yaml(value, option)
    return values


def _print_lines(lines: Iterable[str]) -> int:
    """Print each line as soon as it is available, since the next may take seconds; return exit code 0."""
    for line in lines:
        print(line)
    return 0


@photonic.command()
@terminal.with_target
@terminal.with_changes
@terminal.with_store
@click.option("--by-epoch", is_flag=True, help="every epsilon after every epoch, as a table")
@click.option("--json", "as_json", is_flag=True, help="as JSON, for scripts")
def account(target: str, changes: tuple[str, ...], mlruns: Path, by_epoch: bool, as_json: bool) -> int:
    """The epsilon of an experiment's trials, and of the best."""
    from pipeline.experiment import epsilon_table

    experiment = with_past(find_experiment(target, _assignments("--set", changes), mlruns), mlruns)
    lines = [epsilon_table.as_json(experiment, by_epoch)] if as_json else epsilon_table.as_lines(experiment, by_epoch)
    return _print_lines(lines)


@photonic.command()
@click.argument("target", metavar="FILE|RUN", help="experiment file, or the trial_key or MLflow run id of a tracked "
                "trial, to which what is found is logged")
@terminal.with_data
@click.option("--trial", type=int, metavar="N", help="only the N-th, from 1, seeds apart (default: all)")
@click.option("--steps", type=int, default=1, metavar="K", show_default=True,
              help="steps of training whose updates are attacked")
@click.option("--mlruns", type=Path, metavar="DIR", help="tracking store of RUN (default: mlruns); with FILE, also log "
              "the table to its sweep there")
def audit(target: str, data: Path | None, trial: int | None, steps: int, mlruns: Path | None) -> int:
    """Attack an experiment's trials: what is seen, beside what is claimed or certified.

    The exit code is 1 if an attack exceeds a certified epsilon.
    """
    from pipeline.auditing.audit import audit_file, audit_run

    if re.fullmatch("[0-9a-f]{16}|[0-9a-f]{32}", target) and not Path(target).exists():  # trial_key or run id
        if trial is not None:
            raise ConfigError(f"--trial: selects a trial of FILE, and a run is one, got {trial}")
        findings = audit_run(target, data, steps, mlruns or Path("mlruns"))
    else:
        findings = audit_file(target, trial, data, steps, mlruns)
    return 1 if any(finding.exceeds for finding in findings) else 0


@photonic.command()
@click.argument("run", metavar="RUN", help="trial_key or MLflow run id of a trial that has ended")
@click.argument("file", type=Path, required=False, metavar="[FILE]", help="its experiment file, if that has plugins "
                "(your own network or data)")
@terminal.with_store
@click.option("--out", type=Path, metavar="DIR", help="folder to make (default: exports/RUN)")
def export(run: str, file: Path | None, mlruns: Path, out: Path | None) -> int:
    """Write a trial to a new folder, for anybody with torch: network, classes, settings, metrics, epsilons."""
    from pipeline.learning.export import PROGRAM, export
    from pipeline.tracking.reader import Reader

    if file:
        load_experiment(file)  # also loads its plugins, without which there is no program
    exported = export(Reader(root=mlruns), run, out)
    lacking = [f"without {PROGRAM}: {exported.no_program}"] if exported.no_program else []
    return _print_lines(["written:", *(f"  {file}" for file in exported.files), *lacking, *exported.remarks])


@photonic.command()
@click.argument("file", type=Path, required=False, metavar="[FILE]", help="experiment file, to show the settings of "
                "its plugins too")
def fields(file: Path | None) -> int:
    """The settings of a trial, with their defaults."""
    if file:
        load_experiment(file)  # also loads its plugins, which may add settings
    _print_lines(["Knobs of privacy (paper; mechanism), what each does, and what epsilon follows:",
                  *(f"  {line}" for line in knobs.lines()), "", "All settings:", ""])
    for f in settings():
        default = list(f.default) if isinstance(f.default, tuple) else f.default
        choices = f" ({', '.join(f.metadata['choices'])})" if f.metadata["choices"] else ""
        print(f"{f.name} = {default!r}\n    {f.metadata['doc']}{choices}{owners_text(f.name)}")
    return 0


@photonic.command()
@terminal.with_store
@click.option("--port", type=terminal.port_number, default=terminal.PORT, metavar="PORT", show_default=True,
              help="of the page")
@click.option("--host", default="127.0.0.1", metavar="HOST", help="interface to listen on (default: 127.0.0.1, which "
              "only this machine reaches; there is no log-in)")
def ui(mlruns: Path, port: int, host: str) -> int:
    """Browse the runs in MLflow's web page."""
    from pipeline.tracking.store import Store
    from pipeline.tracking.ui import serve

    store = Store(root=mlruns, create=False)
    _print_lines(store.relocate())
    return serve(store, port, host)


@photonic.command()
@terminal.with_store
def doctor(mlruns: Path) -> int:
    """What this program finds here, without private paths, to show where you ask.

    The exit code is 1 if something here ends a command.
    """
    from pipeline.doctor import ends, lines

    _print_lines(lines(mlruns))
    return int(bool(ends()))


@photonic.command()
@click.argument("shell", type=click.Choice(("bash", "zsh")))
def completion(shell: str) -> int:
    """A script for a shell: source <(photonic completion bash)"""
    return _print_lines([terminal.completion_script(photonic, shell)])


if __name__ == "__main__":
    sys.exit(main())
