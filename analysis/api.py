"""For notebooks and scripts: load the tracked trials of a sweep, given by name or file, and find the best of them."""

from __future__ import annotations

import contextlib
import math
from pathlib import Path

import pandas as pd

from analysis import runs as tracked
from analysis.exhibits.envelope import SCORE
from analysis.exhibits.envelope import best as best_setting
from analysis.exhibits.frontier.points import PRICE, tightest
from analysis.runs import (
    ReportError,
    Sweep,
    require_accuracy,
    require_one,
    runs_of,
    trials_of,
    with_trials,
)
from pipeline.accounting import account
from pipeline.accounting.evaluations import selected_epsilon
from pipeline.accounting.event import UnsupportedAccounting
from pipeline.experiment.past import NO_PAST
from pipeline.experiment.stopping import Selection
from pipeline.tracking.artifacts import DONE
from pipeline.tracking.reader import Reader
from pipeline.trials.kinds import GUARANTEED, certified_trials


def load_runs(experiment: Sweep, store: Reader | str | Path = "mlruns") -> pd.DataFrame:
    """Load the trials of a sweep, one row each.

    Columns, in this order:
        trial_key, status (`finished`, `diverged`; by name also `running`, `failed`, `interrupted`), run_id (MLflow's);
        every setting of a trial, as `photonic fields` lists them, empty if it does not apply;
        setting: the noise as text: `non-private`, sigma, `label_epsilon=3`, `epsilon=3` or `z=1.1`;
        trial: its `TrialConfig`, None if its extension is not imported;
        then, sorted by name, every metric at its last epoch (`test/accuracy`, `validation/accuracy`,
        `test/worst_class_accuracy` as fractions, `train/loss`, `alignment/layer_<k>` of the applied update,
        `alignment/feedback/layer_<k>` of the feedback's, `epsilon/<kind>/<variant>`, `time/epoch_seconds`) and the tags
        `privacy.*` and git_commit.

    Args:
        experiment: name of the sweep, for all tracked trials of any status. Or an experiment, or its file (a path, or
            text that ends in .yaml or .yml), for its trials in order; all of them must have ended. Runs as this
            returns them are returned unchanged.
        store: folder of the tracking store (MLFLOW_TRACKING_URI overrides it), its URI, or a reader of it.

    Raises:
        TrackingError: if the store or the sweep is missing.
        ConfigError: if the file is missing or cannot be run.
        ReportError: if trials of the file have not ended, or a trial was tracked twice.

    Example:
        >>> load_runs("example")[["algorithm", "setting", "test/accuracy"]]
          algorithm    setting  test/accuracy
        0        bp  epsilon=1            0.8
        1        bp  epsilon=8            0.9
        2       dfa  epsilon=1            0.7
        3       dfa  epsilon=8            0.8
    """
    return runs_of(experiment, store)


def load_history(runs: Sweep, metric: str, store: Reader | str | Path = "mlruns") -> pd.DataFrame:
    """Load one metric by epoch: columns trial_key, epoch, value, algorithm, setting, seed, status; a row per epoch.

    Args:
        runs: from `load_runs`, or what it takes; trials without the metric have no rows.
        metric: its name, for example `validation/accuracy` or `alignment/layer_2`.
        store: as in `load_runs`.

    Example:
        >>> load_history(load_runs("example")[:1], "validation/accuracy")[["epoch", "value"]]
           epoch  value
        0      1    0.4
        1      2    0.8
    """
    store = Reader.of(store)
    return tracked.load_history(store, runs_of(runs, store), metric)


def best(runs: Sweep, epsilon: float, kind: str = "certified") -> pd.Series:
    """Return the row of the best trial with at most this epsilon, with three more entries.

    Settings are compared by mean validation accuracy over seeds; the result is the winner's run with the highest one.
    Test accuracy is not used. `pipeline.load_model` accepts the row. The three entries:

        epsilon            the trial's own epsilon, which does not cover the choice
        selected_epsilon   covers all compared trials, and those that the file had before it was edited, by composition
                           (docs/privacy.md, section 6); nan if no price is proved, as for a search (`photonic
                           report` has the price of its best trial)
        compared           number of compared trials

    Args:
        runs: from `load_runs`, or what it takes, of a fixed grid; trials that have not ended are left out.
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
    runs = runs_of(runs)
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
    # `best_setting` chooses in every group of equal columns; a constant column makes all trials one group.
    winners = best_setting(within.assign(group=""), ["group"]).drop(columns="group")
    price, past = math.nan, runs.attrs.get("past", NO_PAST)
    if kind == "certified" and not runs.attrs.get("searched") and not past.no_price:
        gone = [trial for trial in certified_trials([*past.trials, *past.lost])
                if min(found.value for found in account(trial, trial.epochs) if found.kind == kind) <= epsilon]
        with contextlib.suppress(UnsupportedAccounting):  # no price is proved
            price = selected_epsilon([*trials_of(within), *gone], Selection()).value
    row = winners.loc[winners[SCORE].idxmax()].drop(["chosen", "choices"])
    return pd.concat([row, pd.Series({PRICE: price, "compared": len(within)}, dtype=object)])
