"""From a trial to its privacy event, and calibration of the noise for a target epsilon.

One place derives the event from the settings that also build mechanism and sampler, so they cannot disagree:

    sampler               relation      noise on the sum, over its sensitivity
    poisson               add/remove    z C/C = z
    without_replacement   replace-one   z C/(2 C) = z/2
    shuffled              replace-one   z/2

These are divided by `Mechanism.sensitivity_ratio` if noise is scaled to a smaller norm than the largest contribution.
"""

from __future__ import annotations

import math
from functools import lru_cache

from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent

from pipeline.accounting.calibration import calibrate, kept
from pipeline.accounting.curves import gdp_eps
from pipeline.accounting.epsilon import Epsilon
from pipeline.accounting.event import (
    CONVERSIONS,
    PrivacyEvent,
    TooLittleNoise,
    noise_multiplier_for,
    sensitivity,
)
from pipeline.accounting.finite_precision import accounted_delta, with_sampler_error
from pipeline.accounting.label import with_sigma
from pipeline.accounting.stated import Event, StatedEvent, stated_event, unsampled
from pipeline.trials.config import ConfigError, TrialConfig
from pipeline.trials.mechanism import MIN_NOISE_OVER_C, certified_mechanisms

IN_THE_BATCH = "none (the record is in the batch)"  # sampler of one step, for an attacker who knows that


def event_of(config: TrialConfig, epochs_done: int) -> Event:
    """Return the privacy event of a trial's first `epochs_done` epochs: of its Gaussian mechanism, or a stated one.

    A stated Gaussian mechanism on Poisson batches becomes a `PrivacyEvent`: this package's own accountants take it, as
    they take built-in trainers. All other stated events are for the accountants of `dp_accounting`.
    """
    mechanism = config.parts.mechanism
    if mechanism.certified or not mechanism.composed:
        return gaussian_event(config, epochs_done)
    stated = stated_event(config, epochs_done)
    match stated.relation, stated.event:
        case "add/remove", PoissonSampledDpEvent(sampling_probability=q, event=GaussianDpEvent(noise_multiplier=z)) \
                if 0 < q <= 1:
            return PrivacyEvent("poisson", stated.relation, z, stated.steps, stated.epochs, sampling_rate=q)
    return stated


def gaussian_event(config: TrialConfig, epochs_done: int) -> PrivacyEvent:
    """Return the privacy event of the first `epochs_done` epochs of a trial with a Gaussian mechanism.

    Its noise multiplier is None if a target epsilon sets it, and is calibrated later (`with_noise`).
    """
    mechanism, sampler = config.parts.mechanism, config.parts.sampler
    if not mechanism.certified:
        raise ValueError(f"mechanism: must be one of {', '.join(certified_mechanisms())}, got {mechanism.name}")
    sensitivity_over_norm = sensitivity(mechanism.sensitivity_ratio(config), sampler.relation)
    noise_multiplier = None if config.target_epsilon else config.noise_multiplier / sensitivity_over_norm
    n_train, _ = config.split_sizes
    return PrivacyEvent(sampler.name, sampler.relation, noise_multiplier, epochs_done * config.steps_per_epoch,
                        epochs_done, **sampler.rates(n_train))


@lru_cache(maxsize=1024)
def with_noise(config: TrialConfig) -> TrialConfig:
    """Return the trial with the noise that its target epsilon needs, for the whole run; unchanged without a target.

    `target_epsilon` sets the noise multiplier, or the setting that calibrates a user's trainer. `target_label_epsilon`
    sets sigma. A trial that has begun keeps the noise that its run records, as earlier versions may have calibrated
    another.
    """
    if config.recorded_noise:
        return TrialConfig(config.given, target_epsilon=0.0, target_label_epsilon=0.0, **dict(config.recorded_noise))
    mechanism, trainer = config.parts.mechanism, config.parts.trainer
    if not mechanism.composed or not config.target_epsilon:
        return with_sigma(config)
    if not mechanism.certified:  # a user's trainer, which names the setting that scales its noise
        def with_setting(value: float) -> TrialConfig:
            return TrialConfig(config.given, target_epsilon=0.0, **{trainer.calibrates: value})

        def epsilon_of(value: float) -> float:
            try:
                return certified_epsilons(with_setting(value), config.epochs)[0].value  # the tightest comes first
            except TooLittleNoise:  # for the accountants
                return math.inf

        of = trainer.calibrates, config.trial_key  # a trainer's event may depend on every setting
        return with_setting(kept(of, config.target_epsilon, epsilon_of, 0.0, lambda: calibrate(
            config.target_epsilon, epsilon_of, trainer.calibrates)))
    event = gaussian_event(config, config.epochs)
    ratio = mechanism.sensitivity_ratio(config)
    # the setting is over the norm C to which noise is scaled, the event's multiplier over the sensitivity
    sensitivity_over_norm = sensitivity(ratio, event.relation)
    least = MIN_NOISE_OVER_C * min(ratio, 1) / sensitivity_over_norm  # of the setting, or of noise over what is bounded
    over_sensitivity = noise_multiplier_for(config.target_epsilon, event, accounted_delta(config), least=least)
    return TrialConfig(config.given, noise_multiplier=over_sensitivity * sensitivity_over_norm, target_epsilon=0.0)


def calibrated_noise(config: TrialConfig) -> dict[str, float]:
    """Return a trial's calibrated noise multiplier or sigma, by setting; its settings have only the target."""
    noise_settings = {"target_epsilon": config.parts.trainer.calibrates or "noise_multiplier",
                      "target_label_epsilon": "sigma"}
    return {name: float(getattr(with_noise(config), name)) for target, name in noise_settings.items()
            if config.canonical().get(target)}


def calibrated(config: TrialConfig) -> dict[str, str]:
    """Return the tags with a trial's calibrated noise."""
    return {f"calibrated.{name}": repr(value) for name, value in calibrated_noise(config).items()}


def step_mu(config: TrialConfig) -> float:
    """Return mu, the parameter of Gaussian differential privacy, of one step: 1/noise multiplier.

    The attacker knows that the record may be in the batch, so sampling does not amplify privacy.
    """
    noise_multiplier = gaussian_event(with_noise(config), 1).noise_multiplier
    if not noise_multiplier:
        raise ValueError(f"noise_multiplier: must be > 0, or nothing is certified, got {noise_multiplier}")
    return 1 / noise_multiplier


def certified_step(config: TrialConfig) -> Epsilon:
    """Return the certified epsilon of one step, for the attacker of `step_mu`."""
    return Epsilon(value=gdp_eps(step_mu(config), config.delta), kind="certified", variant="one_step",
                   relation=config.parts.sampler.relation, sampler=IN_THE_BATCH, delta=config.delta,
                   conversion="exact", note="one release, no amplification")


def stated_step(config: TrialConfig) -> tuple[float | None, Epsilon]:
    """Return (mu, epsilon) of one stated step, for the attacker of `step_mu`; mu is None unless it is Gaussian."""
    stated = stated_event(with_noise(config), 1)
    step = StatedEvent(stated.relation, unsampled(stated.event), steps=1, epochs=1)
    if not step.accountants:
        raise ConfigError(f"event: no accountant takes {step.event}, which is left of it without sampling")
    mu: float | None
    conversion = "exact"
    if not isinstance(step.event, GaussianDpEvent):
        tightest = step.accountants[0]
        mu, value, conversion = None, step.value(config.delta, tightest), CONVERSIONS[tightest]
    elif step.event.noise_multiplier == 0:
        mu = value = math.inf
    else:
        mu = 1 / step.event.noise_multiplier
        value = gdp_eps(mu, config.delta)
    return mu, Epsilon(value, kind="stated", variant="one_step", relation=step.relation, sampler=IN_THE_BATCH,
                       delta=config.delta, conversion=conversion,
                       note=f"one release, no amplification: {step.event}")


def certified_epsilons(config: TrialConfig, epochs_done: int) -> list[Epsilon]:
    """Return epsilon of all released iterates together, by every accountant for the trial's event, tightest first.

    If `epochs_done` exceeds the trial's epochs, several draws of its noise are composed. The list is empty without a
    Gaussian mechanism or a stated event. Epsilons of a stated event have kind `stated`.
    """
    mechanism = config.parts.mechanism
    is_stated = mechanism.kind(config) == "stated"
    if not (is_stated or mechanism.certified):
        return []
    noisy = with_noise(config)
    event = event_of(noisy, epochs_done)
    kind, sampler, note = "certified", event.sampler, event.note
    if is_stated:
        kind, sampler, note = "stated", StatedEvent.sampler, f"{stated_of(noisy)}, and {StatedEvent.note}"
    epsilons = []
    for accountant in event.accountants:
        value = with_sampler_error(config, event.value(accounted_delta(config), accountant), epochs_done)
        epsilons.append(Epsilon(value, kind, accountant, event.relation, sampler, config.delta,
                                CONVERSIONS[accountant], note))
    return sorted(epsilons, key=lambda epsilon: epsilon.value) if is_stated else epsilons


def stated_of(config: TrialConfig) -> str:
    """Return a clause with the event that a trainer states for a trial; `config` has its calibrated noise."""
    trainer = config.parts.trainer
    return f"of every {trainer.per} trainer '{trainer.name}' states {trainer.stated_event(config)}"
