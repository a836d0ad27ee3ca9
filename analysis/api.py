"""For notebooks and scripts: the tracked trials of a sweep by its name or file, from a store by its folder or URI, and
the best of them."""

from __future__ import annotations

import contextlib
import math
from pathlib import Path

import pandas as pd

from analysis import runs as tracked
from analysis.exhibits.envelope import SCORE, configs
from analysis.exhibits.envelope import best as best_setting
from analysis.exhibits.frontier.points import GUARANTEED, PRICE, tightest
from analysis.runs import MixedTrials, ReportError, earlier_epochs, require_accuracy
from pipeline.accounting.evaluations import selected_epsilon
from pipeline.accounting.event import UnsupportedAccounting
from pipeline.experiment.experiment import Experiment, load_experiment
from pipeline.experiment.stopping import Selection
from pipeline.tracking.artifacts import DONE
from pipeline.tracking.reader import Reader


def load_runs(experiment: str | Path | Experiment, store: Reader | str | Path = "mlruns") -> pd.DataFrame:
    """The trials of a sweep, one row each.

    Columns, in this order:
        trial_key, status (`finished`, `diverged`; by name also `running`, `failed`, `interrupted`), run_id (MLflow's);
        every setting of a trial, as `photonic fields` lists them, empty where it does not apply;
        setting: how much noise, as text: `non-private`, sigma, `label_epsilon=3`, `epsilon=3` or `z=1.1`;
        then by name every metric at its last epoch (`test/accuracy`, `validation/accuracy`,
        `test/worst_class_accuracy` as fractions, `train/loss`, `alignment/layer_<k>`,
        `epsilon/<kind>/<variant>`, `time/epoch_seconds`) and the tags `privacy.*` and git_commit.

    Args:
        experiment: name of the sweep: every trial that was tracked, whatever its status; or an experiment, or its file
            (a path, or text that ends in .yaml or .yml): its trials, in their order, all of which must have ended.
        store: folder of the tracking store (MLFLOW_TRACKING_URI overrides it), its URI, or a reader of it.

    Raises:
        TrackingError: for a store or a sweep that is not there.
        ConfigError: for a file that is not there or cannot be run.
        ReportError: if trials of the file have not ended, a trial was tracked twice, or an extension is not imported.

    Example:
        >>> load_runs("example")[["algorithm", "setting", "test/accuracy"]]
          algorithm    setting  test/accuracy
        0        bp  epsilon=1            0.8
        1        bp  epsilon=8            0.9
        2       dfa  epsilon=1            0.7
        3       dfa  epsilon=8            0.8
    """
    store = Reader.of(store)
    if isinstance(experiment, Path) or (isinstance(experiment, str) and experiment.endswith((".yaml", ".yml"))):
        experiment = load_experiment(experiment)
    if isinstance(experiment, str):
        store.attach(experiment)
        runs = tracked.load_runs(store)
    else:
        store.attach(experiment.name)
        runs = tracked.load_runs(store, tracked.searched(store, experiment).trials, experiment.source)
    runs.attrs["searched"] = bool(store.decisions())  # then composition of its trials is no price of a choice
    return runs


def load_history(runs: pd.DataFrame, metric: str, store: Reader | str | Path = "mlruns") -> pd.DataFrame:
    """One metric by epoch: columns trial_key, epoch, value, algorithm, setting, seed, status; a row per epoch.

    Args:
        runs: from `load_runs`; trials without the metric have no rows.
        metric: its name, `validation/accuracy` or `alignment/layer_2` for example.
        store: as in `load_runs`.

    Example:
        >>> load_history(load_runs("example")[:1], "validation/accuracy")[["epoch", "value"]]
           epoch  value
        0      1    0.4
        1      2    0.8
    """
    return tracked.load_history(Reader.of(store), runs, metric)


def best(runs: pd.DataFrame, epsilon: float, kind: str = "certified") -> pd.Series:
    """The best trial whose epsilon is at most `epsilon`: its row, with three more entries.

    Settings are compared by mean validation accuracy over seeds; of the winner's runs it is the one with the highest.
    Test accuracy has no part in it. `epsilon` is the trial's own, which does not cover the choice; `selected_epsilon`
    covers all trials that were compared, by composition (docs/privacy.md, section 6), nan where no price is proved, as
    of a search, of which `photonic report` says what covers its best; `compared` is their number. `pipeline.load_model`
    takes the row.

    Args:
        runs: from `load_runs`, of a fixed grid; those that have not ended are left out.
        epsilon: > 0.
        kind: 'certified' or 'label'; the price of a choice is known of certified ones alone.

    Raises:
        ReportError: for another kind, an epsilon that is no number, no trial within `epsilon`, or one without
            validation accuracy.
        MixedTrials: for trials of several data sets, deltas or relations.

    Example:
        >>> best(load_runs("example"), epsilon=3)[["algorithm", "setting", "epsilon", "compared"]].to_dict()
        {'algorithm': 'bp', 'setting': 'epsilon=1', 'epsilon': 1.0, 'compared': 2}
    """
    if kind not in GUARANTEED:
        raise ReportError(f"kind: must be one of {', '.join(GUARANTEED)}, got {kind!r}")
    if isinstance(epsilon, bool) or not isinstance(epsilon, int | float):
        raise ReportError(f"epsilon: must be a number, got {epsilon!r}")
    ended = runs[runs["status"].isin(DONE)].assign(epsilon=lambda table: tightest(table, kind))
    within = ended[ended["epsilon"] <= epsilon]
    if within.empty:
        least = ended["epsilon"].min()
        raise ReportError(f"epsilon: no trial that ended has a finite {kind} one, got {epsilon}" if math.isnan(least)
                          else f"epsilon: must be at least {least:.4g}, the least {kind} one, got {epsilon}")
    for name in ("dataset", "delta", "privacy.relation"):
        if name in within and within[name].nunique(dropna=False) > 1:
            raise MixedTrials(f"{name}: must be the same for all trials that are compared, got "
                              f"{', '.join(sorted(map(str, within[name].unique())))}")
    require_accuracy(within, SCORE)
    winners = best_setting(within.assign(all=""), ["all"]).drop(columns="all")
    price = math.nan
    if kind == "certified" and not runs.attrs.get("searched"):
        with contextlib.suppress(UnsupportedAccounting):
            price = selected_epsilon(configs(within), Selection(), earlier_epochs(within)).value
    row = winners.loc[winners[SCORE].idxmax()].drop(["chosen", "choices"])
    return pd.concat([row, pd.Series({PRICE: price, "compared": len(within)}, dtype=object)])
