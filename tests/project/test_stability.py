"""What stays through 1.x (docs/stability.md): commands, settings, names for plugins.

Keys of trials are held by test_shipped.py, the columns of a report by test_wheel.py.
"""

import re
from pathlib import Path

from approved import approved
from click.testing import CliRunner

import analysis
import pipeline
from pipeline.cli import photonic
from pipeline.trials.config import settings

ROOT = Path(__file__).parents[2]
PAGES = ("extending", "networks", "own_data", "features", "reports")  # for those who write plugins
IMPORT = re.compile(r"^ *(from (?:pipeline|analysis)[\w.]* import .+)$", re.MULTILINE)


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
