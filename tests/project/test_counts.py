"""What `counts.py` counts, on made-up sources; and the number of comparisons by name, which only falls."""

from __future__ import annotations

import ast
import subprocess
import sys

import counts
import pytest

MOST = 12  # comparisons by name outside the module of their part; only falls
CHOICES = """
MECHANISMS = {"none": 1, "photonic": 2, "per_example": 3}
GAUSSIAN = dict.fromkeys(("per_example",), "")
SAMPLERS = ("poisson", "shuffled")
FEATURES = {"pixels": 1, "file": 2}
WORDS = ("none", "many")
class TrialConfig:
    mechanism: str = setting("none", choices=MECHANISMS)
    sampler: str = setting("shuffled", "how batches are drawn", choices=SAMPLERS)
    features: str = setting("pixels", choices=FEATURES)
    sigma: float = setting(0.0)
"""
IMPORTS = "from pipeline.choices import GAUSSIAN, MECHANISMS, WORDS\nfrom pipeline import choices\n"


def trees(**sources):
    """Modules of a made-up pipeline, beside its choices."""
    sources = {"choices": CHOICES, **sources}
    return {f"pipeline/{name.replace('__', '/')}.py": ast.parse(source) for name, source in sources.items()}


def found(source, **others):
    """Lines of the comparisons in a module, those of the imports not counted."""
    made = trees(asks=IMPORTS + source, **others)
    return [line - 2 for path, line, _ in counts.comparisons(made) if path == "pipeline/asks.py"]


@pytest.mark.parametrize("source", [
    'c.mechanism == "photonic"', 'c.mechanism != "none"', '"photonic" == name', 'row["mechanism"] == "none"',
    'row.get("features") == "file"', "c.mechanism in GAUSSIAN", "c.mechanism not in choices.GAUSSIAN",
    'c.features in ("pixels", "file")', 'c.mechanism not in ("none", *GAUSSIAN)', 'samplers == ["shuffled"]',
    "MECHANISMS[c.mechanism]", "GAUSSIAN.get(c.mechanism)", 'MECHANISMS["photonic"]', 'runs["sampler"].isin(GAUSSIAN)',
    '{"poisson": 1, "shuffled": 2}[c.sampler]', "def f(c):\n    by_name = {'poisson': 1}; return by_name[c.sampler]",
    'match c.mechanism:\n    case "none":\n        pass\n    case _:\n        pass',
    'match name:\n    case "photonic" | "per_example":\n        pass',
    "class C:\n    @property\n    def is_photonic(self):\n        return self.mechanism == 'photonic'"])
def test_a_comparison_by_name_is_counted_once(source):
    assert len(found(source)) == 1


@pytest.mark.parametrize("source", [
    'relation == "none"', 'uri.scheme == "file"', "uri.scheme in WORDS", "c.sigma == 0",
    "c.mechanism == other.mechanism", 'c.mechanism = "photonic"', 'f(mechanism="photonic")',
    "for name in GAUSSIAN:\n    pass", 'row["mechanism"]', "c.mechanism.certified", "c.is_photonic",
    "x: dict[str, int] = {}", 'match word:\n    case "none":\n        pass', 'print("photonic" + name)', "rows[0]",
    'MECHANISMS["new"] = 1', 'word in ("photonic", "of", "many")'])
def test_what_compares_no_name_is_not(source):
    assert found(source) == []


def test_two_in_a_line_are_two_and_lines_are_those_of_the_source():
    assert found('\nc.mechanism == "photonic" and c.sampler == "poisson"\nmatch c.sampler:\n    case "poisson":\n'
                 '        pass\n    case "shuffled":\n        pass') == [2, 2, 4, 6]


def test_the_module_that_declares_a_part_may_ask_for_its_name():
    part = '@part("mechanism", "column")\nclass Column:\n    def check(self, c):\n        return {} == "column"\n'
    made = trees(column=part.format("c.mechanism"), asks="def f(c):\n    return c.mechanism == 'column'")
    assert counts.comparisons(made) == [("pipeline/column.py", 4, False), ("pipeline/asks.py", 2, True)]


def test_statements_are_counted_without_docstrings():
    source = ('"""Says what."""\nimport os\ndef f():\n    """Does it."""\n    if os: return 1\n'
              'class C:\n    """Is it."""\n')
    assert counts.statements(ast.parse(source)) == 5


def test_floors_are_the_longest_chain_of_imports_and_a_circle_counts_whole():
    chain = {"a": "import pipeline.b", "b": "def f():\n    from pipeline import c", "c": "x = 1", "d": "import os"}
    assert counts.floors({path: tree for path, tree in trees(**chain).items()}) == 3
    assert counts.floors(trees(**chain | {"c": "from pipeline.b import f"})) == 3
    typed = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import pipeline.a\nelse:\n    import pipeline.b"
    assert counts.floors(trees(**chain | {"d": typed})) == 3
    assert counts.floors(trees(**chain | {"d": "import pipeline.a"})) == 4


def test_a_setting_is_named_where_it_is_declared_or_stands_as_attribute_keyword_or_text():
    made = trees(a="c.sigma", b="f(sigma=1)", c="g('sigma')", d="sigma = 1", e="c.sigma + c.sigma")
    assert sorted(counts.mentions(made)["sigma"]) == [f"pipeline/{name}.py" for name in ("a", "b", "c", "choices", "e")]
    assert counts.mentions(made).keys() == {"mechanism", "sampler", "features", "sigma"}


def test_comparisons_by_name_only_become_fewer():
    made, texts = counts.read()
    names = counts.Names(made).slots
    for slot, known in {"mechanism": "per_example", "algorithm": "dfa", "sampler": "poisson", "optimizer": "adam",
                        "projector": "gaussian", "network": "convnet", "features": "scattering"}.items():
        assert known in names[slot], f"{slot}: its names are not found, so comparisons with them are not counted"
    outside = [f"{path}:{line}: {texts[path].splitlines()[line - 1].strip()}"
               for path, line, is_outside in counts.comparisons(made) if is_outside]
    assert len(outside) <= MOST, f"{len(outside)} comparisons by name, more than {MOST}: ask the part, not its name"


def test_a_revision_and_the_working_tree_are_counted(tmp_path, monkeypatch, capsys):
    for path, source in {"pipeline/choices.py": CHOICES, "pipeline/asks.py": 'c.mechanism == "photonic"\n',
                         "analysis/runs.py": "import pipeline.asks\n", "experiments/other.py": "x = 1\n"}.items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(source)
    for arguments in (["init", "-q"], ["add", "."], ["commit", "-qm", "one"]):
        subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b.c", *arguments], cwd=tmp_path, check=True)
    (tmp_path / "pipeline" / "asks.py").write_text("c.mechanism.certified\n")
    monkeypatch.setattr(counts, "ROOT", tmp_path)
    for arguments, comparisons in ((["HEAD", "--list"], "1"), ([], "0")):
        monkeypatch.setattr(sys, "argv", ["counts.py", *arguments])
        counts.main()
        listed, _, table = capsys.readouterr().out.rpartition("package ")
        assert listed.strip() == ('pipeline/asks.py:1: c.mechanism == "photonic"' if arguments else "")
        rows = [line.split() for line in table.splitlines()]
        assert ["pipeline", "2", "11", "1", comparisons, comparisons] in rows
        assert ["all", "of", "analysis", "1", "1", "1", "0", "0"] in rows
        assert " ".join(rows[-1]) == "modules that name a setting: median 1, most 2 (mechanism), of 4 settings"
