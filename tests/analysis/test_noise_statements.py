"""What is said of a guarantee follows from where each trial's own noise comes from, and from nothing else."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from analysis.exhibits.selection import Choice
from analysis.report.page import Page, render
from analysis.report.statements import epsilons, guarantees, state
from analysis.runs import noise_sources
from pipeline.accounting.certified import certified_epsilons
from pipeline.accounting.evaluations import selected_epsilon
from pipeline.experiment.prices import choice_statement
from pipeline.experiment.stopping import Selection
from pipeline.trials.config import TrialConfig
from pipeline.trials.kinds import noise_statement, sentence, standing

TRIAL = TrialConfig(dataset="digits", mechanism="per_example", noise_multiplier=4.0, batch_size=64)
LABEL = TrialConfig(dataset="digits", mechanism="photonic", algorithm="pdfa", sigma=0.1)
PLAIN = TrialConfig(dataset="digits")
RECORDED = ("the noise comes from a recorded seed, so these trials simulate the guarantee, and a release needs secret "
            "noise")
SECRET = "noise and batches came from the operating system, and nothing of them was recorded"
MIXED = ("the noise of 2 of 3 trials comes from a recorded seed, so these simulate the guarantee, and a release needs "
         "secret noise; noise and batches of the other 1 came from the operating system, and nothing of them was "
         "recorded")
SHARED = "trials of one seed share noise and batches, so composing them as independent does not describe them"
SOURCES = {"all research": ["research"] * 3, "all secure": ["secure"] * 3, "mixed": ["research", "secure", "research"]}
STATEMENTS = {"all research": RECORDED, "all secure": SECRET, "mixed": MIXED}
STANDINGS = {"all research": "simulated", "all secure": "certified", "mixed": "partly simulated"}
each = pytest.mark.parametrize("name", SOURCES)


ARITHMETICS = {"research": "float32", "secure": "integer"}  # of certified trials


def with_noise(trials, *sources):
    return [replace(trial, noise=noise, arithmetic=ARITHMETICS[noise] if trial.parts.mechanism.certified else
                    "float32") for trial, noise in zip(trials, sources, strict=True)]


def frame(certified_noise, label_noise=()):
    """Private runs with these sources of noise, certified and for labels alone, and last one without a mechanism."""
    certified, label = len(certified_noise), len(label_noise)
    nothing = [np.nan] * (label + 1)
    trials = [*with_noise([TRIAL] * certified, *certified_noise), *with_noise([LABEL] * label, *label_noise), PLAIN]
    return pd.DataFrame({
        "trial": trials, "noise": [*certified_noise, *label_noise, None],
        "sampler": "shuffled", "delta": 1e-5, "privacy.relation": ["replace-one"] * (certified + label) + ["none"],
        "epsilon/certified/gdp": [3.0] * certified + nothing,
        "epsilon/label/gdp": [np.nan] * certified + [9.0] * label + [np.nan],
        "epsilon/claimed/saturating/epochs": [np.nan] * certified + [900.0] * label + [np.nan]})


@each
def test_one_sentence_for_each_mixture(name):
    assert noise_statement(SOURCES[name]) == STATEMENTS[name]
    assert standing(SOURCES[name]) == STANDINGS[name]
    assert noise_statement([]) == sentence("") == ""
    assert sentence(SECRET).startswith("Noise and") and sentence(SECRET).endswith("recorded.")


def test_the_source_is_that_of_the_run_and_research_where_none_was_tracked():
    runs = frame(["secure", "research"])
    for same in (runs, runs.assign(noise=None), runs.drop(columns="noise")):
        assert noise_sources(same).tolist() == ["secure", "research", None]
    without = noise_sources(runs.assign(trial=None))  # an extension's that is not imported
    assert without.dropna().tolist() == ["secure", "research"]


def test_a_runs_guarantee_is_by_its_epsilon_and_its_noise():
    runs = frame(["research", "secure", "research"], ["research", "secure"])
    assert guarantees(runs).tolist() == ["simulated", "certified", "simulated", "labels only, simulated", "labels only",
                                         "none"]
    without = runs.assign(**{"epsilon/certified/gdp": np.nan})
    assert guarantees(without).tolist() == ["none"] * 3 + ["labels only, simulated", "labels only", "none"]
    twice = guarantees(pd.concat([runs, runs]))  # two sweeps side by side
    assert twice.tolist() == guarantees(runs).tolist() * 2
    assert set(guarantees(runs[["trial", "noise"]])) == {"none"}


@each
def test_the_page_says_how_a_kind_of_guarantee_stands(name):
    runs = frame(SOURCES[name], SOURCES[name])
    found = {statement.kind: statement for statement in state(runs)}
    for kind in ("certified", "label"):
        assert found[kind].text.endswith(sentence(STATEMENTS[name])) and found[kind].standing == STANDINGS[name]
    for kind in ("claimed", "no ε"):
        assert not found[kind].standing and "seed" not in found[kind].text and "recorded" not in found[kind].text
    html = render(Page(title="t", what="w", privacy=list(found.values())))
    marks = html.count(f"<small>{STANDINGS[name]}</small>")
    assert (html.count("<small>"), marks) == ((0, 0) if name == "all secure" else (2, 2))


def test_statements_count_only_the_trials_of_their_kind():
    found = {s.kind: s for s in state(frame(SOURCES["all secure"], SOURCES["mixed"]))}
    assert (found["certified"].standing, found["label"].standing) == ("certified", "partly simulated")
    assert "2 of 3 trials" in found["label"].text and "simulate" not in found["certified"].text


def test_epsilons_of_secret_and_of_recorded_noise_stand_in_rows_of_their_own():
    table = epsilons(frame(SOURCES["mixed"], SOURCES["all secure"]))
    place = table.header.index("guarantee")
    rows = [(row[0].text, row[place].text, row[-1].text) for row in table.rows]
    assert rows == [("certified", "certified", "1"), ("certified", "simulated", "2"), ("label", "labels only", "3"),
                    ("claimed", "none", "3")]
    assert all(len(row) == len(table.header) == len(table.numeric) for row in table.rows)


# the choice of the best

GRID = [replace(TRIAL, learning_rate=rate, seed=seed) for rate in (0.1, 0.2) for seed in (0, 1)]


def test_a_simulated_choice_says_what_it_leaves_out_and_a_secure_one_has_nothing_to():
    assert choice_statement(GRID, Selection()) == (f"{sentence(RECORDED)} The simulation leaves out that {SHARED}.")
    assert choice_statement(with_noise(GRID, *["secure"] * 4), Selection()) == sentence(SECRET)


def test_trials_share_noise_only_under_one_recorded_seed():
    apart = [replace(trial, seed=seed) for seed, trial in enumerate(GRID)]
    assert choice_statement(apart, Selection()) == sentence(RECORDED)
    one = choice_statement(with_noise(GRID, "research", "secure", "secure", "secure"), Selection())
    assert SHARED not in one and "of 1 of 4 trials" in one
    two = choice_statement(with_noise(GRID, "research", "secure", "research", "secure"), Selection())  # both of seed 0
    assert SHARED in two and "of 2 of 4 trials" in two
    stopping = Selection("random_stopping", 9, 1, 5)  # draws every trial under a seed of its own
    assert choice_statement(GRID, stopping) == sentence(RECORDED)


def test_trials_without_a_certified_epsilon_are_not_paid_for():
    also = [replace(TRIAL, mechanism="none", seed=0), replace(TRIAL, noise_multiplier=0.0, seed=0)]
    assert choice_statement([GRID[0], *also], Selection()) == sentence(RECORDED)


def test_the_page_states_the_choice_with_its_own_noise():
    price, alone = selected_epsilon(GRID), certified_epsilons(GRID[0], 1)[0]
    for sources in SOURCES.values():
        choice = Choice("bp", "key", 0.9, 0.9, alone, price, "", 4, 0, "Its own noise.", standing(sources))
        found = {s.kind: s for s in state(frame(["secure"]), choice)}
        assert list(found) == ["certified", "selected", "no ε"] and found["selected"].text.endswith(" Its own noise.")
        assert found["selected"].standing == standing(sources) and found["certified"].standing == "certified"
        row = epsilons(frame(["secure"]), choice).rows[0]
        assert (row[0].text, row[3].text) == ("selected", standing(sources))
    uncovered = replace(choice, selected=None)
    assert "selected" not in {s.kind for s in state(frame(["secure"]), uncovered)}
