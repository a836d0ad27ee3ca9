"""The captions and tables of analysis/results, and the digests of its data, from the committed runs.

    python tests/tools/results_text.py                  # writes them anew
    python tests/tools/results_text.py --figures        # and draws the figures anew
    python tests/tools/results_text.py reports/tau_h    # takes over what `photonic report` wrote there before
"""

from __future__ import annotations

import functools
import hashlib
import json
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from unittest.mock import patch

import committed
import pandas as pd
import yaml
from committed import file_of, folder_of, runs_of

from analysis import catalogue
from analysis.exhibits import along, selection
from analysis.exhibits.exhibit import Exhibit
from analysis.exhibits.frontier import by_epsilon as frontier
from analysis.papers import figure2, leekifer
from analysis.runs import noise_sources, read_runs
from pipeline.accounting import Epsilon
from pipeline.accounting.event import UnsupportedAccounting
from pipeline.experiment.experiment import Experiment, load_experiment

DRAWN = ((figure2, "plot"), (frontier, "plot"), (leekifer, "plot"))
MEASURED = ("figure2", "leekifer", "selection")  # exhibits whose data are kept: of epochs, or of a long composition
# Figures that no page quotes, or that say less than their table: TDFA at chance leaves no room for the other lines.
NOT_KEPT = ("frontier_worst_class.svg", "networks-frontier.svg")


def names(sweep: str) -> list[str]:
    """The exhibits of a sweep that has committed results."""
    report = yaml.safe_load(file_of(sweep).read_text(encoding="utf-8"))["report"]  # without importing its plugins
    listed = report["exhibits"] if isinstance(report, dict) else report
    return sorted([*listed, *(["selection"] if kept(sweep, "selection").is_file() else [])])


def everything() -> list[tuple[str, str]]:
    """(sweep, exhibit) of all committed results."""
    return [(sweep, name) for sweep in committed.manifests() for name in names(sweep)]


@functools.cache
def exhibit(sweep: str, name: str, drawn: bool = False) -> Exhibit:
    """One exhibit of a sweep as the code of today writes it of the committed data, without its figure or `drawn`."""
    experiment, runs = load_experiment(file_of(sweep)), read_runs(runs_of(sweep))
    if name == "selection":
        return _selection(sweep, experiment, runs)
    with ExitStack() as stack:
        for module, function in () if drawn else DRAWN:
            stack.enter_context(patch.object(module, function, lambda *a, **k: None))
        if not drawn:
            stack.enter_context(patch.object(along, "figure_of", _no_figure))
        stack.enter_context(patch.object(figure2, "load_history", lambda *a: pd.DataFrame()))
        for module in (figure2, leekifer):  # of epochs, which the runs do not have
            if name == module.__name__.rpartition(".")[2]:
                stack.enter_context(patch.object(module, "tabulate", lambda *a: _by_epoch(sweep, name, runs)))
        return catalogue.draw(name, experiment, runs, None)


def _no_figure(table: pd.DataFrame, axes: Sequence[str]) -> tuple[None, str]:
    return None, "Accuracy and alignment" if table["metric"].nunique() > 1 else "Accuracy"


def kept(sweep: str, name: str) -> Path:
    """The committed data of an exhibit, one of `MEASURED`."""
    return folder_of(sweep) / f"{sweep}-{name}.csv"


def _by_epoch(sweep: str, name: str, runs: pd.DataFrame) -> pd.DataFrame:
    table = pd.read_csv(kept(sweep, name), dtype={"setting": str}, keep_default_na=True)
    if name == "leekifer":
        (source,) = set(noise_sources(runs).dropna())
        table = table.assign(reading=table["reading"].fillna(""), noise=table["sigma"].gt(0).map({True: source}))
    return table


def _selection(sweep: str, experiment: Experiment, runs: pd.DataFrame) -> Exhibit:
    """The price is that of the CSV: composing the trials again takes half a minute."""
    row = pd.read_csv(kept(sweep, "selection")).iloc[0]

    def price(*_: object) -> Epsilon:
        if pd.isna(row["selected_epsilon"]):
            raise UnsupportedAccounting(row["reason"])
        return Epsilon(row["selected_epsilon"], "selected", row["selected_rule"], row["selected_relation"],
                       row["selected_sampler"], row["selected_delta"], "pld")

    with patch.object(selection, "epsilon_of_choice", price):
        return selection.draw(selection.choose(experiment, runs))


def markdown(sweep: str, name: str) -> str:
    """One exhibit as it stands in the page of its study: heading, figure, captions and tables."""
    head, text = exhibit(sweep, name).files[f"{name}.md"].decode().split("\n", 1)
    figure = f"{sweep}-{name}.svg"
    shown = f"\n![{head.removeprefix('## ')}]({figure})\n" if (folder_of(sweep) / figure).is_file() else ""
    return f"#{head}\n{shown}{text}"


def digests(sweep: str) -> dict[str, str]:
    """SHA-256 of every CSV of a sweep, kept or written from the runs, by the name that it has in a report."""
    found = {"runs.csv": digest(runs_of(sweep).read_bytes())}
    for name in names(sweep):
        found |= {file: digest(kept(sweep, name).read_bytes() if name in MEASURED else content)
                  for file, content in exhibit(sweep, name).files.items() if file.endswith(".csv")}
    return dict(sorted(found.items()))


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def take(report: Path) -> None:
    """Enter what `photonic report` wrote into a folder: runs, figures, data that do not follow from runs, manifest."""
    manifest = json.loads((report / "manifest.json").read_text(encoding="utf-8"))
    sweep = manifest["experiment"]
    folder = folder_of(sweep)
    folder.mkdir(exist_ok=True)
    runs_of(sweep).write_bytes((report / "runs.csv").read_bytes())
    for path in (*report.glob("*.svg"), *(report / f"{name}.csv" for name in MEASURED)):
        if path.is_file() and not {path.name, f"{sweep}-{path.name}"} & {*NOT_KEPT}:
            (folder / f"{sweep}-{path.name}").write_bytes(path.read_bytes())
    enter(sweep, manifest)
    page = folder / "README.md"
    text = page.read_text(encoding="utf-8") if page.is_file() else f"# {folder.name}\n"
    if f"\n## {sweep}\n" not in text:
        page.write_text(f"{text}\n## {sweep}\n\n{block(sweep, '')}", encoding="utf-8")


def enter(sweep: str, manifest: object) -> None:
    """Write a sweep's entry into the manifest of its study."""
    path = folder_of(sweep) / "manifest.json"
    entries = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    path.write_text(json.dumps(dict(sorted({**entries, sweep: manifest}.items())), indent=2) + "\n", encoding="utf-8")


def block(sweep: str, text: str) -> str:
    """What stands in the page of a study for `committed.WRITTEN` to find."""
    return f"<!-- {sweep}: written by tests/tools/results_text.py -->\n{text}<!-- end -->\n"


def draw() -> None:
    """Draw all figures anew, of the committed data."""
    for sweep, name in everything():
        is_kept = not {f"{name}.svg", f"{sweep}-{name}.svg"} & {*NOT_KEPT}
        if is_kept and (content := exhibit(sweep, name, drawn=True).drawn.get("svg")):
            (folder_of(sweep) / f"{sweep}-{name}.svg").write_bytes(content)


def main(reports: Sequence[str] = ()) -> None:
    """Take over these reports, then write all captions, tables and digests; kept data stay as they are."""
    for report in reports:
        if report != "--figures":
            take(Path(report))
    if "--figures" in reports:
        draw()
    texts = {sweep: "\n".join(markdown(sweep, name) for name in names(sweep)) for sweep in committed.manifests()}
    for sweep, manifest in committed.manifests().items():
        enter(sweep, {**manifest, "data": digests(sweep)})
    for page in {folder_of(sweep) / "README.md" for sweep in texts}:
        old = page.read_text(encoding="utf-8")
        page.write_text(committed.WRITTEN.sub(lambda found: block(found[1], texts[found[1]]), old), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
