"""Errors in code of users: one line with their file, from every command, and no record of a secure trial in it."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from stored import records, stored

from pipeline.auditing.audit import audit_trial
from pipeline.cli import main
from pipeline.experiment.experiment import load_experiment
from pipeline.experiment.plugins import load_plugins
from pipeline.learning.data.dataset import DataError, load, register_dataset
from pipeline.learning.own.register import network
from pipeline.sweep.worker import prepare_node
from pipeline.trials.config import ConfigError, TrialConfig
from pipeline.trials.datasets import DATASETS
from pipeline.trials.fields import UserError
from pipeline.trials.guard import guarded, is_of_users, one_line, public_line

pytestmark = [pytest.mark.usefixtures("extensions"), pytest.mark.usefixtures("only_svg")]
EXHIBIT = """
from analysis import Exhibit, exhibit

@exhibit("mine", needs=lambda trials: {needs})
def draw(runs):
    {body}
"""
SECRET = "the record 8191"
FILE = "name: q\nplugins: [mine]\nbase: {dataset: digits, hidden: [], algorithm: bp, epochs: 1}\ngrid: {seed: [0, 1]}\n"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def swept(folder, listed=""):
    Path("q.yaml").write_text(FILE + listed)
    experiment = load_experiment("q.yaml")
    stored(folder / "mlruns", "q", experiment.trials, lambda trial: records(trial, [{"test/accuracy": 0.5}]))


@pytest.mark.parametrize("listed", ["", "report: [mine]\n"])
@pytest.mark.parametrize(("needs", "body", "says"), [
    ("trials[0].clip_norm", "pass", "is left out, as its `needs` (mine.py:4) raised AttributeError: 'TrialConfig' "
     "object has no attribute 'clip_norm' (mine.py:4)"),
    ("1 / 0 if len(trials) == 2 else ''", "pass", "is left out, as its `needs` (mine.py:4) raised ZeroDivisionError: "),
    ("7", "pass", "is left out, as its `needs` (mine.py:4) must return a text, got 7"),
    ("None", "return runs.shape", "its function (mine.py:4) must return an Exhibit, got (2, "),
    ("exec('class B(BaseException): pass\\nraise B(7)')", "pass",
     "is left out, as its `needs` (mine.py:4) raised B: 7"),
    ("''", "raise SystemExit(7)", "raised SystemExit in mine.py:6: 7"),
    ("''", "raise SystemError('two\\nlines')", "raised SystemError in mine.py:6: two lines")])
def test_nothing_but_its_report_depends_on_an_exhibit(folder, capsys, needs, body, says, listed):
    Path("mine.py").write_text(EXHIBIT.format(needs=needs, body=body))
    swept(folder, listed)
    for command in ("account", "status"):
        assert main([command, "q.yaml"]) == 0
    assert capsys.readouterr().err == ""
    assert main(["report", "q.yaml"]) == 1
    told = capsys.readouterr()
    assert told.err == "error: drawing mine failed; the page has the reasons, and all else\n"
    assert [line for line in told.out.splitlines() if line.startswith(f"mine: {says}")]
    page = Path("reports/q/index.html").read_text(encoding="utf-8")
    assert says.partition("`")[0][:20] in page


@pytest.mark.parametrize(("text", "says"), [
    ("raise SystemExit('bye')", "SystemExit: bye (mine.py:1)"), ("x = (", "SyntaxError: '(' was never closed (mine.py"),
    ("class B(BaseException): pass\nraise B('bye')", "B: bye (mine.py:2)"),
    ("import not_there", "ModuleNotFoundError: No module named 'not_there' (mine.py:1)"),
    ("raise ValueError('two\\nlines')", "ValueError: two (mine.py:1)")])
def test_a_plugin_that_cannot_be_imported_is_one_line(folder, capsys, text, says):
    Path("mine.py").write_text(text)
    Path("q.yaml").write_text(FILE)
    for command in (["sweep", "--dry-run"], ["status"], ["report"], ["account"], ["audit"]):
        assert main([*command, "q.yaml"]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("error: plugins: 'mine' cannot be imported (") and says.partition(" (mine")[0] in line
        assert line.endswith(")"), "a module that is there need not be put elsewhere"


def test_a_module_by_almost_that_name_is_proposed_and_another_one_by_that_name_is_refused(folder):
    Path("a").mkdir()
    for file in "resmlp_1.py", "a/resmlp_1.py":
        Path(file).write_text(f"# {file}")
    for name in "resmpl_1", "resmlp_1.py":
        with pytest.raises(ConfigError, match=r"'(; '\w+' is not a package)?\); did you mean 'resmlp_1'\? it must be"):
            load_plugins([name], folder)
    sys.path.insert(0, str(folder))  # as Python does for a script there
    with pytest.raises(ConfigError, match=f"one module, got {folder}/a/resmlp_1.py and {folder}/resmlp_1.py, which"):
        load_plugins(["resmlp_1"], folder / "a")


def test_what_no_other_guard_has_ends_the_command_in_one_line(folder, capsys):
    """The shape of a map of records, which is asked for when trials are checked."""
    Path("mine.py").write_text("from pipeline.learning.data.maps.registered import register_features\n"
                               "register_features('halves', lambda x, t: x, shape=lambda trial: trial.width, "
                               "public_because='it is fixed')\n")
    Path("q.yaml").write_text(FILE.replace("hidden: []", "hidden: [], features: halves"))
    for command in (["sweep", "--dry-run"], ["status"], ["report"], ["account"], ["fields"]):
        assert main([*command, "q.yaml"]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("error: AttributeError: ") and line.endswith(" (mine.py:2)")


def test_an_error_of_this_package_is_not_blamed_on_users():
    with pytest.raises(ValueError) as raised:
        int("x")
    assert is_of_users(raised.value), "this test is a user"
    assert not is_of_users(ConfigError("x")) and one_line(ConfigError("x: y")) == "ConfigError: x: y"


class Forward(torch.nn.Module):
    def forward(self, h):
        raise KeyError("no such layer")


@pytest.mark.parametrize("build", [
    lambda trial, shape, n_classes: torch.nn.Sequential(Forward(), torch.nn.LazyLinear(n_classes)),
    lambda trial, shape, n_classes: torch.nn.Sequential(Forward(), torch.nn.Linear(64, n_classes))])
def test_a_network_that_raises_is_named_with_file_and_line(build):
    build.__module__, build.__qualname__ = __name__, "build"
    network("mine", version=1)(build)
    says = r"network: 'mine' \(test_guard.py:\d+\) must take .*KeyError: 'no such layer'"
    with pytest.raises(ConfigError, match=says):
        TrialConfig(dataset="digits", network="mine", algorithm="bp")


def read(fault):
    def of(spec, folder):
        if isinstance(fault, Exception):
            raise fault
        x, y = np.zeros((spec.n_train, 64), np.uint8), np.zeros(spec.n_train)
        y[3] = fault
        return (x, y), (x[:spec.n_test], y[:spec.n_test])
    return of


@pytest.mark.parametrize("fault", [ValueError(SECRET), UserError(SECRET), DataError(SECRET), 8191])
def test_an_error_of_a_reader_shows_no_record_of_a_secure_trial(folder, fault):
    register_dataset("mine", DATASETS["digits"].spec, read(fault))
    with pytest.raises(DataError, match="8191"):
        load("mine")
    secure = TrialConfig(dataset="mine", mechanism="per_example", noise="secure", arithmetic="integer",
                         sampler="poisson", target_epsilon=1.0)
    for ask in (lambda: prepare_node([secure], None, folder / "c", folder / "private" / "log"),
                lambda: audit_trial(secure)):
        with pytest.raises(UserError) as raised:
            ask()
        assert "8191" not in str(raised.value)
    assert "8191" in (folder / "private" / "log").read_text()


def test_a_hidden_error_is_told_by_type_and_place():
    for error, said in ((ValueError(SECRET), "ValueError (test_guard.py:"), (UserError(SECRET), "UserError (test_gua")):
        with pytest.raises(ConfigError) as raised, guarded(ConfigError, hidden=True):
            raise error
        assert str(raised.value).startswith(said) and SECRET not in public_line(error)
    with pytest.raises(UserError, match=SECRET), guarded(ConfigError):
        raise UserError(SECRET)
