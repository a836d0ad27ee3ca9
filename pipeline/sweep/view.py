"""The view of a sweep's runs on MLflow's page: a table sorted by accuracy, and a chart of accuracy against epsilon.

It is MLflow's own shared view: a tag of the experiment, which the page reads when a link names it. A reader of the link
sees the view at once, and can change it locally.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from pipeline.accounting import account
from pipeline.tracking.ui import VIEW
from pipeline.trials.config import TrialConfig
from pipeline.trials.records import ACCURACY

TEST = "test/accuracy"
NOISE = ("target_epsilon", "target_label_epsilon", "noise_multiplier", "sigma", "photons")  # settings of the noise
CALIBRATED = {"target_epsilon": "calibrated.noise_multiplier", "target_label_epsilon": "calibrated.sigma"}
MOST_COLUMNS = 20  # settings columns: more are not readable, and the tag has a maximum length
SECTION, CHART = "accuracy", "accuracy-epsilon"  # MLflow's ids of parts of the view


def shared_view(trials: Sequence[TrialConfig], varied: Sequence[str]) -> dict[str, str]:
    """Return the tag of MLflow's experiment with the view of these trials.

    The table is sorted by validation accuracy if all trials log it, because settings may be chosen by it; otherwise by
    test accuracy. Sorted runs are not nested, so none is collapsed.
    """
    scored = all(trial.validation_fraction and trial.disclosure != "withheld" for trial in trials)
    epsilon = epsilon_metric(trials)
    metrics = [*([ACCURACY] if scored else []), TEST, *([epsilon] if epsilon else [])]
    columns = [*(f"metrics.`{name}`" for name in metrics), *(f"params.`{name}`" for name in _settings(trials, varied))]
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
    """Return the metric of the tightest certified epsilon, else of the label epsilon, else an empty text."""
    for kind in ("certified", "label"):
        for trial in (trial for trial in trials if trial.parts.mechanism.kind(trial) == kind):
            return next((found.metric_name for found in account(trial, trial.epochs)
                         if found.kind == kind and found.is_finite), "")
    return ""


def _settings(trials: Sequence[TrialConfig], varied: Sequence[str]) -> list[str]:
    """Return the settings columns: algorithm, noise, other varied settings, and seed."""
    used = [trial.canonical() for trial in trials]
    noise = [name for name in NOISE if any(own.get(name) for own in used)]
    calibrated = [CALIBRATED[name] for name in noise if name in CALIBRATED]
    return list(dict.fromkeys(["algorithm", *noise, *calibrated, *varied[:MOST_COLUMNS], "seed"]))
