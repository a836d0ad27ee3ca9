"""The test set of audits: an honest trainer and three with a fault, attacked from outside.

    PHOTONIC_DATA=/my/datasets python docs/audit_trainers.py --out reports/audit_trainers [--opacus]

The protocol is what stands in capitals below, and was fixed before anything was run: trainers, settings, seeds,
canaries, guesses (a fifth of the canaries), runs and thresholds. An audit finds a fault where its lower bound exceeds
what is stated. Scores and settings were chosen on seeds 1000 to 1004. Data: 6000 records of Fashion-MNIST. With
`--opacus` the trainer in experiments/trainers/opacus_cnn.py is audited instead, an honest one by Opacus.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pandas as pd
import torch
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
from scipy import stats

from pipeline import TrialConfig, account, load_dataset, setting, train, trainer
from pipeline.auditing.audit import RUNS
from pipeline.auditing.step import audit_step
from pipeline.experiment.plugins import load_plugins
from pipeline.trials.part import PARTS, SETTINGS
from pipeline.trials.trainer import Trainer

LARGEST = 1.15  # records in a batch, over the m that are expected
FAULTS = {"honest": "none", "tenth": "a tenth of the noise", "batch": "clips the batch's mean, not each record",
          "drop": f"leaves out batches above {LARGEST} m", "opacus": "none, by Opacus"}
NAMES = "honest", "tenth", "batch", "drop"  # of the four
COMMON: dict[str, Any] = dict(dataset="fashion_mnist", train_records=6000, batch_size=600, clipping_norm=1.0)
# Audit of a whole run: 5000 of the 5400 training records are canaries, 1000 are guessed.
RUN = dict(**COMMON, canaries=5000, width=256, epochs=30, learning_rate=4.0, target_epsilon=0.5)
# Audit of one step: RUNS on each of two neighbours, 1000 of them to choose the threshold.
STEP = dict(**COMMON, width=16, epochs=1, noise_multiplier=1.0)
# Opacus trains a network of its own, for fewer epochs, as it takes longer.
OPACUS: dict[str, dict[str, Any]] = {
    "canaries": {"width": None, "epochs": 10, "learning_rate": 1.0}, "one step": {"width": None}}
SEEDS = {"honest": range(20), "tenth": range(5), "batch": range(5), "drop": range(5), "opacus": range(6)}
ALPHA, POWER = 0.05, 0.95  # of the audits whose number is calculated: false alarms, faults found
BOUNDS = (1.1, 1.15, 1.2, 1.25)  # LARGEST, for which it is


def enter() -> None:
    """Enter the four trainers: `audited_honest` and so on."""
    for fault in NAMES:
        def trains(trial: Any, records: torch.Tensor, labels: torch.Tensor, device: torch.device, fault: str = fault
                   ) -> Iterator[torch.nn.Module]:
            model, sampling = _network(trial, records, device), trial.generator("sampling")
            for _ in trial.epochs_left:
                for _ in range(trial.steps_per_epoch):
                    drawn = torch.rand(len(records), generator=sampling) < trial.sampling_rate
                    if fault == "drop" and drawn.sum() > LARGEST * trial.batch_size:
                        continue
                    update = _update(model, records[drawn], labels[drawn], trial, fault)
                    parts = update.split([p.numel() for p in model.parameters()])
                    for p, part in zip(model.parameters(), parts, strict=True):
                        p.data -= trial.learning_rate * part.view_as(p)
                yield model

        def step(trial: Any, records: torch.Tensor, labels: torch.Tensor, device: torch.device, fault: str = fault
                 ) -> torch.Tensor:
            return _update(_network(trial, records, device), records, labels, trial, fault)

        trainer(f"audited_{fault}", version=1, calibrates="noise_multiplier", step=step, settings={
            "learning_rate": None, "clipping_norm": None, "width": setting(256, "hidden units", low=1)},
            event=lambda trial: PoissonSampledDpEvent(trial.sampling_rate, GaussianDpEvent(trial.noise_multiplier))
                )(trains)


class _OneStep:
    """A trial whose only epoch is one step on all records, with the update as it is."""

    sampling_rate, learning_rate, momentum = 1.0, 1.0, 0.0
    steps_per_epoch, epochs_left, state = 1, range(1), None

    def __init__(self, trial: Any) -> None:
        self._trial = trial

    def __getattr__(self, name: str) -> Any:
        return getattr(self._trial, name)


def enter_opacus() -> None:
    """Enter `audited_opacus`: the shipped trainer's own function, of which a step is a run of one step."""
    load_plugins(["opacus_cnn"], Path(__file__).parent.parent / "experiments" / "trainers")
    shipped = cast(type[Trainer], PARTS["trainer"]["opacus_cnn"])
    opacus = sys.modules[shipped.works.__module__]

    def step(trial: Any, records: torch.Tensor, labels: torch.Tensor, device: torch.device) -> torch.Tensor:
        def flat(model: torch.nn.Module) -> torch.Tensor:
            return torch.nn.utils.parameters_to_vector(model.parameters())

        torch.manual_seed(0)  # of the weights; the noise has a generator of its own
        before = flat(opacus.network(trial).to(device))
        torch.manual_seed(0)
        (end,) = opacus.train(_OneStep(trial), records, labels, device)
        return before - flat(end.model)

    trainer("audited_opacus", version=1, calibrates="noise_multiplier", event=shipped.event, check=opacus.check,
            step=step, requires=shipped.requires, settings=dict.fromkeys((
                "learning_rate", "momentum", "clipping_norm", *(n for n in SETTINGS if n.startswith("tempered_")))))(
        opacus.train)


def _network(trial: Any, records: torch.Tensor, device: torch.device) -> torch.nn.Sequential:
    """One hidden layer of tanh, Gaussian weights of variance 1/n_in, biases of 0."""
    n_in = math.prod(records.shape[1:])
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(n_in, trial.width), torch.nn.Tanh(),
                                torch.nn.Linear(trial.width, 10)).to(device)
    for p in model.parameters():
        drawn = torch.randn(p.shape, generator=trial.generator("init", device), device=device)
        p.data = drawn / p.shape[1]**0.5 if p.ndim == 2 else torch.zeros_like(p)
    return model


@torch.no_grad()
def _update(model: torch.nn.Sequential, records: torch.Tensor, labels: torch.Tensor, trial: Any, fault: str
            ) -> torch.Tensor:
    """DP-SGD's update [d]: gradients of records, clipped, summed, with noise, over the m that are expected."""
    _, first, _, last = model
    assert isinstance(last, torch.nn.Linear)
    x = records.flatten(1)
    h = torch.tanh(first(x))
    e_2 = torch.softmax(last(h), 1) - torch.nn.functional.one_hot(labels, 10)
    e_1 = e_2 @ last.weight * (1 - h.square())
    c, m, z = trial.clipping_norm, trial.batch_size, trial.noise_multiplier
    if fault != "batch":
        norms = (e_1.square().sum(1) * (1 + x.square().sum(1)) + e_2.square().sum(1) * (1 + h.square().sum(1))).sqrt()
        e_1, e_2 = (e * (c / norms).clamp(max=1)[:, None] for e in (e_1, e_2))
    mean = torch.cat([(e_1.T @ x).flatten(), e_1.sum(0), (e_2.T @ h).flatten(), e_2.sum(0)]) / m
    if fault == "batch":
        mean *= (c / mean.norm()).clamp(max=1)
    noise = torch.randn(mean.shape, generator=trial.generator("noise", mean.device), device=mean.device)
    return mean + (0.1 if fault == "tenth" else 1) * z * c / m * noise


def trial_of(fault: str, seed: int, audit: str) -> TrialConfig:
    """What is audited."""
    settings = {**(RUN if audit == "canaries" else STEP), **(OPACUS[audit] if fault == "opacus" else {})}
    return TrialConfig(trainer=f"audited_{fault}", seed=seed,
                       **{name: value for name, value in settings.items() if value is not None})


def of_run(fault: str, seed: int) -> dict[str, float]:
    """Canaries in a whole run."""
    trial = trial_of(fault, seed, "canaries")
    *_, last = train(trial)
    return {"AUC": last.metrics["audit/canary_auc"], "bound": last.metrics["epsilon/audited/one_run"],
            "stated": min(e.value for e in account(trial)), "test %": 100 * last.metrics["test/accuracy"]}


def of_step(fault: str, seed: int) -> dict[str, float]:
    """Two neighbours of a step; epsilon."""
    trial = trial_of(fault, seed, "one step")
    found = audit_step(trial, load_dataset(COMMON["dataset"]), RUNS)
    return {"AUC": found.auc, "bound": found.audited.value, "stated": found.stated.value}


AUDITS: dict[str, Callable[[str, int], dict[str, float]]] = {
    "canaries": of_run, "one step": of_step}


def runs_needed(records: int, rate: float, largest: int, steps: int) -> float:
    """How many runs any audit needs, at least, to find that a trainer leaves out large Poisson batches.

    The other trainer is an honest one.
    Give both the same draws: they release the same unless one of the steps draws more than `largest` of the `records`,
    each with probability `rate`. So a run tells them apart by tau = 1 - (1 - P[Bin(records, rate) > largest])^steps in
    total variation at most, and R independent runs by 1 - (1 - tau)^R. A test with false alarms ALPHA that finds the
    fault with probability POWER tells them apart by POWER - ALPHA. Fewer records give less. Whoever sees the sizes of
    batches, or chooses the batch of a step, is no such audit.
    """
    beyond = stats.binom.sf(largest, records, rate)
    log_alike = steps * math.log1p(-beyond)  # log(1 - tau)
    return math.log(1 - POWER + ALPHA) / log_alike if log_alike else math.inf


def table(rows: pd.DataFrame) -> str:
    """Of every fault and audit the median bound (least to most), and in how many seeds it is found, in Markdown."""
    audits = rows.groupby("audit", sort=False)["stated"].median()
    lines = ["| fault | " + " | ".join(f"{audit}, stated {stated:.3f} | found" for audit, stated in audits.items())
             + " |", "|---" + "|---:|---:" * len(audits) + "|"]
    for fault, of_fault in rows.groupby("fault", sort=False):
        cells = []
        for audit in audits.index:
            of = of_fault[of_fault["audit"] == audit]
            bound, found = of["bound"], (of["bound"] > of["stated"]).sum()
            cells += [f"{bound.median():.2f} ({bound.min():.2f} to {bound.max():.2f})", f"{found} of {len(of)}"
                      ] if len(of) else ["-", "-"]
        lines.append(f"| {FAULTS[fault]} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def calculated() -> str:
    """Runs that any audit from outside needs for the third fault, in Markdown."""
    trial = trial_of("drop", 0, "canaries")
    n, m = trial.split_sizes[0], trial.batch_size
    lines = ["| left out above | P[batch is larger] | runs |", "|---|---:|---:|"]
    for bound in BOUNDS:
        largest = math.floor(bound * m)
        needed = runs_needed(n, trial.sampling_rate, largest, trial.epochs * trial.steps_per_epoch)
        beyond = stats.binom.sf(largest, n, trial.sampling_rate)
        lines.append(f"| {bound:g} m | {beyond:.2g} | {needed:.2g} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("reports/audit_trainers"))
    parser.add_argument("--opacus", action="store_true", help="audit the trainer by Opacus instead")
    given = parser.parse_args()
    torch.set_num_threads(1)
    enter_opacus() if given.opacus else enter()
    began, rows = time.process_time(), []
    for fault in ["opacus"] if given.opacus else NAMES:
        for audit, of in AUDITS.items():
            if (fault, of) != ("drop", of_step):  # its step is an honest one
                rows += [{"fault": fault, "audit": audit, "seed": seed, **of(fault, seed)} for seed in SEEDS[fault]]
                print(table(pd.DataFrame(rows)), flush=True)
    given.out.mkdir(parents=True, exist_ok=True)
    pd.DataFrame(rows).to_csv(given.out / "audits.csv", index=False, float_format="%.6g")
    text = table(pd.DataFrame(rows)) + ("" if given.opacus else f"\n{calculated()}")
    (given.out / "audits.md").write_text(text, encoding="utf-8")
    print(f"{text}\n{time.process_time() - began:.0f} core seconds")


if __name__ == "__main__":
    main()
