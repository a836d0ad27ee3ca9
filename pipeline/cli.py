"""The commands of `photonic`: their actions and exit codes."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import io
import os
import re
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.arguments import completion, make_parser
from pipeline.experiment.experiment import Experiment, check_name, load_experiment, sliced
from pipeline.experiment.yaml_text import parse_yaml
from pipeline.sweep.target import find_experiment
from pipeline.terminal import INTERRUPTED, quick_interrupt
from pipeline.trials.config import ConfigError, TrialConfig, settings
from pipeline.trials.fields import UserError
from pipeline.trials.naming import counted
from pipeline.trials.part import owners_text
from pipeline.trials.unused import check_used

if TYPE_CHECKING:
    from analysis.report.report import Report
    from pipeline.tracking.reader import Reader

# Exit codes: 0 done; 1 a trial or an exhibit failed, a reference case was missed or an audit exceeds its epsilon;
# 2 refused or impossible (one line says why); 130 interrupted.
REFUSED = 2
WATCH_SECONDS = 5.0  # between two updates of `status --watch`
TRIAL_KEY_OR_RUN_ID = "[0-9a-f]{16}|[0-9a-f]{32}"
CLEAR_SCREEN = "\x1b[2J\x1b[H"  # terminal codes: erase everything, and move the cursor to the top left


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # an encoding without ε, as on Windows, ends no command
    os.environ["MPLBACKEND"] = "Agg"  # figures are files, also where a notebook's backend is inherited
    options = make_parser().parse_args(arguments)
    try:
        return COMMANDS[options.command](options)
    except BrokenPipeError:  # the reader of the output, `head` for example, has closed it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        print("interrupted; run the same command again to go on", file=sys.stderr)
        return INTERRUPTED
    except OSError as error:
        is_full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.ENOMEM)  # a disk, a quota, or memory
        if not is_full and error.filename is None:
            raise
        hint = "; make room and run the same command again to go on" if is_full else ""
        print(f"error: {error}{hint}", file=sys.stderr)
        return REFUSED
    except MemoryError:
        print("error: out of memory; make room and run the same command again to go on", file=sys.stderr)
        return REFUSED
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return REFUSED


def _init(options: Namespace) -> int:
    """Write a first experiment file from options and answers; return exit code 0."""
    from pipeline.sweep import first_file

    def no_answer(question: str) -> str:
        return ""  # takes the default

    ask = input if sys.stdin.isatty() else no_answer
    answers = first_file.read_answers(vars(options), ask)
    return _print_lines(first_file.write(options.file, answers))


def _sweep(options: Namespace) -> int:
    """Train the experiment's trials or, with `--dry-run`, print the plan; return the exit code.

    It is 1 if a trial failed, and `INTERRUPTED` if trials remain. The options `--workers` and `--checkpoint-seconds`
    replace what the file says.
    """
    experiment = _experiment(options)
    if options.workers is not None and options.workers < 1:
        raise ConfigError(f"--workers: must be at least 1, got {options.workers}")
    if options.checkpoint_seconds is not None:
        resources = dataclasses.replace(experiment.resources, checkpoint_seconds=options.checkpoint_seconds)
        experiment = dataclasses.replace(experiment, resources=resources)
    if options.dry_run:
        from pipeline.sweep import dry_run

        plan = dry_run.preview(experiment, options.workers, options.mlruns)
        return _print_lines([dry_run.as_json(plan)] if options.json else dry_run.as_lines(plan))
    if options.json:
        raise ConfigError("--json: is what --dry-run prints, got it without")
    from pipeline.sweep.run import run_sweep

    with quick_interrupt():
        result = run_sweep(experiment, root=options.mlruns, data_folder=options.data, address=options.address,
                           workers=options.workers, redraw=options.redraw, private=options.private)
    if result.remaining:
        return INTERRUPTED
    return 1 if result.failed else 0


def _status(options: Namespace) -> int:
    """Print the progress of one sweep or, without a target, of all sweeps of the store; return exit code 0.

    With `--watch`, print again every `WATCH_SECONDS` while a sweep is running; Ctrl-C ends it.
    """
    from pipeline.sweep import status
    from pipeline.tracking.reader import Reader

    if options.json and options.watch:
        raise ConfigError("--json: is printed once, got it with --watch")
    if options.set and not options.target:
        raise ConfigError(f"--set: changes what FILE says, got none with {' '.join(options.set)}")
    experiment = _experiment(options) if options.target else None
    store = Reader(root=options.mlruns)
    set_options = [word for change in options.set for word in ("--set", change)]

    def print_states() -> bool:
        """Print the state of every sweep; return whether any sweep is running."""
        names = [experiment.name] if experiment else store.sweeps()
        states = [status.read(store, name, experiment, (options.target, *set_options), options.private)
                  for name in names]
        text = status.as_json(states) if options.json else status.as_text(states)
        if options.watch and sys.stdout.isatty():
            print(CLEAR_SCREEN, end="")
        print(text, flush=True)
        return any(state.running for state in states)

    if not options.watch:
        print_states()
        return 0
    with contextlib.suppress(KeyboardInterrupt):
        while print_states():
            time.sleep(WATCH_SECONDS)
    return 0


def _experiment(options: Namespace) -> Experiment:
    """Return the experiment that the options name, with the changes of `--set`."""
    return find_experiment(options.target, _assignments("--set", options.set), options.mlruns)


def _report(options: Namespace) -> int:
    """Write the report of an experiment, or the comparison of two; print its main results and files.

    The exit code is 1 if drawing an exhibit raised an error.
    """
    from analysis.style import Files, written_as
    from pipeline.tracking.reader import Reader

    if options.mlruns_b and not options.other:
        raise ConfigError("--mlruns-b: is the store of a second experiment, and only one was given, got "
                          f"{options.mlruns_b}")
    experiment = _experiment(options)
    store = Reader(root=options.mlruns)
    experiment = _with_suggestions(experiment, store)
    with written_as(Files(tuple(options.format.split(",")), options.width, options.font, experiment.labels)):
        report = _compare(experiment, store, options) if options.other else _report_of(experiment, options)
    lines = [report.notice] if report.notice else []
    lines += report.headline
    *files, page = report.files
    is_logged = not (options.other or report.notice or report.not_logged)  # no comparison, nor an unfinished sweep
    logged = ", and logged to the sweep's MLflow run" if is_logged else ""
    lines += [f"page: {page}", f"beside it{logged}: {', '.join(_grouped_by_stem(files))}"]
    lines += [f"not logged: {report.not_logged}"] if report.not_logged else []
    if report.lacking:
        lines.append(f"left out, for reasons that the page has: {', '.join(report.lacking)}")
    _print_lines(lines)
    if not report.raised:
        return 0
    print(f"error: drawing {', '.join(report.raised)} failed; the page has the reasons, and all else", file=sys.stderr)
    return 1


def _report_of(experiment: Experiment, options: Namespace) -> Report:
    """Write and return the report of one experiment, or of its trials that `--where` selects."""
    from analysis.report.report import write
    from pipeline.tracking.store import Store

    if options.where:
        experiment = sliced(experiment, _assignments("--where", options.where))
    experiment = dataclasses.replace(experiment, imports=tuple(dict.fromkeys(options.imports)))
    return write(experiment, Store(root=options.mlruns, create=False), options.out, ",".join(options.where))


def _compare(experiment: Experiment, store: Reader, options: Namespace) -> Report:
    """Write and return the comparison of an experiment with the one that the options name.

    Raises:
        ConfigError: with `--set`, `--where` or `--with`, which could be meant for either experiment.
    """
    from analysis.comparison import report
    from pipeline.tracking.reader import Reader

    for option, values in (("--set", options.set), ("--where", options.where), ("--with", options.imports)):
        if values:
            raise ConfigError(f"{option}: is of one experiment, got it with two: {' '.join(values)}")
    folder = options.mlruns_b
    other_store = Reader(f"sqlite:///{folder.absolute() / 'mlflow.db'}", folder) if folder else store
    other = find_experiment(options.other, {}, other_store)
    return report.write(experiment, _with_suggestions(other, other_store), store, other_store, options.out)


def _grouped_by_stem(files: Iterable[Path]) -> list[str]:
    """Return file names grouped by stem, for example `runs.csv`, `frontier.csv .md .svg`."""
    groups: dict[str, str] = {}
    for path in files:
        groups[path.stem] = f"{groups[path.stem]} {path.suffix}" if path.stem in groups else path.name
    return list(groups.values())


def _assignments(option: str, texts: Sequence[str]) -> dict[str, object]:
    """Return the `FIELD=VALUE` pairs of a repeated option as field -> value, with values as in an experiment file.

    Args:
        option: its name, for messages.
        texts: one for each time that it is given.

    Raises:
        ConfigError: for a malformed pair, or a field that is given twice.
    """
    values: dict[str, object] = {}
    for text in texts:
        field, sign, value = text.partition("=")
        if not sign or not field or field in values:
            raise ConfigError(f"{option}: must be FIELD=VALUE, once for each field, got {text!r}")
        values[field] = parse_yaml(value, option)
    return values


def _with_suggestions(experiment: Experiment, store: Reader) -> Experiment:
    """Return a search with the trials that it has suggested so far; return any other experiment unchanged."""
    if not experiment.plan.asks:
        return experiment
    from analysis.runs import searched

    store.attach(experiment.name)
    return searched(store, experiment)


def _account(options: Namespace) -> int:
    """Print every epsilon of an experiment, or evaluate a file of reference cases; return the exit code.

    It is 1 if a reference case was missed.
    """
    if (options.target is None) == (options.check is None):
        raise ConfigError("account: takes either FILE or --check CASES")
    if options.check:
        from pipeline.accounting import check

        results = check.evaluate(options.check)
        print(check.as_text(results))
        return 0 if all(result.ok for result in results) else 1
    from pipeline.accounting import overview

    experiment = _experiment(options)
    if options.json:
        return _print_lines([overview.as_json(experiment, options.by_epoch)])
    return _print_lines(overview.as_lines(experiment, options.by_epoch))


def _print_lines(lines: Iterable[str]) -> int:
    """Print each line as soon as it is available, since the next may take seconds; return exit code 0."""
    for line in lines:
        print(line)
    return 0


def _audit(options: Namespace) -> int:
    """Attack the trials of an experiment file, or one tracked trial by its key or run id; return the exit code.

    It is 1 if an attack exceeds a certified or stated epsilon.
    """
    from pipeline.auditing.command import audit_file, audit_run

    is_run = re.fullmatch(TRIAL_KEY_OR_RUN_ID, options.target) and not Path(options.target).exists()
    if is_run:
        if options.trial is not None:
            raise ConfigError(f"--trial: selects a trial of FILE, and a run is one, got {options.trial}")
        findings = audit_run(options.target, options.data, options.steps, options.mlruns or Path("mlruns"))
    else:
        findings = audit_file(options.target, options.trial, options.data, options.steps, options.mlruns)
    return 1 if any(finding.exceeds for finding in findings) else 0


def _import(options: Namespace) -> int:
    """Add results from a file to an experiment of the store, and print how many were added and deleted."""
    from pipeline.tracking.imports import read_results
    from pipeline.tracking.store import Store

    check_name("--as", options.name)
    results, text = read_results(options.file)
    added, deleted = Store(root=options.mlruns).import_results(options.name, results, text, options.replace)
    changes = []
    if added:
        changes.append(f"{counted(added, 'result')} imported")
    if deleted:
        changes.append(f"{deleted} deleted")
    if not changes:
        changes.append(f"nothing to do, it has all {len(results)} results")
    return _print_lines([f"{options.name}: {', '.join(changes)}",
                         f"to show them: photonic report FILE --with {options.name}"])


def _export(options: Namespace) -> int:
    """Write the files of one trained trial to a folder, and print their names; return exit code 0."""
    from pipeline.tracking.export import export
    from pipeline.tracking.reader import Reader

    files = export(Reader(root=options.mlruns), options.run, options.out)
    return _print_lines(["written:", *(f"  {file}" for file in files)])


def _device(options: Namespace) -> int:
    """Measure a projector's matrix and noise, write the results, and print them; return exit code 0."""
    changes = _assignments("--set", options.set)
    trial = TrialConfig.from_mapping({"algorithm": "pdfa", "projector": options.projector, **changes})
    check_used([trial])
    from pipeline.auditing.device import characterise

    device = characterise(trial, options.repeats, options.records)
    from analysis.device import as_text, write

    files = write(device, options.out)
    print(as_text(device))
    return _print_lines(["written:", *(f"  {file}" for file in files)])


def _fields(options: Namespace) -> int:
    """Print all settings with default, meaning and choices; return exit code 0.

    A file is loaded first, because its plugins may add settings.
    """
    if options.file:
        load_experiment(options.file)  # also loads its plugins
    for f in settings():
        default = list(f.default) if isinstance(f.default, tuple) else f.default
        choices = f" ({', '.join(f.metadata['choices'])})" if f.metadata["choices"] else ""
        print(f"{f.name} = {default!r}\n    {f.metadata['doc']}{choices}{owners_text(f.name)}")
    return 0


def _ui(options: Namespace) -> int:
    """Serve MLflow's web page of the store until it is interrupted; return the exit code."""
    from pipeline.tracking.store import Store
    from pipeline.tracking.ui import serve

    store = Store(root=options.mlruns)
    _print_lines(store.relocate())
    return serve(store, options.port, options.host)


COMMANDS: dict[str, Callable[[Namespace], int]] = {
    "init": _init, "sweep": _sweep, "status": _status, "report": _report, "account": _account, "audit": _audit,
    "import": _import, "export": _export, "device": _device, "fields": _fields, "ui": _ui,
    "completion": lambda options: _print_lines([completion(make_parser(), options.shell)])}


if __name__ == "__main__":
    sys.exit(main())
