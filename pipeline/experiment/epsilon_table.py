"""What `photonic account` shows: every epsilon of every setting of an experiment; equal lines are merged."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from pipeline.accounting.certified import with_noise
from pipeline.accounting.claimed import Assumption, assumptions
from pipeline.accounting.epsilon import Epsilon
from pipeline.accounting.statement import account, privacy_tags
from pipeline.experiment.experiment import Experiment
from pipeline.experiment.prices import budget_lines, delta_lines, price_lines
from pipeline.terminal import aligned
from pipeline.trials.config import TrialConfig
from pipeline.trials.kinds import KINDS
from pipeline.trials.naming import counted, run_name
from pipeline.trials.promises import check_promises
from pipeline.trials.steps import steps

HEADER = ("epsilon", "kind, formulas", "relation", "sampler", "delta", "noise", "epochs", "setting")


@dataclass(frozen=True)
class SettingEpsilons:
    """All statements on one setting, whatever its seed."""

    name: str  # of the setting, without a seed
    trial_keys: tuple[str, ...]  # of its trials; for random stopping its candidates, for a search its corners
    noise: str  # sigma, or the noise multiplier; calibrated ones included
    epsilons: tuple[tuple[Epsilon, ...], ...]  # after every epoch from the first, or only after the last
    assumptions: tuple[Assumption, ...]  # of the formulas printed in Ohana et al.
    notes: str  # the tag `privacy.notes`
    steps: tuple[str, ...] = ()  # of integer arithmetic, layer by layer


def statements(experiment: Experiment, by_epoch: bool = False) -> list[SettingEpsilons]:
    """Return a statement on every setting of `experiment.possible`, with epsilons `by_epoch` or of the whole run."""
    check_promises(experiment.possible, stored=False)
    trials_by_setting: dict[TrialConfig, list[TrialConfig]] = {}
    for trial in experiment.possible:
        trials_by_setting.setdefault(TrialConfig(trial.given, seed=0), []).append(trial)
    return [_statement(trials, experiment, by_epoch) for trials in trials_by_setting.values()]


def _statement(trials: Sequence[TrialConfig], experiment: Experiment, by_epoch: bool) -> SettingEpsilons:
    trial = trials[0]  # stands for all seeds
    noisy = with_noise(trial)
    mechanism = noisy.parts.mechanism
    noise = f"sigma = {noisy.sigma:.4g}" if mechanism.optical else "none"
    if mechanism.certified:
        noise = f"z = {noisy.noise_multiplier:.4g}"
    step_lines: tuple[str, ...] = ()
    if noisy.exact:  # trained in integer arithmetic: a line per layer; C is the largest norm of a contribution
        deviation = noisy.noise_multiplier / mechanism.sensitivity_ratio(noisy)  # of the noise, over C
        step_lines = tuple(f"layer {number}: inputs 2^{math.log2(step.input):.0f}, learning signals "
                           f"2^{math.log2(step.signal):.0f}, contributions {step.contribution:.3g} C"
                           for number, step in enumerate(steps(noisy, 1.0, deviation), start=1))
    return SettingEpsilons(
        name=run_name(trial, experiment.varied).rpartition(" ")[0],  # without the seed, with which it ends
        trial_keys=tuple(seed_trial.trial_key for seed_trial in trials),
        noise=noise,
        epsilons=tuple(tuple(account(trial, epoch))
                       for epoch in range(1 if by_epoch else trial.epochs, trial.epochs + 1)),
        assumptions=assumptions(noisy),
        notes=privacy_tags(trial)["privacy.notes"],
        steps=step_lines)


def as_json(experiment: Experiment, by_epoch: bool = False) -> str:
    """Return all settings with all epsilons as JSON for scripts; infinite values are null."""
    settings = [dataclasses.asdict(statement) for statement in statements(experiment, by_epoch)]
    for setting in settings:
        for epsilon in itertools.chain.from_iterable(setting["epsilons"]):
            if not math.isfinite(epsilon["value"]):
                epsilon["value"] = None
    return json.dumps({"experiment": experiment.name, "settings": settings, "best": list(price_lines(experiment)),
                       "budget": list(budget_lines(experiment))}, indent=2)


def as_lines(experiment: Experiment, by_epoch: bool = False) -> Iterator[str]:
    """Yield lines for people: a table of every epsilon, the kinds' meanings, assumptions, and the best trial's cost."""
    settings, trials = statements(experiment, by_epoch), experiment.possible
    of_trials = counted(len(trials), experiment.plan.noun)
    yield f"{experiment.name}: {counted(len(settings), 'setting')}, whatever the seed, of {of_trials}"
    yield from _table(settings, {trial.trial_key: trial.epochs for trial in trials})
    for setting in settings if by_epoch else ():
        yield setting.name
        for number, epsilons in enumerate(setting.epsilons, start=1):
            values = [f"{epsilon.metric_name.removeprefix('epsilon/')} {epsilon.value:.4g}" for epsilon in epsilons]
            yield f"  after epoch {number:>3}: {', '.join(values) or 'none'}"
    for kind in dict.fromkeys(epsilon.kind for setting in settings for epsilon in setting.epsilons[-1]):  # each once
        yield f"{kind}: {KINDS[kind].meaning}"
    yield from _merged_lines("assumes:", settings, lambda setting: [
        f"{'holds' if assumption.holds else 'FAILS'}  {assumption.name}: {assumption.reason}"
        for assumption in setting.assumptions])
    yield from _merged_lines("integers stand for multiples of:", settings, lambda setting: setting.steps)
    yield from _merged_lines("rests on:", settings, lambda setting: _clauses(setting.notes))
    yield from delta_lines(trials)
    yield from price_lines(experiment)
    yield from budget_lines(experiment)


def _table(settings: Sequence[SettingEpsilons], epochs: Mapping[str, int]) -> Iterator[str]:
    """Yield a table of all whole-run epsilons; settings with equal rows share one. `epochs` is by trial_key."""
    names_by_row: dict[tuple[str, ...], list[str]] = {}
    without_epsilon = ("none", "", "", "", "")
    for setting in settings:
        n_epochs = str(epochs[setting.trial_keys[0]])
        for epsilon, *columns in _rows(setting.epsilons[-1]) or [without_epsilon]:
            noise = "" if epsilon == "inf" else setting.noise  # infinite at any noise
            names_by_row.setdefault((epsilon, *columns, noise, n_epochs), []).append(setting.name)
    yield from aligned([HEADER, *((*row, _merged_names(names)) for row, names in names_by_row.items())])


def _rows(epsilons: Sequence[Epsilon]) -> list[tuple[str, ...]]:
    """Return table rows (value, kind and formulas, relation, sampler, delta), merged if only their formulas differ."""
    # `first/epochs, first/iterations` is shortened to `first`; a formula with a single variant stays as it is.
    variants_by_row: dict[tuple[str, ...], dict[str, list[str]]] = {}
    for epsilon in epsilons:
        row = (f"{epsilon.value:.4g}", epsilon.kind, epsilon.relation, epsilon.sampler, f"{epsilon.delta:g}")
        by_formula = variants_by_row.setdefault(row, {})
        by_formula.setdefault(epsilon.variant.partition("/")[0], []).append(epsilon.variant)
    rows: list[tuple[str, ...]] = []
    for (value, kind, *others), by_formula in variants_by_row.items():
        formulas = (variants[0] if len(variants) == 1 else name for name, variants in by_formula.items())
        rows.append((value, f"{kind} {', '.join(formulas)}".strip(), *others))
    return rows


def _clauses(notes: str) -> list[str]:
    """Return the clauses of notes, not split inside parentheses, without the noise multiplier: it is in the table."""
    clauses, depth = [""], 0
    for part in re.split(r"(; |[()])", notes):
        if part == "(":
            depth += 1
        elif part == ")":
            depth -= 1
        if part == "; " and depth == 0:
            clauses.append("")
        else:
            clauses[-1] += part
    return [clause for clause in clauses if not clause.startswith("noise multiplier ")]


def _merged_lines(title: str, settings: Sequence[SettingEpsilons],
                  lines_of: Callable[[SettingEpsilons], Iterable[str]]) -> Iterator[str]:
    """Yield a title and every line once, with the names of its settings in brackets unless all settings have it."""
    names_by_line: dict[str, list[str]] = {}
    for name, setting in {setting.name: setting for setting in settings}.items():
        for line in lines_of(setting):
            names_by_line.setdefault(line, []).append(name)
    if names_by_line:
        yield title
    for line, names in names_by_line.items():
        yield f"  {line}" if len(names) == len(settings) else f"  {line}  [{_merged_names(names)}]"


def _merged_names(names: Sequence[str]) -> str:
    """Return merged names: `bp, dfa epsilon=3` for `bp epsilon=3` and `dfa epsilon=3`; shared words appear once."""
    distinct = list(dict.fromkeys(names))
    words_of_names = [name.split(" ") for name in distinct]
    if len({len(words) for words in words_of_names}) > 1:
        return "; ".join(distinct)
    columns = [list(dict.fromkeys(column)) for column in zip(*words_of_names, strict=True)]  # distinct words by place
    if math.prod(map(len, columns)) != len(distinct):  # some combinations are missing, so one name would claim too much
        return "; ".join(distinct)
    merged = []
    for words in columns:
        fields = {word.partition("=")[0] for word in words}
        if len(fields) == 1 and all("=" in word for word in words):  # values of one setting: `epsilon=1, 3`
            words = [f"{fields.pop()}={', '.join(word.partition('=')[2] for word in words)}"]
        merged.append(", ".join(words))
    return " ".join(merged)
