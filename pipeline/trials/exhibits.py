"""Which exhibits a set of trials fits, and which fields tell its trials apart."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pipeline.trials.choices import GAUSSIAN, relation_of
from pipeline.trials.combinations import epsilon_kind
from pipeline.trials.config import TrialConfig
from pipeline.trials.naming import noise_setting

# Exhibits of curves over a field, and of a grid of sigma and tau_h, by what they show.
SWEPT = {"tau_h_sweep": "tau_h", "batch_size_sweep": "batch_size", "clipping_norm_sweep": "clipping_norm"}
HEATMAPS = {"alignment_heatmap": "alignment", "accuracy_heatmap": "accuracy"}
FRONTIERS = {"frontier": "accuracy", "frontier_worst_class": "worst_class", "frontier_alignment": "alignment"}
EXHIBITS = ("table1", "figure2", *FRONTIERS, "frontier_claimed", *HEATMAPS, *SWEPT, "leekifer")
# What may differ between the points of one algorithm on a frontier: the noise that sets epsilon, by kind of epsilon.
FRONTIER_NOISE = {"certified": ("target_epsilon", "noise_multiplier"), "label": ("target_label_epsilon", "sigma"),
                  "claimed": ("target_label_epsilon", "sigma")}


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
    if exhibit == "frontier_claimed":
        return _claimed_misfit(configs)
    if exhibit in FRONTIERS:
        return _frontier_misfit(configs, FRONTIERS[exhibit])
    if exhibit in HEATMAPS:
        return _heatmap_misfit(configs, HEATMAPS[exhibit])
    if exhibit in SWEPT:
        return _sweep_misfit(configs, SWEPT[exhibit])
    if exhibit not in ("table1", "figure2"):
        raise ValueError(f"exhibit: must be one of {', '.join(EXHIBITS)}, got {exhibit!r}")
    if others := sorted({c.mechanism for c in configs} - {"none", "photonic", *GAUSSIAN}):
        return f"has one cell for each algorithm and sigma, which mechanism {', '.join(others)} does not have"
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


def _frontier_misfit(configs: Sequence[TrialConfig], metric: str) -> str:
    kinds = {kind: [c for c in configs if epsilon_kind(c) == kind] for kind in ("certified", "label")}
    if not any(kinds.values()):
        return ("needs trials with a certified epsilon (mechanism per_example or component, and noise) or a label "
                "epsilon (mechanism photonic with target_label_epsilon, or sigma > 0 and noise on every layer), but "
                "there are none")
    reasons = [_curve_misfit(kind, shown) for kind, shown in kinds.items() if shown]
    if metric == "alignment":
        reasons += [_alignment_misfit(shown) for shown in kinds.values()]
    return next(filter(None, reasons), "")


def _claimed_misfit(configs: Sequence[TrialConfig]) -> str:
    shown = [c for c in configs if is_claimed(c)]
    if not shown:
        return ("needs trials with a claimed epsilon (mechanism photonic, sigma > 0, noise on every layer, feedback by "
                "dfa, tdfa or pdfa, neither joint_release nor denoise), but there are none")
    return _curve_misfit("claimed", shown)


def _curve_misfit(kind: str, shown: Sequence[TrialConfig]) -> str:
    """Why trials of one kind of epsilon make no curve for each algorithm on one axis."""
    noise = FRONTIER_NOISE[kind]
    if varied := _differing(shown, lambda c: c.algorithm, ("seed", *noise)):
        return (f"has one curve for each algorithm, along which {' and '.join(noise)} may differ, but there trials "
                f"also differ in {', '.join(varied)}")
    if len({c.delta for c in shown}) > 1:
        return "needs one delta, but the trials have several"
    samplers = sorted({c.sampler for c in shown})
    if kind == "certified" and len({relation_of(sampler) for sampler in samplers}) > 1:
        return "needs one neighbouring relation, but " + " and ".join(
            f"sampler {sampler} is of {relation_of(sampler)}" for sampler in samplers)
    return ""


def _alignment_misfit(shown: Sequence[TrialConfig]) -> str:
    return "" if all(c.alignment_batches for c in shown) else (
        "shows alignment, which trials with alignment_batches 0 do not measure")


def _heatmap_misfit(configs: Sequence[TrialConfig], metric: str) -> str:
    shown = [c for c in configs if in_heatmap(c.canonical())]
    if min(len({c.sigma for c in shown}), len({c.tau_h for c in shown})) < 2:
        return ("needs trials with mechanism photonic, at two values or more of both sigma and tau_h, got sigma "
                f"{_values(shown, 'sigma')} and tau_h {_values(shown, 'tau_h')}")
    if varied := _differing(shown, lambda c: (c.algorithm, c.sigma, c.tau_h), ("seed",)):
        return (f"has one cell for each algorithm, sigma and tau_h, but trials there also differ in "
                f"{', '.join(varied)}")
    return _alignment_misfit(shown) if metric == "alignment" else ""


def _sweep_misfit(configs: Sequence[TrialConfig], field: str) -> str:
    shown = [c for c in configs if field in c.canonical()]
    curves: dict[Any, set] = {}
    for c in shown:
        curves.setdefault((c.algorithm, noise_setting(c.canonical())), set()).add(getattr(c, field))
    if max(map(len, curves.values()), default=0) < 2:
        return f"needs trials of one algorithm and noise at two values or more of {field}, got {_values(shown, field)}"
    if varied := _differing(shown, lambda c: (c.algorithm, noise_setting(c.canonical()), getattr(c, field)),
                            ("seed",)):
        return (f"has one point for each algorithm, noise and {field}, but trials there also differ in "
                f"{', '.join(varied)}")
    return _alignment_misfit(shown)


def _values(configs: Sequence[TrialConfig], field: str) -> str:
    return ", ".join(f"{value:g}" for value in sorted({getattr(c, field) for c in configs})) or "none"


def in_heatmap(fields: Mapping[str, Any]) -> bool:
    """Whether a trial has a place on the grid of sigma and tau_h, from its canonical fields."""
    return noise_setting(fields).startswith("sigma=")


def is_claimed(config: TrialConfig) -> bool:
    """Whether one of the formulas printed in Ohana et al. 2021 gives a finite epsilon for the trial."""
    return (config.mechanism == "photonic" and config.sigma + config.target_label_epsilon > 0 and config.output_noise
            and config.algorithm != "bp" and not config.joint_release and not config.denoise)


def certified_trials(trials: Sequence[TrialConfig]) -> list[TrialConfig]:
    """Those that have a certified epsilon."""
    return [trial for trial in trials if epsilon_kind(trial) == "certified"]
