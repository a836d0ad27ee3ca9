"""Choose settings by cheap trials, and train once with what is left: what that publishes at a total epsilon.

    python experiments/left_out/pilots.py --seeds 3 --totals 1 3 8

A pilot is a trial with a small epsilon. All pilots of a data set differ in their feature map alone. The map with the
best noisy validation accuracy, averaged over the second half of the epochs, is trained once more on all records, with
an epsilon and a rule of step sizes that was chosen on other data sets. So its epsilon was fixed beforehand (`TOTALS`),
and pilots, scores and the last trial compose. Every sweep is in `mlruns`: what is done is not trained again. Totals
with equal pilots, 1 and 8, share them, so that they choose the same map. Each price is that of one search: to publish
what two totals or seeds have found costs more.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pandas as pd
import yaml
from left_out import FOLDER, RULE, chosen, rules

from analysis.exhibits.envelope import SCORE
from analysis.exhibits.selection import choose
from analysis.runs import frame_of, load_history
from pipeline import run_sweep
from pipeline.experiment.experiment import Experiment, parse_experiment
from pipeline.tracking.reader import Reader

STUDY = Path(__file__).parents[1] / "tuning"  # folder of the files
FILES = {"cifar10": "pilots_cifar10", "fashion_mnist": "pilots_fashion", "mnist": "pilots_mnist"}
TOTALS = {  # total epsilon -> settings of the three pilots, and epsilon of the last trial
    1.0: ({"target_epsilon": 0.25, "learning_rate": 1.0, "epochs": 10}, 0.86),
    3.0: ({"target_epsilon": 0.5, "learning_rate": 1.0}, 2.8),
    8.0: ({"target_epsilon": 0.25, "learning_rate": 1.0, "epochs": 10}, 7.95)}
# total epsilon -> step size of a rule at 3 -> what the rule has there instead; no trial compared rules at 1 or 8
RULES_AT: dict[float, dict[float, dict[str, Any]]] = {
    1.0: {2.5: {"learning_rate": 1.2}, 4.0: {"learning_rate": 1.5}},
    3.0: {2.5: {}, 4.0: {}},
    8.0: {2.5: {"learning_rate": 4.5, "output_std": 0.3, "denoise": False}, 4.0: {"learning_rate": 7.0}}}


def trained(content: dict[str, Any], path: Path, mlruns: Path) -> tuple[Experiment, pd.DataFrame, pd.Series]:
    """Train what is missing of an experiment, given as the content of its file.

    Returns:
        (experiment, its runs, scores: trial_key -> mean noisy validation accuracy in the second half of the epochs).
    """
    experiment = parse_experiment(yaml.safe_dump(content, sort_keys=False), path)
    result = run_sweep(experiment, root=mlruns)
    if result.remaining or result.failed:
        raise SystemExit(result.summary(mlruns / "failures"))
    store = Reader(root=mlruns)
    store.attach(experiment.name)
    experiment = store.as_swept(experiment)
    runs = frame_of(store.runs(), experiment.trials)
    epochs = load_history(runs, SCORE, store)
    second_half = epochs[epochs["epoch"] > epochs.groupby("trial_key")["epoch"].transform("max") / 2]
    return experiment, runs, second_half.groupby("trial_key")["value"].mean()


def last_settings(dataset: str, total: float) -> dict[str, Any]:
    """Return the settings of the last trial, with the rule of step sizes that is best on the other data sets."""
    trials = pd.read_csv(FOLDER / "rules.csv")
    rule, _ = chosen(rules(trials))[dataset]
    settings: dict[str, Any] = {name: value.item() for name, value in zip(RULE, rule, strict=True)}
    return {"target_epsilon": TOTALS[total][1], "validation_fraction": 0.0,
            **settings, **RULES_AT[total][settings["learning_rate"]]}


def pilots_of(dataset: str, seed: int, total: float) -> tuple[Path, dict[str, Any]]:
    """Return the file of a data set's pilots, and its content with the seed and the settings for a total epsilon."""
    path = STUDY / f"{FILES[dataset]}.yaml"
    content = yaml.safe_load(path.read_text(encoding="utf-8"))
    content["name"] += f"_s{seed}"
    content["base"].update(TOTALS[total][0], seed=seed)
    return path, content


def row(dataset: str, seed: int, total: float, mlruns: Path) -> dict[str, object]:
    """Train the pilots of a data set, then the best map once more; return what is published and its price.

    Accuracies are fractions. The last trial has no validation accuracy: it is published in any case.
    """
    path, content = pilots_of(dataset, seed, total)
    pilots, _, scores = trained(content, path, mlruns)
    best = max(range(len(pilots.trials)), key=lambda case: scores[pilots.trials[case].trial_key])
    content["cases"].append({"base": {**content["cases"][best]["base"], **last_settings(dataset, total)}})
    # A name of its own: under one name, trials of all totals would be paid for together.
    content |= {"name": f"{pilots.name}_e{total:g}", "reuse": [pilots.name]}
    experiment, runs, _ = trained(content, path, mlruns)
    last = experiment.trials[-1]
    published = runs.set_index("trial_key").loc[last.trial_key]
    choice = choose(experiment, runs)
    selected = choice.selected
    if selected is None:
        raise SystemExit(f"{experiment.name}: no epsilon covers the choice, {choice.reason}")
    if selected.value > total:
        raise SystemExit(f"{experiment.name}: pilots and last trial cost epsilon {selected.value:.4g}, of {total:g}")
    return {"dataset": dataset, "total": total, "seed": seed, "trial_key": last.trial_key, "map": best,
            "pilots": ", ".join(f"{scores[trial.trial_key]:.4f}" for trial in pilots.trials),
            "test/accuracy": published["test/accuracy"],
            "selected_epsilon": selected.value, "selected_rule": selected.variant,
            "selected_relation": selected.relation, "selected_sampler": selected.sampler,
            "selected_delta": selected.delta, "certified_trials": len(experiment.trials)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--totals", nargs="+", type=float, choices=TOTALS, default=[3.0])
    parser.add_argument("--datasets", nargs="+", choices=FILES, default=list(FILES))
    parser.add_argument("--mlruns", type=Path, default=Path("mlruns"))
    parser.add_argument("--out", type=Path, default=Path("reports/pilots"))
    given = parser.parse_args()
    rows = pd.DataFrame([row(dataset, seed, total, given.mlruns) for dataset in given.datasets for total in given.totals
                         for seed in range(given.seeds)])
    given.out.mkdir(parents=True, exist_ok=True)
    rows.to_csv(given.out / "pilots.csv", index=False, float_format="%.6g")
    print(rows.to_string(index=False))


if __name__ == "__main__":
    main()
