"""The command line as a user meets it: real processes, their output and their exit codes."""

import dataclasses
import errno
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
from approved import approved
from commands import output, written
from safetensors.numpy import save_file

from pipeline.api import account
from pipeline.auditing.row_space import row_space_audit
from pipeline.auditing.two_point import audit_release
from pipeline.cli import main
from pipeline.cli import photonic as photonic_group
from pipeline.experiment.experiment import load_experiment, parse_experiment
from pipeline.learning.data.dataset import load
from pipeline.sweep.progress import SweepResult
from pipeline.tracking.artifacts import TrackedRun, config_of, param_text
from pipeline.tracking.store import Store, TrackingError
from pipeline.trials.config import ConfigError, TrialConfig
from pipeline.trials.fields import UserError

ROOT = Path(__file__).parents[2]

TINY = """
name: tiny
description: Six trials of a few seconds.
base: {dataset: digits, hidden: [16, 16], batch_size: 64, epochs: 2, learning_rate: 0.05}
cases:
  - grid: {algorithm: [bp, dfa, pdfa]}
  - base: {mechanism: photonic}
    grid: {algorithm: [bp, dfa, pdfa], sigma: [0.1]}
"""


def photonic(*arguments, cwd, **environment):
    return subprocess.run([sys.executable, "-m", "pipeline.cli", *map(str, arguments)], cwd=cwd, text=True,
                          capture_output=True, env={**os.environ, "PYTHONPATH": str(ROOT), **environment})


@pytest.mark.slow
def test_sweep_then_again_then_wider_then_report(tmp_path):
    file = written(tmp_path / "tiny.yaml", TINY)
    first = photonic("sweep", file, cwd=tmp_path)
    assert first.returncode == 0, first.stderr
    phases = [line for line in first.stderr.splitlines() if not line.startswith("[")]
    looking, starting, new, training, ended = phases
    assert [looking, starting] == ["looking for data sets: digits", "starting Ray"] and not first.stdout
    assert new.startswith(f"new tracking store: {tmp_path}")
    assert re.fullmatch(r"training 6 trials in \d packs, \d+ at a time", training)
    assert ended.startswith("6 trials: 6 finished")
    again = photonic("sweep", file, cwd=tmp_path)
    assert again.returncode == 0 and "nothing to do: all 6 trials are done" in again.stdout + again.stderr
    file.write_text(TINY.replace("sigma: [0.1]", "sigma: [0.1, 0.2]"))
    incomplete = photonic("report", file, cwd=tmp_path)
    assert incomplete.returncode == 0, incomplete.stderr
    assert incomplete.stdout.startswith("Unfinished: 6 of 9 trials have ended.") and "logged" not in incomplete.stdout
    wider = photonic("sweep", file, cwd=tmp_path)
    assert wider.returncode == 0 and "9 trials: 6 done before, 3 finished" in wider.stdout + wider.stderr
    report = photonic("report", "tiny", cwd=tmp_path)  # by name: the store has the file as it was swept last
    assert report.returncode == 0, report.stderr
    last = report.stdout.splitlines()[-1]
    assert last.startswith("beside it, and logged")
    page = (tmp_path / "reports/tiny/index.html").read_text(encoding="utf-8")
    assert "<dt>leekifer</dt>" in page and "<dt>table1</dt>" not in page
    assert "sigma: [0.1, 0.2]" in page
    assert re.search(r"Trained with python [\d.]+, torch \S+, ray \S+, mlflow \S+<", page)
    table = (tmp_path / "reports/tiny/table1.csv").read_text().splitlines()
    assert table[0] == ("algorithm,setting,accuracy_mean,accuracy_half_width,accuracy_low,accuracy_high,n,paper,"
                        "difference")
    assert len(table) == 10
    assert (tmp_path / "reports/tiny/figure2.png").stat().st_size > 10_000


def test_dry_run_shows_packs_resources_and_an_estimate(tmp_path, capsys):
    tiny = written(tmp_path / "tiny.yaml", TINY)
    first, second, *rows = output(capsys, "sweep", str(tiny), "--dry-run", "--workers", "2").splitlines()
    assert re.match(r"tiny: .+ on this machine .*\(an estimate\)", first) and second.startswith("6 trials in ")
    cells = [found for row in rows if len(found := re.split("  +", row)) == 4]  # without remarks below the table
    assert cells[0] == ["packs", "trials", "each takes", "settings"] and sum(int(row[1]) for row in cells[1:]) == 6
    assert any(takes == "1 CPU, 1 OPU" and "algorithm=pdfa" in text for _, _, takes, text in cells[1:])

    file = tmp_path / "e.yaml"
    file.write_text("base: {dataset: digits, hidden: [8], feedback_std: 0.3}\ngrid: {algorithm: [bp, dfa]}\n")
    assert "\nignored: feedback_std by 1 trial of algorithm bp\n" in output(capsys, "sweep", str(file), "--dry-run")

    plan = json.loads(output(capsys, "sweep", str(file), "--dry-run", "--workers", "2", "--json"))
    keys = [trial["trial_key"] for pack in plan["packs"] for trial in pack["trials"]]
    assert sorted(keys) == sorted(trial.trial_key for trial in load_experiment(file).trials)
    assert plan["estimated_seconds"] > 0 and len(plan["packs"]) == 2
    assert not (tmp_path / "mlruns").exists()

    file.write_text(SHARED.replace("poisson", "poisson, delta: 0.5"))
    for command in (["account"], ["sweep", "--dry-run"]):
        assert output(capsys, *command, str(file)).count("\ndelta: 0.5 is more than 1/N = 0.00077: publishing") == 1


@pytest.mark.parametrize(("content", "arguments", "message"), [
    ("base: {nose: 1}", [], "nose: unknown field"), ("grid: {}", [], "grid: is empty"),
    ("base: {dataset: digits}", ["--workers", "0"], "--workers: must be at least 1, got 0"),
    ("base: {algorithm: pdfa, projector: opu_hardware, dataset: digits, batch_size: 8}", [],
     "OPU: the driver lightonopu is not installed"),
    ("base: {dataset: digits, batch_size: 8, algorithm: pdfa}\nresources: {opu: 2}", [], "no node offers OPU: 2"),
    ("base: {dataset: digits, batch_size: 8}", ["--address", "127.0.0.1:9"], "no Ray cluster answers")])
def test_bad_input_is_refused_in_one_line_before_training(tmp_path, monkeypatch, capfd, content, arguments, message):
    file = written(tmp_path / "bad.yaml", content)
    monkeypatch.chdir(tmp_path)
    assert main(["sweep", str(file), *arguments]) == 2
    *phases, line = capfd.readouterr().err.strip().splitlines()
    assert phases in ([], ["starting Ray"]) and line.startswith("error: ") and message in line
    if (tmp_path / "mlruns/mlflow.db").exists():
        with pytest.raises(TrackingError, match="no sweep named 'bad'"):  # a refused sweep leaves no trace
            Store(root=tmp_path / "mlruns").attach("bad")


SHARED = """
base: {dataset: digits, batch_size: 64, epochs: 1, mechanism: per_example, sampler: poisson}
grid: {algorithm: [bp, dfa], noise_multiplier: [1, 2], seed: [0, 1]}
"""
STOPPING = """
name: stopping
base: {dataset: digits, hidden: [16], batch_size: 64, epochs: 2, mechanism: per_example, sampler: shuffled,
       noise_multiplier: 20}
grid: {algorithm: [bp, dfa], learning_rate: [0.1, 0.2]}
selection: {rule: random_stopping, mean: 4, seed: 2}
"""
PHOTONIC = "base: {mechanism: photonic, sigma: 0.1, gamma_min: 0.5, tau_h_min: 0.5, activation_floor: true}"
CALIBRATED = """
base: {dataset: digits, batch_size: 64, epochs: 3, mechanism: per_example, sampler: shuffled, target_epsilon: 2}
"""
MIXED = STOPPING.partition("grid:")[0] + "cases: [{}, {base: {sampler: poisson}}]"
ACCOUNTED = {"photonic": (PHOTONIC,), "shared": (SHARED,), "calibrated": (CALIBRATED, "--by-epoch"),
             "drawn": (STOPPING,), "mixed": (MIXED,)}


def test_account_prints_epsilons_assumptions_and_what_the_best_of_the_grid_costs(tmp_path, capsys):
    told = []
    for name, (text, *options) in ACCOUNTED.items():
        told.append(output(capsys, "account", str(written(tmp_path / f"{name}.yaml", text)), *options))
    approved("account", "\n".join(told))
    plan = output(capsys, "sweep", str(tmp_path / "drawn.yaml"), "--dry-run")
    prices = [text[text.index("the best of the"):] for text in (plan, told[3])]
    assert prices[0] == prices[1], "they are shown before anything is trained"

    found = json.loads(output(capsys, "account", str(tmp_path / "shared.yaml"), "--json"))
    trials = load_experiment(tmp_path / "shared.yaml").trials
    assert [key for s in found["settings"] for key in s["trial_keys"]] == [trial.trial_key for trial in trials]
    (epsilons,) = found["settings"][0]["epsilons"]
    assert epsilons[0]["value"] == account(trials[0])[0].value and epsilons[0]["kind"] == "certified"
    assert found["best"][0] == "the best of 8 certified trials"


AUDITED = """
name: audited
base: {dataset: digits, hidden: [24, 16], batch_size: 16, algorithm: dfa, sigma: 0.1}
grid: {seed: [0, 1]}
cases:
  - base: {mechanism: photonic}
  - base: {mechanism: per_example, noise_multiplier: 1, sampler: poisson, clipping_norm: 0.5}
"""


@pytest.fixture
def few_runs(monkeypatch):
    """Audits of a quarter of the runs, where what they find is plain with those."""
    monkeypatch.setattr("pipeline.auditing.audit.RUNS", 500)


def test_audit_prints_what_attacks_see_beside_what_is_certified(tmp_path, capsys, few_runs):
    file = written(tmp_path / "audited.yaml", AUDITED)
    out = output(capsys, "audit", str(file), "--steps", "20")
    rows = [line for line in out.splitlines() if line.startswith(("1 dfa photonic", "2 dfa per_example"))]
    attacks = [row for row in rows if "epsilon =" not in row]
    assert len(attacks) == 5, "two seeds of a trial are one"
    assert all("finds its members" in row for row in attacks[:2]) and attacks[0].split()[8] == "1.000"
    assert all("blind" in row for row in attacks[2:4])
    assert "below certified" in attacks[4] and ">= 0." in attacks[4] and " 1.000 " in attacks[4]
    epsilons = [row for row in rows if "epsilon =" in row]
    for epsilon, kind in zip(epsilons, ("claimed", "audited one_step", "certified one_step"), strict=True):
        assert f"({kind}" in epsilon and all(word in epsilon for word in ("delta = 1e-05", "relation", "sampler"))


def test_audit_of_one_trial_is_logged_to_its_sweep(tmp_path, capsys):
    file = written(tmp_path / "audited.yaml", AUDITED)
    store = tmp_path / "mlruns"
    arguments = ["audit", str(file), "--trial", "1", "--mlruns", str(store)]
    assert main(arguments) == 2 and not store.exists()
    Store(root=store).open_sweep("audited")
    capsys.readouterr()
    out = output(capsys, *arguments)
    assert "1 dfa photonic" in out and "per_example" not in out
    logged = list(store.glob("**/report/audit.txt"))
    assert len(logged) == 1 and logged[0].read_text() == out


def test_of_a_secure_trial_only_public_findings_are_logged(tmp_path, capsys, few_runs):
    store = tmp_path / "mlruns"
    file = written(tmp_path / "secure.yaml", "name: secure\nbase: {dataset: digits, hidden: [24, 16], batch_size: 16, "
                   "mechanism: per_example, sampler: poisson, noise_multiplier: 4, noise: secure, arithmetic: integer, "
                   "epochs: 1}\n")
    Store(root=store).open_sweep("secure")
    assert main(["audit", str(file), "--mlruns", str(store)]) in (0, 1)  # one bound in twenty exceeds by chance
    out = capsys.readouterr().out
    assert "row space" in out
    assert "logged: 1 of 3 rows; the others are computed from private records" in out
    (logged,) = store.glob("**/report/audit.txt")
    assert "two neighbours, one step" in logged.read_text()
    assert "row space" not in logged.read_text()


@pytest.fixture(scope="module")
def tracked(tmp_path_factory):
    """A store with a certified and a photonic trial, and another sweep with the certified one: (root, run ids)."""
    root, ids = tmp_path_factory.mktemp("tracked") / "mlruns", []
    store = Store(root=root)
    for sweep, trials in (("one", [AUDITED_RUN, PHOTONIC_RUN]), ("two", [TWICE]), ("three", [TWICE])):
        store.open_sweep(sweep)
        ids += [store.start(trial) for trial in trials]
    return root, ids


AUDITED_RUN = TrialConfig(dataset="digits", hidden=(24, 16), batch_size=16, mechanism="per_example", sampler="poisson",
                          noise_multiplier=1.0, clipping_norm=0.5, seed=5)
PHOTONIC_RUN = dataclasses.replace(AUDITED_RUN, mechanism="photonic", sampler="shuffled", sigma=0.1, hidden=(24,))
TWICE = dataclasses.replace(AUDITED_RUN, seed=6)


def seen_by(trial, layer):
    return row_space_audit(trial, load("digits"), layer).auc


def test_audit_of_a_tracked_run_is_that_of_its_configuration_and_is_logged_to_it(tracked, capsys, few_runs):
    """By its run id and by its trial_key."""
    root, ids = tracked
    out = output(capsys, "audit", ids[0], "--mlruns", str(root))
    assert out.count("dfa per_example z=1") == 5 and "below certified" in out
    run = Store(root=root).trial(ids[0])
    expected = audit_release(AUDITED_RUN, 500, 1e-5)
    assert run.run_id == ids[0] and config_of(run) == AUDITED_RUN
    assert run.metrics["epsilon/audited/one_step"] <= expected.certified.value
    assert run.metrics["epsilon/audited/one_step"] == expected.audited.value
    assert run.metrics["audit/one_step_mu"] == expected.mu_lower
    assert run.metrics["audit/row_space_auc/layer_2"] == seen_by(AUDITED_RUN, 2)
    assert "audited one_step; delta = 1e-05, relation add/remove" in run.tags["privacy.audited"]
    assert [path.read_text() for path in root.glob(f"artifacts/one/{ids[0]}/artifacts/audit/audit.txt")] == [out]

    assert main(["audit", PHOTONIC_RUN.trial_key, "--mlruns", str(root)]) == 0  # which has no epsilon to log
    run = Store(root=root).trial(ids[1])
    assert run.metrics == {"audit/row_space_auc/layer_1": 1.0, "audit/row_space_auc/layer_2": seen_by(PHOTONIC_RUN, 2)}
    assert "privacy.audited" not in run.tags


def test_audit_refuses_unknown_ambiguous_and_foreign_runs_in_one_line(tracked, capsys):
    root, ids = tracked
    store = Store(root=root)
    store.attach("one")
    for name, message in (("0" * 16, "no trial has the trial_key or run id '0000"), ("f" * 32, "no trial has"),
                          (store._parent_id, "no trial has"), (TWICE.trial_key, f"has 2 runs: {ids[2]}, {ids[3]}"),
                          ("nothing", "nothing: no such experiment file")):
        err = output(capsys, "audit", name, "--mlruns", str(root), code=2)
        assert err.count("\n") == 1 and err.startswith("error: ") and message in err, err
    store.open_sweep("extended")
    run_id = store.start(AUDITED_RUN, {"plugin.mine": "0123456789abcdef"})
    error = output(capsys, "audit", run_id, "--mlruns", str(root), code=2)
    assert f"error: {run_id}: must be a trial without plugins, as nothing that a store names is imported, got one " \
        "with mine; audit it by its experiment file" in error and "mine" not in sys.modules
    assert "--trial: selects a trial of FILE" in output(
        capsys, "audit", ids[0], "--mlruns", str(root), "--trial", "1", code=2)
    assert "does not exist" in output(capsys, "audit", ids[0], "--mlruns", str(root / "none"), code=2)


@pytest.mark.parametrize(("params", "message"), [
    ({"sigma": "0.3"}, "must be those of trial"), ({"batch_size": "null"}, "cannot be read"),
    ({"nose": "1"}, "cannot be read .nose: unknown field"), ({"epochs": "many"}, "cannot be read")])
def test_params_that_are_not_the_trials_are_refused(params, message):
    own = {name: param_text(value) for name, value in PHOTONIC_RUN.canonical().items()}
    run = TrackedRun("0" * 32, PHOTONIC_RUN.trial_key, own, {}, {}, "finished", 0, 1)
    assert config_of(run).canonical() == PHOTONIC_RUN.canonical()
    with pytest.raises(ConfigError, match=message):
        config_of(dataclasses.replace(run, params={**own, **params}))


def test_audit_exits_1_where_more_is_measured_than_certified(tmp_path, capsys, monkeypatch, few_runs):
    from pipeline.learning.mechanisms.gaussian import PerExampleStep

    monkeypatch.setattr(PerExampleStep, "bounded", lambda self, deltas, activations: (deltas, activations))
    file = written(tmp_path / "audited.yaml", AUDITED)
    assert main(["audit", str(file), "--trial", "2"]) == 1
    assert "EXCEEDS certified" in capsys.readouterr().out


class Refused(UserError, RuntimeError):
    """Of a module that the command line does not know."""


@pytest.mark.parametrize(("error", "says"), [
    (Refused("sigma: must be >= 0"), "sigma: must be >= 0"),
    (MemoryError(), "out of memory; make room and run the same command again to go on"),
    (PermissionError(errno.EACCES, "Permission denied", "new.yaml"),
     "new.yaml: permission denied; it must be in a folder that you may read and write"),
    (IsADirectoryError(errno.EISDIR, "Is a directory", "new.yaml"), "new.yaml: is a directory"),
    (OSError(errno.ENOMEM, "Cannot allocate memory"),
     f"[Errno {errno.ENOMEM}] Cannot allocate memory; make room and run the same command again to go on")])
def test_an_error_for_people_is_printed_in_one_line(capsys, monkeypatch, error, says):
    monkeypatch.setattr("pipeline.sweep.target.load_experiment", Mock(side_effect=error))
    assert main(["account", "x.yaml"]) == 2 and capsys.readouterr().err == f"error: {says}\n"
    assert issubclass(ConfigError, ValueError) and issubclass(TrackingError, RuntimeError), "what they were before"


def test_a_name_that_is_too_long_for_files_is_refused_by_every_command(tmp_path, capsys):
    name = "x" * 121
    file = written(tmp_path / "e.yaml", f"name: {name}\nbase: {{dataset: digits}}\n")
    for command in (["sweep", str(file), "--dry-run"], ["sweep", str(file)], ["status", str(file)]):
        message = output(capsys, *command, code=2)
        assert message.startswith("error: name: must have at most 120 characters, ") and "got 121: 'xx" in message
    for stem, message in ((name, "must have at most 120 characters"), ("a b", "must be letters, digits, '_'")):
        assert message in output(capsys, "init", str(tmp_path / f"{stem}.yaml"), code=2)
    assert [path.name for path in tmp_path.iterdir()] == ["e.yaml"]


@pytest.mark.slow
def test_an_output_that_cannot_encode_a_character_gets_another(tmp_path):
    """With a notebook's backend of figures, which is not installed here."""
    file = written(tmp_path / "e.yaml", "base: {dataset: digits, mechanism: per_example, noise_multiplier: 2}")
    script = ("import sys, analysis; from pipeline.cli import main; print(analysis.frontier_axes.__name__); "
              "sys.exit(main(sys.argv[1:]))")
    shown = subprocess.run([sys.executable, "-c", script, "account", str(file)], cwd=ROOT, text=True,
                           capture_output=True, env={**os.environ, "PYTHONIOENCODING": "cp1252",
                                                     "MPLBACKEND": "module://not_here.inline"})
    assert (shown.returncode, shown.stderr) == (0, "") and shown.stdout.startswith("frontier_axes\n")
    assert "(?, ?)-differential privacy" in shown.stdout


@pytest.mark.parametrize(("line", "says"), [
    ("", "Usage: photonic [OPTIONS] COMMAND"),
    ("swep e.yaml", "No such command 'swep'. Must be one of init, sweep, status, report, account, audit, export, "
     "fields, ui, doctor, completion. Did you mean 'sweep'?"),
    ("audit a.yaml --trial 3", "error: --trial: must be at least 1 and at most the 2"),
    ("audit a.yaml --trial 0", "error: --trial: must be at least 1"),
    ("audit a.yaml --steps 0", "error: --steps: must be at least 1 and at most the 80"),
    ("sweep a.yaml --dry-run --address auto",
     "error: --address: must be left out with --dry-run, which is of this machine, got auto\n"),
    ("sweep a.yaml --json", "error: --json: is what --dry-run prints, got it without\n"),
    ("sweep a.yaml --checkpoint-seconds -1", "resources.checkpoint_seconds: must be a number >= 0, got -1.0"),
    ("account a.yaml --set sigma=3 --set seed=1", "--set seed: must be a field that no grid, zip, case or space sets"),
    ("account a.yaml --set epochs", "error: --set: "), ("status --set epochs=2", "error: --set: "),
    ("account target --json", "error: target: must be an experiment file or the name of a sweep; "),
    ("sweep", "Missing argument 'FILE|NAME'."), ("sweep a.yaml b.yaml", "Got unexpected extra argument (b.yaml)"),
    ("sweep e.yaml --dry-rum", "No such option '--dry-rum'. Did you mean '--dry-run'?"),
    ("sweep e.yaml --workers many", "Invalid value for '--workers': 'many' is not a valid integer."),
    ("sweep e.yaml --workers", "Option '--workers' requires an argument."),
    ("report e.yaml --out --where", "Option '--out' requires an argument, got --where."),
    ("sweep e.yaml --mlr --json", "Option '--mlruns' requires an argument, got --json."),
    ("account", "Missing argument 'FILE|NAME'."), ("completion tcsh", "'tcsh' is not one of 'bash', 'zsh'."),
    ("ui --port 0", "Invalid value for '--port': must be a whole number from 1 to 65535, got '0'")])
def test_wrong_words_are_refused_with_what_is_accepted(tmp_path, monkeypatch, capsys, line, says):
    monkeypatch.chdir(tmp_path)
    written(tmp_path / "a.yaml", AUDITED)
    assert says in output(capsys, *line.split(), code=2)
    assert not (tmp_path / "mlruns").exists()


def test_help_version_and_every_setting_are_printed_and_options_may_be_shortened(tmp_path, capsys):
    assert re.fullmatch(r"photonic \d+\.\d+\.\d+(\.dev\d+(\+\S+)?)?\n", output(capsys, "--version"))
    listed = output(capsys, "fields")
    assert listed.startswith("Knobs of privacy") and "\n  sigma (sigma; photonic): standard deviation" in listed
    assert "\nsigma = 0.0\n    standard deviation of the optical noise" in listed
    for name in photonic_group.shown:
        assert output(capsys, name, "-h") == output(capsys, name, "--help") != ""
    file = written(tmp_path / "e.yaml", "base: {dataset: digits, batch_size: 64, epochs: 9}\n")
    assert json.loads(output(capsys, "sweep", str(file), "--dry", "--js", "--work=1", "--set", "epochs=2"))["packs"]


@pytest.mark.parametrize(("words", "expected"), [
    (["photonic", "st"], {"status"}), (["photonic", "--v"], {"--version"}),
    (["photonic", "sweep", "--dr"], {"--dry-run"}), (["photonic", "sweep", "mi"], {"mine.yaml"})])
def test_completion_completes_commands_options_and_files(tmp_path, capsys, words, expected):
    script = output(capsys, "completion", "bash")
    (tmp_path / "mine.yaml").touch()
    ask = (f"COMP_WORDS=({' '.join(words)}); COMP_CWORD={len(words) - 1}; _photonic; "
           "printf '%s\\n' \"${COMPREPLY[@]}\"")
    done = subprocess.run(["bash", "-c", script + "\n" + ask], cwd=tmp_path, text=True, capture_output=True, check=True)
    assert set(done.stdout.split()) == expected and done.stderr == ""
    assert main(["completion", "zsh"]) == 0 and capsys.readouterr().out.endswith(script)


def swept(root, text):
    """The sweep `named` of a file in this folder, in a store: its parent run, with its text, and one trial begun."""
    experiment = parse_experiment(text, Path("file.yaml").absolute())
    store = Store(root=root / "mlruns")
    store.open_sweep("named", params={"trials": len(experiment.trials)})
    store.log_experiment(text)
    store.start(experiment.trials[0])
    return experiment


NAMED = "name: named\nbase: {dataset: digits, epochs: 2, mechanism: photonic, sigma: 0.1}\ngrid: {seed: [0, 1]}\n"


def test_sweep_status_and_account_take_the_name_of_a_sweep(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    experiment = swept(tmp_path, NAMED)
    plan = json.loads(output(capsys, "sweep", "named", "--dry-run", "--json", "--workers", "1", "--set", "epochs=3"))
    changed = parse_experiment(NAMED, Path("named.yaml"), changes={"epochs": 3})
    assert {t["trial_key"] for p in plan["packs"] for t in p["trials"]} == {t.trial_key for t in changed.trials}
    lines = output(capsys, "status", "named").splitlines()
    assert lines[0] == "named: 2 trials: 1 interrupted, 1 waiting; not running here"
    assert f"seed=1 ({experiment.trials[1].trial_key})" in lines[2] and lines[-1] == "  to go on: photonic sweep named"
    assert main(["account", "named", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["settings"][0]["trial_keys"] == [t.trial_key for t in experiment.trials]
    trained = []
    monkeypatch.setattr("pipeline.sweep.run.run_sweep", lambda experiment, **_: trained.append(experiment) or (
        SweepResult(planned=2, finished=2)))
    assert main(["sweep", "named"]) == 0 and trained[0].trials == experiment.trials and trained[0].text == NAMED
    Store(root=tmp_path / "mlruns", create=False)._client.mlflow.rename_experiment("1", "renamed")
    assert output(capsys, "status", "renamed").startswith("renamed: 2 trials: 1 interrupted, 1 waiting")


@pytest.mark.parametrize("command", [["sweep"], ["status"], ["account"], ["report"]])
def test_what_is_no_file_no_sweep_or_no_text_to_trust_is_refused_alike(command, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "other: must be an experiment file or the name of a sweep; " in output(capsys, *command, "other", code=2)
    swept(tmp_path, NAMED)
    assert output(capsys, *command, "other", code=2).endswith("mlruns/mlflow.db, which has named\n")
    assert output(capsys, *command, "other.yaml", code=2) == "error: other.yaml: no such experiment file\n"
    store = Store(root=tmp_path / "mlruns")
    store.open_sweep("secret")  # as of random stopping, of which no text is kept
    assert "has no experiment file (random stopping keeps its seed secret" in output(capsys, *command, "secret", code=2)
    store.log_experiment("plugins: [this_is_not_imported]\nbase: {dataset: digits}\n")
    assert main([*command, "secret"]) == 2
    assert "nothing that a store names is imported, got this_is_not_imported" in capsys.readouterr().err


def test_a_relative_path_of_a_stored_text_leads_to_the_same_features_or_is_refused(tmp_path, capsys, monkeypatch):
    text = NAMED.replace("epochs: 2", "epochs: 2, features: file, feature_file: x.safetensors, feature_source: public")
    for folder, value in (("here", 0.0), ("there", 1.0), ("nowhere", None)):
        (tmp_path / folder).mkdir()
        if value is not None:
            shapes = {"train": (1437, 4), "test": (360, 4)}
            save_file({part: np.full(shape, value, np.float32) for part, shape in shapes.items()},
                      tmp_path / folder / "x.safetensors")
    store = ["--mlruns", str(tmp_path / "mlruns")]
    monkeypatch.chdir(tmp_path / "here")
    swept(tmp_path, text)
    assert main(["status", "named", *store]) == 0 and "1 interrupted, 1 waiting" in capsys.readouterr().out
    monkeypatch.chdir(tmp_path / "there")
    assert main(["sweep", "named", "--dry-run", *store]) == 2
    assert "feature_file: must be a file with which 'named' was swept, got " in capsys.readouterr().err
    monkeypatch.chdir(tmp_path / "nowhere")
    printed = output(capsys, "sweep", "named", "--dry-run", *store, code=2)
    assert "x.safetensors cannot be read (no such file)" in printed

