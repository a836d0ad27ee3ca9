"""The best trial of a sweep, and the privacy cost of choosing it: for reports as an exhibit, for notebooks as a row."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pandas as pd

from analysis.exhibits import envelope
from analysis.exhibits.envelope import SCORE
from analysis.exhibits.exhibit import Exhibit, Texts
from analysis.exhibits.frontier.choice import PRICE, composed_epsilon
from analysis.exhibits.frontier.points import tightest
from analysis.exhibits.table import Table
from analysis.labels import NO_VALUE
from analysis.runs import (
    ReportError,
    Sweep,
    load_runs,
    require_accuracy,
    require_one,
    standing_of,
    trials_of,
    with_trials,
)
from analysis.text import under_assumptions
from pipeline.accounting import Epsilon, account
from pipeline.accounting.evaluations import holds_out, scores_are_covered
from pipeline.accounting.event import UnsupportedAccounting
from pipeline.experiment.experiment import Experiment
from pipeline.experiment.past import NO_PAST
from pipeline.experiment.prices import choice_findings, choice_statement, epsilon_of_choice
from pipeline.tracking.artifacts import DONE
from pipeline.trials.kinds import GUARANTEED, certified_trials, noise_statement, sentence
from pipeline.trials.naming import counted, run_name
from pipeline.trials.ranking import leaders

ELSEWHERE = "Trials under another name are not covered."
SCORES = ("Not covered: the scores. Validation accuracy is computed from held-out records without noise, so the choice "
          f"tells something about them, unless they are public. {ELSEWHERE}")
SCORES_COVERED = ("Covered as well: the scores. Validation accuracy is released with noise of its own, for which every "
                  f"trial pays. {ELSEWHERE}")


@dataclass(frozen=True)
class Choice:
    """The best certified trial by validation accuracy at the last epoch, and its two prices."""

    name: str
    trial_key: str
    validation: float  # accuracy at the last epoch, a fraction
    test: float  # test accuracy at the last epoch, which is not used for the choice
    alone: Epsilon  # certified, of the trial as if it were the only one
    selected: Epsilon | None  # covers the choice; None if no epsilon does
    reason: str  # why no epsilon does
    trials: int | None  # certified ones of the file; None for random stopping, which keeps the number secret
    others: int  # trials of the file without a certified epsilon
    noise: str  # sentences on the noise source of all compared trials, and its consequences
    standing: str  # of the guarantee with this noise
    scores: str = SCORES  # whether an epsilon covers the scores
    unscored: int = 0  # certified trials that hold no record out, and so were not compared
    gone: int = 0  # certified trials that are not in the file any more, which the price covers too
    equals: int = 0  # other trials that it is not ahead of; 0 for random stopping, which tells of no other

    @property
    def findings(self) -> tuple[dict[str, float], dict[str, str]]:
        """The metric `epsilon/selected/<rule>`, none unless it is a finite number; tags with its assumptions."""
        return choice_findings(self.selected, self.reason, self.noise)


def best(runs: Sweep, epsilon: float, kind: str = "certified") -> pd.Series:
    """Return the row of the best trial with at most this epsilon, with three more entries.

    Settings are compared by mean validation accuracy over seeds; the result is the winner's run with the highest one.
    Test accuracy is not used. `pipeline.load_model` accepts the row. The three entries:

        epsilon            the trial's own epsilon, which does not cover the choice
        selected_epsilon   covers all compared trials, and those that the file had before it was edited, by composition
                           (docs/privacy.md, section 6); of a search its budget, and nan without one, or if no price
                           is proved
        compared           number of compared trials

    Args:
        runs: from `load_runs`, or what it takes; trials that have not ended are left out.
        epsilon: > 0.
        kind: 'certified' or 'label'; only a choice among certified trials has a known price.

    Raises:
        ReportError: for another kind, an epsilon that is no number, no trial within `epsilon`, or a trial without
            validation accuracy.
        MixedTrials: for trials with several data sets, deltas or relations.

    Example:
        >>> best(load_runs("example"), epsilon=3)[["algorithm", "setting", "epsilon", "compared"]].to_dict()
        {'algorithm': 'bp', 'setting': 'epsilon=1', 'epsilon': 1.0, 'compared': 2}
    """
    runs = load_runs(runs)
    if kind not in GUARANTEED:
        raise ReportError(f"kind: must be one of {', '.join(GUARANTEED)}, got {kind!r}")
    if isinstance(epsilon, bool) or not isinstance(epsilon, int | float):
        raise ReportError(f"epsilon: must be a number, got {epsilon!r}")
    ended = with_trials(runs)[runs["status"].isin(DONE)].assign(epsilon=lambda table: tightest(table, kind))
    within = ended[ended["epsilon"] <= epsilon]
    if within.empty:
        min_epsilon = ended["epsilon"].min()
        if math.isnan(min_epsilon):
            raise ReportError(f"epsilon: no trial that ended has a finite {kind} one, got {epsilon}")
        raise ReportError(f"epsilon: must be at least {min_epsilon:.4g}, the least {kind} one, got {epsilon}")
    require_one(within, [name for name in ("dataset", "delta", "privacy.relation") if name in within],
                "for all trials that are compared")
    require_accuracy(within, SCORE)
    # `envelope.best` chooses in every group of equal columns; a constant column makes all trials one group.
    of_best_setting = envelope.best(within.assign(group=""), ["group"])
    row = of_best_setting.loc[of_best_setting[SCORE].idxmax()].drop(["group", "chosen", "choices"])

    past = runs.attrs.get("past", NO_PAST)
    price = runs.attrs.get("paid", math.nan) if kind == "certified" else math.nan
    if kind == "certified" and not runs.attrs.get("searched") and not past.no_price:
        gone = [trial for trial in certified_trials([*past.trials, *past.lost])
                if min(found.value for found in account(trial, trial.epochs) if found.kind == kind) <= epsilon]
        price = composed_epsilon((*trials_of(within), *gone))
    return pd.concat([row, pd.Series({PRICE: price, "compared": len(within)}, dtype=object)])


def choose(experiment: Experiment, runs: pd.DataFrame, paid: Epsilon | None = None) -> Choice:
    """Choose the best certified trial of an experiment, which has at least one.

    Trials of a grid that hold no record out have no score: they are priced with the others, but not compared. `paid` is
    the epsilon of all trials by a budget, if there is one. Certified trials need test accuracy, and validation accuracy
    if they hold records out (`ReportError`).
    """
    plan, past = experiment.plan, experiment.past
    begun = {trial.trial_key: trial for trial in trials_of(runs)}  # with the noise that their runs record
    tracked = [begun.get(trial.trial_key, trial) for trial in experiment.trials]
    certified = {trial.trial_key: trial for trial in certified_trials(tracked)}
    holding_out = [key for key, trial in certified.items() if holds_out(trial)]
    compared = holding_out if holding_out and plan.publishes_all else list(certified)
    scored = runs[runs["trial_key"].isin(compared)]
    require_accuracy(scored, SCORE)
    require_accuracy(runs[runs["trial_key"].isin(list(certified))])
    winner = scored.loc[scored[SCORE].idxmax()]
    trial = certified[winner["trial_key"]]
    scores = dict(zip(scored["trial_key"], 100 * scored[SCORE], strict=True))

    covered = [*tracked, *past.trials] if plan.publishes_all else plan.possible
    selected, reason = paid, ""
    try:
        if selected is None:
            selected = epsilon_of_choice(plan, past, covered, plan.selection)
        noise = choice_statement(covered, plan.selection)
    except UnsupportedAccounting as error:
        selected, reason = None, str(error)
        noise = sentence(noise_statement([other.noise for other in certified.values()]))

    return Choice(
        name=run_name(trial, experiment.varied), trial_key=trial.trial_key, validation=float(winner[SCORE]),
        test=float(winner["test/accuracy"]), selected=selected, reason=reason, noise=noise,
        alone=next(found for found in account(trial, trial.epochs) if found.kind == "certified"),  # the tightest
        trials=len(certified) if plan.publishes_all else None,  # random stopping keeps the number secret
        others=len(tracked) - len(certified), unscored=len(certified) - len(compared),
        standing=standing_of(runs, [trial.noise for trial in certified_trials(covered)]),
        scores=SCORES_COVERED if scores_are_covered(covered) else SCORES,
        gone=len(certified_trials(past.trials)), equals=len(leaders(scores)) - 1 if plan.publishes_all else 0)


def draw(choice: Choice) -> Exhibit:
    """Make the exhibit of the choice, a table of one row.

    Accuracies are fractions in the data, and percent in the table. Columns `selected_*` are empty if no epsilon covers
    the choice.
    """
    columns = {"selected_epsilon": "value", "selected_rule": "variant", "selected_relation": "relation",
               "selected_sampler": "sampler", "selected_delta": "delta"}  # -> attribute of an `Epsilon`
    selected = {column: getattr(choice.selected, attribute, None) for column, attribute in columns.items()}
    row = {"trial_key": choice.trial_key, "trial": choice.name, SCORE: choice.validation, "test/accuracy": choice.test,
           **selected, "certified_trials": choice.trials, "epsilon_had_it_been_the_only_one": choice.alone.value,
           "reason": choice.reason}
    return Exhibit("selection", title="The best trial, and its price", texts=texts(choice), rows=pd.DataFrame([row]))


def texts(choice: Choice) -> Texts:
    """Return a caption, a table of one row, and notes: what the price covers, and what it does not cover."""
    epsilon = choice.selected
    header = ["best trial by validation", "validation %", "test %",
              f"selected ε ({epsilon.variant.replace('_', ' ')})" if epsilon else "selected ε",
              "ε of this trial, had it been the only one"]
    row = [choice.name, f"{100 * choice.validation:.2f}", f"{100 * choice.test:.2f}",
           f"{epsilon.value:.4g}" if epsilon else NO_VALUE, f"{choice.alone.value:.4g}"]
    notes = ["Test accuracy had no part in the choice."]
    if choice.equals:
        notes.append(f"No difference in validation accuracy to {counted(choice.equals, 'other trial')}: any of them "
                     "could have been chosen.")
    notes.append(_covered(choice))
    if epsilon:
        notes.append(choice.scores)
    if epsilon and choice.unscored:
        notes.append("Without records held out, so not compared, but covered by selected ε: "
                     f"{counted(choice.unscored, 'trial')}.")
    if choice.others:
        notes.append(f"Without a certified ε, so neither compared nor covered: {counted(choice.others, 'trial')}.")
    return Texts((caption(choice), Table.of(header, [row])), notes=tuple(notes))


def caption(choice: Choice) -> str:
    """Return the caption: the choice, and the assumptions of its price."""
    number = "" if choice.trials is None else f"{choice.trials - choice.unscored} "  # None: it is secret
    epsilon = choice.selected or choice.alone
    price = under_assumptions(epsilon.kind, [epsilon.relation], [epsilon.sampler], [epsilon.delta], choice.standing)
    what = "publishing the best of all these trials" if choice.selected else "this trial alone"
    return (f"The best of {number}certified trials by validation accuracy at the last epoch (n = 1). "
            f"{price[0].upper()}{price[1:]} is that of {what}.")


def summary_sentence(choice: Choice) -> str:
    """Return a sentence for the head of a report that shows only the best trial."""
    price = "no ε covers the choice"
    if choice.selected:
        rule = choice.selected.variant.replace("_", " ")
        price = (f"publishing it as the best of all costs selected ε ({rule}) {choice.selected.value:.4g} at δ = "
                 f"{choice.selected.delta:g}, {choice.standing}")
    return (f"The best trial by validation is {choice.name}: test accuracy {100 * choice.test:.2f}%, validation "
            f"{100 * choice.validation:.2f}%; {price}.")


def _covered(choice: Choice) -> str:
    """Return a sentence on which trials and releases the selected epsilon covers, or why there is none."""
    selected = choice.selected
    if selected is None:
        return f"No ε covers the choice: {choice.reason}."
    if selected.variant == "budget":
        return (f"Selected ε is the budget of the sweep, which covers all weights of all steps of its "
                f"{(choice.trials or 0) + choice.gone} trials, whichever of them is published: {selected.note}.")
    if choice.trials is not None:
        gone = f", {choice.gone} of them not in the file any more" if choice.gone else ""
        return (f"Selected ε composes all {choice.trials + choice.gone} trials, seeds included{gone}: all weights of "
                "all their steps, whichever of them is published.")
    return ("Selected ε covers the best trial alone, of a number of trials that was drawn at random before training: "
            "the other trials (runs.csv, the tracking store) and selection.seed, which tells their number, must stay "
            "as private as the noise; each of them published costs more.")
