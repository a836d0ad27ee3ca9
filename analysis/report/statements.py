"""The guarantees of a page's epsilons: in words by kind, in numbers by accountant, and their assumptions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import pandas as pd

from analysis.catalogue import listed
from analysis.exhibits.frontier.others import KIND, SHOWN_BY
from analysis.exhibits.selection import Choice
from analysis.exhibits.table import Table
from analysis.labels import short
from analysis.report.page import Guarantee
from analysis.runs import is_up_to_rounding, noise_sources, relations, standing_of
from pipeline.accounting.label import RELATION as LABEL_RELATION
from pipeline.accounting.statement import relation_of_kind
from pipeline.experiment.experiment import Experiment
from pipeline.trials.kinds import GUARANTEED, KINDS, UP_TO_ROUNDING, noise_statement, sentence
from pipeline.trials.naming import counted

NONE = "No guarantee: these trials log no ε of any kind ({count}). The assumptions below say why."
ROUNDED = (" For {count} trials last bits of contributions are not covered: operators of their network were not "
           "reviewed for the torch and device that trained them.")
NO_GUARANTEE = "none"
# By kind: with secret noise, and with noise from a recorded seed, which only simulates the guarantee.
GUARANTEES = {"certified": ("certified", "simulated"), "label": ("labels only", "labels only, simulated")}
NEIGHBOURS = {"add/remove": "one record, added or removed", "replace-one": "one record, replaced",
              LABEL_RELATION: "the label of one record"}


def kinds_of(runs: pd.DataFrame) -> list[str]:
    """Return the kinds of epsilon that any trial has logged, the strongest first."""
    logged = {name.split("/")[1] for name in _epsilons(runs)}
    return [kind for kind in KINDS if kind in logged]


def guarantees(runs: pd.DataFrame) -> pd.Series:
    """Return the strongest guarantee of each run, from the kinds of its logged epsilons and the source of its noise.

    It is `certified`, `up to rounding`, `simulated`, `labels only`, `labels only, simulated`, or `none`.
    """
    words = pd.Series(NO_GUARANTEE, runs.index)
    for kind in reversed(GUARANTEED):  # the stronger one comes last and overwrites the other
        words = words.mask(_has(runs, kind), _guarantees_of(kind, runs))
    return words


def _guarantees_of(kind: str, runs: pd.DataFrame) -> pd.Series:
    """Return the guarantee of one kind of epsilon, which all of these runs have, in the words of `guarantees`."""
    secret, recorded = GUARANTEES.get(kind, (NO_GUARANTEE, NO_GUARANTEE))
    words = (noise_sources(runs) == "secure").map({True: secret, False: recorded})
    return words.mask(is_up_to_rounding(runs), UP_TO_ROUNDING)


def state(runs: pd.DataFrame, choice: Choice | None = None) -> list[Guarantee]:
    """Return a statement for every kind of epsilon that occurs, and one for trials without any epsilon.

    A statement includes the noise source of its trials. The choice gets one if an epsilon covers it.
    """
    statements = []
    selected = choice.selected if choice else None
    for kind, (guarantees_something, text, *_) in KINDS.items():
        runs_of_kind = runs[_has(runs, kind)]
        if choice and selected and kind == selected.kind:
            said = f"{text} {_neighbours([selected.relation])}{choice.noise}"
            statements.append(Guarantee(kind, said, True, choice.standing))
        elif not runs_of_kind.empty and guarantees_something:
            sources = noise_sources(runs_of_kind).dropna()
            said = f"{text} {_neighbours(relations(runs_of_kind, kind))}{sentence(noise_statement(sources))}"
            if n_rounded := int(is_up_to_rounding(runs_of_kind).sum()):
                said += ROUNDED.format(count=f"{n_rounded} of {len(runs_of_kind)}")
            statements.append(Guarantee(kind, said, True, standing_of(runs_of_kind)))
        elif not runs_of_kind.empty:
            statements.append(Guarantee(kind, text, False))
    n_without = int(runs[_epsilons(runs)].isna().all(axis=1).sum())
    if n_without:
        statements.append(Guarantee("no ε", NONE.format(count=f"{n_without} of {len(runs)}"), False))
    return statements


def of_others(experiment: Experiment) -> list[Guarantee]:
    """Return the statement on epsilons of results of others, if a report shows any."""
    is_shown = experiment.references and SHOWN_BY in listed(experiment)
    return [Guarantee(KIND, KINDS[KIND].meaning, False)] if is_shown else []


def _neighbours(tracked: Iterable[str]) -> str:
    """Return a sentence on the difference of neighbouring training sets; empty if no relation was tracked."""
    found = set(tracked)
    differences = [difference for relation, difference in NEIGHBOURS.items() if relation in found]
    return f"Neighbours differ in {' or '.join(differences)}. " if differences else ""


def epsilons(runs: pd.DataFrame, choice: Choice | None = None) -> Table | None:
    """Return the table of epsilons; None if there are none.

    It has a row per kind, accountant, guarantee, relation, sampler and delta, with the smallest and largest value over
    trials at their last epoch.
    """
    values: dict[tuple[str, ...], list[float]] = {}  # what a row is of -> its epsilons
    if choice and choice.selected and choice.selected.is_finite:
        found = choice.selected
        key = (found.kind, found.variant, choice.standing, found.relation, found.sampler, f"{found.delta:g}")
        values[key] = [found.value]
    for column in sorted(_epsilons(runs), key=lambda column: (list(KINDS).index(column.split("/")[1]), column)):
        kind, _, variant = column.removeprefix("epsilon/").partition("/")
        logged = runs[runs[column].notna()]
        tracked = logged.get("privacy.relation", [None] * len(logged))
        logged = logged.assign(guarantee=_guarantees_of(kind, logged), value=logged[column],
                               relation=[relation_of_kind(kind, variant, relation) for relation in tracked])
        for row in logged.sort_values(["guarantee", "relation", "sampler", "delta"]).itertuples():
            key = (kind, variant, row.guarantee, row.relation, row.sampler, f"{row.delta:g}")
            values.setdefault(key, []).append(row.value)
    rows = []
    for (kind, variant, *assumptions), of_row in values.items():
        ends = dict.fromkeys((short(min(of_row)), short(max(of_row))))  # one, if they are equal
        rows.append((kind, variant.replace("_", " "), " to ".join(ends), *assumptions, f"{len(of_row)}"))
    header = ("kind", "accountant or formula", "ε", "guarantee", "neighbouring relation", "sampler", "δ", "trials")
    return Table.of(header, rows, text_columns=(0, 1, 3, 4, 5)) if rows else None


def notes(runs: pd.DataFrame) -> list[str]:
    """Return the notes on the trials' epsilons, or on missing epsilons, each once with the number of its trials."""
    columns = [name for name in ("privacy.notes", "privacy.audited") if name in runs.columns]  # tags of trials
    counts = Counter(note for name in columns for note in runs[name].dropna())
    return [f"{counted(count, 'trial')}: {note}" for note, count in counts.items()]


def _epsilons(runs: pd.DataFrame) -> Sequence[str]:
    """Return the names of the columns `epsilon/<kind>/...` in which any trial has a value."""
    columns = [name for name in runs.columns if name.startswith("epsilon/") and name.split("/")[1] in KINDS]
    return [name for name in columns if runs[name].notna().any()]


def _has(runs: pd.DataFrame, kind: str) -> pd.Series:
    columns = [name for name in _epsilons(runs) if name.split("/")[1] == kind]
    return runs[columns].notna().any(axis=1)
