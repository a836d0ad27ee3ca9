"""How MLflow's page shows a sweep's runs: a table sorted by accuracy, and accuracy against epsilon as its chart.

It is a shared view of MLflow's own (a tag of the experiment, which its page takes from a link that names it), so that
whoever opens the link sees it at once, and may change it for himself.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from pipeline.accounting import account
from pipeline.experiment.experiment import Experiment
from pipeline.tracking.ui import VIEW
from pipeline.trials.config import TrialConfig
from pipeline.trials.records import ACCURACY

TEST = "test/accuracy"
NOISE = ("target_epsilon", "target_label_epsilon", "noise_multiplier", "sigma", "photons")  # that trials may differ in
CALIBRATED = {"target_epsilon": "calibrated.noise_multiplier", "target_label_epsilon": "calibrated.sigma"}
MOST_COLUMNS = 20  # of settings; more make no table, and the tag has a greatest length
SECTION, CHART = "accuracy", "accuracy-epsilon"  # names by which MLflow's page knows parts of the view


def shared_view(experiment: Experiment) -> dict[str, str]:
    """The tag of MLflow's experiment that has the view.

    Sorted by validation accuracy, which settings may be chosen by, where all trials log it, else by test accuracy.
    Runs that are sorted are not nested, so that none is collapsed.
    """
    trials = experiment.possible
    scored = all(trial.validation_fraction and trial.disclosure != "withheld" for trial in trials)
    epsilon = epsilon_metric(trials)
    metrics = [*([ACCURACY] if scored else []), TEST, *([epsilon] if epsilon else [])]
    columns = [*(f"metrics.`{name}`" for name in metrics), *(f"params.`{name}`" for name in _settings(experiment))]
    view = {"searchFilter": "", "orderByKey": columns[0], "orderByAsc": False, "selectedColumns": columns,
            "runsHiddenMode": "SHOW_ALL"}
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
    """The metric of the tightest certified epsilon or, where there is none, of the label epsilon; empty for neither."""
    for kind in ("certified", "label"):
        for trial in (trial for trial in trials if trial.parts.mechanism.kind(trial) == kind):
            return next((found.metric_name for found in account(trial, trial.epochs)
                         if found.kind == kind and found.is_metric), "")
    return ""


def _settings(experiment: Experiment) -> list[str]:
    """The algorithm, the noise, what else varies, and the seed."""
    used = [trial.canonical() for trial in experiment.possible]
    noise = [name for name in NOISE if any(own.get(name) for own in used)]
    calibrated = [CALIBRATED[name] for name in noise if name in CALIBRATED]
    return list(dict.fromkeys(["algorithm", *noise, *calibrated, *experiment.varied[:MOST_COLUMNS], "seed"]))
