"""What MLflow's page shows of a sweep: its tags, its summary, and the view of its runs.

The summary has trials by status, and the best accuracy by algorithm and noise. The view is a table sorted by accuracy,
and a chart of accuracy against epsilon. It is MLflow's own shared view: a tag of the experiment, which the page reads
when a link names it. A reader of the link sees the view at once, and can change it locally.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from pipeline.accounting import account
from pipeline.accounting.epsilon import Budget
from pipeline.accounting.event import UnsupportedAccounting
from pipeline.experiment.experiment import Experiment
from pipeline.experiment.factors import differing
from pipeline.experiment.past import Past
from pipeline.experiment.plan import Plan
from pipeline.experiment.prices import choice_findings, choice_statement, epsilon_of_choice
from pipeline.tracking.artifacts import STATUSES, TrackedRun
from pipeline.tracking.backend import MAX_TAG_LENGTH
from pipeline.tracking.store import Store
from pipeline.tracking.ui import SETTING, VIEW
from pipeline.trials.config import TrialConfig
from pipeline.trials.kinds import GUARANTEED, UP_TO_ROUNDING
from pipeline.trials.naming import counted, noise_setting, setting_key, to_ascii
from pipeline.trials.ranking import who_leads
from pipeline.trials.records import ACCURACY

GUARANTEE = ("dataset", "mechanism", "sampler", "delta")  # trials that differ in these fields are not compared
TEST = "test/accuracy"
NOISE = ("target_epsilon", "target_label_epsilon", "noise_multiplier", "sigma")  # settings of the noise
CALIBRATED = {"target_epsilon": "calibrated.noise_multiplier", "target_label_epsilon": "calibrated.sigma"}
MOST_COLUMNS = 20  # settings columns: more are not readable, and the tag has a maximum length
SECTION, CHART = "accuracy", "accuracy-epsilon"  # MLflow's ids of parts of the view


def contents(possible: Sequence[TrialConfig]) -> dict[str, str]:
    """Return a sweep's tags `datasets`, `algorithms` and `mechanisms`: what its trials use, each name once."""
    tags = {}
    for field in ("dataset", "algorithm", "mechanism"):
        names = dict.fromkeys(getattr(trial, field) for trial in possible)
        tags[f"{field}s"] = ", ".join(names)
    return tags


def closed(store: Store, experiment: Experiment, status: str) -> None:
    """Close a sweep in the tracking store, with a summary of its trials and its best accuracies."""
    plan = experiment.plan
    runs = {run.trial_key: run for run in store.close_sweep(status)}
    if not plan.publishes_all:  # even their number is secret
        return
    settings = best_settings(plan.trials, runs)
    best = {key: setting.accuracy for key, setting in settings.items()}
    store.log_sweep({}, best_tags(settings, plan.budget))
    counts = Counter(runs[trial.trial_key].status if trial.trial_key in runs else "missing"
                     for trial in plan.trials)
    counts_text = ", ".join(f"{counts[name]} {name}" for name in (*STATUSES, "missing") if counts[name])
    trials = counted(len(plan.trials), "trial")
    past = store.past(experiment, list(runs.values()))
    lines = "".join(f" {line}." for line in past.lines(plan.trials))
    store.describe(experiment.description, f"{headline(best, plan.budget)}\n\n{trials}: {counts_text}.{lines}".strip())
    if store.has_selected and not plan.budget:
        store.log_sweep(*_selected(plan, past))


def _selected(plan: Plan, past: Past) -> tuple[dict[str, float], dict[str, str]]:
    """Return metric and tags of the selected epsilon, which a report has logged before these trials were added."""
    compared = [*plan.trials, *past.trials]
    try:
        epsilon = epsilon_of_choice(plan, past, compared, plan.selection)
    except UnsupportedAccounting as error:
        return choice_findings(None, str(error), "")
    return choice_findings(epsilon, "", choice_statement(compared, plan.selection))


class Best(NamedTuple):
    """The best setting of an algorithm at one noise."""

    accuracy: float  # validation accuracy at the last epoch, a mean over seeds
    runs: list[TrackedRun]  # one per seed


def best_tags(settings: Mapping[tuple[str, str], Best], budget: Budget | None) -> dict[str, str]:
    """Return the parent run's tag `best.<algorithm>` for each algorithm: accuracy and epsilon of its best settings.

    Tags are columns of MLflow's table; metrics of a parent run would be panels of charts without any trial. A budget
    covers the choice, and the tag says so.
    """
    texts: dict[str, list[str]] = {}
    for (algorithm, _), (accuracy, runs) in settings.items():
        texts.setdefault(f"best.{algorithm}", []).append(f"{accuracy:.2%} at {_epsilon_in_words(runs)}")
    covered = f"; the budget of epsilon {budget.epsilon:g} covers the choice" if budget else ""
    return {tag: to_ascii("; ".join(of_algorithm) + covered)[:MAX_TAG_LENGTH] for tag, of_algorithm in texts.items()}


def _epsilon_in_words(runs: Sequence[TrackedRun]) -> str:
    """Return the largest epsilon of the seeds' runs, with its weakest standing: `epsilon 2.99 (simulated)`."""
    for kind in GUARANTEED:
        logged = [[value for name, value in run.metrics.items() if name.startswith(f"epsilon/{kind}/")] for run in runs]
        if all(logged):
            standings = {run.tags.get("privacy.certified", "") for run in runs} if kind == "certified" else {""}
            standing = next((weaker for weaker in ("simulated", UP_TO_ROUNDING) if weaker in standings), kind)
            return f"epsilon {max(map(min, logged)):.4g} ({standing})"
    return "no epsilon"


def best_settings(trials: Sequence[TrialConfig], runs: Mapping[str, TrackedRun]) -> dict[tuple[str, str], Best]:
    """Return by (algorithm, noise) the best setting, by mean validation accuracy over seeds at the last epoch.

    A setting is all fields of a trial except the seed. It counts only if every seed is finished and has a validation
    accuracy. Trials that differ in data set or guarantee are not compared, and the key's noise then includes the
    difference: `epsilon=3 sampler=poisson`.
    """
    differing_fields = differing(trials, lambda trial: (trial.algorithm, noise_setting(trial)))
    not_compared = [name for name in GUARANTEE if name in differing_fields]
    finished: dict[tuple[str, str, str], list[TrackedRun | None]] = {}  # by algorithm, noise, setting; one per seed
    for trial in trials:
        run = runs.get(trial.trial_key)
        fields = trial.canonical()
        differences = [f"{name}={fields[name]}" for name in not_compared if name in fields]
        noise = " ".join([noise_setting(trial), *differences])
        scored = run if run and run.status == "finished" and ACCURACY in run.metrics else None
        finished.setdefault((trial.algorithm, noise, setting_key(trial)), []).append(scored)
    best: dict[tuple[str, str], Best] = {}
    for (algorithm, noise, _), seeds in finished.items():
        complete = [run for run in seeds if run]
        if len(complete) < len(seeds):
            continue
        setting = Best(sum(run.metrics[ACCURACY] for run in complete) / len(complete), complete)
        best[algorithm, noise] = max(best.get((algorithm, noise), setting), setting, key=lambda each: each.accuracy)
    return best


def headline(best: Mapping[tuple[str, str], float], budget: Budget | None = None) -> str:
    """Return Markdown: the best algorithm for each noise, and a table with a row per noise; empty without results."""
    if not best:
        return ""
    algorithms = list(dict.fromkeys(algorithm for algorithm, _ in best))
    noises = list(dict.fromkeys(noise for _, noise in best))
    rows: list[Sequence[str]] = [["", *algorithms], ["---", *("---:" for _ in algorithms)]]
    noises_by_winner: dict[str, list[str]] = {}  # of equals, none is the winner
    for noise in noises:
        accuracies = {algorithm: best[algorithm, noise] for algorithm in algorithms if (algorithm, noise) in best}
        cells = [f"{100 * accuracies[algorithm]:.2f}" if algorithm in accuracies else "" for algorithm in algorithms]
        rows.append([noise, *cells])
        winner = who_leads({algorithm: 100 * accuracy for algorithm, accuracy in accuracies.items()})
        noises_by_winner.setdefault(winner, []).append(noise)
    winners = "; ".join(f"{algorithm} at {', '.join(noises)}" for algorithm, noises in noises_by_winner.items())
    covered = f"the budget of epsilon {budget.epsilon:g} covers" if budget else "no epsilon covers"
    return "\n".join([f"Highest validation accuracy: {winners}.", "", "In %, mean over seeds, of each algorithm's best "
                      f"setting; {covered} that choice:", "", *(f"| {' | '.join(row)} |" for row in rows)])


def shared_view(trials: Sequence[TrialConfig], varied: Sequence[str]) -> dict[str, str]:
    """Return the experiment's tag with MLflow's view of these trials; `varied` are the settings that differ.

    The table is sorted by validation accuracy if all trials log it, because settings may be chosen by it; otherwise by
    test accuracy. Runs that share a setting are grouped, so that a chart has one mean over seeds for each. MLflow nests
    no runs in a sorted table, so none is hidden under its parent.
    """
    validated = all(trial.validation_fraction and trial.disclosure != "withheld" for trial in trials)  # they log it
    epsilon = epsilon_metric(trials)  # name of the metric; empty if no trial has a guarantee
    metrics = [*([ACCURACY] if validated else []), TEST, *([epsilon] if epsilon else [])]
    columns = [*(f"metrics.`{name}`" for name in metrics), *(f"params.`{name}`" for name in _settings(trials, varied))]
    view = {"searchFilter": "", "orderByKey": columns[0], "orderByAsc": False, "selectedColumns": columns,
            "runsHiddenMode": "SHOW_ALL",
            "groupBy": {"aggregateFunction": "average", "groupByKeys": [{"mode": "tag", "groupByData": SETTING}]}}
    if epsilon:
        view |= {
            "compareRunSections": [{"uuid": SECTION, "name": "Accuracy against epsilon", "display": True,
                                    "isReordered": False, "deleted": False, "isGenerated": False, "columns": 1}],
            "compareRunCharts": [{"type": "SCATTER", "uuid": CHART, "metricSectionId": SECTION, "deleted": False,
                                  "isGenerated": False, "runsCountToCompare": 100,
                                  "xaxis": {"key": epsilon, "type": "METRIC"},
                                  "yaxis": {"key": TEST, "type": "METRIC"}}]}
    return {VIEW: json.dumps(view)}


def epsilon_metric(trials: Sequence[TrialConfig]) -> str:
    """Return the metric of the tightest certified epsilon, else of the label epsilon, else an empty text."""
    for kind in GUARANTEED:
        trial = next((trial for trial in trials if trial.parts.mechanism.kind(trial) == kind), None)
        if trial:
            epsilons = [found for found in account(trial, trial.epochs) if found.kind == kind and found.is_finite]
            return epsilons[0].metric_name if epsilons else ""
    return ""


def _settings(trials: Sequence[TrialConfig], varied: Sequence[str]) -> list[str]:
    """Return the settings columns: algorithm, noise, other varied settings, and seed."""
    used = [trial.canonical() for trial in trials]
    noise = [name for name in NOISE if any(own.get(name) for own in used)]
    calibrated = [CALIBRATED[name] for name in noise if name in CALIBRATED]
    return list(dict.fromkeys(["algorithm", *noise, *calibrated, *varied[:MOST_COLUMNS], "seed"]))
