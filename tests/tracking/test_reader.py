"""Reading a store changes nothing in it: not a byte, and there is no method that could."""

import contextlib
import hashlib
import inspect
import os
import shutil
import sqlite3

import numpy as np
import pytest

import analysis
from pipeline.cli import main
from pipeline.sweep import status
from pipeline.tracking.backend import TrackingError
from pipeline.tracking.reader import Reader
from pipeline.tracking.store import Store
from pipeline.trials.config import TrialConfig
from pipeline.trials.records import EpochRecord, Outcome

DONE, RUNNING = (TrialConfig(dataset="digits", algorithm="bp", batch_size=64, epochs=2, seed=seed) for seed in (0, 1))
WRITES = {"be_patient", "beat", "check", "close_sweep", "describe", "fail", "keep",
          "log", "log_audit", "log_experiment", "log_report", "log_suggestions", "log_sweep", "name", "note_nodes",
          "open_sweep", "relocate", "start", "take_over"}


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("store")
    store = Store(root=root)
    store.open_sweep("sweep", params={"trials": 2})
    store.log_experiment("name: sweep\n")
    for config in (DONE, RUNNING):
        store.start(config)
    outcome = Outcome("finished", {"layer_1.bias": np.ones(2, np.float32)}, ())
    store.log([EpochRecord(DONE.trial_key, 1, {"test/accuracy": 0.5}),
               EpochRecord(DONE.trial_key, 2, {"test/accuracy": 0.6}, outcome=outcome)])
    return root


def digests(root):
    """SHA-256 of every file by its path; but for the index of the write-ahead log, in which readers leave marks."""
    return {path.relative_to(root).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in root.rglob("*") if path.is_file() and path.name != "mlflow.db-shm"}


def load_runs(root):
    assert list(analysis.load_runs("sweep", root)["status"]) == ["finished", "running"]


def load_history(root):
    assert list(analysis.load_history(analysis.load_runs("sweep", root), "test/accuracy", root)["value"]) == [0.5, 0.6]


def every_method(root):
    reader = Reader(root=root)
    assert reader.sweeps() == ["sweep"] and not reader.find("nowhere")
    with pytest.raises(TrackingError, match="no sweep named 'nowhere'"):
        reader.attach("nowhere")
    reader.attach("sweep")
    assert reader.planned() == 2 and reader.experiment() == "name: sweep\n" and not reader.shared
    assert reader.done() == {DONE.trial_key: "finished"} and reader.holder()[0].endswith(f"@{reader.place}")
    run = reader.trial(DONE.trial_key)
    assert run in reader.runs() and reader.history(run.run_id, "test/accuracy") == [(1, 0.5), (2, 0.6)]
    assert reader.names(DONE.trial_key) == reader.gone([run]) == set() and reader.kept(run) == []


@pytest.mark.parametrize("read", [
    lambda root: main(["status", "--mlruns", str(root)]), lambda root: status.read(Reader(root=root), "sweep"),
    load_runs, load_history, every_method], ids=["photonic status", "status", "load_runs", "load_history", "methods"])
def test_reading_leaves_the_store_as_it_is(read, root):
    before = digests(root)
    assert {"mlflow.db", ".tracking.lock"} <= set(before)
    read(root)
    assert digests(root) == before


def test_a_reader_has_no_method_that_writes():
    assert not WRITES & {*dir(Reader)} and {*dir(Store)} >= WRITES
    assert not {"driver", "_lock", "_started", "_finish", "_without_empty"} & {*dir(Reader), *vars(Reader)}
    assert set(inspect.signature(Reader).parameters) == {"uri", "root"}, "nothing that would create a store"


@pytest.mark.parametrize("tables", ["", "CREATE TABLE experiments (name TEXT)"], ids=["no tables", "no experiment"])
@pytest.mark.parametrize("opened", [Reader, lambda root: Store(root=root, create=False)], ids=["reader", "store"])
def test_a_database_that_mlflow_would_have_to_set_up_is_refused(opened, tables, tmp_path):
    """As a process leaves it that is killed at once; another one, which holds the lock, may be setting it up."""
    with contextlib.closing(sqlite3.connect(tmp_path / "mlflow.db")) as connection:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute(tables)
        connection.commit()
    before = digests(tmp_path)
    with pytest.raises(TrackingError, match=r"mlflow.db: is empty \(run the sweep first, or say by --mlruns where "
                       r"it ran\)$"):
        opened(root=tmp_path)
    assert digests(tmp_path) == before


def test_a_damaged_database_is_mlflows_to_name(tmp_path, monkeypatch):
    monkeypatch.setattr("mlflow.store.db.utils.MAX_RETRY_COUNT", 1)  # of 10, between which it sleeps 100 s
    (tmp_path / "mlflow.db").write_text("this is no database, although it is long enough to have been one once " * 9)
    with pytest.raises(TrackingError, match="file is not a database"):
        Reader(root=tmp_path)


@pytest.fixture
def copy(root, tmp_path):
    """The store in another folder, as nobody has it open."""
    with contextlib.closing(sqlite3.connect(root / "mlflow.db")) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    shutil.copytree(root, tmp_path / "copy", ignore=shutil.ignore_patterns("mlflow.db-*"))
    (tmp_path / "copy" / ".sweep-sweep.lock").touch()
    return tmp_path / "copy"


def test_a_store_that_can_only_be_read_is_read(copy, monkeypatch, capsys):
    access = os.access
    monkeypatch.setattr("os.access", lambda path, mode, **more: mode != os.W_OK and access(path, mode, **more))
    before = digests(copy)
    assert main(["status", "--mlruns", str(copy)]) == 0 and "sweep: 2 trials: 1 finished" in capsys.readouterr().out
    store = Store(root=copy, create=False)
    store.attach("sweep")
    with pytest.raises(TrackingError, match="mlflow.db: .*attempt to write a readonly database"):
        store.beat(2)
    with pytest.raises(TrackingError, match="attempt to write a readonly database"):
        store.open_sweep("another")
    assert digests(copy) == before


def recorded(root):
    """The addresses of artifacts in a database."""
    with contextlib.closing(sqlite3.connect(root / "mlflow.db")) as connection:
        return {uri for uri, in connection.execute("SELECT artifact_location FROM experiments WHERE name != 'Default' "
                                                   "UNION SELECT artifact_uri FROM runs")}


def write_everything(store, folder):
    """Write every kind of artifact to a store of the fixture."""
    (folder / "file.txt").write_text("of a report, or of an audit")
    store.open_sweep("new")
    store.log_experiment("name: new\n")
    store.close_sweep("FINISHED")
    store.open_sweep("sweep")
    store.log_experiment("name: changed\n")
    store.log_suggestions([])
    store.log_report([folder / "file.txt"])
    store.log_audit(store.trial(DONE.trial_key).run_id, {}, {}, folder / "file.txt")
    store.start(RUNNING)
    ended = EpochRecord(RUNNING.trial_key, 2, {}, outcome=Outcome("finished", {"b": np.ones(1, np.float32)}, ()))
    store.keep(RUNNING.trial_key, [ended])
    store.log([ended])


@pytest.mark.parametrize("by_uri", [False, True], ids=["folder", "URI"])
def test_a_copy_reads_and_writes_its_own_artifacts_and_leaves_the_other_store_as_it_is(copy, root, tmp_path, by_uri):
    before, addresses = digests(root), recorded(copy)
    store = Store(f"sqlite:///{copy / 'mlflow.db'}", tmp_path / "elsewhere") if by_uri else Store(root=copy)
    (line,) = store.relocate()
    assert line.startswith(f"the store is a copy of {root}: ")
    write_everything(store, tmp_path)
    assert store.experiment() == "name: changed\n" and list(store.weights(store.trial(RUNNING.trial_key))) == ["b"]
    assert [record.epoch for record in store.kept(store.trial(RUNNING.trial_key))] == [2]
    (kept,) = (copy / "artifacts").rglob("released.json")
    kept.write_text(kept.read_text()[:-1])  # as a driver leaves it that dies while it writes
    assert store.kept(store.trial(RUNNING.trial_key)) == []
    names = sorted(path.name for path in (copy / "artifacts").rglob("*") if path.is_file())
    if by_uri:  # a new experiment has its artifacts in the folder that `Store` names
        names += [path.name for path in (tmp_path / "elsewhere" / "artifacts").rglob("*.yaml")]
    assert sorted(names) == sorted([*2 * ["experiment.yaml"], "search.json", "file.txt", "file.txt",
                                    *2 * ["weights.safetensors", "config.json", "per_class.csv"],
                                    "released.json"])
    assert addresses < recorded(copy) and digests(root) == before


@pytest.mark.parametrize("by_uri", [False, True], ids=["folder", "URI"])
def test_a_moved_store_records_its_new_place_once(copy, root, tmp_path, by_uri):
    new = tmp_path / "new place"  # which an address has as new%20place
    copy.rename(new)
    gone = tmp_path / "gone"  # in the place of `root`, which other tests need
    with contextlib.closing(sqlite3.connect(new / "mlflow.db")) as connection, connection:
        for table, column in (("experiments", "artifact_location"), ("runs", "artifact_uri")):
            connection.execute(f"UPDATE {table} SET {column} = replace({column}, ?, ?)", [root.as_uri(), gone.as_uri()])
    addresses = recorded(new)
    reader = Reader(f"sqlite:///{new / 'mlflow.db'}") if by_uri else Reader(root=new)
    reader.attach("sweep")
    assert reader.experiment() == "name: sweep\n" and reader.weights(reader.trial(DONE.trial_key))
    store = Store(reader.uri, tmp_path / "elsewhere") if by_uri else Store(root=new)
    write_everything(store, tmp_path)
    (line,) = store.relocate()
    assert line.startswith(f"the store was moved from {gone}: ") and store.relocate() == []
    assert recorded(new) >= {uri.replace(gone.as_uri(), new.as_uri()) for uri in addresses}
    assert not any(uri.startswith(gone.as_uri()) for uri in recorded(new)) and not gone.exists()


def test_a_store_by_another_path_is_in_its_place(root, tmp_path):
    addresses = recorded(root)
    (tmp_path / "link").symlink_to(root)
    assert Store(root=tmp_path / "link").relocate() == [] and recorded(root) == addresses


def test_a_copy_of_the_database_alone_reads_the_artifacts_that_it_records(copy, root):
    shutil.rmtree(copy / "artifacts")
    reader = Reader(root=copy)
    assert reader.weights(reader.trial(DONE.trial_key)) and not (copy / "artifacts").exists()


def test_writing_is_seen(root):
    before = digests(root)
    store = Store(root=root, create=False)
    store.attach("sweep")
    store.beat(1)
    assert digests(root) != before
