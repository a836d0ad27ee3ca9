"""The command line: `photonic init | sweep | status | report | account | audit | import | export | device |
fields | ui | completion`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]

PORT = 5000  # of `photonic ui`; pages link to it


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of all commands with their options; a parsed `command` is the command's name."""
    parser = argparse.ArgumentParser(prog="photonic", description=__doc__)
    parser.add_argument("--version", action=_Version, nargs=0, help="show program's version number and exit")
    commands = parser.add_subparsers(required=True, metavar="COMMAND", dest="command")
    for add_command in (_add_init, _add_sweep, _add_status, _add_report, _add_account, _add_audit, _add_import,
                        _add_export, _add_device, _add_fields, _add_ui, _add_completion):
        add_command(commands)
    return parser


def _add(commands: Commands, name: str, text: str) -> argparse.ArgumentParser:
    """Add a command with its help text; return its parser, which has no options yet."""
    return commands.add_parser(name, help=text, description=text)


def _add_init(commands: Commands) -> None:
    """Add `photonic init`, which writes an experiment file."""
    init = _add(commands, "init", "write a first experiment file that trains; what no option says is asked, where a "
                                  "person can answer, and else as by default")
    init.add_argument("file", type=Path, metavar="FILE", help="to write, for example mine.yaml")
    init.add_argument("--dataset", metavar="NAME", help="data set (default: fashion_mnist)")
    init.add_argument("--features", metavar="NAME", help="pixels, or a public map of records such as patches (default: "
                                                         "pixels)")
    init.add_argument("--private", metavar="WHAT",
                      help="records (features and labels), labels, or nothing (default: records)")
    init.add_argument("--epsilon", dest="epsilons", metavar="E,E,...", help="epsilons to train at (default: 1,3,8)")
    init.add_argument("--minutes", metavar="N", help="that training may take here; decides how many algorithms are "
                                                     "compared (default: 10)")


def _add_sweep(commands: Commands) -> None:
    """Add `photonic sweep`, which trains an experiment."""
    sweep = _add(commands, "sweep", "train the trials of an experiment that are not done yet")
    _add_target(sweep)
    _add_changes(sweep)
    _add_store(sweep)
    sweep.add_argument("--dry-run", action="store_true", help="print an estimate, packs and resources, and end")
    sweep.add_argument("--json", action="store_true", help="with --dry-run: as JSON, with every trial, for scripts")
    sweep.add_argument("--workers", type=int, metavar="N", help="cores to use on this machine (default: all)")
    sweep.add_argument("--address", help="Ray cluster: 'auto' or 'host:port' where this machine is part of it, "
                                         "'ray://host:10001' from outside (default: RAY_ADDRESS, else a local one is "
                                         "started)")
    sweep.add_argument("--checkpoint-seconds", type=float, metavar="S",
                       help="least time between two checkpoints of a pack (default: resources.checkpoint_seconds, 30)")
    sweep.add_argument("--redraw", action="store_true",
                       help="draw secret noise anew where a checkpoint cannot be used, which releases the records once "
                            "more; epsilon composes all draws (a search with a budget decides that itself)")
    _add_private(sweep)
    _add_data(sweep)


def _add_status(commands: Commands) -> None:
    """Add `photonic status`, which shows the progress of sweeps."""
    status = _add(commands, "status", "which trials are done, running, failed, diverged or missing, and why")
    status.add_argument("target", nargs="?", metavar="FILE|NAME", help="experiment file, or the name of a sweep in the "
                        "store (default: all experiments in the store, as far as it knows them)")
    _add_changes(status)
    _add_store(status)
    _add_private(status)
    status.add_argument("--watch", action="store_true", help="look again every 5 s, as long as a sweep runs")
    status.add_argument("--json", action="store_true", help="as JSON, for scripts")


def _add_report(commands: Commands) -> None:
    """Add `photonic report`, which draws tables and figures."""
    report = _add(commands, "report", "page, tables and figures of a swept experiment, or of how two differ")
    _add_target(report)
    report.add_argument("other", nargs="?", metavar="FILE|NAME", help="another, to compare it with")
    _add_changes(report)
    _add_store(report)
    report.add_argument("--mlruns-b", type=Path, metavar="DIR",
                        help="folder of the tracking store of the second, for example of another commit's checkout")
    report.add_argument("--out", type=Path, metavar="DIR",
                        help="folder to write (default: reports/<name> or reports/<name>-and-<name>)")
    report.add_argument("--with", action="append", default=[], dest="imports", metavar="NAME",
                        help="mark imported results in the frontier; may be repeated")
    report.add_argument("--where", action="append", default=[], metavar="FIELD=VALUE",
                        help="only trials with this value, or one of [A, B]; may be repeated; has its own folder")
    report.add_argument("--width", type=float, default=0.0, metavar="INCHES",
                        help="width of every figure, with text of unchanged size and legends below, for example 3.25")
    report.add_argument("--font", default="", metavar="FAMILY", help="font of figures, for example 'DejaVu Serif'")
    report.add_argument("--format", default="svg,pdf,png", metavar="A,B",
                        help="formats of figures: svg, pdf, png, eps (default: %(default)s)")


def _add_account(commands: Commands) -> None:
    """Add `photonic account`, which computes epsilons without training."""
    account = _add(commands, "account", "the epsilon of an experiment's trials, and of the best")
    _add_target(account, nargs="?")
    _add_changes(account)
    _add_store(account)
    account.add_argument("--check", type=Path, metavar="CASES", help="evaluate reference cases; exit 1 on a miss")
    account.add_argument("--by-epoch", action="store_true", help="every epsilon after every epoch, as a table")
    account.add_argument("--json", action="store_true", help="as JSON, for scripts")


def _add_audit(commands: Commands) -> None:
    """Add `photonic audit`, which attacks trials."""
    audit = _add(commands, "audit", "attack an experiment's trials: what is seen, beside what is claimed or certified")
    audit.add_argument("target", metavar="FILE|RUN", help="experiment file, or the trial_key or MLflow run id of a "
                                                          "tracked trial, to which what is found is logged")
    _add_data(audit)
    audit.add_argument("--trial", type=int, metavar="N", help="only the N-th, from 1, seeds apart (default: all)")
    audit.add_argument("--steps", type=int, default=1, metavar="K",
                       help="steps of training whose updates are attacked (default: %(default)s)")
    audit.add_argument("--mlruns", type=Path, metavar="DIR",
                       help="tracking store of RUN (default: mlruns); with FILE, also log the table to its sweep there")


def _add_import(commands: Commands) -> None:
    """Add `photonic import`, which stores results of others."""
    imported = _add(commands, "import", "take in results that others trained, to show them on frontiers (report "
                                        "--with)")
    imported.add_argument("file", type=Path, metavar="FILE", help="CSV with the columns dataset, method, epsilon, "
                          "delta, relation, seed (or empty), accuracy (a fraction) and source")
    imported.add_argument("--as", dest="name", required=True, metavar="NAME", help="name of their experiment")
    imported.add_argument("--replace", action="store_true", help="put them in the place of other results of that name")
    _add_store(imported)


def _add_export(commands: Commands) -> None:
    """Add `photonic export`, which writes a trained model."""
    export = _add(commands, "export", "write a trial's weights, settings, metrics and the tags of its epsilon to a new "
                                      "folder")
    export.add_argument("run", metavar="RUN", help="trial_key or MLflow run id of a trial that has ended")
    _add_store(export)
    export.add_argument("--out", type=Path, metavar="DIR", help="folder to make (default: exports/<trial_key>)")


def _add_device(commands: Commands) -> None:
    """Add `photonic device`, which measures a projector."""
    device = _add(commands, "device", "measure a projector: gain, noise, bias, correlations, crosstalk, drift, in a "
                                      "report")
    device.add_argument("projector", metavar="PROJECTOR", help="opu_simulated, opu_physical or opu_hardware")
    device.add_argument("--set", action="append", default=[], metavar="FIELD=VALUE",
                        help="a setting of the trial whose projector it is, such as photons; may be repeated")
    device.add_argument("--repeats", type=int, default=64, metavar="N", help="batches (default: %(default)s)")
    device.add_argument("--records", type=int, default=32, metavar="M", help="errors per batch (default: %(default)s)")
    device.add_argument("--out", type=Path, default=Path("reports/device"), metavar="DIR",
                        help="folder to write (default: %(default)s)")


def _add_fields(commands: Commands) -> None:
    """Add `photonic fields`, which lists the settings of a trial."""
    fields = _add(commands, "fields", "the settings of a trial, with their defaults")
    fields.add_argument("file", type=Path, nargs="?", metavar="FILE",
                        help="experiment file, to show the settings of its plugins too")


def _add_ui(commands: Commands) -> None:
    """Add `photonic ui`, which serves MLflow's page."""
    ui = _add(commands, "ui", "browse the runs in MLflow's web page")
    _add_store(ui)
    ui.add_argument("--port", type=_port, default=PORT, help="(default: %(default)s)")
    ui.add_argument("--host", default="127.0.0.1", help="interface to listen on (default: %(default)s, which only this "
                                                        "machine reaches; there is no log-in)")


def _add_completion(commands: Commands) -> None:
    """Add `photonic completion`, which prints a script for a shell."""
    completion = _add(commands, "completion", "a script for a shell: source <(photonic completion bash)")
    completion.add_argument("shell", choices=("bash", "zsh"))


def _add_target(command: argparse.ArgumentParser, nargs: str | None = None) -> None:
    """Add the argument that names an experiment; with `nargs="?"` it may be left out."""
    command.add_argument("target", metavar="FILE|NAME", nargs=nargs, help="experiment file, for example "
                         "experiments/quickstart.yaml, or the name of a sweep in the store, as it was swept last")


def _add_changes(command: argparse.ArgumentParser) -> None:
    """Add `--set`, which changes settings of an experiment."""
    command.add_argument("--set", action="append", default=[], metavar="FIELD=VALUE",
                         help="a setting of all trials, in place of what base of the file says; may be repeated")


def _add_store(command: argparse.ArgumentParser) -> None:
    """Add `--mlruns`, the folder of the tracking store."""
    command.add_argument("--mlruns", type=Path, default=Path("mlruns"), metavar="DIR",
                         help="folder of the tracking store (default: %(default)s; MLFLOW_TRACKING_URI overrides it)")


def _add_private(command: argparse.ArgumentParser) -> None:
    """Add `--private`, the folder of private files."""
    command.add_argument("--private", type=Path, metavar="DIR",
                         help="folder of checkpoints and of all else that is as private as the data (default: "
                              "PHOTONIC_PRIVATE, else `private` in the folder of the tracking store)")


def _add_data(command: argparse.ArgumentParser) -> None:
    """Add `--data`, the folder with the data sets."""
    command.add_argument("--data", type=Path, metavar="DIR",
                         help="folder with the data sets (default: PHOTONIC_DATA, else they are downloaded; on a "
                              "cluster that of every node)")


class _Version(argparse.Action):
    """`--version`: reads the version of the installed package only on request, because that is slow."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from importlib.metadata import version

        print(f"photonic {version('photonic-dfa')}")
        parser.exit()


def _port(text: str) -> int:
    """Return the port number of a text; refuse any other text."""
    if not text.isdecimal() or not 1 <= int(text) <= 65535:
        raise argparse.ArgumentTypeError(f"must be a whole number from 1 to 65535, got '{text}'")
    return int(text)


def completion(parser: argparse.ArgumentParser, shell: str) -> str:
    """Return a bash or zsh script that completes the commands and options of `parser`, and file names."""
    (commands,) = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    cases = []  # of the shell's `case`: the options of each command
    for name, command in commands.choices.items():
        cases.append(f"    {name}) words='{' '.join(command._option_string_actions)}' ;;")
    options_by_command = "\n".join(cases)
    first_words = " ".join([*commands.choices, *parser._option_string_actions])
    zsh_setup = "autoload -U +X bashcompinit && bashcompinit\n" if shell == "zsh" else ""
    return f"""{zsh_setup}_{parser.prog}() {{
  local current=${{COMP_WORDS[COMP_CWORD]}} words=''
  case ${{COMP_WORDS[1]}} in
{options_by_command}
  esac
  if [ "$COMP_CWORD" -eq 1 ]; then
    words='{first_words}'
  fi
  COMPREPLY=($(compgen -W "$words" -- "$current"))
  if [ "$COMP_CWORD" -gt 1 ] && [ "${{current#-}}" = "$current" ]; then
    COMPREPLY=($(compgen -f -- "$current"))
  fi
}}
complete -o filenames -F _{parser.prog} {parser.prog}"""
