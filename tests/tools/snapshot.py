"""The numbers that changes of the code must keep: epsilons and noise of shipped trials, and columns of committed data.

    PYTHONPATH=.:tests/tools python tests/tools/snapshot.py write   # before a change: tests/data/snapshot.json.xz
    PYTHONPATH=.:tests/tools python tests/tools/snapshot.py         # after it: prints what differs, and exits with 1

A trial stands at its place in its file, as its key and its settings' names may change. Files, columns and golden
trainings that are gone are listed, and are no difference. Numbers of another processor differ in their last digits
(`test_shipped.py`).
"""

import hashlib
import json
import lzma
import sys
from pathlib import Path

import pandas as pd
from registries import forgotten_plugins

from pipeline.accounting import account
from pipeline.accounting.certified import calibrated
from pipeline.experiment.experiment import load_experiment
from pipeline.trials.fields import ConfigError

ROOT = Path(__file__).parents[2]
SNAPSHOT = ROOT / "tests" / "data" / "snapshot.json.xz"
KEYS = ("trial_key", "reused_from")


def numbers(trial):
    """Every epsilon of a trial, and its calibrated noise, with all their digits."""
    try:
        epsilons = {str(epsilon.metric_name): epsilon.value.hex() for epsilon in account(trial, trial.epochs)}
    except ConfigError as error:
        return {"refused": str(error)}
    return epsilons | calibrated(trial)


def trials():
    """Numbers by file and place."""
    found = {}
    for path in sorted((ROOT / "experiments").rglob("*.yaml")):
        if path.parent.name == "cluster":
            continue
        experiment = load_experiment(path)
        for k, trial in enumerate(dict.fromkeys([*experiment.trials, *experiment.possible])):
            found.setdefault(path.name, {})[str(k)] = numbers(trial)
    return found


def columns():
    """Digests of columns by file and name; keys are left out."""
    found = {}
    for path in sorted((ROOT / "analysis" / "results").rglob("*.csv")):
        table = pd.read_csv(path, dtype=str, keep_default_na=False)
        found[path.name] = {name: hashlib.sha256("\n".join(column).encode()).hexdigest()
                            for name, column in table.items() if name not in KEYS}
    return found


def weights():
    """Numbers and weights of the golden trainings by trial."""
    golden = json.loads((ROOT / "tests" / "data" / "golden.json").read_text())
    return {"golden.json": {name: json.dumps(of_trial, sort_keys=True) for name, of_trial in golden["trials"].items()}}


def taken():
    with forgotten_plugins():
        return {"trials": trials(), "columns": columns(), "weights": weights()}


def compared(before, after):
    """Print what is gone, new or other; return whether a number is other."""
    differs = False
    for kind, files in before.items():
        for name, parts in files.items():
            if name not in after[kind]:
                print(f"{kind}: {name} is gone")
                continue
            mine = after[kind][name]
            for part, value in parts.items():
                if part not in mine:
                    print(f"{kind}: {name}: {part} is gone")
                elif mine[part] != value:
                    differs = True
                    print(f"{kind}: {name}: {part}: was {value}, is {mine[part]}")
            if new := [part for part in mine if part not in parts]:
                print(f"{kind}: {name}: new: {', '.join(new)}")
    return differs


if __name__ == "__main__":
    if sys.argv[1:] == ["write"]:
        SNAPSHOT.write_bytes(lzma.compress(json.dumps(taken(), sort_keys=True).encode(), preset=9))
    else:
        sys.exit(compared(json.loads(lzma.decompress(SNAPSHOT.read_bytes())), json.loads(json.dumps(taken()))))
