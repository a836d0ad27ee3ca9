"""Choose the setting that represents a cell, if more settings vary than a figure shows: the best by validation."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pandas as pd

from analysis.runs import FIELDS, ReportError, require_accuracy
from analysis.text import settings_text
from pipeline.trials.config import TrialConfig

SCORE = "validation/accuracy"


def varied(runs: pd.DataFrame, by: Sequence[str], ignored: Sequence[str] = ("seed",)) -> list[str]:
    """Return the fields that differ among runs with equal columns `by`, in the order of `TrialConfig`."""
    groups = runs.groupby(list(by), dropna=False)
    candidates = [name for name in FIELDS if name not in (*by, *ignored)]
    return [name for name in candidates if (groups[name].nunique(dropna=False) > 1).any()]


def setting_keys(runs: pd.DataFrame) -> pd.Series:
    """Return one text per run, equal for runs that differ only in their seed."""
    settings = runs[[name for name in FIELDS if name != "seed"]]
    return pd.Series([repr(row) for row in settings.itertuples(index=False, name=None)], index=runs.index)


def best(runs: pd.DataFrame, by: Sequence[str]) -> pd.DataFrame:
    """Return each cell's runs of one setting: the one with the highest mean validation accuracy at the last epoch.

    Test accuracy is not used. Two columns are added: `chosen`, the fields that vary within any cell, as text (empty if
    none varies), and `choices`, the number of settings in the cell.

    Args:
        runs: from `load_runs`.
        by: columns that separate cells.

    Raises:
        ReportError: if a cell has several settings, and one of its runs lacks validation accuracy.
    """
    varied_fields = varied(runs, by)
    setting_texts = [settings_text(row, varied_fields) for row in runs.to_dict("records")]
    runs = runs.assign(chosen=setting_texts, choices=1)
    if not varied_fields:  # one setting in every cell: nothing to choose
        return runs
    require_accuracy(runs, SCORE)
    runs = runs.assign(key=setting_keys(runs))  # equal for runs of one setting
    runs["score"] = runs.groupby([*by, "key"], dropna=False)[SCORE].transform("mean")
    cells = runs.groupby(list(by), dropna=False)
    runs["choices"] = cells["key"].transform("nunique")
    # For every run, the setting with the best score in its cell; if scores are equal, the first declared one.
    best_key = cells["score"].transform("idxmax").map(runs["key"])
    return runs[runs["key"] == best_key].drop(columns=["key", "score"])


def fields_of(runs: pd.DataFrame) -> list[dict[str, object]]:
    """Return the settings that apply to each run, by name, for `pipeline.experiment.factors`."""

    def applies(value: object) -> bool:  # None or NaN: the setting has no meaning for the run
        return value is not None and not (isinstance(value, float) and math.isnan(value))

    rows = runs[list(FIELDS)].to_dict("records")
    return [{name: value for name, value in row.items() if applies(value)} for row in rows]


def configs(runs: pd.DataFrame) -> list[TrialConfig]:
    """Return the configurations of runs, from their settings.

    Raises:
        ReportError: if the settings no longer fit their trial_key.
    """
    trial_configs = []
    for fields, key in zip(fields_of(runs), runs["trial_key"], strict=True):
        # A data frame has other number types, for example floats for integers: convert to those of the settings.
        config = TrialConfig.from_mapping({name: FIELDS[name](value) for name, value in fields.items()})
        if config.trial_key != key:
            raise ReportError(f"trial_key: must be {config.trial_key} by the settings of the run, got {key}; another "
                              "version of this software tracked it")
        trial_configs.append(config)
    return trial_configs
