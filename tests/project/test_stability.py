"""What stays through 1.x (docs/stability.md): keys of trials, commands, names for plugins, columns."""

import hashlib
import re
from pathlib import Path

from approved import approved
from click.testing import CliRunner

import analysis
import pipeline
from pipeline.cli import photonic
from pipeline.experiment.experiment import load_experiment
from pipeline.trials.config import settings

ROOT = Path(__file__).parents[2]
FILES = [*sorted((ROOT / "experiments").glob("*/*.yaml")), ROOT / "experiments" / "quickstart.yaml"]
PAGES = ("extending", "networks", "own_data", "features", "reports")  # for those who write plugins
IMPORT = re.compile(r"^ *(from (?:pipeline|analysis)[\w.]* import .+)$", re.MULTILINE)


def test_trials_of_shipped_experiments_have_the_keys_of_1_0():
    told = []
    for file in FILES:
        if file.parent.name == "cluster":
            continue
        keys = [trial.trial_key for trial in load_experiment(file).possible]
        digest = hashlib.sha256(" ".join(keys).encode()).hexdigest()[:16]
        told.append(f"{file.relative_to(ROOT)}: {len(keys)} trials, {digest}")
    approved("keys", "\n".join(told))


def test_commands_have_the_options_of_1_0():
    shown = [CliRunner().invoke(photonic, [*words, "--help"], terminal_width=120, color=False).output
             for words in ((), *((name,) for name in photonic.shown))]
    approved("help", "\n".join(shown))


def test_settings_and_names_for_plugins_are_those_of_1_0():
    """Names for plugins are those of the two packages, and what the pages for plugins import."""
    pages = "\n".join((ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8") for name in PAGES)
    approved("names", "\n".join([
        "settings:", *(f"{f.name} = {f.default!r}" for f in settings()), "",
        "pipeline:", *sorted(pipeline.__all__), "", "analysis:", *sorted(analysis.__all__), "",
        "pages:", *sorted({*IMPORT.findall(pages)})]))
