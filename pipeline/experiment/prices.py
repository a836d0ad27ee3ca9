"""What an experiment costs, in numbers and in lines for people: publishing its best trial, its budget, its noise.

`photonic account` and dry runs show the lines before training; reports and sweeps price the choice that was made.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from pipeline.accounting.budget import Filter, make_filter
from pipeline.accounting.certified import certified_epsilons, event_of, with_noise
from pipeline.accounting.epsilon import Epsilon
from pipeline.accounting.evaluations import score_noise, scores_are_covered, selected_epsilon
from pipeline.accounting.event import PrivacyEvent, UnsupportedAccounting
from pipeline.experiment.experiment import Experiment
from pipeline.experiment.past import Past
from pipeline.experiment.plan import Plan
from pipeline.experiment.stopping import Selection
from pipeline.trials.config import ConfigError, TrialConfig
from pipeline.trials.kinds import certified_trials, noise_statement, sentence
from pipeline.trials.naming import counted
from pipeline.trials.records import Release

WORTH_SAYING = 0.9  # share of the noise, from which on a saving is not worth a line


def epsilon_of_choice(plan: Plan, past: Past, compared: Sequence[TrialConfig], selection: Selection) -> Epsilon:
    """Return the epsilon that covers a selection among the `compared` trials, those of the past included.

    `UnsupportedAccounting` is raised where none does: an adaptive search needs noisy scores, and trials of equal cost,
    as composition requires costs that do not depend on results.
    """
    if past.no_price:
        raise UnsupportedAccounting(past.no_price)
    if plan.by_scores or past.by_scores:
        if not scores_are_covered(compared):
            raise UnsupportedAccounting("private_metrics: must be 'noisy' where trials are asked for by validation "
                                        "accuracy, or training goes by scores that nothing covers")
        costs = {event_of(with_noise(trial), trial.epochs) for trial in certified_trials(compared)}
        if len(costs) > 1:
            raise UnsupportedAccounting("search: trials whose costs differ were asked for by scores, so that costs "
                                        "depend on results, which a budget covers and composition does not")
    return selected_epsilon(compared, selection.distribution if selection.is_random else None)


def choice_statement(trials: Sequence[TrialConfig], selection: Selection) -> str:
    """Return sentences on the noise behind the choice among trials, and on what a simulation leaves out."""
    trials = certified_trials(trials)  # no epsilon covers a choice among others
    statement = sentence(noise_statement([trial.noise for trial in trials]))
    seeds = [trial.seed for trial in trials if not trial.secure]
    if selection.is_random or len(set(seeds)) == len(seeds):  # random stopping draws every trial under its own seed
        return statement
    return (f"{statement} The simulation leaves out that trials of one seed share noise and batches, so composing them "
            "as independent does not describe them.")


def choice_findings(epsilon: Epsilon | None, reason: str, noise: str) -> tuple[dict[str, float], dict[str, str]]:
    """Return the metric and the tags of a sweep's parent run, on the epsilon of its choice.

    Reports write them, and so do sweeps that add trials after a report. Only a finite epsilon has a metric. `reason`
    says why there is no epsilon; `noise` is the `choice_statement`.
    """
    if epsilon is None:
        return {}, {"privacy.notes": f"no epsilon covers the choice of the best trial: {reason}"}
    tags = {"privacy.relation": epsilon.relation, "privacy.sampler": epsilon.sampler,
            "privacy.delta": f"{epsilon.delta:g}"}
    if not epsilon.is_finite:
        return {}, {**tags, "privacy.notes": "infinite: no guarantee"}
    return {epsilon.metric_name: epsilon.value}, {**tags, "privacy.notes": f"{epsilon.note}. {noise}"}


def price_lines(experiment: Experiment) -> Iterator[str]:
    """Yield lines on the cost of publishing an experiment's best trial, if it has a choice, or all that were drawn."""
    past = experiment.past
    guaranteed = certified_trials([*experiment.trials, *past.trials])
    if not experiment.plan.publishes_all:
        drawn = counted(len(guaranteed), "drawn trial")
        yield f"the best of the {drawn}, if nothing else is published"
        yield from _selection_lines(experiment.possible, experiment, experiment.plan.selection)
        yield f"all {drawn} published"
        yield from _selection_lines(guaranteed, experiment, Selection())
    elif (len(guaranteed) >= 2 or (guaranteed and past.no_price)) and not experiment.plan.asks:
        yield f"the best of {counted(len(guaranteed), 'certified trial')}"
        yield from _selection_lines(guaranteed, experiment, Selection())
    yield from past.lines(experiment.trials)


def _selection_lines(trials: Sequence[TrialConfig], experiment: Experiment, selection: Selection) -> Iterator[str]:
    """Yield indented lines: epsilon of publishing from `trials` by this selection, and notes, or why there is none."""
    try:
        epsilon = epsilon_of_choice(experiment.plan, experiment.past, trials, selection)
    except UnsupportedAccounting as error:
        yield f"  no epsilon covers the choice: {error}"
        return
    yield from (f"  {line}" for line in (epsilon, epsilon.note, choice_statement(trials, selection)))


def bound_lines(trials: Sequence[TrialConfig]) -> Iterator[str]:
    """Yield the epsilons of certified trials, if a record can contribute more than the norm that scales the noise."""
    groups: dict[tuple[PrivacyEvent, float, str, str], list[TrialConfig]] = {}  # those of a group share their epsilons
    for trial in certified_trials(trials):
        calibrated = with_noise(trial)
        ratio = f"{trial.parts.mechanism.sensitivity_ratio(trial):.4g}"
        key = event_of(calibrated, trial.epochs), trial.delta, trial.noise, ratio
        groups.setdefault(key, []).append(calibrated)
    if all(ratio == "1" for _, _, _, ratio in groups):
        return
    yield "epsilon is of the most that a record contributes, not of the norm that noise is measured by:"
    for (_, _, _, ratio), group in groups.items():
        first = group[0]
        values = ", ".join(f"{epsilon.value:.4g} ({epsilon.variant})"
                           for epsilon in certified_epsilons(first, first.epochs))
        yield (f"  {counted(len(group), 'trial')} with noise_multiplier {first.noise_multiplier:.4g}, {ratio} "
               f"times the norm: {values}")


def delta_lines(trials: Iterable[TrialConfig]) -> Iterator[str]:
    """Yield a line for each delta above 1/N, N training records, at which publishing one of them is allowed."""
    pairs = {(trial.delta, trial.split_sizes[0]) for trial in trials if trial.parts.mechanism.certified}
    for delta, n in sorted((delta, n) for delta, n in pairs if delta * n > 1):
        yield f"delta: {delta:g} is more than 1/N = {1 / n:.2g}: publishing a record at random satisfies it"


def score_lines(trials: Iterable[TrialConfig]) -> Iterator[str]:
    """Yield a line on the noise of validation accuracies, if trials log them with noise."""
    noises = [noise for trial in trials if (noise := score_noise(trial))]
    if noises:
        least = f"{min(noises):.2%} to " if max(noises) > 1.01 * min(noises) else ""
        yield (f"scores: validation accuracy has noise of standard deviation {least}{max(noises):.2%}; what differs by "
               "less is chosen by luck (a larger validation_fraction or epsilon, or fewer epochs, lower it)")


def without_amplification(trials: Iterable[TrialConfig]) -> list[str]:
    """Return a line on the noise that sampling would save the first trial with a target but shuffled batches.

    Noise under replace-one is twice that under add/remove; only what is saved beyond that is named.
    """
    trial = next((trial for trial in trials if trial.target_epsilon and trial.parts.mechanism.certified
                  and not trial.parts.sampler.amplified), None)
    if trial is None:
        return []
    try:
        sampled = with_noise(TrialConfig(trial.given, sampler="poisson")).noise_multiplier
    except ConfigError:  # some settings allow no Poisson batches
        return []
    noise = with_noise(trial).noise_multiplier
    if 2 * sampled >= WORTH_SAYING * noise:
        return []
    return [f"sampler: {trial.sampler} batches amplify nothing: for epsilon {trial.target_epsilon:g}, noise_multiplier "
            f"is {noise:.4g}; with `sampler: poisson` (batches of random size; add/remove, which alone halves it) it "
            f"is {sampled:.4g}"]


def scope(name: str, plan: Plan,
          # data set, relation -> {name: (epsilon, delta)} of the store's certified sweeps
          certified: Callable[[str, str], Mapping[str, tuple[float, float]]]) -> list[str]:
    """Return sentences on what the sweep's budget does not cover: other names, copied stores, other sweeps."""
    budget = plan.budget
    if not budget:
        return []
    first = plan.possible[0]  # all trials of the search have its data set and relation
    dataset, relation = first.dataset, first.parts.sampler.relation
    lines = [f"The budget belongs to the name '{name}' in this tracking store: another name, a copy of the "
             "store, a tag that was edited or an MLflow experiment that was renamed begins anew, and the records pay "
             "again."]
    others = {other: cost for other, cost in certified(dataset, relation).items() if other != name}
    if others:
        epsilons = [budget.epsilon, *(epsilon for epsilon, _ in others.values())]
        deltas = [budget.delta, *(delta for _, delta in others.values())]
        lines.append(
            f"With the certified trials of {counted(len(others), 'other sweep')} on {dataset} in this store "
            f"({', '.join(sorted(others))}; relation {relation}) that is epsilon "
            f"{' + '.join(f'{epsilon:.4g}' for epsilon in epsilons)} = {sum(epsilons):.4g} at delta {sum(deltas):.3g}, "
            "which no budget bounds.")
    return lines


def budget_lines(experiment: Experiment) -> Iterator[str]:
    """Yield lines on a search's budget, if any: its filter, and how many of the cheapest and dearest trials fit."""
    plan = experiment.plan
    if not plan.budget:
        return
    budget = plan.budget
    privacy_filter = make_filter(budget, plan.possible, plan.planned)
    # Renyi divergence of each trial's whole run
    costs = {trial: privacy_filter.spent([Release(trial, trial.epochs)]) for trial in plan.possible}
    dearest = max(costs, key=costs.__getitem__)
    min_cost, max_cost = min(costs.values()), costs[dearest]
    conversion = privacy_filter.epsilon(1.0) - 1.0  # of one order, epsilon is the divergence plus this constant
    max_divergence = budget.epsilon - conversion
    n_cheapest, n_dearest = int(max_divergence / min_cost), int(max_divergence / max_cost)
    yield (f"budget: epsilon {budget.epsilon:g} at delta {budget.delta:g} for all that the sweep "
           f"releases, by a Renyi filter of order {privacy_filter.order}; `photonic status` says what is spent")
    yield (f"  the cheapest trial alone is epsilon {privacy_filter.epsilon(min_cost):.4g}, the dearest "
           f"{privacy_filter.epsilon(max_cost):.4g}; {n_dearest} of the dearest fit, or {n_cheapest} of the cheapest")
    yield (f"  {conversion:.4g} of that is paid once by the whole sweep, however many trials there are; the cheapest "
           f"adds {min_cost:.4g}, the dearest {max_cost:.4g}")
    if dearest.target_epsilon:
        yield (f"  target_epsilon {dearest.target_epsilon:g} is the cost by a trial's own accountant; the filter "
               "covers all trials together and adds up Renyi divergences of one order in its place")
        if n_dearest < plan.planned and (target := _target_that_fits(dearest, privacy_filter, plan.planned)):
            yield f"  for {counted(plan.planned, 'trial')} to fit, ask for target_epsilon <= {target:.2g}"
    yield f"  {sentence(noise_statement(trial.noise for trial in plan.possible))}"


def _target_that_fits(trial: TrialConfig, privacy_filter: Filter, n_trials: int) -> float:
    """Return about the largest target_epsilon at which `n_trials` trials fit into the budget; 0 for less than 1/64."""
    def fits(target: float) -> bool:
        cost = privacy_filter.spent([Release(TrialConfig(trial.given, target_epsilon=target), trial.epochs)])
        return privacy_filter.epsilon(n_trials * cost) <= privacy_filter.budget.epsilon

    low, high = trial.target_epsilon / 64, trial.target_epsilon
    if not fits(low):
        return 0.0
    while high / low > 1.01:  # finer than the two significant digits
        middle = math.sqrt(low * high)
        if fits(middle):
            low = middle
        else:
            high = middle
    second_digit = 10 ** (math.floor(math.log10(low)) - 1)  # place value of the second digit
    return math.floor(low / second_digit) * second_digit
