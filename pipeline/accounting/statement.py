"""All statements on one trial: every epsilon, and the tags and the text that name the assumptions."""

from __future__ import annotations

from collections.abc import Mapping

from pipeline.accounting.audited import guesses, one_run
from pipeline.accounting.certified import certified_epsilons, with_noise
from pipeline.accounting.claimed import MOST_LAYERS, RELATION, claimed_epsilons, claimed_notes
from pipeline.accounting.column import column_epsilons
from pipeline.accounting.epsilon import Epsilon
from pipeline.accounting.evaluations import cover, is_noisy
from pipeline.accounting.finite_precision import DELTA_SHARE, optical_enlargement
from pipeline.accounting.label import RELATION as LABEL_RELATION
from pipeline.accounting.label import label_epsilons
from pipeline.trials.config import TrialConfig
from pipeline.trials.kinds import GUARANTEED, KINDS, UP_TO_ROUNDING
from pipeline.trials.naming import abridged, counted, to_ascii
from pipeline.trials.sampler import relation_of

SECRET = "noise and batches come from the operating system's entropy, and nothing of it is recorded"
RECORDED = "the noise comes from a recorded seed, and whoever knows that can subtract it"


def account(config: TrialConfig, epochs_done: int) -> list[Epsilon]:
    """Return every epsilon that can be stated for a trial after `epochs_done` epochs, infinite ones included."""
    if epochs_done < 1:
        raise ValueError(f"epochs_done: must be >= 1, got {epochs_done}")
    trial = with_noise(config)  # calibrated, as all that follows needs it
    guarantees = [*label_epsilons(trial, epochs_done), *certified_epsilons(trial, epochs_done)]
    return [*claimed_epsilons(trial, epochs_done), *column_epsilons(trial), *cover(trial, guarantees, epochs_done)]


def privacy_tags(config: TrialConfig) -> dict[str, str]:
    """Return the tags `privacy.*` of a trial, each one line.

    `privacy.certified` is `true` for a certified epsilon with secure noise, `simulated` for one with noise from a
    recorded seed, else `false`. (Of a user's network `true` may become `up to rounding`, see `with_own_network`.)
    `privacy.notes` names the assumptions of a certified epsilon, or says why the trial has none. It also says how large
    an audited epsilon can be.

    Example:
        >>> privacy_tags(TrialConfig(mechanism="none"))["privacy.notes"]
        'no noise, no guarantee'
    """
    trial = with_noise(config)  # calibrated
    mechanism = trial.parts.mechanism
    tags = {"privacy.certified": "false", "privacy.relation": trial.parts.sampler.relation,
            "privacy.sampler": trial.sampler, "privacy.delta": f"{trial.delta:g}"}
    if mechanism.certified:
        epsilons = certified_epsilons(trial, trial.epochs)
        notes = _gaussian_notes(trial, epsilons[0])
        if any(epsilon.is_finite for epsilon in epsilons):
            tags["privacy.certified"] = "true" if trial.secure else "simulated"
    elif mechanism.optical:
        tags["privacy.relation"] = RELATION
        notes = _photonic_notes(trial)
    else:
        tags |= {"privacy.relation": "none", "privacy.delta": "none"}
        notes = ["no noise, no guarantee"]
        if mechanism.private:
            notes = [f"not certified: mechanism '{trial.mechanism}' is an extension that states no guarantee"]

    notes += _input_notes(trial, is_certified=tags["privacy.certified"] != "false")
    if trial.canaries:
        notes.append(_canary_audit(trial))
    return {**tags, "privacy.notes": "; ".join(notes)}


def _input_notes(trial: TrialConfig, is_certified: bool) -> list[str]:
    if not trial.parts.features.raw:
        return [f"inputs are {trial.parts.features.public_because(trial)}"]
    if trial.inputs != "standardized" or not is_certified:
        return []
    if trial.parts.data.spec.published:
        return ["inputs are shifted and scaled by published constants, which are means and deviations of the training "
                "records and count as public"]
    return ["not covered: inputs are shifted and scaled by means and deviations of the training records"]


def relation_of_kind(kind: str, variant: str, relation: object) -> str:
    """Return the neighbouring relation of an epsilon of this kind; `relation` is its trial's tag `privacy.relation`."""
    if kind == "label":
        return LABEL_RELATION
    if kind == "column":  # the variant names the relation, with `-`: a slash separates parts of a metric's name
        return variant.replace("add-", "add/")
    if not isinstance(relation, str):
        return "not tracked"
    if kind == "audited" and relation == "none":  # without a guarantee: the audit's own, which adds canaries or not
        return relation_of("poisson")
    return relation


def with_own_network(tags: Mapping[str, str], why_alone: str, is_reviewed: bool) -> dict[str, str]:
    """Return the tags of a trial with a user's network, completed by how the network computes its records.

    Records are mapped together if `why_alone` is empty. Unless `is_reviewed`, a record's last bits may depend on others
    of its chunk, so `privacy.certified` is at most `up to rounding`.
    """
    certified, notes = tags["privacy.certified"], tags["privacy.notes"]
    if certified != "false" and why_alone:
        notes += ("; each record is computed on a fresh copy of the network: that its code keeps nothing of a record "
                  "outside of the module (globals, class attributes, closures, files, native code) is its author's "
                  "statement")
    if certified == "true" and not is_reviewed:
        certified = UP_TO_ROUNDING
        notes += ("; operators are not reviewed for this version of torch on this device: contributions are "
                  "independent up to float32 rounding; last bits not covered")
    return {**tags, "privacy.certified": certified, "privacy.notes": notes,
            "network.records": f"alone: {why_alone}" if why_alone else "mapped"}


def describe(config: TrialConfig) -> str:
    """Describe a trial and its privacy in Markdown paragraphs; a trial is one training run with fixed settings.

    The text names the smallest epsilon of every kind (`certified`, `label`, ...) for the whole run, and what that
    kind guarantees. It is ASCII except for labels of extensions, because some tracking databases store only ASCII.
    """
    network = f"{config.network} {'-'.join(map(str, config.layer_sizes))}"
    summary = (f"**{config.parts.feedback.label}** on {config.parts.data.label}, {network}, "
               f"{counted(config.epochs, 'epoch')} in batches of {config.batch_size} ({config.sampler}), mechanism "
               f"`{config.mechanism}`.")
    epsilons = account(config, config.epochs)
    paragraphs = [summary, _protection(config, epsilons)]
    for kind, of_kind in KINDS.items():
        if candidates := [epsilon for epsilon in epsilons if epsilon.kind == kind]:
            smallest = min(candidates, key=lambda epsilon: epsilon.value)
            paragraphs.append(f"**{kind}**: {smallest}. {of_kind.meaning}" if smallest.is_finite else
                              f"**{kind}**: infinite, by every formula.")
    paragraphs.append("The tag `privacy.notes` says what this rests on.")
    return to_ascii("\n\n".join(filter(None, paragraphs)))


def _protection(trial: TrialConfig, epsilons: list[Epsilon]) -> str:
    """Return a paragraph on what these epsilons protect, given the source of the noise; empty if that is nothing."""
    finite_kinds = {epsilon.kind for epsilon in epsilons if epsilon.is_finite}
    if not finite_kinds:
        return "**No guarantee**: no finite epsilon is stated of this trial."
    if finite_kinds.isdisjoint(GUARANTEED):
        return ""
    is_certified = "certified" in finite_kinds
    protected = "features and labels" if is_certified else "labels alone"
    if not trial.secure:
        return f"**Simulated guarantee** for {protected}: {RECORDED}."
    text = f"**{'Certified' if is_certified else 'Guaranteed'}** for {protected}: {SECRET}"
    if trial.parts.network.own:
        text += "; the tag `privacy.certified` says whether the last bits of its rows are covered"
    return f"{text}."


def _canary_audit(trial: TrialConfig) -> str:
    """Return a clause on the audit of a trial with canaries, and the largest lower bound on epsilon it can give."""
    canaries, guessed = trial.canaries, guesses(trial.canaries)
    n_train, _ = trial.split_sizes
    largest_bound = one_run(canaries, guessed, guessed, trial.delta)  # as if all guesses were right
    return (f"audited by {canaries} canaries, training records with wrong labels, each left out with probability 1/2, "
            f"while N stays the public {n_train}; {guessed} of them are guessed, which allows a lower "
            f"bound (95% confidence, relation {trial.parts.sampler.relation}, delta {trial.delta:g}) of at most "
            f"{largest_bound:.3g}")


def _release_notes(trial: TrialConfig) -> list[str]:
    source = SECRET if trial.secure else f"simulated: {RECORDED}"
    # Mironov 2012, "On significance of the least significant bits for differential privacy".
    arithmetic = ("floating-point sums and samples are taken for real numbers (their last bits may tell more; "
                  "Mironov 2012)")
    if trial.secure or trial.exact:
        method = "sums of integers and integer noise, without rounding"
        if not trial.parts.mechanism.certified:
            method = f"on a grid, with integer noise 1 + {optical_enlargement(trial):.1e} times as large"
        noise_sampler = f", and {DELTA_SHARE:g} of delta for its sampler" if trial.secure else ""
        arithmetic = f"holds for the numbers that are released: {method}{noise_sampler}"
    if trial.disclosure == "plain":
        logged = "not covered: training loss, validation accuracy and alignment on training batches, logged as they are"
    elif is_noisy(trial):
        logged = "covered: all that is logged, validation accuracy with noise of its own"
    else:
        logged = "covered: all that is logged, of private records nothing else"
    return [source, arithmetic, logged]


def _gaussian_notes(trial: TrialConfig, tightest: Epsilon) -> list[str]:
    if trial.noise_multiplier <= 0:
        return ["not certified: no noise, no guarantee"]
    notes = [tightest.note]
    parts = trial.parts
    ratio = parts.mechanism.sensitivity_ratio(trial)  # largest contribution over the norm to which noise is scaled
    if ratio != 1:
        notes.append(f"noise is measured by {parts.mechanism.stated_norm(trial):.4g}, a record contributes up to "
                     f"{ratio:.4g} times that, and epsilon is of what it contributes")
    notes += _release_notes(trial)
    statements = (("contributions are bounded", parts.mechanism.name, parts.mechanism.guarantee),
                  ("errors depend on one record each", trial.loss, parts.loss.per_record),
                  ("learning signals depend on one record each", trial.algorithm, parts.feedback.per_record))
    notes += [f"that {assumption} is stated by the extension '{extension}': {reason}"
              for assumption, extension, reason in statements if reason]
    if parts.network.own:
        notes.append(f"network '{trial.network}' computes each record's contribution alone; that its code keeps "
                     "nothing of a record in Python until the next call is for its author to say")
        if trial.secure or trial.exact:
            notes.append("where operators are not reviewed for the torch and device that train it, last bits of "
                         "contributions are not covered (the tag privacy.certified says `up to rounding`)")
    if parts.projector.hardware:
        notes.append("presupposes that the device projects every record without crosstalk from others")
    return notes


def _photonic_notes(trial: TrialConfig) -> list[str]:
    if not trial.sigma:
        return ["not certified: sigma = 0, no noise, no guarantee", *claimed_notes(trial)]
    m = trial.batch_size
    # Where a layer has more inputs than a batch has records, the batch cannot span all inputs.
    wide = [f"{layer} ({n_in})" for layer, n_in in enumerate(trial.layer_sizes[:-1], start=1) if n_in > m]
    extent = f"; m = {m} is at least every layer's number of inputs, but even then no data-independent bound exists"
    if wide:
        extent = f", which is the generic case for layers with more inputs than m = {m}: {abridged(wide, MOST_LAYERS)}"
    # Noise is added before the product with the activations h_i, so an update's rows lie in span{h_i : i in batch}.
    return ["not certified: the noise lies in the span of the batch's activations, and neighbours that change the span "
            f"are told apart at any sigma{extent}", *claimed_notes(trial), *_release_notes(trial)]
