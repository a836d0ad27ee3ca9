"""The commands of `photonic`: their actions and exit codes."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import os
import re
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.arguments import completion, make_parser
from pipeline.experiment.experiment import Experiment, check_name, load_experiment, parse_experiment, sliced
from pipeline.experiment.grid import parse_yaml
from pipeline.terminal import INTERRUPTED, stopping
from pipeline.trials.config import ConfigError, TrialConfig, settings
from pipeline.trials.fields import UserError
from pipeline.trials.naming import counted
from pipeline.trials.part import owners_text
from pipeline.trials.unused import check_used

if TYPE_CHECKING:
    from pipeline.auditing.audit import Finding
    from pipeline.tracking.reader import Reader

# Exit codes: 0 done; 1 a trial failed, a reference case was missed or an audit exceeds its certified epsilon;
# 2 refused or impossible (one line says why); 130 interrupted.
REFUSED = 2
WATCH_SECONDS = 5.0  # between two updates of `status --watch`


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
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
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        print(f"error: {error}; make room and run the same command again to go on", file=sys.stderr)
        return REFUSED
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return REFUSED


def _init(options: Namespace) -> int:
    """Write a first experiment file from options and answers; return exit code 0."""
    from pipeline.sweep import first_file

    answers = first_file.read_answers(vars(options), input if sys.stdin.isatty() else lambda question: "")
    return _print_lines(first_file.write(options.file, answers))


def _sweep(options: Namespace) -> int:
    """Train the experiment's trials or, with `--dry-run`, print the plan; return the exit code.

    It is 1 if a trial failed, and `INTERRUPTED` if trials remain. The options `--workers` and `--checkpoint-seconds`
    replace what the file says.
    """
    experiment = _experiment(options.target, options)
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

    with stopping():
        result = run_sweep(experiment, root=options.mlruns, data_folder=options.data, address=options.address,
                           workers=options.workers, redraw=options.redraw, private=options.private)
    if result.remaining:
        return INTERRUPTED
    return 1 if result.failed else 0


def _status(options: Namespace) -> int:
    """Print how far a sweep is, or all sweeps of the store without a target; return exit code 0.

    With `--watch`, print again every `WATCH_SECONDS` until no sweep is running. On a terminal the screen is cleared
    before.
    """
    from pipeline.sweep import status
    from pipeline.tracking.reader import Reader

    if options.json and options.watch:
        raise ConfigError("--json: is printed once, got it with --watch")
    if options.set and not options.target:
        raise ConfigError(f"--set: changes what FILE says, got none with {' '.join(options.set)}")
    experiment = _experiment(options.target, options) if options.target else None
    store = Reader(root=options.mlruns)
    set_options = [word for change in options.set for word in ("--set", change)]
    with contextlib.suppress(KeyboardInterrupt) if options.watch else contextlib.nullcontext():
        while True:
            states = [status.read(store, name, experiment, (options.target, *set_options),
                                  options.private)
                      for name in ([experiment.name] if experiment else store.sweeps())]
            if options.watch and sys.stdout.isatty():
                print("\x1b[2J\x1b[H", end="")
            print(status.as_json(states) if options.json else status.as_text(states), flush=True)
            if not options.watch or not any(state.running for state in states):
                break
            time.sleep(WATCH_SECONDS)
    return 0


def _experiment(target: str, options: Namespace, store: Reader | None = None) -> Experiment:
    """Return the experiment of a file, or of the last sweep of this name, with the changes of --set.

    Plugins from a store are not imported, and its relative paths start at the working directory.

    Args:
        target: an experiment file, or the name of a sweep.
        store: the store of --mlruns; it is opened only for a name.

    Raises:
        ConfigError: for a target that is neither, and as `load_experiment`.
    """
    changes = _assignments("--set", options.set)
    if Path(target).exists() or Path(target).suffix in (".yaml", ".yml"):
        return load_experiment(target, changes)
    from pipeline.tracking.backend import NoStore, redacted
    from pipeline.tracking.reader import Reader

    try:
        store = store or Reader(root=options.mlruns)
    except NoStore as error:
        raise ConfigError(f"{target}: must be an experiment file or the name of a sweep; {error}") from None
    if not store.find(target):
        raise ConfigError(f"{target}: must be an experiment file or the name of a sweep in "
                          f"{redacted(store.uri)}, which has {', '.join(store.sweeps()) or 'none'}")
    experiment = parse_experiment(store.experiment(), Path(f"{target}.yaml"), stored=True, changes=changes)
    if "name" not in changes:  # the sweep may have been renamed since
        experiment = dataclasses.replace(experiment, name=target)
    _check_feature_files(experiment, store)
    return experiment


def _check_feature_files(experiment: Experiment, store: Reader) -> None:
    """Refuse an experiment from a store if a feature file now has other features than when it was swept.

    Raises:
        ConfigError: naming the file.
    """
    digests = {trial.feature_sha256: trial for trial in experiment.possible if trial.feature_sha256}
    if digests:
        from pipeline.sweep.search import published_digests

        if (known := published_digests(store)) and (others := digests.keys() - known):
            raise ConfigError(f"feature_file: must be a file with which '{experiment.name}' was swept, got "
                              f"{digests[others.pop()].feature_file}, which has other features; relative paths are "
                              "from the working directory, so run this where the experiment file is, or name that")


def _report(options: Namespace) -> int:
    """Write the report of an experiment, or the comparison of two, and print its files and main results.

    Return exit code 0. `--set`, `--where` and `--with` go with one experiment only, because a comparison could apply
    them to either.
    """
    from pipeline.tracking.reader import Reader

    if options.mlruns_b and not options.other:
        raise ConfigError("--mlruns-b: is the store of a second experiment, and only one was given, got "
                          f"{options.mlruns_b}")
    experiment = _experiment(options.target, options)
    store = Reader(root=options.mlruns)
    experiment = _asked_for(experiment, store)
    if options.other:
        if options.set:
            raise ConfigError(f"--set: is of one experiment, got it with two: {' '.join(options.set)}")
        if options.where:
            raise ConfigError(f"--where: is of one experiment, got it with two: {' '.join(options.where)}")
        if options.imports:
            raise ConfigError(f"--with: is of one experiment, got it with two: {' '.join(options.imports)}")
        from analysis.comparison import report as comparison

        folder = options.mlruns_b
        store_b = Reader(f"sqlite:///{folder.absolute() / 'mlflow.db'}", folder) if folder else store
        other = _experiment(options.other, options, store_b)
        report = comparison.write(experiment, _asked_for(other, store_b), store, store_b, options.out)
    else:
        from analysis.report.report import write
        from pipeline.tracking.store import Store

        if options.where:
            experiment = sliced(experiment, _assignments("--where", options.where))
        experiment = dataclasses.replace(experiment, imports=tuple(dict.fromkeys(options.imports)))
        report = write(experiment, Store(root=options.mlruns, create=False), options.out, ",".join(options.where))
    lines = [*filter(None, [report.notice]), *report.headline]
    page = report.files[-1]
    logged = "" if options.other or report.notice else ", and logged to the sweep's MLflow run"
    lines += [f"page: {page}", f"beside it{logged}: {', '.join(_stems(report.files[:-1]))}"]
    if report.left_out:
        lines.append("left out, for reasons that the page has: "
                     f"{', '.join(exhibit for exhibit, _ in report.left_out)}")
    return _print_lines(lines)


def _stems(files: Iterable[Path]) -> list[str]:
    """Return file names grouped by stem, for example `runs.csv`, `frontier.csv .md .svg`."""
    stems: dict[str, str] = {}
    for path in files:
        stems[path.stem] = f"{stems[path.stem]} {path.suffix}" if path.stem in stems else path.name
    return list(stems.values())


def _assignments(option: str, texts: Sequence[str]) -> dict[str, object]:
    """Return the `FIELD=VALUE` pairs of a repeated option, with values as in an experiment file.

    Args:
        option: its name, for messages.
        texts: one for each time that it is given.

    Raises:
        ConfigError: for a malformed pair, or a field that is given twice.
    """
    found: dict[str, object] = {}
    for text in texts:
        name, sign, value = text.partition("=")
        if not sign or not name or name in found:
            raise ConfigError(f"{option}: must be FIELD=VALUE, once for each field, got {text!r}")
        found[name] = parse_yaml(value, option)
    return found


def _asked_for(experiment: Experiment, store: Reader) -> Experiment:
    """Return a search with the trials that it has asked for so far; any other experiment is unchanged."""
    if experiment.search:
        from analysis.runs import searched

        store.attach(experiment.name)
        experiment = searched(store, experiment)
    return experiment


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

    experiment = _experiment(options.target, options)
    return _print_lines([overview.as_json(experiment, options.by_epoch)] if options.json else
                        overview.as_lines(experiment, options.by_epoch))


def _print_lines(lines: Iterable[str]) -> int:
    """Print each line as soon as it is available: the next may take seconds."""
    for line in lines:
        print(line)
    return 0


def _audit(options: Namespace) -> int:
    """Attack the trials of an experiment file, or one tracked trial by its key or run id; return the exit code.

    It is 1 if an attack exceeds a certified or stated epsilon. With `--mlruns`, the findings that may be published are
    logged to the sweep.
    """
    from pipeline.auditing.audit import audit_experiment, table

    if re.fullmatch("[0-9a-f]{16}|[0-9a-f]{32}", options.target) and not Path(options.target).exists():
        return _audit_run(options)
    experiment = load_experiment(options.target)
    store = None
    if options.mlruns:
        from pipeline.tracking.store import Store

        store = Store(root=options.mlruns, create=False)
        store.attach(experiment.name)
    found = list(audit_experiment(experiment, options.trial, options.data, options.steps))
    print(table(found))
    if store:
        with _text_file("audit.txt", table(_publishable(found))) as file:
            store.log_report([file])
    return 1 if any(finding.exceeds for finding in found) else 0


def _audit_run(options: Namespace) -> int:
    """Attack one trial of a tracking store, and log the publishable findings to its run; return the exit code.

    It is 1 if an attack exceeds a certified or stated epsilon. A trial with plugins is refused: code that a store names
    is never imported.
    """
    from pipeline.auditing.audit import audit_trial, table, tracked
    from pipeline.tracking.artifacts import config_of
    from pipeline.tracking.store import Store

    if options.trial is not None:
        raise ConfigError(f"--trial: selects a trial of FILE, and a run is one, got {options.trial}")
    store = Store(root=options.mlruns or Path("mlruns"), create=False)
    run = store.trial(options.target)
    if plugins := [tag.removeprefix("plugin.") for tag in run.tags if tag.startswith("plugin.")]:
        raise ConfigError(f"{options.target}: must be a trial without plugins, as nothing that a store names is "
                          f"imported, got one with {', '.join(plugins)}; audit it by its experiment file "
                          "(`photonic audit FILE --trial N`)")
    found = audit_trial(config_of(run), options.data, options.steps)
    print(table(found))
    logged = _publishable(found)
    with _text_file("audit.txt", table(logged)) as file:
        store.log_audit(run.run_id, *tracked(logged), file)
    return 1 if any(finding.exceeds for finding in found) else 0


def _publishable(found: Sequence[Finding]) -> list[Finding]:
    """Return the findings that may be logged, and print a note if some are left out."""
    from pipeline.auditing.audit import publishable

    logged = publishable(found)
    if len(logged) < len(found):
        print(f"logged: {len(logged)} of {len(found)} rows; the others are computed from private records of trials "
              "whose private_metrics are not plain, and no epsilon covers them")
    return logged


@contextlib.contextmanager
def _text_file(name: str, text: str) -> Iterator[Path]:
    """Yield a temporary file with this name and text; it is deleted afterwards."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, name)
        file.write_text(text + "\n", encoding="utf-8")
        yield file


def _import(options: Namespace) -> int:
    """Add results from a file to an experiment of the store, and print how many were added and deleted."""
    from pipeline.tracking.imports import read_results
    from pipeline.tracking.store import Store

    check_name("--as", options.name)
    results, text = read_results(options.file)
    added, deleted = Store(root=options.mlruns).import_results(options.name, results, text, options.replace)
    done = []
    if added:
        done.append(f"{counted(added, 'result')} imported")
    if deleted:
        done.append(f"{deleted} deleted")
    return _print_lines([f"{options.name}: {', '.join(done) or f'nothing to do, it has all {len(results)} results'}",
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

    found = characterise(trial, options.repeats, options.records)
    from analysis.device import as_text, write

    files = write(found, options.out)
    print(as_text(found))
    return _print_lines(["written:", *(f"  {file}" for file in files)])


def _fields(options: Namespace) -> int:
    """Print all settings with default, meaning and choices; return exit code 0.

    A file is loaded first, because its plugins may add settings.
    """
    if options.file:
        load_experiment(options.file)  # also loads its plugins
    for f in settings():
        default = list(f.default) if isinstance(f.default, tuple) else f.default
        print(f"{f.name} = {default!r}\n    {f.metadata['doc']}"
              + (f" ({', '.join(f.metadata['choices'])})" if f.metadata["choices"] else "") + owners_text(f.name))
    return 0


def _ui(options: Namespace) -> int:
    from pipeline.tracking.store import Store
    from pipeline.tracking.ui import serve

    return serve(Store(root=options.mlruns), options.port, options.host)


COMMANDS: dict[str, Callable[[Namespace], int]] = {
    "init": _init, "sweep": _sweep, "status": _status, "report": _report, "account": _account, "audit": _audit,
    "import": _import, "export": _export, "device": _device, "fields": _fields, "ui": _ui,
    "completion": lambda options: _print_lines([completion(make_parser(), options.shell)])}


if __name__ == "__main__":
    sys.exit(main())
