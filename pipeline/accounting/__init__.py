"""Privacy accounting: what every trial may, and may not, say about its privacy."""

from __future__ import annotations

from pipeline.accounting.audit import guesses, one_run
from pipeline.accounting.certified import certified, event_of, selected, with_noise
from pipeline.accounting.column import column_epsilons
from pipeline.accounting.epsilon import GUARANTEES, Epsilon
from pipeline.accounting.label import label_epsilons
from pipeline.accounting.photonic import RELATION, VARIANTS, abridged, claimed, missing, not_described
from pipeline.choices import ALGORITHM_LABELS, GAUSSIAN, PER_RECORD, relation_of
from pipeline.config import TrialConfig
from pipeline.datasets import DATASET_LABELS

# Mironov 2012, "On significance of the least significant bits for differential privacy".
REAL_NUMBERS = ("floating-point sums and samples are taken for real numbers (their last bits may tell more; Mironov "
                "2012)")

__all__ = ["Epsilon", "account", "describe", "privacy_tags", "selected"]


def account(config: TrialConfig, epochs_done: int) -> list[Epsilon]:
    """Every epsilon that can be stated of a trial after `epochs_done` >= 1 epochs, infinite ones included.

    Raises:
        ValueError: unless epochs_done >= 1.
    """
    config = with_noise(config)
    return [*claimed(config, epochs_done), *column_epsilons(config), *label_epsilons(config, epochs_done),
            *certified(config, epochs_done)]


def privacy_tags(config: TrialConfig) -> dict[str, str]:
    """The tags `privacy.*` of a trial, each one line; `privacy.notes` says what a certified epsilon rests on, or why
    the trial has none, and what an audited one is worth."""
    tags = _tags(config)
    if config.canaries:
        tags["privacy.notes"] += f"; {_audit(config)}"
    return tags


def describe(config: TrialConfig) -> str:
    """Markdown for people: what the trial is, and of every kind of epsilon that is stated of its whole run the least,
    with what it guarantees. In ASCII, but for labels of extensions: tracking databases need not know more."""
    what = (f"**{ALGORITHM_LABELS[config.algorithm]}** on {DATASET_LABELS[config.dataset]}, {config.network} "
            f"{'-'.join(map(str, config.layer_sizes))}, {config.epochs} epochs in batches of {config.batch_size} "
            f"({config.sampler}), mechanism `{config.mechanism}`.")
    epsilons = account(config, config.epochs)
    parts = [what] if epsilons else [what, "**No guarantee**: nothing is stated of this trial's privacy."]
    for kind, (_, text) in GUARANTEES.items():
        if of_kind := [epsilon for epsilon in epsilons if epsilon.kind == kind]:
            least = min(of_kind, key=lambda epsilon: epsilon.value)
            parts.append(f"**{kind}**: {least if least.is_metric else 'infinite, by every formula'}. {text}")
    text = "\n\n".join([*parts, "The tag `privacy.notes` says what this rests on."])
    return text.translate({ord("ε"): "epsilon", ord("δ"): "delta", ord("σ"): "sigma"})


def _audit(config: TrialConfig) -> str:
    k, r = config.canaries, guesses(config.canaries)
    most = one_run(k, r, r, config.delta)
    return (f"audited by {k} canaries, training records with wrong labels, each left out with probability 1/2, while N "
            f"stays the public {config.split_sizes[0]}; {r} of them are guessed, which allows a lower bound (95% "
            f"confidence, relation {relation_of(config.sampler)}, delta {config.delta:g}) of at most {most:.3g}")


def _tags(config: TrialConfig) -> dict[str, str]:
    config = with_noise(config)
    if config.mechanism in GAUSSIAN:
        return _tags_of_gaussian(config)
    photonic = config.mechanism == "photonic"
    return {
        "privacy.certified": "false",
        "privacy.relation": RELATION if photonic else "none",
        "privacy.sampler": config.sampler,
        "privacy.delta": f"{config.delta:g}" if photonic else "none",
        "privacy.notes": "; ".join(_notes(config)) if photonic else _no_guarantee(config.mechanism),
    }


def _no_guarantee(mechanism: str) -> str:
    if mechanism == "none":
        return "no noise, no guarantee"
    return f"not certified: mechanism '{mechanism}' is an extension that states no guarantee"


def _source(config: TrialConfig) -> str:
    if config.secure:
        return "noise and batches come from the operating system's entropy, and nothing of it is recorded"
    return "simulated: the noise comes from a recorded seed, and whoever knows that can subtract it"


def _tags_of_gaussian(config: TrialConfig) -> dict[str, str]:
    event = event_of(config, config.epochs)
    noisy = config.noise_multiplier > 0
    note = certified(config, config.epochs)[0].note if noisy else "not certified: no noise, no guarantee"
    if noisy:
        note += f"; {_source(config)}; {REAL_NUMBERS}"
        for what, name, why in (("contributions are bounded", config.mechanism, GAUSSIAN[config.mechanism]),
                                ("learning signals depend on one record each", config.algorithm,
                                 PER_RECORD[config.algorithm])):
            note += f"; that {what} is stated by the extension '{name}': {why}" if why else ""
        if config.projector == "opu_hardware":
            note += "; presupposes that the device projects every record without crosstalk from others"
    return {
        "privacy.certified": str(noisy).lower(),
        "privacy.relation": event.relation,
        "privacy.sampler": config.sampler,
        "privacy.delta": f"{config.delta:g}",
        "privacy.notes": note,
    }


def _notes(config: TrialConfig) -> list[str]:
    source = [_source(config), REAL_NUMBERS] if config.sigma else []
    return [_why_not_certified(config), *_why_infinite(config), *source]


def _why_not_certified(config: TrialConfig) -> str:
    """An update's rows lie in span{h_i : i in batch}; neighbours that change it have disjoint supports."""
    if config.sigma == 0:
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
        notes += dict.fromkeys(e.note for e in claimed(config, 1) if e.is_metric)
    return notes
