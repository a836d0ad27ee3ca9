"""Export one trial as a folder, for `photonic export`: whoever gets it needs torch, and not this package."""

from __future__ import annotations

import csv
import io
import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import load as tensors_of

from pipeline.accounting.statement import RECORDED, relation_of_kind
from pipeline.learning.model import model_of
from pipeline.tracking.artifacts import CONFIG, WEIGHTS, TrackedRun, code_remarks, config_of, missing_extension
from pipeline.tracking.reader import Reader
from pipeline.trials.config import ConfigError, TrialConfig
from pipeline.trials.declared_table import LEVELS, Column, TableSpec
from pipeline.trials.fields import UserError
from pipeline.trials.kinds import GUARANTEED, KINDS

PROGRAM, CLASSES, PRIVACY = "network.pt2", "classes.txt", "privacy.json"
NOT_COVERED = "not covered"  # in clauses of the tag `privacy.notes`
README = """# A trained network

Trial `{key}`: {what}.

## Predict

{predict}

## Privacy

`{privacy}` has each epsilon with its kind, delta and neighbouring relation, and what is not covered.

## Other files

- `{weights}`: the weights by name; `{config}`: all settings of the trial; `metrics.csv`: its metrics by epoch.
- `photonic.load_model(folder)` loads the network where this folder's software, photonic-dfa, is installed.
"""
PREDICT = """With torch alone (written by {version}), in this folder:

```python
import torch
network = torch.export.load("{program}").module()
classes = open("{classes}", encoding="utf-8").read().splitlines()
records = torch.zeros(2, {shape}, dtype=torch.{dtype})  # put your records here, as many as you like
print([classes[k] for k in network(records.flatten(1)).argmax(1)])
```

{records} The network returns a logit per class, on the CPU."""


class Exported(NamedTuple):
    """What `export` has written."""

    files: list[Path]
    no_program: str  # why there is no file `PROGRAM`; empty if there is one
    remarks: list[str]  # on a user's network that has changed


def export(store: Reader, name: str, folder: Path | None = None) -> Exported:
    """Write a trial that has ended to a new folder, atomically.

    The folder has `weights.safetensors` and `config.json` from the store, and all metrics in `metrics.csv` (columns
    metric, epoch, value). `network.pt2` is the network as a program of torch, `classes.txt` has a class a line, and
    `README.md` says how to predict with both. `privacy.json` says what the epsilons mean. Without a program (of a
    network that torch cannot export) the README says so. The folder is `exports/<name>` by default, and must be new
    (`UserError`). The trial must have ended, and have all files (`TrackingError`), and its plugins must be loaded.
    """
    run = store.trial(name)
    folder = folder or Path("exports", name)  # not a tag of the run, which may name another folder
    if folder.exists():
        raise UserError(f"--out: must be a folder that does not exist yet, got {folder}; nothing is overwritten")
    if extension := missing_extension(run.params):
        raise ConfigError(f"run: {extension}: `photonic export {name} FILE`")
    files = {file: store.artifact(run, file) for file in (WEIGHTS, CONFIG)}
    files[PRIVACY] = (json.dumps(_privacy(run), indent=2) + "\n").encode()
    files["metrics.csv"] = _metrics(store, run)
    program, no_program, what, remarks = None, "", "trained by an extension", list[str]()
    try:
        trial = config_of(run)
        what = f"network {trial.network}, trained on {trial.parts.data.label} by {trial.parts.feedback.label}"
        remarks = code_remarks(trial, run)
        program = model_of(trial, store.weights(run)).program()
        files[CLASSES] = "".join(f"{name}\n" for name in _classes(trial)).encode()
        predict = _predict(trial)
    except Exception as error:  # a user's network may hold anything, and torch's errors on it have many kinds
        no_program = (str(error).strip().splitlines() or [type(error).__name__])[0]
        told = no_program if isinstance(error, UserError) else type(error).__name__  # others' texts may name folders
        predict = f"This folder has no program of the network: {told}. `{WEIGHTS}` has its weights by name."
    files["README.md"] = README.format(key=run.trial_key, what=what, predict=predict, privacy=PRIVACY, weights=WEIGHTS,
                                       config=CONFIG).encode()
    _write(folder, files, program)
    return Exported(sorted(folder.iterdir()), no_program, remarks)


def _metrics(store: Reader, run: TrackedRun) -> bytes:
    """Return all metrics of a run, epoch by epoch, as CSV."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(("metric", "epoch", "value"))
    for metric in sorted(run.metrics):
        table.writerows((metric, epoch, value) for epoch, value in store.history(run.run_id, metric))
    return text.getvalue().encode()


def _write(folder: Path, files: Mapping[str, bytes], program: torch.export.ExportedProgram | None) -> None:
    """Write the folder beside its place, and move it there once all files are written."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".exporting-", dir=folder.parent) as scratch:
        complete = Path(scratch, "complete")
        complete.mkdir()
        for file, content in files.items():
            (complete / file).write_bytes(content)
        if program:
            torch.export.save(program, complete / PROGRAM)
        complete.rename(folder)


def read(folder: Path) -> tuple[TrialConfig, dict[str, Any]]:
    """Return the trial and the weights by name of a folder that `export` wrote; `ConfigError` for any other folder."""
    try:
        trial = TrialConfig(**json.loads((folder / CONFIG).read_text(encoding="utf-8")))
        tensors = tensors_of((folder / WEIGHTS).read_bytes())
    except Exception as error:  # a file that is missing or damaged, or an extension that is not imported
        raise ConfigError(f"run: must be a folder that `photonic export` wrote, whose extensions are imported, got "
                          f"{folder} ({error})") from error
    return trial, {name: tensor.numpy() for name, tensor in tensors.items()}


def _privacy(run: TrackedRun) -> dict[str, Any]:
    """Return the tags `privacy.*` of a run, its `epsilons` at the last epoch, and what is `not_covered`."""
    tags = {tag: text for tag, text in sorted(run.tags.items()) if tag.startswith("privacy.")}
    epsilons = []
    for metric, value in sorted(run.metrics.items()):
        family, _, name = metric.partition("/")
        kind, _, variant = name.partition("/")
        if family == "epsilon" and kind in KINDS:
            epsilons.append({"epsilon": value, "kind": kind, "variant": variant,
                             "delta": float(run.params["delta"]) if "delta" in run.params else None,
                             "relation": relation_of_kind(kind, variant, tags.get("privacy.relation")),
                             "meaning": KINDS[kind].meaning})
    not_covered = [clause for clause in tags.get("privacy.notes", "").split("; ") if NOT_COVERED in clause]
    not_covered = [clause.removeprefix(f"{NOT_COVERED}: ") for clause in not_covered]
    if any(epsilon["kind"] in GUARANTEED for epsilon in epsilons):
        not_covered.append("the choice of this trial among others, which `photonic report` prices")
        if RECORDED in tags.get("privacy.notes", ""):  # also of a label epsilon, which is not `simulated`
            not_covered.append("the recorded seed: whoever knows it can subtract the noise")
    else:
        not_covered = ["everything: no epsilon here guarantees anything of this network"]
    return {**tags, "epsilons": epsilons, "not_covered": not_covered}


def _classes(trial: TrialConfig) -> list[str]:
    """Return the name of each class, one line each; its number where the data set has no names."""
    spec = trial.parts.data.spec
    return [" ".join(name.split()) for name in spec.classes] or [str(number) for number in range(spec.n_classes)]


def _predict(trial: TrialConfig) -> str:
    """Return how to predict: the lines of Python, and what a record is."""
    features, spec = trial.parts.features, trial.parts.data.spec
    shape = spec.shape if features.raw else features.shape(trial)
    n = " x ".join(map(str, shape))
    norm = f", and then gives it the norm {trial.input_norm:g}" if trial.input_norm else ""
    if isinstance(spec, TableSpec) and features.raw:
        records = f"A record has these inputs, uint8, in this order: {'; '.join(map(_inputs, spec.columns))}."
    elif features.raw:
        records = f"A record is {n} whole numbers (images: channels, rows, columns), from 0 to {spec.scale:g}."
    elif features.of_file:
        records = f"A record is a row of {n} features, as the feature file has them: {trial.feature_source}."
    else:
        records = (f"A record is {n} **features, and not pixels**: {features.public_because(trial)}. No program of "
                   "this map is here; `photonic.load_model` computes it from pixels.")
    scaling = f" The network scales it by itself (`inputs: {trial.inputs}`{norm})." if features.raw else ""
    return PREDICT.format(version=f"torch {torch.__version__}", program=PROGRAM, classes=CLASSES, records=records +
                          scaling, shape=", ".join(map(str, shape)), dtype="uint8" if features.raw else "float32")


def _inputs(column: Column) -> str:
    """Return the inputs of a table's column in words."""
    if column.values:
        last = "any other value" if column.others else "a missing value"
        return (f"`{column.name}`: one each for {', '.join(map(str, column.values))} and {last}, {LEVELS} where it is "
                "that, else 0")
    steps = "equal ratios" if column.is_log else "equal steps"
    return f"`{column.name}`: 0 at {column.low:g} to {LEVELS} at {column.high:g}, in {steps}"
