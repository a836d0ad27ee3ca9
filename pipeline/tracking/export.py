"""Export one trial as files that are readable without this package and the tracking store."""

from __future__ import annotations

import csv
import json
import tempfile
from pathlib import Path

from pipeline.tracking.artifacts import CONFIG, WEIGHTS
from pipeline.tracking.reader import Reader
from pipeline.trials.fields import UserError


def export(store: Reader, name: str, folder: Path | None = None) -> list[Path]:
    """Write a trial that has ended to a new folder, atomically.

    The folder has `weights.safetensors` and `config.json` from the store, and all metrics in `metrics.csv` (columns
    metric, epoch, value). `privacy.json` has the tags on the guarantee of its epsilons. The folder is
    `exports/<trial_key>` by default, and must be new (`UserError`). The trial must have ended, and have all files
    (`TrackingError`).
    """
    run = store.trial(name)
    folder = folder or Path("exports", run.trial_key)
    if folder.exists():
        raise UserError(f"--out: must be a folder that does not exist yet, got {folder}; nothing is overwritten")
    metric_rows: list[tuple[object, ...]] = [("metric", "epoch", "value")]
    for metric in sorted(run.metrics):
        metric_rows += [(metric, epoch, value) for epoch, value in store.history(run.run_id, metric)]
    contents = {file: store.artifact(run, file) for file in (WEIGHTS, CONFIG)}
    privacy_tags = {tag: text for tag, text in sorted(run.tags.items()) if tag.startswith("privacy.")}
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".exporting-", dir=folder.parent) as scratch:
        complete = Path(scratch, "complete")  # moved to `folder` once all files are written
        complete.mkdir()
        for file, content in contents.items():
            (complete / file).write_bytes(content)
        with open(complete / "metrics.csv", "w", newline="") as table:
            csv.writer(table, lineterminator="\n").writerows(metric_rows)
        (complete / "privacy.json").write_text(json.dumps(privacy_tags, indent=2) + "\n", encoding="utf-8")
        complete.rename(folder)
    return sorted(folder.iterdir())
