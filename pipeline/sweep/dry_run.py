"""Preview a sweep: estimated time, packs and their resources, and the privacy cost of the best trial."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass
from pathlib import Path

import torch

from pipeline.accounting.budget import make_filter
from pipeline.experiment.experiment import Experiment, with_trials
from pipeline.experiment.prices import (
    bound_lines,
    budget_lines,
    delta_lines,
    price_lines,
    score_lines,
    without_amplification,
)
from pipeline.experiment.search import Search, nothing_fits
from pipeline.sweep.checks import bundle, check_machine, check_trials, local_offer, slots
from pipeline.sweep.estimate import Estimate, estimate
from pipeline.terminal import aligned
from pipeline.tracking.artifacts import TrackedRun, changed_networks, done_of, reused_text
from pipeline.trials.config import TrialConfig, settings
from pipeline.trials.declared_table import TableSpec
from pipeline.trials.fields import plain
from pipeline.trials.naming import computed_features, counted, duration
from pipeline.trials.packs import Pack, plan
from pipeline.trials.records import Release

CPU_SECONDS = 4.5  # of the processor, after which no other kind of pack is timed
MOST_NAMED = 5  # kinds of packs that were not timed, on the screen


@dataclass(frozen=True)
class DryRun:
    """What `photonic sweep` would do on this machine."""

    experiment: Experiment  # a search has trials drawn at random from its space, as many as fit its budget
    estimate: Estimate
    at_once: int  # packs that train at the same time
    packs: tuple[Pack, ...]  # of the trials that are neither done nor taken over, in the order of their start
    done: int = 0  # trials that the store has
    taken_over: str = ""  # how many trials other sweeps of the store have, by sweep; empty for none
    changed: tuple[str, ...] = ()  # on users' networks whose file has changed since trials of the store
    exhausted: str = ""  # why a search trains nothing: its name's trials have spent the budget; empty if it trains

    @property
    def seconds(self) -> float:
        return self.estimate.seconds


def preview(experiment: Experiment, workers: int | None, root: Path | None = Path("mlruns")) -> DryRun:
    """Return what a sweep would do on this machine; without a store (`root` is None) every trial counts as new.

    A search is shown with random trials of its space, as its own depend on scores.
    """
    until = time.process_time() + CPU_SECONDS
    begun, runs, exhausted = _begun(experiment, root) if root else (experiment, [], "")
    done = set() if begun.plan.asks else {*done_of(runs)} & {trial.trial_key for trial in begun.trials}
    possible = [trial for trial in begun.possible if trial.trial_key not in done]
    check_trials(begun, possible, possible)

    shown = with_trials(begun, ()) if exhausted else _with_drawn_trials(begun)
    to_train, taken_over = _to_train(shown, done, root)
    requested = shown.resources
    offer = {**local_offer(workers), "GPU": torch.cuda.device_count()}
    check_machine(to_train, requested, offer)

    at_once = slots(requested, offer)
    packs = plan(to_train, requested, at_once)
    estimated = estimate(packs, at_once, opus=1, threads=max(1, int(requested.cpu)),
                         device="cuda" if requested.gpu else "cpu", until=until) if packs else Estimate(0.0)
    return DryRun(shown, estimated, at_once, tuple(packs), len(done), taken_over,
                  tuple(changed_networks(runs, begun.possible)), exhausted)


def _to_train(experiment: Experiment, done: set[str], root: Path | None) -> tuple[list[TrialConfig], str]:
    """Return the trials that are neither done nor taken over, and `DryRun.taken_over`."""
    new = [trial for trial in experiment.trials if trial.trial_key not in done]
    if not (experiment.reuse and root):
        return new, ""
    from pipeline.sweep.ledger import elsewhere  # imported here: MLflow takes a second
    from pipeline.tracking.reader import Reader

    others = elsewhere(experiment, Reader(root=root))
    taken_over = reused_text(others[trial.trial_key] for trial in new if trial.trial_key in others)
    return [trial for trial in new if trial.trial_key not in others], taken_over


def _begun(experiment: Experiment, root: Path) -> tuple[Experiment, list[TrackedRun], str]:
    """Return (experiment with its past, its runs, `DryRun.exhausted`) from the store; refuse an overspent budget."""
    from pipeline.sweep.ledger import filter_of  # imported here: MLflow takes a second
    from pipeline.tracking.backend import NoStore
    from pipeline.tracking.reader import Reader

    try:
        store = Reader(root=root)
    except NoStore:
        return experiment, [], ""
    store.find(experiment.name)
    filter_of(experiment.plan, store)  # refuses
    if not store.has_begun:
        return experiment, [], ""
    runs = store.runs()
    experiment = dataclasses.replace(experiment, past=store.past(experiment, runs))
    if not (runs and experiment.plan.asks and experiment.plan.budget):
        return experiment, runs, ""
    from pipeline.sweep.rounds import Rounds  # imported here: Ray takes seconds

    rounds = Rounds(experiment.plan, store)
    rounds.next(runs)
    return experiment, runs, "" if rounds.trials else nothing_fits(len(rounds.suggestions), len(runs))


def _with_drawn_trials(experiment: Experiment) -> Experiment:
    """Return a search with random trials from its space, as many as fit its budget; other experiments unchanged."""
    if not isinstance(experiment.plan, Search):
        return experiment
    from pipeline.sweep.rounds import make_searcher  # imported here: Ray takes seconds

    search = dataclasses.replace(experiment.plan, algorithm="random")
    searcher = make_searcher(search)
    filter = make_filter(search.budget, search.possible, search.planned) if search.budget else None
    trials: list[TrialConfig] = []
    for _ in range(search.most):
        trial = search.trial(searcher.ask())
        if filter is None or filter.admits(Release(t, t.epochs) for t in (*trials, trial)):
            trials.append(trial)
    return with_trials(experiment, list(dict.fromkeys(trials)))


def as_json(run: DryRun) -> str:
    """Return a dry run as JSON for scripts: every pack (trials that are trained together) with its trials."""
    experiment = run.experiment
    varied = _varied({*experiment.trials, *experiment.possible})
    packs = []
    for pack in run.packs:
        trials = [{"trial_key": trial.trial_key, **_varied_settings(trial, varied)} for trial in pack.trials]
        packs.append({"resources": bundle(experiment.resources, pack.needs_opu), "trials": trials})
    return json.dumps({
        "experiment": experiment.name, "estimated_seconds": run.seconds, "packs_at_once": run.at_once, "done": run.done,
        "taken_over": run.taken_over, "packs": packs, "exhausted": run.exhausted, "not_timed": [
            {"trial_key": pack.shared.trial_key, "estimated_from": source.shared.trial_key}
            for pack, source in run.estimate.guessed],
        "ignored": experiment.ignored, "preset": list(experiment.advice),
        "alone": list(_computed_alone(experiment)),
        "best": list(_prices(experiment)), "past": [*experiment.past.lines(experiment.trials), *run.changed],
        "search": [*experiment.plan.lines(), *budget_lines(experiment)],
        "scores": list(score_lines(experiment.possible)), "epsilons": list(bound_lines(experiment.trials))}, indent=2)


def as_lines(run: DryRun) -> Iterator[str]:
    """Yield a dry run as lines for people: the estimated time, the packs, remarks, and the privacy cost."""
    experiment = run.experiment
    varied = _varied({*experiment.trials, *experiment.possible})
    yield (f"{experiment.name}: {duration(run.seconds)} on this machine if it does nothing else (an estimate); data "
           "sets were not looked for")
    if run.exhausted:
        yield f"nothing to do: {run.exhausted}"
    trials = counted(len(experiment.trials), "trial")
    new = sum(len(pack.trials) for pack in run.packs)
    taken = len(experiment.trials) - run.done - new
    if run.done or taken:
        taken_text = f", {taken} taken over" if taken else ""
        trials += f", {run.done} done{taken_text} and {new} new,"
    yield f"{trials} in {counted(len(run.packs), 'pack')}, {counted(run.at_once, 'pack')} at a time"
    yield from aligned(_pack_rows(run, varied))
    yield from _guesses(run, varied)
    if run.taken_over:
        yield f"taken over, not trained again: {run.taken_over}"
    if maps := computed_features(experiment.trials):
        yield (f"features: {', '.join(maps)}, computed before training or read from the cache, once for each setting, "
               "and not in the estimate")
    for table in dict.fromkeys(trial.dataset for trial in experiment.trials
                               if trial.parts.features.of_file and isinstance(trial.parts.data.spec, TableSpec)):
        yield f"features: those of the file alone; the columns of the table '{table}' are not used"
    if experiment.ignored:
        yield f"ignored: {experiment.ignored}"
    yield from experiment.advice
    yield from _computed_alone(experiment)
    yield from without_amplification(experiment.possible)
    yield from delta_lines(experiment.possible)
    yield from bound_lines(experiment.trials)
    yield from _prices(experiment)
    yield from score_lines(experiment.possible)
    yield from experiment.plan.lines()
    yield from budget_lines(experiment)
    yield from (*experiment.past.lines(experiment.trials), *run.changed)


def _pack_rows(run: DryRun, varied: Sequence[str]) -> list[tuple[str, ...]]:
    """Return a table of the packs with a header; packs that differ only in seeds share a row."""
    groups: dict[str, list[Pack]] = {}
    for pack in run.packs:
        without_seed = TrialConfig(pack.shared.given, seed=0)
        groups.setdefault(without_seed.pack_key, []).append(pack)
    rows: list[tuple[str, ...]] = [("packs", "trials", "each takes", "settings")]
    for packs in groups.values():
        resources = bundle(run.experiment.resources, packs[0].needs_opu)
        resources_text = ", ".join(f"{amount:g} {name}" for name, amount in resources.items())
        trials = [trial for pack in packs for trial in pack.trials]
        rows.append((str(len(packs)), str(len(trials)), resources_text, _settings(trials, varied)))
    return rows


def _guesses(run: DryRun, varied: Sequence[str]) -> Iterator[str]:
    """Yield how many kinds of packs there was no time for, then `  A from B` for each; B by settings other than A's."""
    if not (guessed := run.estimate.guessed):
        return
    yield (f"not timed: {counted(len(guessed), 'kind')} of packs, for want of time; estimated by multiplications from "
           "what was timed:")
    for pack, timed in guessed[:MOST_NAMED]:
        other = [name for name in _varied({pack.shared, timed.shared}) if name not in ("seed", "epochs")]
        yield f"  {_settings(pack.trials, varied)} from {_settings(timed.trials, other)}"
    if len(guessed) > MOST_NAMED:
        yield f"  and {len(guessed) - MOST_NAMED} more"


def _computed_alone(experiment: Experiment) -> Iterator[str]:
    """Yield a line for each of the users' networks whose records are computed one after the other."""
    reasons = {trial.network: trial.parts.network.why_alone(trial)
               for trial in experiment.trials if trial.parts.network.own}
    for name, reason in reasons.items():
        if reason:
            yield (f"network '{name}': records are computed one after the other ({reason}), which takes 15 to 20 times "
                   "as long as by its graph")


def _prices(experiment: Experiment) -> Iterator[str]:
    return iter(()) if experiment.plan.publishes_all else price_lines(experiment)


def _varied(trials: Set[TrialConfig]) -> list[str]:
    names = [setting.name for setting in settings()]
    return [name for name in names if len({getattr(trial, name) for trial in trials}) > 1]


def _varied_settings(trial: TrialConfig, varied: Iterable[str]) -> dict[str, object]:
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
