"""Accuracy and alignment against epsilon: the points of a privacy-utility frontier, and what is measured of it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from analysis.exhibits.frontier import choice
from analysis.exhibits.frontier.pareto import hypervolume, pareto_front, reference_epsilon
from analysis.exhibits.metrics import METRICS, Metric
from analysis.exhibits.table import Table, markdown
from analysis.runs import (
    ALGORITHM_LABELS,
    DATASET_LABELS,
    MixedTrials,
    ReportError,
    noise_sources,
    setting_label,
)
from analysis.statistics import SUMMARY
from analysis.text import NO_VALUE
from pipeline.accounting.label import RELATION as LABEL_RELATION
from pipeline.accounting.noise import noise_statement
from pipeline.trials.exhibits import FRONTIER_NOISE

KINDS = tuple(FRONTIER_NOISE)
GUARANTEED = ("certified", "label")
COLUMNS = ["algorithm", "epsilon", "metric", *SUMMARY, "kind", "formula", "relation", "sampler", "delta", "setting",
           "chosen", "choices", "on_front", "on_overall_front"]
PRICE = "selected_epsilon"  # of points that were chosen among several settings
VOLUME_COLUMNS = ["kind", "formula", "metric", "algorithm", "hypervolume", "points", "reference_epsilon",
                  "reference_value"]
ALL = "all"  # algorithms together
NEIGHBOURS = {"add/remove": "one record, added or removed", "replace-one": "one record, replaced",
              LABEL_RELATION: "the label of one record"}
PROTECTED = {"certified": "features and labels", "label": "labels only", "claimed": "no guarantee"}
SETTINGS_NAMED = 3  # of an algorithm, in a caption
MEANINGS = {
    "certified": (
        "ε certifies the whole run: between two training sets that are equal but for {neighbours}, whoever sees all "
        "weights of every step, and knows all else but the noise, tells them apart no better than "
        "(ε, δ)-differential privacy permits. It covers one trial each, not the choice among trials; {noise}."),
    "label": (
        "ε protects labels alone: between two training sets that are equal but for {neighbours}, whoever sees all "
        "weights of every step tells them apart no better than (ε, δ)-differential privacy permits. Features count as "
        "public: of them, or of whether a record took part, nothing is guaranteed. It covers one trial each, not the "
        "choice among trials; {noise}."),
    "claimed": (
        "This ε is no guarantee: it is the value of a formula printed in Ohana et al. 2021 ({formula}), whatever of "
        "its assumptions these trials meet, and one observed update can tell who was in its batch at any σ. It can be "
        "compared with the paper's claims and with nothing else."),
}


def frontier(runs: pd.DataFrame, kind: str = "certified", metric: str = "accuracy", formula: str = "") -> pd.DataFrame:
    """The points of one kind of epsilon: a metric at the last epoch, by algorithm and epsilon.

    One row per algorithm and noise setting, by algorithm and growing epsilon, with the columns `COLUMNS`: mean and 95%
    intervals over n seeds; epsilon, relation, sampler and delta as they must be read; whether the mean is on the Pareto
    front of its algorithm, and on that of all. Epsilon is that of the last epoch by the tightest accountant that was
    logged; if seeds differ (one diverged early), the largest, which holds for all. A diverged trial counts with the
    weights it ended with.

    Where trials of one algorithm and noise differ in further fields, the frontier is the envelope over them: a point
    is the best of its `choices` settings by mean validation accuracy, and `chosen` names it. Its epsilon does not cover
    that choice (`choice.price` does).

    Args:
        runs: from `load_runs`; trials without a finite epsilon of this kind are left out (`caption` names them).
        kind: 'certified', 'label', or 'claimed', which guarantees nothing; of other kinds there is no frontier.
        metric: one of `METRICS`; a trial that has none (see `Metric.of`) is left out.
        formula: of a claimed epsilon, `saturating/epochs` for example, since formulas do not bound one quantity.

    Raises:
        ReportError: for another kind, no trial that has it, a trial without the metric, or one without validation
            accuracy where there is a choice.
        MixedTrials: if data sets, relations or deltas differ.
    """
    return summarized(shown(runs, kind, metric, formula), kind, metric, formula)


def summarized(runs: pd.DataFrame, kind: str, metric: str = "accuracy", formula: str = "") -> pd.DataFrame:
    """The points of `frontier`, from the runs that are `shown`."""
    rows = []
    for (algorithm, setting, _), cell in runs.groupby(["algorithm", "setting", "point"]):
        first = cell.iloc[0]
        rows.append({"algorithm": algorithm, "epsilon": cell["epsilon"].max(), "metric": metric,
                     **METRICS[metric].summarize(cell["value"]), "kind": kind, "formula": formula,
                     "relation": first["relation"], "sampler": first["sampler"], "delta": first["delta"],
                     "setting": setting, "chosen": first["chosen"], "choices": first["choices"]})
    points = pd.DataFrame(rows)
    order = {algorithm: place for place, algorithm in enumerate(ALGORITHM_LABELS)}
    points = points.sort_values(["algorithm", "epsilon"], ignore_index=True,
                                key=lambda column: column.map(order) if column.name == "algorithm" else column)
    compared = points.assign(by=asked(points))
    own = [pareto_front(group["by"], group["mean"]) for _, group in compared.groupby("algorithm", sort=False)]
    return points.assign(on_front=np.concatenate(own),
                         on_overall_front=pareto_front(compared["by"], compared["mean"]))[COLUMNS]


def shown(runs: pd.DataFrame, kind: str = "certified", metric: str = "accuracy", formula: str = "") -> pd.DataFrame:
    """The runs behind the points of `frontier`, whose arguments and errors it has: those of settings that were chosen,
    with the columns `epsilon`, `relation`, `value` (of the metric), `point` (equal for one setting), `chosen` and
    `choices`."""
    if kind not in KINDS:
        raise ReportError(f"kind: must be one of {', '.join(KINDS)}, got {kind!r}")
    runs = runs.assign(epsilon=tightest(runs, kind, formula)).dropna(subset="epsilon")
    if runs.empty:
        raise ReportError(f"frontier: needs trials with a finite {_key(kind, formula).rstrip('/')}, found none")
    runs = runs.assign(relation=LABEL_RELATION if kind == "label" else runs.get("privacy.relation", "not tracked"))
    for name in ("dataset", "relation", "delta"):
        _require_one(runs, name)
    chosen = choice.choose(choice.candidates(runs, kind))
    return chosen.assign(value=METRICS[metric].of(chosen)).dropna(subset="value")


def asked(points: pd.DataFrame) -> pd.Series:
    """The target of points that have one, else their epsilon: targets are met to within 1% from below, and by how much
    says nothing of an algorithm."""
    return pd.Series([float(_target(row) or row.epsilon) for row in points.itertuples()], index=points.index)


def _target(row: tuple) -> str:
    """`3` of a point whose noise was set by the target 3; empty for others."""
    return row.setting.rpartition("=")[2] if choice.is_target(row.setting) and row.kind in GUARANTEED else ""


def frontiers(runs: pd.DataFrame, metric: str = "accuracy", kinds: Sequence[str] = GUARANTEED) -> list[pd.DataFrame]:
    """`frontier` of every kind that the runs have, in the order of `kinds`; of `claimed`, one per formula.

    Envelopes have their `choice.price`.

    Raises:
        ReportError: if there is none, and as `frontier`.
    """
    found = [frontier(runs, kind, metric, formula) for kind in kinds for formula in _formulas(runs, kind)]
    found = [choice.price(points, runs[tightest(runs, points["kind"].iloc[0]).notna()])
             if points["choices"].max() > 1 else points for points in found]
    if not found:
        raise ReportError(f"frontier: needs trials with a finite {' or '.join(f'epsilon/{k}' for k in kinds)}, "
                          "found none")
    return found


def tightest(runs: pd.DataFrame, kind: str, formula: str = "") -> pd.Series:
    """The least logged `epsilon/<kind>/<accountant>` of every trial; empty where there is none, as for an infinite one.

    All accountants that are logged are proved for the trial, so the least of their values holds too. Of `claimed`,
    nothing is, and the value is that of one formula.
    """
    logged = [name for name in runs.columns if name.startswith(_key(kind, formula))]
    return runs[logged].astype(float).min(axis=1)


def hypervolumes(points: Sequence[pd.DataFrame], runs: pd.DataFrame) -> pd.DataFrame:
    """The area that each algorithm's means dominate, and that all together do: `VOLUME_COLUMNS`, largest first.

    The axes are ln epsilon and the metric (accuracies in percent). The reference point, one for all algorithms of a
    kind, is the least power of ten above every epsilon, and chance for accuracy, 0 for the worst class and alignment.
    """
    rows = []
    for frame in points:
        first = frame.iloc[0]
        reference = (reference_epsilon(frame["epsilon"]), METRICS[first["metric"]].floor(runs["dataset"].iloc[0]))
        curves = {ALL: frame, **dict(list(frame.groupby("algorithm", sort=False)))}
        volumes = [(hypervolume(part["epsilon"], part["mean"], *reference), algorithm, len(part))
                   for algorithm, part in curves.items()]
        rows += [(first["kind"], first["formula"], first["metric"], algorithm, volume, count, *reference)
                 for volume, algorithm, count in sorted(volumes, key=lambda v: -v[0])]
    return pd.DataFrame(rows, columns=VOLUME_COLUMNS)


def title(points: pd.DataFrame) -> str:
    """What kind of epsilon an axis has, in two lines: `certified ε: features and labels`, relation, sampler, delta."""
    first = points.iloc[0]
    samplers = " or ".join(sorted(set(points["sampler"])))
    head = f"{first['kind']} ε: {PROTECTED[first['kind']]}{_formula(first['formula'])}"
    return f"{head}\n{first['relation']}, {samplers} batches, δ = {first['delta']:g}"


def _formula(formula: str) -> str:
    """`, saturating formula, T = epochs` of `saturating/epochs`."""
    name, _, count = formula.partition("/")
    return f", {name.replace('_', ' ')} formula, T = {count}" if formula else ""


def _key(kind: str, formula: str) -> str:
    return f"epsilon/{kind}/{formula}"


def _formulas(runs: pd.DataFrame, kind: str) -> list[str]:
    """The formulas of a claimed epsilon that any trial has, and nothing in place of accountants; [] for no trial."""
    if kind != "claimed":
        return [""] if tightest(runs, kind).notna().any() else []
    logged = [name for name in sorted(runs.columns) if name.startswith(_key(kind, "")) and runs[name].notna().any()]
    return [name.removeprefix(_key(kind, "")) for name in logged]


def to_csv(points: Sequence[pd.DataFrame], also: Sequence[str] = ()) -> str:
    """The tidy points of all kinds, one row each; `also` are further columns."""
    table = pd.concat(points)
    priced = [PRICE] if PRICE in table else []
    table = table[[*COLUMNS, *priced, *also]]
    return table.round(dict.fromkeys(["epsilon", *priced, *SUMMARY], 4)).to_csv(index=False, lineterminator="\n")


def to_markdown(points: Sequence[pd.DataFrame], runs: pd.DataFrame) -> str:
    """Per kind a caption, a table with algorithms as rows, epsilons as columns and means as cells, and the dominated
    areas."""
    volumes = hypervolumes(points, runs)
    parts = []
    for frame, (_, areas) in zip(points, volumes.groupby(["kind", "formula"], sort=False), strict=True):
        parts += [caption(frame, runs), _means(frame), *_chosen(frame), *_areas(areas)]
    return markdown(*parts)


def caption(points: pd.DataFrame, runs: pd.DataFrame) -> str:
    """What a reader must know of the points of one kind: what their epsilon guarantees, and what it does not."""
    first = points.iloc[0]
    metric = METRICS[first["metric"]]
    neighbours, samplers = NEIGHBOURS[first["relation"]], " or ".join(sorted(set(points["sampler"])))
    kept = runs.loc[tightest(runs, first["kind"], first["formula"]).notna()]
    epochs = " or ".join(f"{value:g}" for value in sorted(set(kept["epochs"])))
    epochs += " epoch" if epochs == "1" else " epochs"
    head = (f"{metric.phrase[0].upper()}{metric.phrase[1:]} on {DATASET_LABELS[kept['dataset'].iloc[0]]} after "
            f"{epochs} against {first['kind']} ε{_formula(first['formula'])} at δ = {first['delta']:g} "
            f"(relation {first['relation']}, sampler {samplers}).")
    meaning = MEANINGS[first["kind"]].format(neighbours=neighbours, formula=first["formula"],
                                             noise=noise_statement(noise_sources(kept).dropna()))
    return " ".join([head, meaning, _uncertainty(points), *_unmeasured(metric, kept), *_diverged(kept),
                     *_envelope(points), *_left_out(runs, kept, first["kind"]), _front(points)])


def _envelope(points: pd.DataFrame) -> list[str]:
    most = points["choices"].max()
    return [] if most == 1 else [f"Envelope: a point is the best of up to {most} settings by validation accuracy; its "
                                 "ε does not cover that choice."]


def _unmeasured(metric: Metric, kept: pd.DataFrame) -> list[str]:
    lost = int(metric.of(kept).isna().sum())
    return [f"{lost} of {len(kept)} trials have no measured {metric.name} and are left out."] if lost else []


def _left_out(runs: pd.DataFrame, kept: pd.DataFrame, kind: str) -> list[str]:
    """A sentence on the trials that have no finite epsilon of this kind, if there are any."""
    absent = runs.drop(kept.index)
    return [] if absent.empty else [f"Without a finite {kind} ε and left out: {_settings(absent)}."]


def _settings(runs: pd.DataFrame) -> str:
    """`BP (σ = 0, σ = 0.1), DFA (6 settings)`: the settings of each algorithm, or how many where there are more."""
    texts = []
    for algorithm, group in runs.groupby("algorithm", sort=False):
        labels = list(dict.fromkeys(map(setting_label, group["setting"])))
        listed = ", ".join(labels) if len(labels) <= SETTINGS_NAMED else f"{len(labels)} settings"
        texts.append(f"{ALGORITHM_LABELS[algorithm]} ({listed})")
    return ", ".join(texts)


def _means(points: pd.DataFrame) -> Table:
    by_column = points.assign(column=[_column(row) for row in points.itertuples()])
    by_column = by_column.sort_values("epsilon", kind="stable")
    columns = list(dict.fromkeys(by_column["column"]))
    metric = METRICS[points["metric"].iloc[0]]
    cells = {(row.algorithm, row.column): metric.text(row.mean, row.half_width)
             for row in by_column.itertuples()}
    present = [a for a in ALGORITHM_LABELS if a in set(points["algorithm"])]
    rows = ([ALGORITHM_LABELS[a], *(cells.get((a, c), NO_VALUE) for c in columns)] for a in present)
    return Table.of(["", *columns], rows)


def _chosen(points: pd.DataFrame) -> list[str | Table]:
    """What stands for the settings that are not shown, where there are any."""
    if not points["chosen"].any():
        return []
    text = "What was chosen at every point, by mean validation accuracy over seeds."
    if PRICE in points:
        text += (" Selected ε covers the choice as well: it composes all trials that were compared for a point, "
                 "seeds included. It does not cover the validation scores unless they were released with noise, nor "
                 "the choice among algorithms. Trials of one recorded seed share noise and batches, which composing "
                 "them as independent does not describe.")
    return [text, choice.table(points, [_column(row) for row in points.itertuples()])]


def _areas(volumes: pd.DataFrame) -> tuple[str, Table]:
    """The dominated areas of one kind, largest first."""
    first = volumes.iloc[0]
    names = [ALGORITHM_LABELS.get(a, "all together") for a in volumes["algorithm"]]
    row = [first["metric"].replace("_", " "), *(f"{value:.4g}" for value in volumes["hypervolume"])]
    return (f"Hypervolume: area between the means and the reference point (ε = {first['reference_epsilon']:g}, "
            f"{first['reference_value']:g}), in units of the metric times nats of ln ε; larger is better.",
            Table.of(["hypervolume", *names], [row]))


def _column(row: tuple) -> str:
    """`ε ≤ 3` for a target, which is met to within 1% from below; else the value."""
    target = _target(row)
    return f"ε ≤ {target}" if target else f"ε = {row.epsilon:.4g}"


def _uncertainty(points: pd.DataFrame) -> str:
    fewest, most = points["n"].min(), points["n"].max()
    if most == 1:
        return "One seed each (n = 1), so no interval can be given."
    return (f"Mean over n = {most if fewest == most else f'{fewest} to {most}'} seeds; ± and thin bars are 95% "
            "t intervals over seeds, thick bars 95% percentile bootstrap intervals, which up to three seeds are their "
            f"range{'' if fewest > 1 else '; none where n = 1'}.{_cut(points)}")


def _cut(points: pd.DataFrame) -> str:
    """A sentence on intervals that are wider than what the metric can be, where there are any."""
    metric = METRICS[points["metric"].iloc[0]]
    wide = (points["mean"] - points["half_width"] < metric.low) | (points["mean"] + points["half_width"] > metric.high)
    return "" if not wide.any() else (f" Where an interval would leave {metric.low:g} to {metric.high:g}, its ends are "
                                      "cut there and printed: so few seeds say little.")


def _diverged(runs: pd.DataFrame) -> list[str]:
    diverged = runs[runs["status"] == "diverged"]
    return [] if diverged.empty else [f"Diverged trials count with the weights they ended with: {_settings(diverged)}."]


def _front(points: pd.DataFrame) -> str:
    best = points[points["on_overall_front"]]
    names = [f"{ALGORITHM_LABELS[algorithm]} at {', '.join(_column(row) for row in group.itertuples())}"
             for algorithm, group in best.groupby("algorithm", sort=False)]
    return f"On the Pareto front of these means, points with a target compared by it: {'; '.join(names)}."


def _require_one(runs: pd.DataFrame, name: str) -> None:
    values = sorted(set(runs[name].map(str)))
    if len(values) > 1:
        raise MixedTrials(f"{name}: must be the same for all points of one frontier, got {', '.join(values)}")
