"""Check whether trials fit a frontier (as in `pipeline.experiment.needs`), and choose the fields of its panels."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.experiment.factors import find_factors
from pipeline.experiment.needs import without_alignment, without_choice
from pipeline.trials.config import TrialConfig
from pipeline.trials.kinds import COMPOSABLE, GUARANTEED, KINDS
from pipeline.trials.naming import epsilon_kind, method, noise_setting
from pipeline.trials.part import parts_of
from pipeline.trials.trainer import Trainer

FRONTIERS = {"frontier": "accuracy", "frontier_worst_class": "worst_class", "frontier_alignment": "alignment"}
MOST_PANELS = 12  # largest number of panels of small multiples


def noise_fields(kind: str) -> tuple[str, ...]:
    """Return the settings that determine epsilon, including the calibrated settings of users' trainers."""
    if kind not in COMPOSABLE:
        return KINDS[kind].noise
    calibrated = (cls.calibrates for cls in parts_of("trainer", Trainer).values())
    return tuple(dict.fromkeys((*KINDS[kind].noise, *filter(None, calibrated))))


def frontier(configs: Sequence[TrialConfig], metric: str) -> str:
    """Return why a frontier of a metric cannot show these trials; those without a guaranteed epsilon are left out."""
    by_kind = {kind: [trial for trial in configs if epsilon_kind(trial) == kind]
               for kind in GUARANTEED}
    if not any(by_kind.values()):
        return ("needs trials with a certified epsilon (a mechanism such as per_example, and noise) or a label "
                "epsilon (mechanism photonic with target_label_epsilon, or sigma > 0 and noise on every layer), but "
                "there are none")
    reasons = [_curves(kind, trials) for kind, trials in by_kind.items() if trials]
    if metric == "alignment":
        reasons += [without_alignment(trials) for trials in by_kind.values()]
    return next(filter(None, reasons), "")  # the first reason that is not empty


def claimed(configs: Sequence[TrialConfig]) -> str:
    """Return why a frontier of claimed epsilons, by a paper's formula, cannot show these trials."""
    claimed_trials = [trial for trial in configs if is_claimed(trial)]
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


def slices(configs: Sequence[TrialConfig]) -> str:
    """Return why a frontier per value of one or two settings cannot show these trials."""
    certified = [trial for trial in configs if epsilon_kind(trial) == "certified"]
    guaranteed_trials = certified or [trial for trial in configs if epsilon_kind(trial)]
    if not guaranteed_trials:
        return frontier(configs, "accuracy")  # which gives the reason
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

    The data set comes first, then fields by name, as long as there are at most `MOST_PANELS` panels.
    """
    rows = find_factors(trials)  # by trial: its values of the fields that vary
    n_values = {name: len({row[name] for row in rows}) for name in rows[0] if name not in ("algorithm", "noise")}
    by_priority = sorted(n_values, key=lambda name: (name != "dataset", name))
    fields: tuple[str, ...] = ()
    n_panels = 1
    for name in by_priority:
        if len(fields) < 2 and n_panels * n_values[name] <= MOST_PANELS:
            fields += (name,)
            n_panels *= n_values[name]
    return fields


def is_claimed(config: TrialConfig) -> bool:
    """Whether a formula printed in Ohana et al. 2021 gives a finite epsilon for the trial."""
    has_noise_in_every_layer = config.sigma + config.target_label_epsilon > 0 and config.output_noise
    # The formulas assume independent noise on every layer's projected error: not an exact error (bp), whose noise is
    # propagated, and no processing of the projections that correlates their noise.
    has_independent_noise = not (config.parts.feedback.exact or config.joint_release or config.denoise)
    return config.parts.mechanism.optical and has_noise_in_every_layer and has_independent_noise
