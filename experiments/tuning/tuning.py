"""What honest tuning costs on Fashion-MNIST: what three ways of choosing settings publish at one total epsilon.

    python experiments/tuning/tuning.py --seeds 3 --out reports/tuning

A grid pays for all of its trials by composition, random stopping for the one that it publishes, a search by a budget
that it spends. All have about as much time. Each is a sweep of its own in `mlruns`: what is done is not trained again.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from analysis.exhibits.selection import choose
from analysis.exhibits.suggestions import budget_epsilon
from analysis.labels import algorithm_labels
from analysis.runs import frame_of
from analysis.statistics import mean_interval, plus_minus
from pipeline import run_sweep
from pipeline.experiment.experiment import Experiment, parse_experiment
from pipeline.tracking.reader import Reader
from pipeline.trials.records import CLOCK

STUDY = Path(__file__).parent
METHODS = {"grid": "a grid of 9, composed", "stopping": "random stopping, 9 on average",
           "search": "a search with a budget"}
NOISE = {("grid", 8): 2.4, ("grid", 3): 5.25, ("stopping", 8): 1.56, ("stopping", 3): 3.66}
OF_A_SEARCH_AT_3 = {"search.space.noise_multiplier": {"loguniform": [2, 12]}}  # twice the file's


@dataclass(frozen=True)
class Way:
    """One way of choosing settings, at one epsilon, for one algorithm and seed."""

    method: str
    epsilon: int
    algorithm: str
    seed: int

    def experiment(self) -> Experiment:
        """Its sweep."""
        of_dfa = self.algorithm == "dfa"
        if self.method == "search":
            path = STUDY / f"budget_fashion{'' if of_dfa else '_bp'}.yaml"
            text, name = path.read_text(), path.stem
            changes = {"budget.epsilon": self.epsilon, "search.seed": self.seed, "seed": self.seed,
                       **(OF_A_SEARCH_AT_3 if self.epsilon == 3 else {})}
        else:
            path = STUDY / f"tuning_{self.method}.yaml"
            text = path.read_text() if of_dfa else path.read_text().replace("  feedback_std: 0.25\n", "")
            changes = {"algorithm": self.algorithm, "noise_multiplier": NOISE[self.method, self.epsilon],
                       "seed" if self.method == "grid" else "selection.seed": self.seed}
            name = path.stem if of_dfa else f"{path.stem}_bp"
        return parse_experiment(text, path, changes={"name": f"{name}_{self.epsilon}_s{self.seed}", **changes})

    def row(self, root: Path) -> dict[str, object]:
        """Its sweep, if need be trained, and what that publishes; accuracies in %."""
        experiment = self.experiment()
        result = run_sweep(experiment, root=root)
        if result.remaining or result.failed:
            raise SystemExit(result.summary(root / "failures"))
        store = Reader(root=root)
        store.attach(experiment.name)
        experiment = store.as_swept(experiment)
        runs = frame_of(store.runs(), experiment.trials)
        choice = choose(experiment, runs, budget_epsilon(store) if experiment.plan.budget else None)
        if choice.selected is None:
            raise SystemExit(f"{experiment.name}: no epsilon covers the choice, {choice.reason}")
        seconds = sum(value for run in store.runs() for _, value in store.history(run.run_id, CLOCK))
        return {**vars(self), "test %": 100 * choice.test, "validation %": 100 * choice.validation,
                "epsilon of the choice": choice.selected.value, "trials": len(runs), "core minutes": seconds / 60,
                "published": choice.name, "trial_key": choice.trial_key}


def ways(seeds: int) -> Iterator[Way]:
    """All of them, seed by seed."""
    for seed in range(seeds):
        for epsilon in (8, 3):
            for method in METHODS:
                yield from (Way(method, epsilon, algorithm, seed) for algorithm in ("dfa", "bp"))


def table(rows: pd.DataFrame) -> str:
    """Mean test accuracy with its 95% t interval, and what it took, in Markdown."""
    lines = ["| settings chosen by | algorithm | total ε = 3 | total ε = 8 | trials | core minutes |",
             "| --- | --- | ---: | ---: | ---: | ---: |"]
    for (method, algorithm), of in rows.groupby(["method", "algorithm"], sort=False):
        found = [mean_interval(part["test %"]) for _, part in of.groupby("epsilon")]
        cells = [plus_minus(i.mean, half_width=i.half_width, minimum=0, maximum=100) for i in found]
        lines.append(f"| {METHODS[method]} | {algorithm_labels()[algorithm]} | {' | '.join(cells)} | "
                     f"{of['trials'].mean():.1f} | {of['core minutes'].mean():.1f} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--mlruns", type=Path, default=Path("mlruns"))
    parser.add_argument("--out", type=Path, default=Path("reports/tuning"))
    given = parser.parse_args()
    rows = pd.DataFrame([way.row(given.mlruns) for way in ways(given.seeds)])
    given.out.mkdir(parents=True, exist_ok=True)
    rows.to_csv(given.out / "tuning.csv", index=False, float_format="%.6g")
    (given.out / "tuning.md").write_text(table(rows), encoding="utf-8")
    print(table(rows))


if __name__ == "__main__":
    main()
