"""The mistakes of tests/data/mutants.json are still ones that can be made, in every package."""

import ast
from collections import Counter

import mutants
import pytest

MUTANTS = mutants.read()
LEAST = 80


def test_a_mistake_changes_one_place_and_is_still_python():
    """Its number of places is checked where it is made."""
    for file in {mutant.file for mutant in MUTANTS}:
        text = (mutants.ROOT / file).read_text(encoding="utf-8")
        right = ast.dump(ast.parse(text))
        for mutant in (m for m in MUTANTS if m.file == file):
            assert ast.dump(ast.parse(mutant.applied(text))) != right, mutant


def test_every_package_has_mistakes_and_their_tests_are_there():
    packages = Counter(mutant.file.removeprefix("pipeline/").split("/")[0] for mutant in MUTANTS)
    folders = {path.parent.name for path in (mutants.ROOT / "pipeline").glob("*/__init__.py")} | {"analysis"}
    assert packages.keys() == folders and min(packages.values()) >= 2 and len(set(MUTANTS)) == len(MUTANTS) >= LEAST
    for file, _, test in (mutant.test.partition("::") for mutant in MUTANTS):
        assert f"def {test.partition('[')[0]}(" in (mutants.ROOT / file).read_text(encoding="utf-8")


@pytest.mark.nightly
def test_a_change_that_is_no_mistake_survives_and_one_that_breaks_all_is_told_apart(capsys):
    mutant = MUTANTS[0]
    equal, broken = mutant._replace(new=f"{mutant.old}  "), mutant._replace(new="(")
    assert mutants.survivors([mutant, equal, broken]) == [equal, broken]
    assert sorted(line.split()[0] for line in capsys.readouterr().out.splitlines()) == ["BROKEN", "SURVIVED", "killed"]
