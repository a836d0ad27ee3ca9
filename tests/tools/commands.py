"""The command line in this process, and files for it."""

from pathlib import Path

from pipeline.cli import main, photonic
from pipeline.experiment.experiment import Experiment, load_experiment


def output(capsys, *words: str, code: int = 0) -> str:
    """What `photonic` prints: its output, or where it ends with another code than 0 its complaint."""
    assert main(list(words)) == code
    printed = capsys.readouterr()
    return printed.err if code else printed.out


def parsed(subcommand: str, words: list[str]) -> dict:
    """The options and arguments of a command line."""
    program = photonic.make_context("photonic", [], resilient_parsing=True)
    return photonic.commands[subcommand].make_context(subcommand, words, program).params


def written(path: Path, text: str) -> Path:
    """The file, with this text."""
    path.write_text(text)
    return path


def load(folder: Path, text: str) -> Experiment:
    """The experiment of a file with this text."""
    return load_experiment(written(folder / "e.yaml", text))
