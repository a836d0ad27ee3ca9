"""Why an exhibit cannot show the trials of an experiment: each function returns the end of a sentence that begins with
the exhibit's name, or nothing. `analysis.catalogue` asks before training, so no drawing library is imported.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from analysis.layout import AMOUNT, NOISE, Layout, levels, lines_of, panels_of
from pipeline.experiment.experiment import Experiment
from pipeline.experiment.factors import differing, find_factors, varied_fields
from pipeline.trials.component import Component
from pipeline.trials.config import TrialConfig
from pipeline.trials.fields import is_number
from pipeline.trials.kinds import GUARANTEED, KINDS
from pipeline.trials.naming import method, noise_setting
from pipeline.trials.part import PARTS, SETTINGS

BY, AND = "by_", "_and_"  # `by_tau_h` has lines over one setting, `by_tau_h_and_batch_size` a heatmap over two


def table1(trials: Sequence[TrialConfig]) -> str:
    """Return why Table 1 cannot show these trials. A cell is one algorithm with one sigma."""
    if len({trial.dataset for trial in trials}) > 1:
        return "is of one data set, but the trials use several"
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
    """Return why Figure 2, of validation accuracy and alignment by epoch, cannot show these trials."""
    if reason := table1(trials):
        return reason
    if not all(trial.validation_fraction for trial in trials):
        return "shows validation accuracy, which trials with validation_fraction 0 do not have"
    if not any(trial.parts.feedback.optical and trial.alignment_batches for trial in trials):
        return "shows the alignment of pdfa, but no trial measures that"
    return ""


def means(trials: Sequence[TrialConfig]) -> str:
    """Return why a table of means cannot show these trials: it needs a setting that varies."""
    factors, *_ = find_factors(trials)  # every trial has a level of each
    return "" if factors else "needs two settings or more, but trials differ in their seed alone"


def axes_of(name: str) -> tuple[str, ...]:
    """Return the one or two settings over which `by_A` or `by_A_and_B` shows trials; none for another exhibit."""
    axes = tuple(name.removeprefix(BY).split(AND)) if name.startswith(BY) else ()
    known = all(axis in SETTINGS and is_number(SETTINGS[axis].default) and axis != "seed" for axis in axes)
    return axes if known and len({*axes}) == len(axes) <= 2 else ()


def by(trials: Sequence[TrialConfig], name: str, experiment: Experiment) -> str:
    """Return why lines over one setting, or a heatmap over two, cannot show these trials."""
    if experiment.plan.asks:
        return "is of a grid; `search_space` shows the trials of a search against every setting"
    axes = axes_of(name)
    shown = with_axes(trials, axes)
    layout = layout_by(shown, axes, experiment)
    if layout.fault:
        return layout.fault
    distinct = {axis: sorted({getattr(trial, axis) for trial in shown}) for axis in axes}
    by_line: dict[Any, list[TrialConfig]] = {}  # of a heatmap, all together
    for trial in shown:
        line = levels(trial, ("algorithm", *layout.factors)) if len(axes) == 1 else ()
        by_line.setdefault(line, []).append(trial)
    if not any(all(len({getattr(trial, axis) for trial in of_line}) > 1 for axis in axes)
               for of_line in by_line.values()):
        found = [f"{axis} {', '.join(f'{value:.4g}' for value in seen) or 'none'}" for axis, seen in distinct.items()]
        alike = " that agree in all else" if len(axes) == 1 else ""
        return f"needs trials{alike} at two values or more of {' and of '.join(axes)}, got {' and '.join(found)}"
    if len(axes) == 2 and len({levels(trial, axes) for trial in shown}) <= max(map(len, distinct.values())):
        return f"needs combinations of {' and '.join(axes)}, but of these trials one follows from the other"
    return without_choice(shown, lambda trial: levels(trial, ("algorithm", *layout.factors, *axes)))


def with_axes(trials: Sequence[TrialConfig], axes: Sequence[str]) -> list[TrialConfig]:
    """Return the trials that use all these settings; of those of the noise, the trials whose noise they set."""
    def uses(trial: TrialConfig, axis: str) -> bool:
        if axis not in trial.canonical():
            return False
        if axis in ("sigma", "noise_multiplier"):  # a level counts, 0 too, unless a target sets it
            return not (trial.target_label_epsilon if axis == "sigma" else trial.target_epsilon)
        return axis not in NOISE or bool(getattr(trial, axis))  # a target of 0 sets nothing

    return [trial for trial in trials if all(uses(trial, axis) for axis in axes)]


def layout_by(trials: Sequence[TrialConfig], axes: Sequence[str], experiment: Experiment) -> Layout:
    """Return the layout of `by_A`, or of the heatmap `by_A_and_B`."""
    return (lines_of if len(axes) == 1 else panels_of)(trials, axes, experiment)


def leekifer(trials: Sequence[TrialConfig]) -> str:
    """Return why the comparison with Lee and Kifer's algorithm cannot show these trials.

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


def update_sigma(trial: TrialConfig) -> float:
    """Return sigma of Lee & Kifer 2020, Algorithm 1; 0 without privacy.

    It is the standard deviation of the noise on each coordinate of the mean update, z C/m: noise multiplier z, bound C
    on a record's contribution, batch size m.
    """
    return trial.noise_multiplier * trial.parts.mechanism.update_norm / trial.batch_size


def frontier(trials: Sequence[TrialConfig], name: str, experiment: Experiment) -> str:
    """Return why a frontier cannot show those trials that have an epsilon of its kinds."""
    kinds = ("claimed",) if name == "frontier_claimed" else GUARANTEED
    by_kind = {kind: of_kind(trials, kind) for kind in kinds}
    if not any(by_kind.values()):
        return LACKING[kinds[0]]
    reasons = [_curves(kind, trials, experiment) for kind, trials in by_kind.items() if trials]
    if name == "frontier_alignment":
        reasons += [without_alignment(trials) for trials in by_kind.values()]
    return next(filter(None, reasons), "")


LACKING = {
    "certified": "needs trials with a certified epsilon (a mechanism such as per_example, and noise) or a label "
                 "epsilon (mechanism photonic with target_label_epsilon, or sigma > 0 and noise on every layer), but "
                 "there are none",
    "claimed": "needs trials with a claimed epsilon (mechanism photonic, sigma > 0, noise on every layer, feedback by "
               "dfa, tdfa or pdfa, neither joint_release nor denoise), but there are none"}


def of_kind(trials: Sequence[TrialConfig], kind: str) -> list[TrialConfig]:
    """Return the trials with an epsilon of a kind, by their settings."""
    return [trial for trial in trials if (is_claimed(trial) if kind == "claimed" else
                                          trial.parts.mechanism.kind(trial) == kind)]


def is_claimed(trial: TrialConfig) -> bool:
    """Whether a formula printed in Ohana et al. 2021 gives a finite epsilon for the trial."""
    has_noise_in_every_layer = trial.sigma + trial.target_label_epsilon > 0 and trial.output_noise
    # The formulas assume independent noise on every layer's projected error: not an exact error (bp), whose noise is
    # propagated, and no processing of the projections that correlates their noise.
    has_independent_noise = not (trial.parts.feedback.exact or trial.joint_release or trial.denoise)
    return trial.parts.mechanism.optical and has_noise_in_every_layer and has_independent_noise


def layout_of_frontier(trials: Sequence[TrialConfig], kind: str, experiment: Experiment) -> Layout:
    """Return the layout of a frontier's lines, which are along the noise."""
    return lines_of(trials, (*KINDS[kind].noise, AMOUNT), experiment)


def _curves(kind: str, trials: Sequence[TrialConfig], experiment: Experiment) -> str:
    """Return why trials, all of one kind of epsilon, make no curves; empty if they do."""
    if len({trial.delta for trial in trials}) > 1:
        return "needs one delta, but the trials have several"
    by_sampler = sorted(trials, key=lambda trial: trial.sampler)
    relations = {trial.sampler: trial.parts.sampler.relation for trial in by_sampler}
    # Label epsilons all have the relation of labels, whatever the sampler.
    if kind != "label" and len(set(relations.values())) > 1:
        samplers = [f"sampler {sampler} is of {relation}" for sampler, relation in relations.items()]
        return f"needs one neighbouring relation, but {' and '.join(samplers)}"
    layout = layout_of_frontier(trials, kind, experiment)
    return layout.fault or without_choice(
        trials, lambda trial: (method(trial), noise_setting(trial), levels(trial, layout.factors)))


def without_choice(trials: Sequence[TrialConfig], cell: Callable[[TrialConfig], Any]) -> str:
    """Return why no setting can represent a cell of an exhibit; empty if one can, or if a cell has a single setting.

    The one with the best validation accuracy represents it.
    """
    varied = differing(trials, cell)
    if "delta" in varied:
        return "needs one delta, but the trials have several"
    if not varied or log_scores(trials):
        return ""
    return (f"takes the best by validation accuracy over {', '.join(varied)}, but not all trials log that "
            "(validation_fraction > 0, private_metrics plain or noisy)")


def log_scores(trials: Sequence[TrialConfig]) -> bool:
    """Whether all trials log validation accuracy, with noise or without."""
    return all(trial.validation_fraction and trial.disclosure != "withheld" for trial in trials)


def without_alignment(trials: Sequence[TrialConfig]) -> str:
    """Return why the alignment of these trials cannot be shown; empty if all trials measure it."""
    measured = all(trial.alignment_batches for trial in trials)
    return "" if measured else "shows alignment, which trials with alignment_batches 0 do not measure"
