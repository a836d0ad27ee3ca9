"""What the commands of `photonic` share: how words are read, options, tables, completion, and the answer to Ctrl-C."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from types import FrameType

import click

PORT = 5000  # of `photonic ui`; pages link to it
INTERRUPTED = 130  # exit code
STDERR = 2  # a signal may arrive while Python writes to its own stream
STOP_SECONDS = 10.0  # time for workers and the tracking store after Ctrl-C
STOPS = {signal.SIGINT: "Ctrl-C", signal.SIGTERM: "SIGTERM"}  # a terminal's, and that of a service or batch manager
# For a shell whose input ends when this process does, unless it is terminated before.
LAST_LINE = "read -r line; echo 'killed, perhaps for lack of memory; run the same command again to go on' >&2"



class Command(click.Command):
    """A command that accepts an unambiguous beginning of an option, and refuses an option as the value of another."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        takes_value = {name: not parameter.is_flag for parameter in self.get_params(ctx)
                       if isinstance(parameter, click.Option) for name in parameter.opts}
        for n, word in enumerate(args):
            beginning, sign, value = word.partition("=")
            meant = [name for name in takes_value if name.startswith(beginning)]
            if word.startswith("--") and beginning not in ("--", *takes_value) and len(meant) == 1:
                args[n] = f"{meant[0]}{sign}{value}"
        for option, following in pairwise(args):
            if takes_value.get(option) and following in takes_value:
                raise click.BadOptionUsage(option, f"Option '{option}' requires an argument, got {following}.", ctx)
        return super().parse_args(ctx, args)

    def get_short_help_str(self, limit: int = 0) -> str:
        """Return the first sentence of the help uncut."""
        return super().get_short_help_str(sys.maxsize)


class Commands(click.Group):
    """Commands in the order of their definition."""

    command_class = Command

    @property
    def shown(self) -> dict[str, click.Command]:
        """The commands for people, by name."""
        return {name: command for name, command in self.commands.items() if not command.hidden}

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.shown)

    def resolve_command(self, ctx: click.Context,
                        args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that the words name; a message on an unknown one lists all."""
        try:
            return super().resolve_command(ctx, args)
        except click.NoSuchCommand as error:
            message = f"{error.message} Must be one of {', '.join(self.shown)}."
            raise click.NoSuchCommand(error.command_name, message, self.shown, ctx) from None


TARGET = ("experiment file, for example experiments/quickstart.yaml, or the name of a sweep in the store, as it was "
           "swept last")
with_target = click.argument("target", metavar="FILE|NAME", help=TARGET)
with_changes = click.option("--set", "changes", multiple=True, metavar="FIELD=VALUE", help="a setting of all trials, "
                            "in place of what base of the file says; may be repeated")
with_store = click.option("--mlruns", type=Path, default=Path("mlruns"), metavar="DIR", help="folder of the tracking "
                          "store (default: mlruns; MLFLOW_TRACKING_URI overrides it)")
with_private = click.option("--private", type=Path, metavar="DIR", help="folder of checkpoints and of all else that is "
                            "as private as the data (default: PHOTONIC_PRIVATE, else `private` in the folder of the "
                            "tracking store)")
with_data = click.option("--data", type=Path, metavar="DIR", help="folder with the data sets (default: PHOTONIC_DATA, "
                         "else they are downloaded; on a cluster that of every node)")


def port_number(text: str | int) -> int:
    """Return the port number of a text; refuse any other text."""
    if not str(text).isdecimal() or not 1 <= int(text) <= 65535:
        raise click.BadParameter(f"must be a whole number from 1 to 65535, got '{text}'")
    return int(text)


def completion_script(program: Commands, shell: str) -> str:
    """Return a bash or zsh script that completes commands, options and file names, without a call of the program."""
    context = program.make_context(program.name, [], resilient_parsing=True)

    def options(command: click.Command) -> str:
        return " ".join(name for parameter in command.get_params(context) for name in parameter.opts if name[0] == "-")

    cases = "\n".join(f"    {name}) words='{options(command)}' ;;" for name, command in program.shown.items())
    zsh_setup = "autoload -U +X bashcompinit && bashcompinit\n" if shell == "zsh" else ""
    return f"""{zsh_setup}_{program.name}() {{
  local current=${{COMP_WORDS[COMP_CWORD]}} words=''
  case ${{COMP_WORDS[1]}} in
{cases}
  esac
  if [ "$COMP_CWORD" -eq 1 ]; then
    words='{" ".join(program.shown)} {options(program)}'
  fi
  COMPREPLY=($(compgen -W "$words" -- "$current"))
  if [ "$COMP_CWORD" -gt 1 ] && [ "${{current#-}}" = "$current" ]; then
    COMPREPLY=($(compgen -f -- "$current"))
  fi
}}
complete -o filenames -F _{program.name} {program.name}"""


@contextlib.contextmanager
def quick_interrupt() -> Iterator[None]:
    """Context in which Ctrl-C and SIGTERM are answered at once, although workers and store need time to stop.

    After `STOP_SECONDS`, or at a second signal, the process exits. The tracking store loses nothing, and the processes
    of a Ray cluster that was started here end with this process. If the process is killed, or Ray ends it, another
    process prints a last line.
    """
    # In a session of its own, so that what ends this process's group does not end it.
    shell = subprocess.Popen(["sh", "-c", LAST_LINE], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
                             start_new_session=True)

    def end(why: str) -> None:
        """End the process at once, without a traceback; `why` completes the message `ended ...`."""
        shell.terminate()  # before its input ends
        os.write(STDERR, f"ended {why}; run the same command again to go on\n".encode())
        os._exit(INTERRUPTED)

    def interrupt(number: int, frame: FrameType | None) -> None:
        """Stop the sweep at the first signal; end the process at a second one, or after `STOP_SECONDS`."""
        for each in STOPS:
            signal.signal(each, lambda number, frame: end(f"by a second {STOPS[signal.Signals(number)]}"))
        os.write(STDERR, b"\nstopping: waiting for the workers to end and for the tracking store, %g s at most; Ctrl-C "
                         b"again ends at once\n" % STOP_SECONDS)
        deadline = threading.Timer(STOP_SECONDS, end, [f"after {STOP_SECONDS:g} s"])
        deadline.daemon = True
        deadline.start()
        raise KeyboardInterrupt

    previous_handlers = {number: signal.signal(number, interrupt) for number in STOPS}
    try:
        yield
    finally:
        for number, handler in previous_handlers.items():
            signal.signal(number, handler)
        shell.terminate()
        shell.communicate()


def aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield the lines of a table, with columns two blanks apart."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
