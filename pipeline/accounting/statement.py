"""All statements on one trial: every epsilon, and the tags and the text that name the assumptions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pipeline.accounting.audited import guesses, one_run
from pipeline.accounting.certified import certified_epsilons, event_of, with_noise
from pipeline.accounting.claimed import (
    RELATION,
    VARIANTS,
    abridged,
    claimed_epsilons,
    missing,
    not_described,
)
from pipeline.accounting.column import column_epsilons
from pipeline.accounting.epsilon import GUARANTEES, Epsilon
from pipeline.accounting.evaluations import cover, is_noisy, selected_epsilon
from pipeline.accounting.event import PrivacyEvent, UnsupportedAccounting
from pipeline.accounting.finite_precision import DELTA_SHARE, optical_enlargement
from pipeline.accounting.label import label_epsilons
from pipeline.accounting.noise import choice_statement
from pipeline.accounting.stated import StatedEvent
from pipeline.experiment.experiment import Experiment
from pipeline.experiment.stopping import Selection
from pipeline.trials.config import TrialConfig
from pipeline.trials.naming import composable, counted, guarantee, to_ascii

# Mironov 2012, "On significance of the least significant bits for differential privacy".
REAL_NUMBERS = ("floating-point sums and samples are taken for real numbers (their last bits may tell more; Mironov "
                "2012)")
SECRET = "noise and batches come from the operating system's entropy, and nothing of it is recorded"
PUBLISHED = ("inputs are shifted and scaled by published constants, which are means and deviations of the training "
             "records and count as public")
STATISTICS = "not covered: inputs are shifted and scaled by means and deviations of the training records"
ELSEWHERE = "the noise comes from where the trainer draws it, as it states, and nothing of it is recorded here"
RECORDED = "the noise comes from a recorded seed, and whoever knows that can subtract it"

__all__ = ["Epsilon", "account", "describe", "price_lines", "privacy_tags", "selected_epsilon"]


def account(config: TrialConfig, epochs_done: int) -> list[Epsilon]:
    """Return every epsilon that can be stated for a trial after `epochs_done` epochs, infinite ones included.

    Raises:
        ValueError: unless epochs_done >= 1.
    """
    config = with_noise(config)
    guarantees = [*label_epsilons(config, epochs_done), *certified_epsilons(config, epochs_done)]
    return [*claimed_epsilons(config, epochs_done), *column_epsilons(config), *cover(config, guarantees, epochs_done)]


def privacy_tags(config: TrialConfig) -> dict[str, str]:
    """Return the tags `privacy.*` of a trial, each one line.

    `privacy.certified` is `true` for a certified epsilon with secure noise, `simulated` for one with noise from a
    recorded seed, `stated` for one that a trainer states, else `false`. `privacy.notes` names the assumptions of a
    certified epsilon, or says why the trial has none. It also says how large an audited epsilon can be.

    Example:
        >>> privacy_tags(TrialConfig(mechanism="none"))["privacy.notes"]
        'no noise, no guarantee'
    """
    tags = _tags(config)
    if not config.parts.features.raw:
        tags["privacy.notes"] += f"; inputs are {config.parts.features.public_because(config)}"
    elif config.inputs == "standardized" and tags["privacy.certified"] != "false":
        tags["privacy.notes"] += f"; {PUBLISHED if config.parts.data.spec.published else STATISTICS}"
    if config.canaries:
        tags["privacy.notes"] += f"; {_audit(config)}"
    return tags


def describe(config: TrialConfig, earlier: int = 0) -> str:
    """Return Markdown for people: the trial, and the least epsilon of each kind for its whole run with its guarantee.

    The text is ASCII except for labels of extensions, because some tracking databases store only ASCII.

    Args:
        earlier: epochs that earlier draws of the trial's secret noise released.
    """
    trainer = config.parts.trainer
    trained = (f"{config.network} {'-'.join(map(str, config.layer_sizes))}" if trainer.built_in else
               f"trainer `{trainer.name}` (version {config.trainer_version})")
    what = (f"**{config.parts.feedback.label}** on {config.parts.data.label}, {trained}, "
            f"{counted(config.epochs, 'epoch')} in batches of "
            f"{config.batch_size} ({config.sampler}), mechanism `{config.mechanism}`.")
    epsilons = account(config, earlier + config.epochs)
    parts = [what, *_standing(config, epsilons)]
    for kind, (_, text) in GUARANTEES.items():
        if of_kind := [epsilon for epsilon in epsilons if epsilon.kind == kind]:
            least = min(of_kind, key=lambda epsilon: epsilon.value)
            parts.append(f"**{kind}**: {least if least.is_metric else 'infinite, by every formula'}. {text}")
    text = "\n\n".join([*parts, "The tag `privacy.notes` says what this rests on."])
    return to_ascii(text)


def price_lines(experiment: Experiment) -> Iterator[str]:
    """Yield the cost of the best trial by the file's rule and, for drawn trials, the cost of publishing all of them."""
    guaranteed = composable(experiment.trials)
    if len(guaranteed) < 2 and not experiment.candidates:
        return
    prices: list[tuple[str, Sequence[TrialConfig], Selection]] = [
        (f"the best of {counted(len(guaranteed), f'{guarantee(guaranteed)} trial')}", guaranteed, Selection())]
    if experiment.candidates:
        prices = [(f"the best of the {counted(len(guaranteed), 'drawn trial')}, if nothing else is published",
                   experiment.candidates, experiment.selection),
                  (f"all {counted(len(guaranteed), 'drawn trial')} published", guaranteed, Selection())]
    for what, trials, selection in prices:
        yield what
        try:
            epsilon = selected_epsilon(trials, selection)
        except UnsupportedAccounting as error:
            yield f"  no epsilon covers the choice: {error}"
        else:
            yield from (f"  {line}" for line in (epsilon, epsilon.note, choice_statement(trials, selection)))


def bound_lines(trials: Sequence[TrialConfig]) -> Iterator[str]:
    """Yield the cost of certified trials whose noise is scaled to a smaller norm than the largest contribution.

    Epsilon follows from the largest contribution; trials with the same epsilon share a line.
    """
    groups: dict[tuple[PrivacyEvent | StatedEvent, float, str, str], list[TrialConfig]] = {}
    for trial in composable(trials):
        settings = with_noise(trial)
        key = event_of(settings, trial.epochs), trial.delta, trial.noise, f"{trial.parts.mechanism.excess(trial):.4g}"
        groups.setdefault(key, []).append(settings)
    if all(longer == "1" for *_, longer in groups):
        return
    yield "epsilon is of the most that a record contributes, not of the norm that noise is measured by:"
    for (*_, longer), alike in groups.items():
        first = alike[0]
        values = ", ".join(f"{e.value:.4g} ({e.variant})" for e in certified_epsilons(first, first.epochs))
        yield (f"  {counted(len(alike), 'trial')} with noise_multiplier {first.noise_multiplier:.4g}, {longer} times "
               f"the norm: {values}")


def _standing(config: TrialConfig, epsilons: list[Epsilon]) -> list[str]:
    """Return the guarantee, if any, and whether the noise keeps or only simulates it."""
    if not epsilons:
        return ["**No guarantee**: nothing is stated of this trial's privacy."]
    finite = {epsilon.kind for epsilon in epsilons if epsilon.is_metric}
    if "stated" in finite:
        return [f"**Stated** by the trainer, and **not checked**: {_drawn(config)}."]
    if not finite & {"certified", "label"}:
        return []
    what = "features and labels" if "certified" in finite else "labels alone"
    if config.secure:
        return [f"**{'Certified' if 'certified' in finite else 'Guaranteed'}** for {what}: {SECRET}."]
    return [f"**Simulated guarantee** for {what}: {RECORDED}."]


def _audit(config: TrialConfig) -> str:
    """Return a clause on the canaries that audit the trial, and the largest epsilon that they can show."""
    canaries, guessed = config.canaries, guesses(config.canaries)
    largest_bound = one_run(canaries, guessed, guessed, config.delta)  # all guesses are right
    return (f"audited by {canaries} canaries, training records with wrong labels, each left out with probability 1/2, "
            f"while N stays the public {config.split_sizes[0]}; {guessed} of them are guessed, which allows a lower "
            f"bound (95% confidence, relation {config.parts.sampler.relation}, delta {config.delta:g}) of at most "
            f"{largest_bound:.3g}")


def _tags(config: TrialConfig) -> dict[str, str]:
    """Return the tags `privacy.*` of a trial, before clauses on inputs and canaries are added."""
    config = with_noise(config)
    if config.parts.mechanism.certified:
        return _tags_of_gaussian(config)
    if config.parts.mechanism.kind(config) == "stated":
        return _tags_of_stated(config)
    photonic = config.parts.mechanism.optical
    return {
        "privacy.certified": "false",
        "privacy.relation": RELATION if photonic else "none",
        "privacy.sampler": config.sampler,
        "privacy.delta": f"{config.delta:g}" if photonic else "none",
        "privacy.notes": "; ".join(_notes(config)) if photonic else _no_guarantee(config),
    }


def _no_guarantee(config: TrialConfig) -> str:
    """Return why a trial without a Gaussian or photonic mechanism has no guarantee."""
    if config.parts.mechanism.composed:
        return f"no noise, or no event that trainer '{config.trainer}' states; no guarantee"
    if not config.parts.mechanism.private:
        return ("no guarantee: the device's noise reaches what it projects, not the output layer's error"
                if config.physical else "no noise, no guarantee")
    return f"not certified: mechanism '{config.mechanism}' is an extension that states no guarantee"


def _source(config: TrialConfig) -> str:
    return SECRET if config.secure else f"simulated: {RECORDED}"


def _numbers(config: TrialConfig) -> str:
    """Return a clause: for which numbers the guarantee holds, real numbers or the released ones."""
    if not (config.secure or config.exact):
        return REAL_NUMBERS
    note = "holds for the numbers that are released: "
    note += ("sums of integers and integer noise, without rounding" if config.parts.mechanism.certified else
             f"on a grid, with integer noise 1 + {optical_enlargement(config):.1e} times as large")
    return note + (f", and {DELTA_SHARE:g} of delta for its sampler" if config.secure else "")


def _disclosed(config: TrialConfig) -> str:
    """Return a clause for the tag `privacy.notes`: whether the guarantee covers all that is logged.

    Logged values of private records, beside the released weights, are training loss, validation accuracy and alignment.
    """
    if config.disclosure == "plain":
        return "not covered: training loss, validation accuracy and alignment on training batches, logged as they are"
    if is_noisy(config):
        return "covered: all that is logged, validation accuracy with noise of its own"
    return "covered: all that is logged, of private records nothing else"


def _tags_of_gaussian(config: TrialConfig) -> dict[str, str]:
    """Return the tags `privacy.*` of a trial with a Gaussian mechanism.

    The notes name the sampling, the source of the noise, what is logged, and what extensions only state.
    """
    event = event_of(config, config.epochs)
    noisy, epsilons = config.noise_multiplier > 0, certified_epsilons(config, config.epochs)
    standing = "true" if config.secure else "simulated"
    note = epsilons[0].note if noisy else "not certified: no noise, no guarantee"
    if noisy:
        mechanism = config.parts.mechanism
        if (longer := mechanism.excess(config)) != 1:
            note += (f"; noise is measured by {mechanism.stated_norm(config):.4g}, a record contributes up to "
                     f"{longer:.4g} times that, and epsilon is of what it contributes")
        note += f"; {_source(config)}; {_numbers(config)}; {_disclosed(config)}"
        for what, name, why in (("contributions are bounded", mechanism.name, mechanism.guarantee),
                                ("errors depend on one record each", config.loss, config.parts.loss.per_record),
                                ("learning signals depend on one record each" if config.parts.trainer.built_in else
                                 "rows depend on one record each, and models on what was released of them alone",
                                 config.algorithm, config.parts.feedback.per_record)):
            note += f"; that {what} is stated by the extension '{name}': {why}" if why else ""
        if config.parts.projector.hardware:
            note += "; presupposes that the device projects every record without crosstalk from others"
    return {
        "privacy.certified": standing if any(epsilon.is_metric for epsilon in epsilons) else "false",
        "privacy.relation": event.relation,
        "privacy.sampler": config.sampler,
        "privacy.delta": f"{config.delta:g}",
        "privacy.notes": note,
    }


def _drawn(config: TrialConfig) -> str:
    return ELSEWHERE if config.parts.trainer.redraws else RECORDED


def _tags_of_stated(config: TrialConfig) -> dict[str, str]:
    """Return the tags `privacy.*` of a trial whose trainer states its privacy event; nobody here checks it."""
    first = certified_epsilons(config, config.epochs)[0]
    reads = ("what else than the records that it is handed the trainer reads, and that it does as it states, is its "
             "own statement")
    return {
        "privacy.certified": "stated",
        "privacy.relation": first.relation,
        "privacy.sampler": config.sampler,
        "privacy.delta": f"{config.delta:g}",
        "privacy.notes": f"{first.note}; {reads}; {_drawn(config)}; {REAL_NUMBERS}; {_disclosed(config)}",
    }


def _notes(config: TrialConfig) -> list[str]:
    """Return the notes on a trial with the photonic mechanism: why it is not certified, and what covers the labels."""
    noisy = config.sigma or config.physical
    source = [_source(config), _numbers(config), _disclosed(config)] if noisy else []
    return [_why_not_certified(config), *_why_infinite(config), *source]


def _why_not_certified(config: TrialConfig) -> str:
    """Return a clause: why the photonic mechanism is not certified.

    An update's rows lie in span{h_i : i in batch}, the span of the batch's activations. Neighbours that change the span
    have disjoint supports.
    """
    if config.sigma == 0 and not config.physical:
        return "not certified: sigma = 0, no noise, no guarantee"
    wide = [f"{layer} ({n_in})" for layer, n_in in enumerate(config.layer_sizes[:-1], start=1)
            if config.batch_size < n_in]
    text = ("not certified: the noise lies in the span of the batch's activations, and neighbours that change the "
            "span are told apart at any sigma")
    if wide:
        return (f"{text}, which is the generic case for layers with more inputs than m = {config.batch_size}: "
                f"{abridged(wide)}")
    return (f"{text}; m = {config.batch_size} is at least every layer's number of inputs, but even then no "
            "data-independent bound exists")


def _why_infinite(config: TrialConfig) -> list[str]:
    """Return notes on the claimed epsilons (Ohana et al. 2021): which are infinite and why, and which are finite.

    Formulas that are infinite for the same reasons share a note.
    """
    if reason := not_described(config):
        return [f"nothing is claimed: {reason}"]
    infinite: dict[tuple[str, ...], list[str]] = {}
    for variant in VARIANTS:
        reasons = tuple(a.reason for a in missing(config, variant))
        infinite.setdefault(reasons, []).append(variant.name)
    finite = infinite.pop((), [])
    notes = [f"claimed epsilon of {', '.join(names)} is infinite ({'; '.join(reasons)})"
             for reasons, names in infinite.items()]
    if finite:
        notes.append(f"claimed epsilon of {', '.join(finite)} is finite, but only the printed formula's value")
        notes += dict.fromkeys(e.note for e in claimed_epsilons(config, 1) if e.is_metric)
    return notes
