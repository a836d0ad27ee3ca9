"""Preview a sweep: estimated time, packs and their resources, and the privacy cost of the best trial."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from pipeline.accounting.budget import budget_lines, make_filter
from pipeline.accounting.evaluations import check_evaluations
from pipeline.accounting.overview import aligned
from pipeline.accounting.statement import bound_lines, price_lines
from pipeline.experiment.experiment import Experiment, with_trials
from pipeline.experiment.search import Search
from pipeline.learning.opu import check_opu
from pipeline.sweep.estimate import estimate_seconds
from pipeline.sweep.resources import bundle, check_resources, local_offer, slots
from pipeline.trials.config import TrialConfig, settings
from pipeline.trials.fields import plain
from pipeline.trials.naming import computed_features, counted, duration
from pipeline.trials.packs import Pack, plan
from pipeline.trials.promises import check_promises
from pipeline.trials.records import Release


@dataclass(frozen=True)
class DryRun:
    """What `photonic sweep` would do on this machine."""

    experiment: Experiment  # a search has trials drawn at random from its space, as many as fit its budget
    seconds: float  # estimate for all training, without start-up and tracking
    at_once: int  # packs that train at the same time
    packs: tuple[Pack, ...]  # all, in the order of their start


def preview(experiment: Experiment, workers: int | None, root: Path = Path("mlruns")) -> DryRun:
    """Return the plan of a sweep on this machine. It trains only a few steps on random records, to estimate the time.
    """
    published = _check_begun_sweep(experiment, root)
    experiment.check(experiment.possible, lambda trial: check_promises([trial], published))
    experiment.check(experiment.possible, lambda trial: check_evaluations([trial]))
    experiment = _with_drawn_trials(experiment)
    requested, offer = experiment.resources, {**local_offer(workers), "GPU": torch.cuda.device_count()}
    check_resources(experiment.trials, requested, [offer])
    if any(trial.on_hardware for trial in experiment.trials):
        check_opu()
    at_once = slots(bundle(requested, False), offer)
    packs = plan(experiment.trials, requested, at_once)
    seconds = estimate_seconds(packs, at_once, opus=1, threads=max(1, int(requested.cpu)),
                               device="cuda" if requested.gpu else "cpu")
    return DryRun(experiment, seconds, at_once, tuple(packs))


def _check_begun_sweep(experiment: Experiment, root: Path) -> set[str]:
    """Check that a sweep's budget still admits trials; return digests of feature files in its earlier runs, if any."""
    if not experiment.plan.asks and not any(trial.parts.features.of_file for trial in experiment.trials):
        return set()
    from pipeline.sweep.search import filter_of, published_digests  # imported here: MLflow takes a second
    from pipeline.tracking.backend import NoStore
    from pipeline.tracking.reader import Reader

    with contextlib.suppress(NoStore):
        store = Reader(root=root)
        store.find(experiment.name)
        filter_of(experiment.plan, store)
        return published_digests(store.runs() if store.has_begun else ())
    return set()


def _with_drawn_trials(experiment: Experiment) -> Experiment:
    """Return a search with random trials from its space, as many as fit its budget; other experiments unchanged."""
    if not isinstance(experiment.plan, Search):
        return experiment
    from pipeline.sweep.tuning import make_searcher  # imported here: Ray takes seconds

    search = dataclasses.replace(experiment.plan, algorithm="random")
    searcher = make_searcher(search)
    filter = make_filter(search) if search.budget else None
    trials: list[TrialConfig] = []
    for _ in range(search.most):
        trial = search.trial(searcher.ask())
        if filter is None or filter.admits(Release(t, t.epochs) for t in (*trials, trial)):
            trials.append(trial)
    return with_trials(experiment, list(dict.fromkeys(trials)))


def as_json(plan: DryRun) -> str:
    """Return the plan as JSON for scripts: every pack (trials that are trained together) with its trials."""
    experiment, varied = plan.experiment, _varied(plan.experiment)
    packs = []
    for pack in plan.packs:
        trials = [{"trial_key": trial.trial_key, **_varied_settings(trial, varied)} for trial in pack.trials]
        packs.append({"resources": bundle(experiment.resources, pack.needs_opu), "trials": trials})
    return json.dumps({
        "experiment": experiment.name, "estimated_seconds": plan.seconds, "packs_at_once": plan.at_once,
        "packs": packs, "ignored": experiment.ignored, "preset": list(experiment.advice),
        "best": list(_prices(experiment)), "search": [*experiment.plan.lines(), *budget_lines(experiment)],
        "epsilons": list(bound_lines(experiment.trials))}, indent=2)


def as_lines(plan: DryRun) -> Iterator[str]:
    """Yield the plan as lines for people: the estimated time, the packs, remarks, and the privacy cost."""
    experiment, varied = plan.experiment, _varied(plan.experiment)
    yield (f"{experiment.name}: {duration(plan.seconds)} of training on this machine as busy as it is now (an "
           "estimate), and start-up; data sets were not looked for")
    yield (f"{counted(len(experiment.trials), 'trial')} in {counted(len(plan.packs), 'pack')}, "
           f"{counted(plan.at_once, 'pack')} at a time")
    yield from aligned(_pack_rows(plan, varied))
    if maps := computed_features(experiment.trials):
        yield (f"features: {', '.join(maps)}, computed before training or read from the cache, once for each setting, "
               "and not in the estimate")
    if trainers := sorted({trial.trainer for trial in experiment.trials if not trial.parts.trainer.built_in}):
        yield f"trainers: {', '.join(trainers)}, whose time is not in the estimate"
    if experiment.ignored:
        yield f"ignored: {experiment.ignored}"
    yield from experiment.advice
    yield from bound_lines(experiment.trials)
    yield from _prices(experiment)
    yield from experiment.plan.lines()
    yield from budget_lines(experiment)


def _pack_rows(plan: DryRun, varied: Sequence[str]) -> list[tuple[str, ...]]:
    """Return a table of the packs with a header; packs that differ only in seeds share a row."""
    groups: dict[str, list[Pack]] = {}
    for pack in plan.packs:
        without_seed = TrialConfig(pack.shared.given, seed=0)
        groups.setdefault(without_seed.pack_key, []).append(pack)
    rows: list[tuple[str, ...]] = [("packs", "trials", "each takes", "settings")]
    for packs in groups.values():
        resources = bundle(plan.experiment.resources, packs[0].needs_opu)
        resources_text = ", ".join(f"{amount:g} {name}" for name, amount in resources.items())
        trials = [trial for pack in packs for trial in pack.trials]
        rows.append((str(len(packs)), str(len(trials)), resources_text, _settings(trials, varied)))
    return rows


def _prices(experiment: Experiment) -> Iterator[str]:
    """Return lines with the privacy cost of choosing the best trial, for trials that are drawn at random; else none."""
    return iter(()) if experiment.plan.publishes_all else price_lines(experiment)


def _varied(experiment: Experiment) -> list[str]:
    """Return the settings that differ between the experiment's trials."""
    compared = {*experiment.trials, *experiment.possible}
    names = [setting.name for setting in settings()]
    return [name for name in names if len({getattr(trial, name) for trial in compared}) > 1]


def _varied_settings(trial: TrialConfig, varied: Iterable[str]) -> dict[str, object]:
    """Return the values of the varied settings that apply to a trial, by name."""
    values = trial.canonical()
    return {name: values[name] for name in varied if name in values}


def _settings(trials: Iterable[TrialConfig], varied: Iterable[str]) -> str:
    """Return all values of the varied settings, as `algorithm=dfa sigma=0.1,0.2`."""
    values: dict[str, dict[str, None]] = {}  # by name; the inner keys are an ordered set
    for trial in trials:
        for name, value in _varied_settings(trial, varied).items():
            text = str(plain(value)).replace(" ", "")
            values.setdefault(name, {})[text] = None
    return " ".join(f"{name}={','.join(texts)}" for name, texts in values.items())
