"""What is said of a guarantee follows from where each trial's own noise comes from, and from nothing else."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from approved import approved

from analysis.exhibits.selection import Choice
from analysis.exhibits.table import markdown
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
SOURCES = {"recorded": ["research"] * 3, "secret": ["secure"] * 3, "mixed": ["research", "secure", "research"]}
STANDINGS = {"recorded": "simulated", "secret": "certified", "mixed": "partly simulated"}
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
    rounded = runs.assign(**{"privacy.certified": ["simulated", "up to rounding", "simulated", *["false"] * 3]})
    assert guarantees(rounded).tolist()[:3] == ["simulated", "up to rounding", "simulated"]
    without = runs.assign(**{"epsilon/certified/gdp": np.nan})
    assert guarantees(without).tolist() == ["none"] * 3 + ["labels only, simulated", "labels only", "none"]
    twice = guarantees(pd.concat([runs, runs]))  # two sweeps side by side
    assert twice.tolist() == guarantees(runs).tolist() * 2
    assert set(guarantees(runs[["trial", "noise"]])) == {"none"}


def on_page(runs, choice=None):
    """What a page says of each kind of epsilon, and its table of them."""
    said = [f"{found.kind} ({found.standing or 'no standing'}): {found.text}" for found in state(runs, choice)]
    return markdown(*said, epsilons(runs, choice))


GRID = [replace(TRIAL, learning_rate=rate, seed=seed) for rate in (0.1, 0.2) for seed in (0, 1)]
CHOICES = {
    "of two seeds, recorded": (GRID, Selection()), "secret": (with_noise(GRID, *["secure"] * 4), Selection()),
    "of four seeds": ([replace(trial, seed=seed) for seed, trial in enumerate(GRID)], Selection()),
    "one recorded": (with_noise(GRID, "research", "secure", "secure", "secure"), Selection()),
    "two of one seed recorded": (with_noise(GRID, "research", "secure", "research", "secure"), Selection()),
    "random stopping, which gives every trial a seed": (GRID, Selection("random_stopping", 9, 1, 5)),
    "beside trials that are not paid for": (
        [GRID[0], replace(TRIAL, mechanism="none"), replace(TRIAL, noise_multiplier=0.0)], Selection())}


def test_what_is_said_of_a_guarantee_follows_from_the_noise_of_its_own_trials():
    """Trials share noise only under one recorded seed, and a choice is as its own trials are."""
    told = {f"certified {one}, label {other}": on_page(frame(SOURCES[one], SOURCES[other])) for one, other in (
        ("recorded", "recorded"), ("secret", "secret"), ("mixed", "mixed"), ("secret", "mixed"))}
    price, alone = selected_epsilon(GRID), certified_epsilons(GRID[0], 1)[0]
    choice = Choice("bp", "key", 0.9, 0.9, alone, price, "", 4, 0, "Its own noise.", "partly simulated")
    told["a choice among other trials"] = on_page(frame(["secure"]), choice)
    told["a choice that nothing covers"] = on_page(frame(["secure"]), replace(choice, selected=None))
    rounded = {"privacy.certified": ["true", "up to rounding", "false"]}
    told["a network whose operators were not reviewed"] = on_page(frame(["secure", "secure"]).assign(**rounded))
    told["every kind"] = on_page(frame(["research"], ["research"]).assign(
        **{"epsilon/column/x": 1.0, "epsilon/audited/one_run": 0.5}))
    told |= {f"choice: {name}": choice_statement(*case) for name, case in CHOICES.items()}
    approved("guarantees", "\n\n".join(f"# {name}\n{text}" for name, text in told.items()))


@pytest.mark.parametrize("name", SOURCES)
def test_a_page_marks_how_a_kind_of_guarantee_stands_unless_it_holds(name):
    html = render(Page(title="t", what="w", privacy=state(frame(SOURCES[name], SOURCES[name]))))
    assert standing(SOURCES[name]) == STANDINGS[name] and noise_statement([]) == sentence("") == ""
    marks = html.count(f"<small>{STANDINGS[name]}</small>")
    assert (html.count("<small>"), marks) == ((0, 0) if name == "secret" else (2, 2))
