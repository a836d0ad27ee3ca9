"""Accuracy against epsilon: the points of a privacy-utility frontier, and what can be measured of it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from analysis.runs import (
    ALGORITHM_LABELS,
    DATASET_LABELS,
    FIELDS,
    NON_PRIVATE,
    MixedTrials,
    ReportError,
    by_noise,
    require_accuracy,
    require_replicates,
)
from analysis.statistics import mean_interval
from pipeline.accounting.label import RELATION as LABEL_RELATION
from pipeline.exhibits import FRONTIER_NOISE

KINDS = tuple(FRONTIER_NOISE)
COLUMNS = ["algorithm", "epsilon", "accuracy_mean", "accuracy_low", "accuracy_high", "n", "kind", "relation",
           "sampler", "delta", "setting"]
NO_VALUE = "–"
NEIGHBOURS = {"add/remove": "one record, added or removed", "replace-one": "one record, replaced",
              LABEL_RELATION: "the label of one record"}
GUARANTEES = {
    "certified": (
        "ε certifies the whole run: between two training sets that are equal but for {neighbours}, whoever sees all "
        "weights of every step, and knows all else but the noise, tells them apart no better than "
        "(ε, δ)-differential privacy permits. It covers one trial each, not the choice among trials; the noise comes "
        "from a recorded seed, so these trials simulate the guarantee, and a release needs secret noise."),
    "label": (
        "ε protects labels alone: between two training sets that are equal but for {neighbours}, whoever sees all "
        "weights of every step tells them apart no better than (ε, δ)-differential privacy permits. Features count as "
        "public: of them, or of whether a record took part, nothing is guaranteed. It covers one trial each, not the "
        "choice among trials, and noise from a recorded seed only simulates it."),
}


def frontier(runs: pd.DataFrame, kind: str) -> pd.DataFrame:
    """The points of one kind of epsilon: test accuracy at the last epoch, in percent, by algorithm and epsilon.

    One row per algorithm and noise setting, by algorithm and growing epsilon, with the columns `COLUMNS`: mean and 95%
    interval over n seeds; epsilon, relation, sampler and delta as they must be read. Epsilon is that of the last epoch
    by the tightest accountant that was logged; if seeds differ (one diverged early), the largest, which holds for all.
    A diverged trial counts with the weights it ended with.

    Args:
        runs: from `load_runs`; trials without a finite epsilon of this kind are left out (`caption` names them).
        kind: 'certified' or 'label'; other kinds guarantee nothing that a frontier could show.

    Raises:
        ReportError: for another kind, no trial that has it, or a trial without `test/accuracy`.
        MixedTrials: if relations or deltas differ, or, within one algorithm, other fields than seed and noise do.
    """
    if kind not in KINDS:
        raise ReportError(f"kind: must be one of {', '.join(KINDS)}, got {kind!r}")
    runs = runs.assign(epsilon=tightest(runs, kind)).dropna(subset="epsilon")
    if runs.empty:
        raise ReportError(f"frontier: needs trials with a finite epsilon/{kind}, found none")
    require_accuracy(runs)
    runs = runs.assign(relation=LABEL_RELATION if kind == "label" else runs["privacy.relation"])
    for name in ("relation", "delta"):
        _require_one(runs, name)
    require_replicates(runs)
    _require_one_curve(runs, FRONTIER_NOISE[kind])
    rows = []
    for algorithm in ALGORITHM_LABELS:
        for setting in by_noise(runs.loc[runs["algorithm"] == algorithm, "setting"]):
            cell = runs[(runs["algorithm"] == algorithm) & (runs["setting"] == setting)]
            first = cell.iloc[0]
            rows.append((algorithm, cell["epsilon"].max(), *mean_interval(cell["test/accuracy"] * 100), kind,
                         first["relation"], first["sampler"], first["delta"], setting))
    points = pd.DataFrame(rows, columns=COLUMNS)
    order = {algorithm: place for place, algorithm in enumerate(ALGORITHM_LABELS)}
    return points.sort_values(["algorithm", "epsilon"], ignore_index=True,
                              key=lambda column: column.map(order) if column.name == "algorithm" else column)


def frontiers(runs: pd.DataFrame) -> list[pd.DataFrame]:
    """`frontier` of every kind that the runs have, `certified` first.

    Raises:
        ReportError: if there is none, and as `frontier`.
    """
    found = [frontier(runs, kind) for kind in KINDS if tightest(runs, kind).notna().any()]
    if not found:
        raise ReportError(f"frontier: needs trials with a finite {' or '.join(f'epsilon/{k}' for k in KINDS)}, "
                          "found none")
    return found


def tightest(runs: pd.DataFrame, kind: str) -> pd.Series:
    """The least logged `epsilon/<kind>/<accountant>` of every trial; empty where there is none, as for an infinite one.

    All accountants that are logged are proved for the trial, so the least of their values holds too.
    """
    logged = [name for name in runs.columns if name.startswith(f"epsilon/{kind}/")]
    return runs[logged].astype(float).min(axis=1)


def pareto_front(epsilon: Sequence[float], accuracy: Sequence[float]) -> np.ndarray:
    """Which points no other point beats: none has at most their epsilon and at least their accuracy, and one better.

    Args:
        epsilon, accuracy: [n]; equal points stand or fall together.

    Returns:
        [n] bool.

    Raises:
        ValueError: unless both are finite and of one length, and every epsilon > 0.
    """
    e, a = _points(epsilon, accuracy)
    no_worse = (e[None, :] <= e[:, None]) & (a[None, :] >= a[:, None])
    better = (e[None, :] < e[:, None]) | (a[None, :] > a[:, None])
    return ~(no_worse & better).any(axis=1)


def hypervolume(epsilon: Sequence[float], accuracy: Sequence[float], reference_epsilon: float,
                reference_accuracy: float) -> float:
    """Area between a frontier and a reference point that is worse in both, with log epsilon as the axis.

    integral of max(0, best accuracy at epsilon' <= epsilon, minus reference_accuracy) d(ln epsilon) up to
    reference_epsilon: in units of accuracy times nats. Larger is better; 0 if no point beats the reference.

    Args:
        epsilon, accuracy: [n].

    Raises:
        ValueError: as `pareto_front`, also for the reference.
    """
    e, a = _points(epsilon, accuracy)
    _points([reference_epsilon], [reference_accuracy])
    counted = (e < reference_epsilon) & (a > reference_accuracy)
    order = np.argsort(e[counted], kind="stable")
    e, a = e[counted][order], a[counted][order]
    widths = np.diff(np.log(np.append(e, reference_epsilon)))
    return float(widths @ (np.maximum.accumulate(a) - reference_accuracy)) if e.size else 0.0


def to_csv(points: Sequence[pd.DataFrame]) -> str:
    """The tidy points of all kinds, one row each."""
    table = pd.concat(points)[COLUMNS]
    rounded = table.round({name: 4 for name in ("epsilon", "accuracy_mean", "accuracy_low", "accuracy_high")})
    return rounded.to_csv(index=False, lineterminator="\n")


def to_markdown(points: Sequence[pd.DataFrame], runs: pd.DataFrame) -> str:
    """Per kind a caption and a table with algorithms as rows, epsilons as columns and mean accuracies as cells."""
    return "\n".join(f"{caption(frame, runs)}\n\n{_markdown_table(frame)}" for frame in points)


def caption(points: pd.DataFrame, runs: pd.DataFrame) -> str:
    """What a reader must know of the points of one kind: what their epsilon guarantees, and what it does not."""
    first = points.iloc[0]
    neighbours, samplers = NEIGHBOURS[first["relation"]], " or ".join(sorted(set(points["sampler"])))
    kept = runs.loc[tightest(runs, first["kind"]).notna()]
    epochs = " or ".join(f"{value:g}" for value in sorted(set(kept["epochs"])))
    head = (f"Test accuracy (%) on {DATASET_LABELS[kept['dataset'].iloc[0]]} after {epochs} epochs against "
            f"{first['kind']} ε at δ = {first['delta']:g} (relation {first['relation']}, sampler {samplers}).")
    return " ".join([head, GUARANTEES[first["kind"]].format(neighbours=neighbours), _uncertainty(points),
                     *_diverged(kept), *_left_out(runs, points), _front(points)])


def _left_out(runs: pd.DataFrame, points: pd.DataFrame) -> list[str]:
    """A sentence on the trials that have no finite epsilon of this kind, if there are any."""
    absent = runs[tightest(runs, points["kind"].iloc[0]).isna()]
    if absent.empty:
        return []
    names = dict.fromkeys(f"{ALGORITHM_LABELS[a]} {_setting_name(s)}"
                          for a, s in zip(absent["algorithm"], absent["setting"], strict=True))
    return [f"Without such an ε and left out: {', '.join(names)}."]


def _markdown_table(points: pd.DataFrame) -> str:
    by_column = points.assign(column=[_column(row) for row in points.itertuples()])
    by_column = by_column.sort_values("epsilon", kind="stable")
    columns = list(dict.fromkeys(by_column["column"]))
    cells = {(row.algorithm, row.column): f"{row.accuracy_mean:.2f}" for row in by_column.itertuples()}
    present = [a for a in ALGORITHM_LABELS if a in set(points["algorithm"])]
    lines = [["", *columns], ["---", *("---:" for _ in columns)],
             *([ALGORITHM_LABELS[a], *(cells.get((a, c), NO_VALUE) for c in columns)] for a in present)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _column(row: tuple) -> str:
    """`ε ≤ 3` for a target, which is met to within 1% from below; else the value."""
    name, _, number = row.setting.rpartition("=")
    return f"ε ≤ {number}" if name.endswith("epsilon") else f"ε = {row.epsilon:.4g}"


def _uncertainty(points: pd.DataFrame) -> str:
    fewest, most = points["n"].min(), points["n"].max()
    if most == 1:
        return "One seed each (n = 1), so no interval can be given."
    return (f"Mean over n = {most if fewest == most else f'{fewest} to {most}'} seeds; bars are 95% t intervals over "
            f"seeds{'' if fewest > 1 else ', none where n = 1'}.")


def _diverged(runs: pd.DataFrame) -> list[str]:
    diverged = runs[runs["status"] == "diverged"]
    names = dict.fromkeys(f"{ALGORITHM_LABELS[a]} {_setting_name(s)}"
                          for a, s in zip(diverged["algorithm"], diverged["setting"], strict=True))
    return [f"Diverged trials count with the weights they ended with: {', '.join(names)}."] if names else []


def _front(points: pd.DataFrame) -> str:
    best = points[pareto_front(points["epsilon"], points["accuracy_mean"])]
    names = ", ".join(f"{ALGORITHM_LABELS[row.algorithm]} at {_column(row)}" for row in best.itertuples())
    return f"On the Pareto front of these means: {names}."


def _setting_name(setting: str) -> str:
    name, _, number = setting.rpartition("=")
    shown = {"": "σ =", "epsilon": "ε ≤", "label_epsilon": "label ε ≤", "z": "z ="}
    return setting if setting == NON_PRIVATE else f"{shown[name]} {number}"


def _require_one(runs: pd.DataFrame, name: str) -> None:
    values = sorted(set(runs[name].map(str)))
    if len(values) > 1:
        raise MixedTrials(f"{name}: must be the same for all points of one frontier, got {', '.join(values)}")


def _require_one_curve(runs: pd.DataFrame, noise: Sequence[str]) -> None:
    for algorithm, group in runs.groupby("algorithm"):
        differ = [name for name in FIELDS
                  if name not in ("seed", *noise) and group[name].nunique(dropna=False) > 1]
        if differ:
            values = "; ".join(f"{name}: {', '.join(str(v) for v in group[name].unique())}" for name in differ)
            raise MixedTrials(f"{algorithm}: along one curve only seed, {', '.join(noise)} may differ, got {values}")


def _points(epsilon: Sequence[float], accuracy: Sequence[float]) -> tuple[np.ndarray, np.ndarray]:
    e, a = np.asarray(epsilon, dtype=float), np.asarray(accuracy, dtype=float)
    if e.ndim != 1 or e.shape != a.shape:
        raise ValueError(f"accuracy: must have one value per epsilon, got shapes {e.shape} and {a.shape}")
    if not (np.isfinite(e).all() and (e > 0).all()):
        raise ValueError(f"epsilon: must be finite and > 0, got {e.tolist()}")
    if not np.isfinite(a).all():
        raise ValueError(f"accuracy: must be finite, got {a.tolist()}")
    return e, a
