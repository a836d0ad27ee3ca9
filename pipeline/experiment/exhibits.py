"""The exhibits by name, and which trials each can show; `analysis.exhibits.catalogue` draws them.

This module imports no drawing library, so that a file is checked quickly, before a sweep. Each function of `NEEDS`
returns why an exhibit cannot show these trials, as the end of a sentence that begins with its name; empty if it can.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from pipeline.experiment.factors import balanced, differing, find_factors, varied_fields
from pipeline.experiment.yaml_text import is_number
from pipeline.trials.component import Component
from pipeline.trials.config import TrialConfig
from pipeline.trials.fields import UserError
from pipeline.trials.guard import guarded, name_of
from pipeline.trials.kinds import GUARANTEED, certified_trials
from pipeline.trials.naming import method, noise_setting
from pipeline.trials.part import PARTS, SETTINGS

BY = "by_"  # before a setting: the exhibit of curves over it
NOISE = ("sigma", "noise_multiplier", "target_epsilon", "target_label_epsilon")  # settings of the amount of noise
# Exhibits of curves that have a name of their own -> setting; exhibits of a grid of sigma and tau_h -> metric.
SWEPT = {"tau_h_sweep": "tau_h", "batch_size_sweep": "batch_size", "clipping_norm_sweep": "clipping_norm"}
HEATMAPS = {"alignment_heatmap": "alignment", "accuracy_heatmap": "accuracy"}
FRONTIERS = {"frontier": "accuracy", "frontier_worst_class": "worst_class", "frontier_alignment": "alignment"}
MOST_PANELS = 12  # largest number of panels of small multiples


def table1(trials: Sequence[TrialConfig]) -> str:
    """Return why Table 1 cannot show these trials; empty if it can. A cell is one algorithm with one sigma."""
    # Optical noise has a sigma as a setting. Certified mechanisms are refused below, with another reason.
    without_sigma = sorted({trial.mechanism for trial in trials
                            if trial.parts.mechanism.private and not trial.parts.mechanism.optical
                            and not trial.parts.mechanism.certified})
    if without_sigma:
        return f"has one cell for each algorithm and sigma, which mechanism {', '.join(without_sigma)} does not have"
    if any(trial.parts.mechanism.certified or trial.target_label_epsilon for trial in trials):
        return ("has one cell for each algorithm and sigma, but trials here differ in target_epsilon, "
                "noise_multiplier or target_label_epsilon, which `frontier` shows")
    if varied := varied_fields(trials):
        return f"has one cell for each algorithm and sigma, but trials there also differ in {', '.join(varied)}"
    return ""


def figure2(trials: Sequence[TrialConfig]) -> str:
    """Return why Figure 2, of validation accuracy and alignment by epoch, cannot show these trials; empty if it can."""
    if reason := table1(trials):
        return reason
    if not all(trial.validation_fraction for trial in trials):
        return "shows validation accuracy, which trials with validation_fraction 0 do not have"
    if not any(trial.parts.feedback.optical and trial.alignment_batches for trial in trials):
        return "shows the alignment of pdfa, but no trial measures that"
    return ""


def means(trials: Sequence[TrialConfig]) -> str:
    """Return why a table of means cannot show these trials: it needs a setting that varies; empty if it can."""
    factors, *_ = find_factors(trials)  # every trial has a level of each
    return "" if factors else "needs two settings or more, but trials differ in their seed alone"


def main_effects(trials: Sequence[TrialConfig]) -> str:
    """Return why main effects cannot be computed: only a balanced grid can be split by setting; empty if they can."""
    if balanced(trials):
        return ""
    return ("needs a balanced grid of two factors or more: every combination of algorithm, noise and other settings, "
            "with equally many seeds")


def heatmap(trials: Sequence[TrialConfig], metric: str) -> str:
    """Return why a heatmap over sigma and tau_h of a metric of `HEATMAPS` cannot show these trials; empty if it can."""
    grid_trials = [trial for trial in trials if in_heatmap(trial)]
    n_sigmas, n_bounds = len({trial.sigma for trial in grid_trials}), len({trial.tau_h for trial in grid_trials})
    if min(n_sigmas, n_bounds) < 2:
        return ("needs trials with mechanism photonic and a given sigma (no target_label_epsilon), at two values or "
                f"more of both sigma and tau_h, got sigma {_values(grid_trials, 'sigma')} and tau_h "
                f"{_values(grid_trials, 'tau_h')}")
    reason = without_choice(grid_trials, lambda trial: (trial.algorithm, trial.sigma, trial.tau_h),
                            "algorithm, sigma and tau_h")
    return reason or (without_alignment(grid_trials) if metric == "alignment" else "")


def swept(name: str) -> str:
    """Return the setting over which an exhibit has curves: `by_sigma` has them over sigma; empty for other exhibits."""
    if name in SWEPT:
        return SWEPT[name]
    setting = SETTINGS.get(name.removeprefix(BY)) if name.startswith(BY) else None
    return setting.name if setting and is_number(setting.default) else ""


def sweep(trials: Sequence[TrialConfig], field: str) -> str:
    """Return why curves over a setting cannot show these trials; empty if they can.

    There is a curve for each (algorithm, noise); over a setting of the noise, for each algorithm.
    """
    def curve(trial: TrialConfig) -> tuple[str, ...]:
        return (trial.algorithm,) if field in NOISE else (trial.algorithm, noise_setting(trial))

    swept_trials = [trial for trial in trials if field in trial.canonical()]
    values_by_curve: dict[tuple[str, ...], set[Any]] = {}
    for trial in swept_trials:
        values_by_curve.setdefault(curve(trial), set()).add(getattr(trial, field))
    of_one = "algorithm" if field in NOISE else "algorithm and noise"
    if max(map(len, values_by_curve.values()), default=0) < 2:
        return f"needs trials of one {of_one} at two values or more of {field}, got {_values(swept_trials, field)}"
    return without_choice(swept_trials, lambda trial: (*curve(trial), getattr(trial, field)),
                          f"{of_one.replace(' and', ',')} and {field}")


def leekifer(trials: Sequence[TrialConfig]) -> str:
    """Return why the comparison with Lee and Kifer's algorithm cannot show these trials; empty if it can.

    Their algorithm has a constant noise, in proportion to the largest update. So private trials must fix
    noise_multiplier, sample batches of a fixed size, and bound the norm of an update.
    """
    if not any(trial.parts.mechanism.certified for trial in trials):
        return "compares trials with a mechanism that is certified, such as per_example, but there are none"
    for trial in trials:
        if not trial.parts.mechanism.private:
            continue
        # fresh batches in every step, all of the same size: sampler without_replacement
        has_fixed_batches = trial.parts.sampler.amplified and trial.parts.sampler.full
        if not (has_fixed_batches and update_sigma(trial) > 0):
            return ("shows trials without privacy, and trials with noise_multiplier > 0 and sampler "
                    "without_replacement under per_example clipping, or component clipping with target_norm; there is "
                    f"one of mechanism {trial.mechanism}, sampler {trial.sampler}, noise_multiplier "
                    f"{trial.noise_multiplier:g}")

    def curve(trial: TrialConfig) -> tuple[Any, ...]:
        settings = trial.canonical()
        return trial.dataset, trial.algorithm, update_sigma(trial), *(settings.get(name) for name in readings())

    if varied := differing(trials, curve):
        return ("has one curve for each data set, algorithm, reading and noise, but trials there also differ in "
                f"{', '.join(varied)}")
    return ""


def readings() -> list[str]:
    """Return the fields that choose a reading of Lee and Kifer's algorithm; each combination has a curve.

    A plugin's mechanism that is a kind of component clipping has further ones.
    """
    parts = [cls for cls in PARTS["mechanism"].values() if issubclass(cls, Component)]
    of_parts = {field.name for cls in parts for field in cls.settings} - {field.name for field in Component.settings}
    return [*of_parts, "activation", "init", "init_gain"]


def training_time(trials: Sequence[TrialConfig]) -> str:
    """Return why curves of accuracy over training time, by epoch, cannot show these trials; empty if they can."""
    if any(trial.epochs < 2 for trial in trials):
        return "shows accuracy by epoch, which trials of one epoch do not have"
    if any(trial.validation_fraction and trial.disclosure == "withheld" for trial in trials):
        return ("needs an accuracy of every epoch, which trials with private_metrics 'withheld' log only with "
                "validation_fraction 0")
    if varied := differing(trials, lambda trial: (trial.algorithm, noise_setting(trial))):
        return f"has one curve for each algorithm and noise, but trials there also differ in {', '.join(varied)}"
    return ""


def without_choice(trials: Sequence[TrialConfig], cell: Callable[[TrialConfig], Any], cell_text: str) -> str:
    """Return why no setting can represent a cell of an exhibit; empty if one can, or if a cell has a single setting.

    The one with the best validation accuracy represents it. `cell` gives a trial's cell, which `cell_text` describes.
    """
    varied = differing(trials, cell)
    if "delta" in varied:
        return "needs one delta, but the trials have several"
    has_scores = all(trial.validation_fraction and trial.disclosure != "withheld" for trial in trials)
    if not varied or has_scores:
        return ""
    return (f"chooses by validation accuracy among trials of one {cell_text}, here differing in {', '.join(varied)}, "
            "but not all trials log that (validation_fraction > 0, private_metrics plain or noisy)")


def without_alignment(trials: Sequence[TrialConfig]) -> str:
    """Return why the alignment of these trials cannot be shown; empty if all trials measure it."""
    if not all(trial.alignment_batches for trial in trials):
        return "shows alignment, which trials with alignment_batches 0 do not measure"
    return ""


def update_sigma(trial: TrialConfig) -> float:
    """Return sigma of Lee & Kifer 2020, Algorithm 1; 0 without privacy.

    It is the standard deviation of the noise on each coordinate of the mean update, z C/m: noise multiplier z, bound C
    on a record's contribution, batch size m.
    """
    return trial.noise_multiplier * trial.parts.mechanism.update_norm / trial.batch_size


def in_heatmap(trial: TrialConfig) -> bool:
    """Whether a trial belongs to the grid of sigma and tau_h: its noise is a given sigma."""
    return noise_setting(trial).startswith("sigma=")


def _values(trials: Sequence[TrialConfig], field: str) -> str:  # the distinct ones, for messages
    return ", ".join(f"{value:.4g}" for value in sorted({getattr(trial, field) for trial in trials})) or "none"


def frontier(trials: Sequence[TrialConfig], metric: str) -> str:
    """Return why a frontier of a metric of `FRONTIERS` cannot show those trials that have a guaranteed epsilon."""
    by_kind = {kind: [trial for trial in trials if trial.parts.mechanism.kind(trial) == kind] for kind in GUARANTEED}
    if not any(by_kind.values()):
        return ("needs trials with a certified epsilon (a mechanism such as per_example, and noise) or a label "
                "epsilon (mechanism photonic with target_label_epsilon, or sigma > 0 and noise on every layer), but "
                "there are none")
    reasons = [_curves(kind, of_kind) for kind, of_kind in by_kind.items() if of_kind]
    if metric == "alignment":
        reasons += [without_alignment(of_kind) for of_kind in by_kind.values()]
    return next(filter(None, reasons), "")  # the first reason that is not empty


def claimed(trials: Sequence[TrialConfig]) -> str:
    """Return why a frontier of claimed epsilons, by a paper's formula, cannot show those trials that have one."""
    claimed_trials = [trial for trial in trials if is_claimed(trial)]
    if not claimed_trials:
        return ("needs trials with a claimed epsilon (mechanism photonic, sigma > 0, noise on every layer, feedback by "
                "dfa, tdfa or pdfa, neither joint_release nor denoise), but there are none")
    return _curves("claimed", claimed_trials)


def _curves(kind: str, trials: Sequence[TrialConfig]) -> str:
    """Return why trials, all of one kind of epsilon, make no curves on one axis; empty if they do."""
    if len({trial.delta for trial in trials}) > 1:
        return "needs one delta, but the trials have several"
    by_sampler = sorted(trials, key=lambda trial: trial.sampler)
    relations = {trial.sampler: trial.parts.sampler.relation for trial in by_sampler}
    # Label epsilons all have the relation of labels, whatever the sampler.
    if kind != "label" and len(set(relations.values())) > 1:
        samplers = [f"sampler {sampler} is of {relation}" for sampler, relation in relations.items()]
        return f"needs one neighbouring relation, but {' and '.join(samplers)}"
    return without_choice(trials, lambda trial: (method(trial), noise_setting(trial)), "algorithm and noise")


def slices(trials: Sequence[TrialConfig]) -> str:
    """Return why frontiers by value of one or two settings cannot show those trials that have a guaranteed epsilon."""
    guaranteed_trials = certified_trials(trials) or [trial for trial in trials if trial.parts.mechanism.kind(trial)]
    if not guaranteed_trials:
        return frontier(trials, "accuracy")  # which gives the reason
    fields = panel_fields(guaranteed_trials)
    if not fields:
        return ("has a panel for each value of one or two settings besides algorithm and noise, at most "
                f"{MOST_PANELS}, but none varies, or each has more values")
    panels: dict[tuple[str, ...], list[TrialConfig]] = {}  # values of the fields -> trials
    for trial in guaranteed_trials:
        values = tuple(str(trial.canonical().get(name)) for name in fields)
        panels.setdefault(values, []).append(trial)
    reasons = (frontier(panel, "accuracy") for panel in panels.values())
    return next(filter(None, reasons), "")  # the first reason that is not empty


def panel_fields(trials: Sequence[TrialConfig]) -> tuple[str, ...]:
    """Return the one or two fields that separate the panels of small multiples; empty if none can.

    Data set and network come first, then fields by name, as long as there are at most `MOST_PANELS` panels. A field
    that the others determine is left out, such as a setting of one network.
    """
    rows = find_factors(trials)  # by trial: its values of the fields that vary
    names = [name for name in rows[0] if name not in ("algorithm", "noise")]
    fields: tuple[str, ...] = ()
    n_panels, n_used = 1, 1  # with all values of the fields; with trials
    for name in sorted(names, key=lambda name: (name not in ("dataset", "network"), name)):
        n_values = len({row[name] for row in rows})
        n_split = len({tuple(row[field] for field in (*fields, name)) for row in rows})
        if len(fields) < 2 and n_panels * n_values <= MOST_PANELS and n_split > n_used:
            fields += (name,)
            n_panels, n_used = n_panels * n_values, n_split
    return fields


def is_claimed(trial: TrialConfig) -> bool:
    """Whether a formula printed in Ohana et al. 2021 gives a finite epsilon for the trial."""
    has_noise_in_every_layer = trial.sigma + trial.target_label_epsilon > 0 and trial.output_noise
    # The formulas assume independent noise on every layer's projected error: not an exact error (bp), whose noise is
    # propagated, and no processing of the projections that correlates their noise.
    has_independent_noise = not (trial.parts.feedback.exact or trial.joint_release or trial.denoise)
    return trial.parts.mechanism.optical and has_noise_in_every_layer and has_independent_noise


NEEDS: dict[str, Callable[[Sequence[TrialConfig]], str]] = {
    "table1": table1,
    "figure2": figure2,
    **{name: partial(frontier, metric=metric) for name, metric in FRONTIERS.items()},
    "frontier_slices": slices,
    "frontier_claimed": claimed,
    **{name: partial(heatmap, metric=metric) for name, metric in HEATMAPS.items()},
    **{name: partial(sweep, field=field) for name, field in SWEPT.items()},
    "main_effects": main_effects,
    "means": means,
    "training_time": training_time,
    "leekifer": leekifer,
}
OF_ONE_DATASET = NEEDS.keys() - {"frontier_slices", "main_effects", "means", "leekifer"}
LISTED_ONLY = ("training_time",)  # a file without a list of exhibits gets all others that fit


def names() -> str:
    """Return the names of exhibits, for messages."""
    return f"{', '.join(NEEDS)}, or of {BY}SETTING for a setting that is a number"


def is_known(exhibit: object) -> bool:
    """Whether there is an exhibit of this name."""
    return isinstance(exhibit, str) and (exhibit in NEEDS or bool(swept(exhibit)))


class Fault(str):
    """Why nobody knows whether an exhibit can show trials: its own code failed. Only the report of it is lost."""


def mismatch(exhibit: str, trials: Sequence[TrialConfig]) -> str:
    """Return why an exhibit cannot show these trials; empty if it can; a `Fault` if its own code cannot tell."""
    of_one = exhibit in OF_ONE_DATASET or exhibit not in NEEDS
    if of_one and len({trial.dataset for trial in trials}) > 1:
        return "is of one data set, but the trials use several"
    if exhibit not in NEEDS:
        return sweep(trials, swept(exhibit))
    try:
        with guarded(lambda line: UserError(f"is left out, as its `needs`{name_of(NEEDS[exhibit])} raised {line}")):
            reason = NEEDS[exhibit](trials) or ""
    except UserError as error:
        return Fault(error)
    if isinstance(reason, str):
        return reason
    return Fault(f"is left out, as its `needs`{name_of(NEEDS[exhibit])} must return a text, got {reason!r}")


def refusal(exhibit: str, trials: Sequence[TrialConfig]) -> str:
    """Return why an exhibit must not be asked for; empty if it can show these trials, or drawing it will tell."""
    reason = mismatch(exhibit, trials)
    return "" if isinstance(reason, Fault) else reason


def fitting(trials: Sequence[TrialConfig]) -> tuple[str, ...]:
    """Return the exhibits that can show these trials, except those that a file must list; none without trials."""
    has_exhibit = {*SWEPT.values(), "target_epsilon", "target_label_epsilon"}  # of targets it is the frontier
    over = [f"{BY}{name}" for name in differing(trials, lambda _: None) if name not in has_exhibit]  # all in one cell
    return tuple(name for name in (*NEEDS, *filter(swept, over))
                 if trials and name not in LISTED_ONLY and not refusal(name, trials))


def undrawn(trials: Sequence[TrialConfig], report: Sequence[str]) -> list[tuple[str, str]]:
    """Return (exhibit, reason) of every exhibit of `NEEDS` that a report does not draw."""
    return [(exhibit, mismatch(exhibit, trials) or "the `report` of the experiment file does not list it")
            for exhibit in NEEDS if exhibit not in report]
