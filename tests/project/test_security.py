"""What is read is never executed, servers stay on loopback, and no secret of the noise is in the store."""

from __future__ import annotations

import ast
import base64
import dataclasses
import functools
import importlib
import inspect
import pickle
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest
from commands import written
from ray_nodes import clean

import pipeline
from analysis.report.report import write
from pipeline.cli import main
from pipeline.experiment.experiment import load_experiment
from pipeline.learning import rounded_gaussian
from pipeline.sweep.checkpoints import Checkpoints
from pipeline.sweep.clock import Clock
from pipeline.sweep.prepare import prepare
from pipeline.sweep.private import PrivateFolder
from pipeline.sweep.run import recorded
from pipeline.sweep.worker import _dataset, epochs, train_pack
from pipeline.tracking.store import Store
from pipeline.trials.config import ConfigError, TrialConfig
from pipeline.trials.fields import UserError
from pipeline.trials.packs import Pack, plan
from pipeline.trials.part import PARTS
from pipeline.trials.records import Result, Sealed

ROOT = Path(__file__).parents[2]
CODE = [*ROOT.glob("pipeline/**/*.py"), *ROOT.glob("analysis/**/*.py")]
# Modules and functions that run what a file says.
EXECUTING = {"pickle", "cloudpickle", "dill", "joblib", "shelve", "marshal", "torch.load", "pandas.read_pickle",
             "yaml.unsafe_load", "yaml.full_load", "eval", "exec"}

SECURE = """
name: secure
base: {dataset: digits, hidden: [16, 16], batch_size: 64, epochs: 3, learning_rate: 0.1, noise: secure}
cases:
  - base: {algorithm: pdfa, mechanism: photonic, sigma: 10}
  - base: {mechanism: per_example, sampler: poisson, noise_multiplier: 1, arithmetic: integer}
"""


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """One store for all tests here: a new database takes seconds."""
    return tmp_path_factory.mktemp("runs")


def track(file: Path, root: Path) -> Store:
    """Sweep a file as `photonic sweep` does, in this process and with a checkpoint after every epoch.

    With secret noise no worker is asked for more than its result: checkpoint and sealed file stay, to be searched.
    """
    experiment, store = load_experiment(file), Store(root=root)
    sweep = prepare(experiment, store, Clock(), PrivateFolder(root), data_folder=None, quiet=True, commit="0123abcd")
    trainer = functools.partial(train_pack, device="cpu", threads=1, data_folder=None,
                                checkpoints=Checkpoints(root / "checkpoints", 0))
    with recorded(sweep) as recorder:
        for pack in plan(experiment.trials, experiment.resources, 1):
            recorder.start(pack)
            for sent in epochs(pack, trainer):
                assert "error" not in sent, sent
                item = sent["item"]
                if isinstance(item, list):
                    recorder.record(pack, item, 0.0)
                elif isinstance(item, Sealed):
                    assert recorder.name(pack, item)
                elif isinstance(item, Result):
                    recorder.release(pack, item)
                    break
    return store


def everything(root: Path) -> bytes:
    return b"\0".join(path.read_bytes() + path.name.encode() for path in root.rglob("*") if path.is_file())


def spellings(secret: bytes) -> list[bytes]:
    """A secret as bytes, in hexadecimal, in base 64, and as a number of either byte order."""
    numbers = [str(int.from_bytes(secret, order)).encode() for order in ("big", "little")]
    return [secret, secret[::-1], secret.hex().encode(), secret.hex().upper().encode(), secret[::-1].hex().encode(),
            base64.b64encode(secret), *numbers]


def test_no_key_or_entropy_of_secure_noise_is_anywhere_in_the_store(root, tmp_path, monkeypatch, caplog, capfd):
    file, secrets, aes = written(tmp_path / "secure.yaml", SECURE), [], rounded_gaussian.AES

    def known_key(key: bytes):
        secrets.append(key)
        return aes(key)

    monkeypatch.setattr(rounded_gaussian, "AES", known_key)
    with caplog.at_level("DEBUG"):
        track(file, root)
    stored = everything(root) + caplog.text.encode() + "".join(capfd.readouterr()).encode()
    assert len(secrets) > 20 and all(len(secret) == 32 for secret in secrets)
    for trial in load_experiment(file).trials:  # the search finds what is there
        assert trial.trial_key.encode() in stored
    assert b"layer_1.weight" in stored and all(list((root / "checkpoints").glob(f"*.{kind}"))
                                               for kind in ("safetensors", "sealed"))
    for secret in secrets:
        assert not any(spelling in stored for spelling in spellings(secret))


def test_seed_of_random_stopping_with_secure_noise_is_not_stored(root, tmp_path):
    seed = 271828182845904523536028747135266249775
    file = written(tmp_path / "secure.yaml", "name: stopping\ngrid: {learning_rate: [0.1, 0.2]}\n"
                   "base: {dataset: digits, hidden: [16], batch_size: 64, epochs: 1, noise: secure, "
                   "mechanism: per_example, noise_multiplier: 1, sampler: poisson, arithmetic: integer}\n"
                   f"selection: {{rule: random_stopping, mean: 2, seed: {seed}}}\n")
    track(file, root)
    stored = everything(root)
    assert load_experiment(file).trials[0].trial_key.encode() in stored
    assert not any(spelling in stored for spelling in spellings(seed.to_bytes(16, "big")))


def _facts(**others):
    digits = PARTS["dataset"]["digits"]
    return lambda monkeypatch, folder: monkeypatch.setattr(digits, "spec", dataclasses.replace(digits.spec, **others))


def _file_for_a_cache(monkeypatch, folder):
    (folder / "file").write_text("")
    monkeypatch.setenv("PHOTONIC_CACHE", str(folder / "file"))


@pytest.mark.parametrize(("fault", "settings", "remedy"), [
    (_facts(sha256="0" * 64), {}, "the private folder has the message"),
    (_facts(n_classes=7), {}, "the private folder has the message"),
    (_facts(n_train=1400), {}, "the private folder has the message"),
    (_file_for_a_cache, {"features": "patches", "patch_filters": 12, "patch_size": 3, "input_norm": 1.0},
     "set PHOTONIC_CACHE to a folder with room")])
def test_errors_of_data_show_no_path_and_no_digest_of_trials_with_secret_noise(fault, settings, remedy, monkeypatch,
                                                                               tmp_path):
    trial = TrialConfig(dataset="digits", hidden=(16,), batch_size=64, epochs=1, noise="secure", arithmetic="integer",
                        mechanism="per_example", sampler="poisson", noise_multiplier=1.0, **settings)
    fault(monkeypatch, tmp_path)
    _dataset.cache_clear()
    trainer = functools.partial(train_pack, device="cpu", threads=1, data_folder=None,
                                checkpoints=Checkpoints(tmp_path / "checkpoints", 0))
    *_, failed = epochs(Pack((trial,)), trainer)
    _dataset.cache_clear()
    assert failed["error"].startswith("DataError: ") and remedy in failed["error"]
    assert not re.search("/|[0-9a-f]{16}|digits|[0-9] ", failed["error"].rpartition(" (")[0])
    said = failed["traceback"].splitlines()[-1]
    assert re.search("/|[0-9a-f]{16}|digits", said), "the private log says which"


def test_every_kind_of_error_for_people_has_a_line_that_may_be_shown_or_speaks_of_settings_alone():
    for module in pkgutil.walk_packages(pipeline.__path__, "pipeline."):
        if "__main__" not in module.name:
            importlib.import_module(module.name)
    kinds = [UserError]
    for kind in kinds:
        kinds += [sub for sub in kind.__subclasses__() if sub.__module__.startswith("pipeline.")]
    of_records = {kind.__name__ for kind in kinds if "public" in inspect.signature(kind.__init__).parameters}
    assert of_records == {"DataError"}
    assert {kind.__name__ for kind in kinds} - of_records == {
        "UserError", "ConfigError", "UnsupportedAccounting",  # settings
        "MachineError", "OpuUnavailable",  # the environment, and what is installed
        "UnusableFile",  # of the file's header
        "SweepRunning", "ResourceError", "TrackingError", "NoStore", "OtherFormat"}  # raised where no records are


class Trap:
    """Unpickled, it leaves a file behind."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self):
        return Path.touch, (self.marker,)


@pytest.fixture
def trapped(root, tmp_path):
    """(file, store, marker) of a swept experiment in whose runs and checkpoints pickles were planted."""
    file = written(tmp_path / "plain.yaml", "base: {dataset: digits, hidden: [16], batch_size: 64, epochs: 1}\n"
                   "grid: {algorithm: [bp, dfa]}\nreport: [table1]\n")
    store, marker = track(file, root), tmp_path / "executed"
    trap = pickle.dumps(Trap(marker))
    for run in store.runs():
        (folder,) = root.glob(f"artifacts/*/{run.run_id}/artifacts")
        for name in ("weights.safetensors", "config.json", "per_class.csv", "model.pkl", "MLmodel", "data/model.pth"):
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_bytes(trap)
    (root / "checkpoints/plain").mkdir(parents=True)
    (root / "checkpoints/plain/0.safetensors").write_bytes(trap)
    return file, store, marker


def test_pickles_in_the_store_are_not_loaded(trapped, tmp_path, capsys):
    file, store, marker = trapped
    assert write(load_experiment(file), store, tmp_path / "report").files
    where = ["--mlruns", str(store.root)]
    assert main(["audit", store.runs()[0].run_id, *where]) == 0
    assert main(["status", str(file), *where]) == 0
    given_up = []
    checkpoints = Checkpoints(store.root / "checkpoints/plain", 0)
    assert checkpoints.resumable(load_experiment(file).trials, (), given_up.append) == []
    assert len(given_up) == 1 and "it is damaged" in given_up[0]
    assert not marker.exists()
    pickle.loads(pickle.dumps(Trap(marker)))
    assert marker.exists(), "the trap does not work"


def test_nothing_here_calls_what_executes_a_file():
    for path in CODE:
        for node in ast.walk(ast.parse(path.read_text())):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
            elif isinstance(node, ast.Call):
                names = [ast.unparse(node.func)]
                if names == ["yaml.load"]:
                    assert ast.unparse(node.args[1]) == "ExperimentLoader", f"{path}: {ast.unparse(node)}"
                assert not any(keyword.arg == "allow_pickle" for keyword in node.keywords), path
            assert not EXECUTING.intersection(names), f"{path}: {names}"


@pytest.mark.parametrize("tag", ["!!python/object/apply:pathlib.Path.touch", "!!python/name:os.system",
                                 "!!python/object:pathlib.Path", "!!python/module:antigravity"])
def test_yaml_that_names_python_objects_is_refused(tmp_path, tag):
    marker = tmp_path / "executed"
    file = written(tmp_path / "evil.yaml", f"name: evil\nbase: {{dataset: {tag} [{marker}]}}\n")
    with pytest.raises(ConfigError, match=r"evil.yaml: line 2, .*could not determine a constructor for the tag"):
        load_experiment(file)
    assert not marker.exists()


@pytest.mark.parametrize(("arguments", "host", "warned"), [
    ([], "127.0.0.1", False), (["--host", "localhost"], "localhost", False), (["--host", "0.0.0.0"], "0.0.0.0", True)])
def test_ui_stays_on_loopback_unless_told_and_then_warns(root, monkeypatch, capsys, arguments, host, warned):
    commands = []
    start = subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", lambda command, **options: (
        commands.append(command), start(["true"], **options))[1])
    monkeypatch.setattr("pipeline.tracking.ui.in_use", lambda host, port: False)
    assert main(["ui", "--mlruns", str(root), *arguments]) == 0
    (command,) = commands
    assert command[command.index("--host") + 1] == host
    assert ("warning: whoever reaches 0.0.0.0:5000" in capsys.readouterr().err) == warned


LISTENING = """
import sys
from pathlib import Path
from prepared import prepared
from pipeline.experiment.experiment import load_experiment
from pipeline.sweep.run import running_ray
import psutil  # Ray brings it

sweep = prepared(load_experiment(sys.argv[1]).trials, Path.cwd())
sweep.folder.path.mkdir()
with running_ray(sweep, "local", 1, lambda: None):
    family = [psutil.Process(), *psutil.Process().children(recursive=True)]
    sockets = [c for p in family for c in p.net_connections("tcp") if c.status == "LISTEN"]
    print(len(sockets) > 3, {c.laddr.ip.removeprefix("::ffff:") for c in sockets})
"""


@pytest.mark.slow
def test_ray_of_a_sweep_on_this_machine_listens_on_loopback_only(tmp_path):
    file = written(tmp_path / "plain.yaml", "base: {dataset: digits, hidden: [8], batch_size: 64, epochs: 1}\n")
    done = subprocess.run([sys.executable, "-c", LISTENING, file], cwd=tmp_path, text=True, capture_output=True,
                          env={**clean(), "HOME": str(tmp_path), "PYTHONPATH": f"{ROOT}:{ROOT / 'tests' / 'tools'}"})
    assert done.stdout == "True {'127.0.0.1'}\n", done.stdout + done.stderr
