"""The captions, tables and notes of analysis/results, from the committed data: `python tests/tools/results_text.py`."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from unittest.mock import patch

import pandas as pd

from analysis.exhibits import catalogue, heatmaps, main_effects, parallel_coordinates, selection, sweeps
from analysis.exhibits.exhibit import Exhibit
from analysis.exhibits.frontier import exhibit as frontier
from analysis.exhibits.frontier import slices
from analysis.papers import figure2, leekifer, light
from analysis.runs import noise_sources, read_runs
from pipeline.accounting import Epsilon
from pipeline.accounting.event import UnsupportedAccounting
from pipeline.experiment.exhibits import NEEDS
from pipeline.experiment.experiment import Experiment, load_experiment

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "analysis" / "results"
DRAWN = (figure2, frontier, heatmaps, leekifer, light, main_effects, parallel_coordinates, slices, sweeps)
SUFFIXES = (".md",)


def names(folder: Path) -> list[str]:
    """The exhibits of a folder of results."""
    known = {*NEEDS, "selection"}
    return sorted(path.stem for path in folder.glob("*.md") if path.stem in known)


def exhibit(folder: Path, name: str) -> Exhibit:
    """One exhibit of a folder, without its figure, as the code of today writes it of the committed data."""
    experiment, runs = load_experiment(ROOT / "experiments" / f"{folder.name}.yaml"), read_runs(folder / "runs.csv")
    if name == "selection":
        return _selection(folder, experiment, runs)
    with ExitStack() as stack:
        for module in DRAWN:
            for plot in ("plot", "plot_sigma"):
                if hasattr(module, plot):
                    stack.enter_context(patch.object(module, plot, lambda *a, **k: None))
        stack.enter_context(patch.object(figure2, "load_history", lambda *a: pd.DataFrame()))
        for module in (figure2, leekifer):  # of epochs, which runs.csv does not have
            if name == module.__name__.rpartition(".")[2]:
                stack.enter_context(patch.object(module, "tabulate", lambda *a: _by_epoch(folder, name, runs)))
        return catalogue.draw(name, experiment, runs, None)


def _by_epoch(folder: Path, name: str, runs: pd.DataFrame) -> pd.DataFrame:
    table = pd.read_csv(folder / f"{name}.csv", dtype={"setting": str}, keep_default_na=True)
    if name == "leekifer":
        (source,) = set(noise_sources(runs).dropna())
        table = table.assign(reading=table["reading"].fillna(""), noise=table["sigma"].gt(0).map({True: source}))
    return table


def _selection(folder: Path, experiment: Experiment, runs: pd.DataFrame) -> Exhibit:
    """The price is that of the CSV: composing the trials again takes half a minute."""
    row = pd.read_csv(folder / "selection.csv").iloc[0]

    def price(*_: object) -> Epsilon:
        if pd.isna(row["selected_epsilon"]):
            raise UnsupportedAccounting(row["reason"])
        return Epsilon(row["selected_epsilon"], "selected", row["selected_rule"], row["selected_relation"],
                       row["selected_sampler"], row["selected_delta"], "pld")

    with patch.object(selection, "selected_epsilon", price):
        return selection.draw(selection.choose(experiment, runs))


def everything() -> list[tuple[str, str]]:
    """(folder, exhibit) of all committed results."""
    return [(path.parent.name, name) for path in sorted(RESULTS.glob("*/manifest.json")) for name in names(path.parent)]


def main() -> None:
    """Write the Markdown of every exhibit; figures and CSV stay as they are."""
    for folder, name in everything():
        for file, content in exhibit(RESULTS / folder, name).files.items():
            if file.endswith(SUFFIXES):
                (RESULTS / folder / file).write_bytes(content)


if __name__ == "__main__":
    main()
