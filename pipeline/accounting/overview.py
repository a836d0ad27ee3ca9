"""The output of `photonic account`: every epsilon of every setting of an experiment; equal lines are merged."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.accounting.budget import budget_lines
from pipeline.accounting.certified import with_noise
from pipeline.accounting.claimed import Assumption, assumptions
from pipeline.accounting.epsilon import GUARANTEES, Epsilon
from pipeline.accounting.statement import account, price_lines, privacy_tags
from pipeline.experiment.experiment import Experiment
from pipeline.trials.config import TrialConfig
from pipeline.trials.naming import counted, run_name
from pipeline.trials.promises import check_promises, sums_in_floating_point
from pipeline.trials.steps import steps

HEADER = ("epsilon", "kind, formulas", "relation", "sampler", "delta", "noise", "epochs", "setting")


@dataclass(frozen=True)
class Statement:
    """All statements on one setting, whatever its seed."""

    name: str  # of the setting, without a seed
    trial_keys: tuple[str, ...]  # of its trials; for random stopping its candidates, for a search its corners
    noise: str  # sigma, or the noise multiplier; calibrated ones included
    epsilons: tuple[tuple[Epsilon, ...], ...]  # after every epoch from the first, or only after the last
    assumptions: tuple[Assumption, ...]  # of the formulas printed in Ohana et al.
    notes: str  # the tag `privacy.notes`
    steps: tuple[str, ...] = ()  # of integer arithmetic, layer by layer

    @property
    def run_epsilons(self) -> tuple[Epsilon, ...]:
        """The epsilons of the whole run, after its last epoch."""
        return self.epsilons[-1]


def statements(experiment: Experiment, by_epoch: bool = False) -> list[Statement]:
    """Return the statements on every setting of an experiment; for random stopping, on every candidate.

    Trials with projector 'opu_physical' have one statement per seed, because their label epsilon depends on the matrix.
    """
    check_promises((trial for trial in experiment.possible if not sums_in_floating_point(trial)), None)
    trials_by_setting: dict[TrialConfig, list[TrialConfig]] = {}
    for trial in experiment.possible:
        setting = trial if _counts_photons(trial) else TrialConfig(trial.given, seed=0)  # equal for all seeds
        trials_by_setting.setdefault(setting, []).append(trial)
    return [_statement(trials, experiment, by_epoch) for trials in trials_by_setting.values()]


def _counts_photons(trial: TrialConfig) -> bool:
    return trial.parts.mechanism.optical and trial.physical


def _statement(trials: Sequence[TrialConfig], experiment: Experiment, by_epoch: bool) -> Statement:
    """Return the statement on trials that differ only in their seed, or on one trial."""
    trial, noisy = trials[0], with_noise(trials[0])
    epochs = range(1 if by_epoch else trial.epochs, trial.epochs + 1)
    name = run_name(trial, experiment.varied)
    if not _counts_photons(trial):
        name = name.rpartition(" ")[0]  # without the seed
    return Statement(
        name=name,
        trial_keys=tuple(seed_trial.trial_key for seed_trial in trials),
        noise=_noise_level(noisy),
        epsilons=tuple(tuple(account(trial, epoch)) for epoch in epochs),
        assumptions=tuple(assumptions(noisy)) if trial.parts.mechanism.optical else (),
        notes=privacy_tags(trial)["privacy.notes"],
        steps=tuple(_steps(noisy)) if noisy.exact else ())  # `exact`: trained in integer arithmetic


def _noise_level(noisy: TrialConfig) -> str:
    """Return a trial's calibrated noise: `z = 1.1`, `photons = 100` or `sigma = 0.1`; `none` without noise."""
    mechanism = noisy.parts.mechanism
    if mechanism.certified:
        return f"z = {noisy.noise_multiplier:.4g}"
    if mechanism.composed:
        return _calibrated(noisy)
    if _counts_photons(noisy):
        return f"photons = {noisy.photons:.4g}"
    if mechanism.optical:
        return f"sigma = {noisy.sigma:.4g}"
    return "none"


def _steps(noisy: TrialConfig) -> Iterator[str]:
    """Yield one line per layer: the real numbers that an integer 1 stands for in integer arithmetic."""
    for number, step in enumerate(steps(noisy, 1.0, noisy.noise_multiplier), start=1):
        yield (f"layer {number}: inputs 2^{math.log2(step.input):.0f}, learning signals "
               f"2^{math.log2(step.signal):.0f}, contributions {step.contribution:.3g} C")


def _calibrated(noisy: TrialConfig) -> str:
    """Return `z = 1.1`, or the setting that sets the noise of a user's trainer."""
    name = noisy.parts.trainer.calibrates
    if not name:
        return "as stated"
    symbol = "z" if name == "noise_multiplier" else name
    return f"{symbol} = {getattr(noisy, name):.4g}"


def as_json(experiment: Experiment, by_epoch: bool = False) -> str:
    """Return all settings with all epsilons as JSON for scripts; infinite values are null."""
    settings = []
    for statement in statements(experiment, by_epoch):
        epsilons = [[_plain(epsilon) for epsilon in after_epoch] for after_epoch in statement.epsilons]
        settings.append({**dataclasses.asdict(statement), "epsilons": epsilons})
    return json.dumps({"experiment": experiment.name, "settings": settings, "best": list(price_lines(experiment)),
                       "budget": list(budget_lines(experiment))}, indent=2)


def _plain(epsilon: Epsilon) -> Mapping[str, Any]:
    return {**dataclasses.asdict(epsilon), "value": epsilon.value if epsilon.is_finite else None}


def as_lines(experiment: Experiment, by_epoch: bool = False) -> Iterator[str]:
    """Yield lines for people: a table of every epsilon, the kinds' meanings, assumptions, and the best trial's cost."""
    settings, trials = statements(experiment, by_epoch), experiment.possible
    noun = "corner" if experiment.search else "trial"
    yield f"{experiment.name}: {counted(len(settings), 'setting')}, whatever the seed, of {counted(len(trials), noun)}"
    yield from _table(settings, {trial.trial_key: trial.epochs for trial in trials})
    if by_epoch:
        yield from _epoch_lines(settings)
    for kind in dict.fromkeys(epsilon.kind for setting in settings for epsilon in setting.run_epsilons):  # each once
        yield f"{kind}: {GUARANTEES[kind].meaning}"
    assumption_lines = {setting.name: [_assumption_line(assumption) for assumption in setting.assumptions]
                        for setting in settings}
    step_lines = {setting.name: setting.steps for setting in settings}
    note_lines = {setting.name: _clauses(setting.notes) for setting in settings}
    yield from _merged_lines("assumes:", settings, assumption_lines)
    yield from _merged_lines("integers stand for multiples of:", settings, step_lines)
    yield from _merged_lines("rests on:", settings, note_lines)
    yield from price_lines(experiment)
    yield from budget_lines(experiment)


def _assumption_line(assumption: Assumption) -> str:
    """Return `holds  sigma > 0: sigma = 0.1`, or `FAILS` with the reason."""
    verdict = "holds" if assumption.holds else "FAILS"
    return f"{verdict}  {assumption.name}: {assumption.reason}"


def _table(settings: Sequence[Statement], epochs: Mapping[str, int]) -> Iterator[str]:
    """Yield a table of the epsilons of all settings for the whole run; settings with equal rows share one."""
    names_by_row: dict[tuple[str, ...], list[str]] = {}
    without_epsilon = ("none", "", "", "", "")
    for setting in settings:
        n_epochs = str(epochs[setting.trial_keys[0]])
        for epsilon, *columns in _rows(setting.run_epsilons) or [without_epsilon]:
            noise = "" if epsilon == "inf" else setting.noise  # infinite at any noise
            names_by_row.setdefault((epsilon, *columns, noise, n_epochs), []).append(setting.name)
    rows = [(*row, _merged_names(names)) for row, names in names_by_row.items()]
    yield from aligned([HEADER, *rows])


def _epoch_lines(settings: Sequence[Statement]) -> Iterator[str]:
    """Yield the name of every setting, and one line for each epoch with all epsilons after it."""
    for setting in settings:
        yield setting.name
        for number, epsilons in enumerate(setting.epsilons, start=1):
            values = [f"{epsilon.metric_name.removeprefix('epsilon/')} {epsilon.value:.4g}" for epsilon in epsilons]
            yield f"  after epoch {number:>3}: {', '.join(values) or 'none'}"


def aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield the lines of a table, with columns two blanks apart."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def _rows(epsilons: Sequence[Epsilon]) -> list[tuple[str, ...]]:
    """Return table rows (value, kind and formulas, relation, sampler, delta), merged if only their formulas differ."""
    variants_by_row: dict[tuple[str, ...], list[str]] = {}
    for epsilon in epsilons:
        row = (f"{epsilon.value:.4g}", epsilon.kind, epsilon.relation, epsilon.sampler, f"{epsilon.delta:g}")
        variants_by_row.setdefault(row, []).append(epsilon.variant)
    rows: list[tuple[str, ...]] = []
    for (value, kind, relation, sampler, delta), variants in variants_by_row.items():
        formulas = ", ".join(_formulas(variants))
        rows.append((value, f"{kind} {formulas}".strip(), relation, sampler, delta))
    return rows


def _formulas(variants: Sequence[str]) -> list[str]:
    """Return the formulas' names, with `first/epochs, first/iterations` shortened to `first`."""
    variants_by_name: dict[str, list[str]] = {}
    for variant in variants:
        name = variant.partition("/")[0]
        variants_by_name.setdefault(name, []).append(variant)
    return [of_name[0] if len(of_name) == 1 else name for name, of_name in variants_by_name.items()]


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


def _merged_lines(title: str, settings: Sequence[Statement], lines: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """Yield a title and every line once, with the names of its settings in brackets unless all settings have it."""
    names_by_line: dict[str, list[str]] = {}
    for name, lines_of_setting in lines.items():
        for line in lines_of_setting:
            names_by_line.setdefault(line, []).append(name)
    if names_by_line:
        yield title
    for line, names in names_by_line.items():
        in_all = len(names) == len(settings)
        yield f"  {line}" if in_all else f"  {line}  [{_merged_names(names)}]"


def _merged_names(names: Sequence[str]) -> str:
    """Return merged names: `bp, dfa epsilon=3` for `bp epsilon=3` and `dfa epsilon=3`; shared words appear once."""
    distinct = list(dict.fromkeys(names))
    words_of_names = [name.split(" ") for name in distinct]
    if len({len(words) for words in words_of_names}) > 1:
        return "; ".join(distinct)
    columns = [list(dict.fromkeys(column)) for column in zip(*words_of_names, strict=True)]  # distinct words by place
    n_combinations = math.prod(len(column) for column in columns)
    if n_combinations != len(distinct):  # some combinations are missing, so one name would claim too much
        return "; ".join(distinct)
    return " ".join(_merged_words(column) for column in columns)


def _merged_words(words: Sequence[str]) -> str:
    """Return merged words: `epsilon=1, 3` for `epsilon=1` and `epsilon=3`."""
    fields = {word.partition("=")[0] for word in words}
    if len(fields) == 1 and all("=" in word for word in words):  # values of one setting
        values = [word.partition("=")[2] for word in words]
        return f"{fields.pop()}={', '.join(values)}"
    return ", ".join(words)
