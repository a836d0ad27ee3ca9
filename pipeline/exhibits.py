"""Which exhibits a set of trials fits, and which fields tell its trials apart."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pipeline.choices import GAUSSIAN
from pipeline.config import TrialConfig

EXHIBITS = ("table1", "figure2", "frontier", "leekifer")
# What may differ between the points of one algorithm on a frontier: the noise that sets epsilon, by kind of epsilon.
FRONTIER_NOISE = {"certified": ("target_epsilon", "noise_multiplier"), "label": ("target_label_epsilon", "sigma")}


def noise_setting(fields: Mapping[str, Any]) -> str:
    """How much noise a trial gets, from its canonical fields: `non-private`, `sigma=0.1`,
    `label_epsilon=3`, `epsilon=3` or `z=1.1`."""
    if fields["mechanism"] == "none":
        return "non-private"
    if fields["mechanism"] not in GAUSSIAN:
        target = fields.get("target_label_epsilon") or 0.0  # a field only where it sets the noise
        return f"label_epsilon={target:g}" if target > 0 else f"sigma={fields['sigma']:g}"
    if fields["target_epsilon"]:
        return f"epsilon={fields['target_epsilon']:g}"
    return f"z={fields['noise_multiplier']:g}"


def update_sigma(fields: Mapping[str, Any]) -> float:
    """sigma of Lee & Kifer 2020, Algorithm 1, from a trial's canonical fields: standard deviation of the noise on every
    coordinate of the mean update, z C/m; 0 without privacy."""
    if fields["mechanism"] == "none":
        return 0.0
    bound = fields["clipping_norm"] if fields["mechanism"] == "per_example" else fields["target_norm"]
    return fields["noise_multiplier"] * bound / fields["batch_size"]


def varied_fields(trials: Sequence[TrialConfig]) -> tuple[str, ...]:
    """Fields, but the seed, in which trials of one algorithm, mechanism and noise differ."""
    return _differing(trials, lambda t: (t.algorithm, t.mechanism, noise_setting(t.canonical())), ("seed",))


def _differing(trials: Sequence[TrialConfig], cell: Callable[[TrialConfig], Any],
               ignored: Sequence[str]) -> tuple[str, ...]:
    """Fields, but the ignored ones, in which trials of one cell differ."""
    cells: dict[Any, list[dict]] = {}
    for trial in trials:
        cells.setdefault(cell(trial), []).append(trial.canonical())
    return tuple(sorted({name for first, *rest in cells.values() for other in rest
                         for name in other.keys() | first.keys()
                         if name not in ignored and other.get(name) != first.get(name)}))


def misfit(exhibit: str, configs: Sequence[TrialConfig]) -> str:
    """Why an exhibit cannot show these trials; empty where it can."""
    if exhibit == "leekifer":
        return _leekifer_misfit(configs)
    if len({config.dataset for config in configs}) > 1:
        return "is of one data set, but the trials use several"
    if exhibit == "frontier":
        return _frontier_misfit(configs)
    if any(config.mechanism in GAUSSIAN or config.target_label_epsilon for config in configs):
        return ("has one cell for each algorithm and sigma, but trials here differ in target_epsilon, "
                "noise_multiplier or target_label_epsilon, which `frontier` shows")
    if varied := varied_fields(configs):
        return f"has one cell for each algorithm and sigma, but trials there also differ in {', '.join(varied)}"
    if exhibit == "figure2" and not all(config.validation_fraction for config in configs):
        return "shows validation accuracy, which trials with validation_fraction 0 do not have"
    if exhibit == "figure2" and not any(c.algorithm == "pdfa" and c.alignment_batches for c in configs):
        return "shows the alignment of pdfa, but no trial measures that"
    return ""


def _leekifer_misfit(configs: Sequence[TrialConfig]) -> str:
    if not any(c.mechanism in GAUSSIAN for c in configs):
        return "compares trials with mechanism per_example or component, but there are none"
    for c in configs:
        shown = c.mechanism == "none" or c.mechanism == "per_example" or c.mechanism == "component" and c.target_norm
        if not shown or c.mechanism != "none" and not (c.noise_multiplier and c.sampler == "without_replacement"):
            return ("shows trials without privacy, and trials with noise_multiplier > 0 and sampler "
                    "without_replacement under per_example clipping, or component clipping with target_norm; there is "
                    f"one of mechanism {c.mechanism}, sampler {c.sampler}, noise_multiplier {c.noise_multiplier:g}")
    if varied := _differing(configs, lambda c: (c.dataset, c.algorithm, update_sigma(c.canonical())), ("seed",)):
        return ("has one curve for each data set, algorithm and noise, but trials there also differ in "
                f"{', '.join(varied)}")
    return ""


def _frontier_misfit(configs: Sequence[TrialConfig]) -> str:
    kinds = {kind: [c for c in configs if epsilon_kind(c) == kind] for kind in FRONTIER_NOISE}
    if not any(kinds.values()):
        return ("needs trials with a certified epsilon (mechanism per_example or component, and noise) or a label "
                "epsilon (mechanism photonic with target_label_epsilon, or sigma > 0 and noise on every layer), but "
                "there are none")
    for kind, shown in kinds.items():
        noise = FRONTIER_NOISE[kind]
        if varied := _differing(shown, lambda c: c.algorithm, ("seed", *noise)):
            return (f"has one curve for each algorithm, along which {' and '.join(noise)} may differ, but there trials "
                    f"also differ in {', '.join(varied)}")
        if len({c.delta for c in shown}) > 1:
            return "needs one delta, but the trials have several"
        if kind == "certified" and len({c.sampler == "poisson" for c in shown}) > 1:
            return "needs one neighbouring relation, but poisson is of add/remove and other samplers of replace-one"
    return ""


def certified_trials(trials: Sequence[TrialConfig]) -> list[TrialConfig]:
    """Those that have a certified epsilon."""
    return [trial for trial in trials if epsilon_kind(trial) == "certified"]


def epsilon_kind(config: TrialConfig) -> str:
    """The kind of finite epsilon that a trial has: `certified`, `label`, or empty for none that guarantees anything."""
    if config.mechanism in GAUSSIAN and (config.target_epsilon or config.noise_multiplier):
        return "certified"
    noisy = config.mechanism == "photonic" and (config.target_label_epsilon or config.sigma)
    return "label" if noisy and (config.output_noise or config.algorithm == "bp") else ""
