"""Which exhibits a set of trials fits, and which fields tell its trials apart."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from pipeline.experiment.factors import balanced, differing, find_factors
from pipeline.trials.camera import SETTINGS, camera_of
from pipeline.trials.config import TrialConfig
from pipeline.trials.naming import method, noise_setting
from pipeline.trials.part import PARTS
from pipeline.trials.sampler import relation_of

# Exhibits of curves over a field, and of a grid of sigma and tau_h, by what they show.
SWEPT = {"tau_h_sweep": "tau_h", "batch_size_sweep": "batch_size", "clipping_norm_sweep": "clipping_norm"}
HEATMAPS = {"alignment_heatmap": "alignment", "accuracy_heatmap": "accuracy"}
FRONTIERS = {"frontier": "accuracy", "frontier_worst_class": "worst_class", "frontier_alignment": "alignment"}
LIGHT = ("light", "effective_sigma")
EXHIBITS = ("table1", "figure2", *FRONTIERS, "frontier_slices", "frontier_claimed", *HEATMAPS, *SWEPT, *LIGHT,
            "table1_light", "main_effects", "parallel_coordinates", "means", "leekifer")
MOST_PANELS = 12  # of small multiples
# Fields by which Lee and Kifer's algorithm is read in one way or another; each combination has a curve.
READINGS = ("activation", "bounding", "conv_clip", "conv_error", "error_clip", "init", "init_gain", "tau_h_rule")
# What may differ between the points of one algorithm on a frontier: the noise that sets epsilon, by kind of epsilon.
FRONTIER_NOISE = {"certified": ("target_epsilon", "noise_multiplier"),
                  "label": ("target_label_epsilon", "sigma", "photons"),
                  "claimed": ("target_label_epsilon", "sigma")}


def update_sigma(fields: Mapping[str, Any]) -> float:
    """sigma of Lee & Kifer 2020, Algorithm 1, from a trial's canonical fields: standard deviation of the noise on every
    coordinate of the mean update, z C/m; 0 without privacy."""
    bound = PARTS["mechanism"][fields["mechanism"]].update_norm(fields)
    return fields["noise_multiplier"] * bound / fields["batch_size"] if bound else 0.0


def kind(trial: TrialConfig) -> str:
    """The kind of finite epsilon that a trial has (`Mechanism.kind`)."""
    return trial.parts.mechanism.kind(trial)


def varied_fields(trials: Sequence[TrialConfig]) -> tuple[str, ...]:
    """Fields, but the seed, in which trials of one algorithm, mechanism and noise differ."""
    return _differing(trials, lambda f: (f["algorithm"], f["mechanism"], noise_setting(f)))


def _differing(trials: Sequence[TrialConfig], cell: Callable[[Mapping[str, Any]], Any]) -> tuple[str, ...]:
    """Fields, but the seed, in which trials of one cell differ; `cell` is of canonical fields."""
    return differing([trial.canonical() for trial in trials], cell, ("seed",))


def misfit(exhibit: str, configs: Sequence[TrialConfig]) -> str:
    """Why an exhibit cannot show these trials; empty where it can."""
    if exhibit == "leekifer":
        return _leekifer_misfit(configs)
    if exhibit in GRIDS:
        return GRIDS[exhibit](configs)
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
    if exhibit in LIGHT:
        return _light_misfit(configs)
    if exhibit == "table1_light":
        return _table1_light_misfit(configs)
    if exhibit not in ("table1", "figure2"):
        raise ValueError(f"exhibit: must be one of {', '.join(EXHIBITS)}, got {exhibit!r}")
    if others := sorted({c.mechanism for c in configs if c.parts.mechanism.private and not (
            c.parts.mechanism.optical or c.parts.mechanism.certified)}):
        return f"has one cell for each algorithm and sigma, which mechanism {', '.join(others)} does not have"
    if any(config.parts.mechanism.certified or config.target_label_epsilon for config in configs):
        return ("has one cell for each algorithm and sigma, but trials here differ in target_epsilon, "
                "noise_multiplier or target_label_epsilon, which `frontier` shows")
    if varied := varied_fields(configs):
        return f"has one cell for each algorithm and sigma, but trials there also differ in {', '.join(varied)}"
    if exhibit == "figure2" and not all(config.validation_fraction for config in configs):
        return "shows validation accuracy, which trials with validation_fraction 0 do not have"
    if exhibit == "figure2" and not any(c.parts.feedback.optical and c.alignment_batches for c in configs):
        return "shows the alignment of pdfa, but no trial measures that"
    return ""


def _means_misfit(configs: Sequence[TrialConfig]) -> str:
    return "" if find_factors([c.canonical() for c in configs])[0] else (
        "needs two settings or more, but trials differ in their seed alone")


def _main_effects_misfit(configs: Sequence[TrialConfig]) -> str:
    return "" if balanced([c.canonical() for c in configs]) else (
        "needs a balanced grid of two factors or more: every combination of algorithm, noise and other settings, with "
        "equally many seeds")


def _parallel_misfit(configs: Sequence[TrialConfig]) -> str:
    names = tuple(find_factors([c.canonical() for c in configs])[0])
    return "" if len(names) > 2 else ("needs three settings or more that vary, seeds aside, got "
                                      f"{' and '.join(names) or 'none'}")


def _slices_misfit(configs: Sequence[TrialConfig]) -> str:
    shown = [c for c in configs if kind(c) == "certified"] or [c for c in configs if kind(c)]
    if not shown:
        return _frontier_misfit(configs, "accuracy")
    fields = panel_fields([c.canonical() for c in shown])
    if not fields:
        return ("has a panel for each value of one or two settings besides algorithm and noise, at most "
                f"{MOST_PANELS}, but none varies, or each has more values")
    panels: dict[tuple, list[TrialConfig]] = {}
    for c in shown:
        panels.setdefault(tuple(str(c.canonical().get(name)) for name in fields), []).append(c)
    return next(filter(None, (_frontier_misfit(panel, "accuracy") for panel in panels.values())), "")


def panel_fields(trials: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """The one or two fields whose values set the panels of small multiples apart, from canonical fields: the data set
    first, then by name, as long as there are at most `MOST_PANELS` panels."""
    rows = find_factors(trials)
    levels = {name: len({row[name] for row in rows}) for name in rows[0] if name not in ("algorithm", "noise")}
    chosen: tuple[str, ...] = ()
    for name in sorted(levels, key=lambda name: (name != "dataset", name)):
        panels = levels[name] * (levels[chosen[0]] if chosen else 1)
        if len(chosen) < 2 and panels <= MOST_PANELS:
            chosen += (name,)
    return chosen


GRIDS = {"frontier_slices": _slices_misfit, "main_effects": _main_effects_misfit,
         "parallel_coordinates": _parallel_misfit, "means": _means_misfit}


def left_out(configs: Sequence[TrialConfig], report: Sequence[str]) -> list[tuple[str, str]]:
    """Every exhibit that a report does not draw, with the reason."""
    return [(exhibit, misfit(exhibit, configs) or "the `report` of the experiment file does not list it")
            for exhibit in EXHIBITS if exhibit not in report]


def _leekifer_misfit(configs: Sequence[TrialConfig]) -> str:
    if not any(c.parts.mechanism.certified for c in configs):
        return "compares trials with mechanism per_example or component, but there are none"
    for c in configs:
        private = c.parts.mechanism.private
        fixed = c.noise_multiplier and c.parts.sampler.amplified and c.parts.sampler.full
        if private and not (fixed and c.parts.mechanism.update_norm(c.canonical())):
            return ("shows trials without privacy, and trials with noise_multiplier > 0 and sampler "
                    "without_replacement under per_example clipping, or component clipping with target_norm; there is "
                    f"one of mechanism {c.mechanism}, sampler {c.sampler}, noise_multiplier {c.noise_multiplier:g}")
    if varied := _differing(configs, lambda f: (f["dataset"], f["algorithm"], update_sigma(f),
                                                *(f.get(name) for name in READINGS))):
        return ("has one curve for each data set, algorithm, reading and noise, but trials there also differ in "
                f"{', '.join(varied)}")
    return ""


def _frontier_misfit(configs: Sequence[TrialConfig], metric: str) -> str:
    kinds = {name: [c for c in configs if kind(c) == name] for name in ("certified", "label")}
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
    if len({c.delta for c in shown}) > 1:
        return "needs one delta, but the trials have several"
    samplers = sorted({c.sampler for c in shown})
    if kind == "certified" and len({relation_of(sampler) for sampler in samplers}) > 1:
        return "needs one neighbouring relation, but " + " and ".join(
            f"sampler {sampler} is of {relation_of(sampler)}" for sampler in samplers)
    return _choice_misfit(shown, lambda f: (method(f), noise_setting(f)), "algorithm and noise")


def _choice_misfit(shown: Sequence[TrialConfig], cell: Callable[[Mapping[str, Any]], Any], cells: str) -> str:
    """Why none of several settings can be chosen to stand for a cell; empty where one can, or has not to be."""
    varied = _differing(shown, cell)
    if "delta" in varied:
        return "needs one delta, but the trials have several"
    if not varied or all(c.validation_fraction and c.disclosure != "withheld" for c in shown):
        return ""
    return (f"chooses by validation accuracy among trials of one {cells}, here differing in {', '.join(varied)}, but "
            "not all trials log that (validation_fraction > 0, private_metrics plain or noisy)")


def _alignment_misfit(shown: Sequence[TrialConfig]) -> str:
    return "" if all(c.alignment_batches for c in shown) else (
        "shows alignment, which trials with alignment_batches 0 do not measure")


def _heatmap_misfit(configs: Sequence[TrialConfig], metric: str) -> str:
    shown = [c for c in configs if in_heatmap(c.canonical())]
    if min(len({c.sigma for c in shown}), len({c.tau_h for c in shown})) < 2:
        return ("needs trials with mechanism photonic, at two values or more of both sigma and tau_h, got sigma "
                f"{_values(shown, 'sigma')} and tau_h {_values(shown, 'tau_h')}")
    if reason := _choice_misfit(shown, lambda f: (f["algorithm"], f["sigma"], f["tau_h"]),
                                "algorithm, sigma and tau_h"):
        return reason
    return _alignment_misfit(shown) if metric == "alignment" else ""


def _sweep_misfit(configs: Sequence[TrialConfig], field: str) -> str:
    shown = [c for c in configs if field in c.canonical()]
    curves: dict[Any, set] = {}
    for c in shown:
        curves.setdefault((c.algorithm, noise_setting(c.canonical())), set()).add(getattr(c, field))
    if max(map(len, curves.values()), default=0) < 2:
        return f"needs trials of one algorithm and noise at two values or more of {field}, got {_values(shown, field)}"
    if reason := _choice_misfit(shown, lambda f: (f["algorithm"], noise_setting(f), f[field]),
                                f"algorithm, noise and {field}"):
        return reason
    return _alignment_misfit(shown)


def _light_misfit(configs: Sequence[TrialConfig]) -> str:
    shown = [c for c in configs if c.parts.mechanism.optical and c.physical]
    if len({c.photons for c in shown}) < 2:
        return ("needs trials with projector opu_physical and mechanism photonic at two values or more of photons, got "
                f"{_values(shown, 'photons')}")
    return _choice_misfit(shown, lambda f: (f["algorithm"], *(f[name] for name in (*SETTINGS, "photons"))),
                          "algorithm, camera and light")


def _table1_light_misfit(configs: Sequence[TrialConfig]) -> str:
    shown = [c for c in configs if c.parts.mechanism.optical and c.needs_opu and not c.on_hardware]
    sigmas = {c.sigma for c in shown if c.projector == "opu_simulated"}
    light = {camera_of(c).effective_sigma for c in shown if c.physical}
    if not light or any(column_of(sigma, sigmas) is None for sigma in light):
        return ("needs trials with mechanism photonic and projector opu_physical whose effective sigma is, to 1%, a "
                f"sigma of projector opu_simulated, got {_numbers(light)} and {_numbers(sigmas)}")
    return _choice_misfit(shown, lambda f: (f["projector"], f.get("sigma"), f.get("photons")), "projector and sigma")


def column_of(sigma: float, sigmas: Iterable[float]) -> float | None:
    """That of the sigmas which is this one to 1%, None for none."""
    return next((column for column in sigmas if abs(sigma - column) <= 0.01 * column), None)


def _values(configs: Sequence[TrialConfig], field: str) -> str:
    return _numbers({getattr(c, field) for c in configs})


def _numbers(values: Iterable[float]) -> str:
    return ", ".join(f"{value:.4g}" for value in sorted(values)) or "none"


def in_heatmap(fields: Mapping[str, Any]) -> bool:
    """Whether a trial has a place on the grid of sigma and tau_h, from its canonical fields."""
    return noise_setting(fields).startswith("sigma=")


def is_claimed(config: TrialConfig) -> bool:
    """Whether one of the formulas printed in Ohana et al. 2021 gives a finite epsilon for the trial."""
    return (config.parts.mechanism.optical and config.sigma + config.target_label_epsilon > 0 and config.output_noise
            and not config.parts.feedback.exact and not config.joint_release and not config.denoise)


def certified_trials(trials: Sequence[TrialConfig]) -> list[TrialConfig]:
    """Those that have a certified epsilon."""
    return [trial for trial in trials if kind(trial) == "certified"]
