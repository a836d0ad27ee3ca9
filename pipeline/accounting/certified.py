"""From a trial to its privacy event, and calibration of the noise for a target epsilon.

One place derives the event from the settings that also build mechanism and sampler, so they cannot disagree. With
noise z C on a sum, the event has z under add/remove and z/2 under replace-one, divided by `Mechanism.sensitivity_ratio`
if noise is scaled to a smaller norm than the largest contribution.
"""

from __future__ import annotations

from functools import lru_cache

from pipeline.accounting.curves import gdp_eps
from pipeline.accounting.epsilon import Epsilon
from pipeline.accounting.event import CONVERSIONS, PrivacyEvent, sensitivity
from pipeline.accounting.finite_precision import accounted_delta, with_sampler_error
from pipeline.accounting.label import with_sigma
from pipeline.trials.config import TrialConfig
from pipeline.trials.mechanism import MIN_NOISE_OVER_C
from pipeline.trials.part import names_with

IN_THE_BATCH = "none (the record is in the batch)"  # sampler of one step, for an attacker who knows that


def event_of(config: TrialConfig, epochs_done: int) -> PrivacyEvent:
    """Return the privacy event of the first `epochs_done` epochs of a trial with a Gaussian mechanism.

    The noise of a trial with a target is None until `with_noise` sets it. Other mechanisms are refused.
    """
    mechanism, sampler = config.parts.mechanism, config.parts.sampler
    if not mechanism.certified:
        raise ValueError(f"mechanism: must be one of {', '.join(names_with('mechanism', 'certified'))}, got "
                         f"{mechanism.name}")
    sensitivity_over_norm = sensitivity(mechanism.sensitivity_ratio(config), sampler.relation)
    # The setting is over the norm that scales the noise, the event's is over the sensitivity.
    noise_multiplier = None if config.target_epsilon else config.noise_multiplier / sensitivity_over_norm
    n_train, _ = config.split_sizes
    return PrivacyEvent(sampler.name, noise_multiplier, epochs_done * config.steps_per_epoch, epochs_done,
                        **sampler.rates(n_train))


@lru_cache(maxsize=1024)
def with_noise(config: TrialConfig) -> TrialConfig:
    """Return the trial with the noise that its target epsilon, or label epsilon, needs for the whole run.

    The noise stands in the target's place. A trial without a target is returned as it is.
    """
    if config.recorded_noise:  # a run has begun with this noise and keeps it, whatever is calibrated today
        return TrialConfig(config.given, target_epsilon=0.0, target_label_epsilon=0.0, **dict(config.recorded_noise))
    mechanism, target = config.parts.mechanism, config.target_epsilon
    if not mechanism.certified or not target:
        return with_sigma(config)
    event = event_of(config, config.epochs)
    ratio = mechanism.sensitivity_ratio(config)
    sensitivity_over_norm = sensitivity(ratio, event.relation)  # as in `event_of`
    # `Gaussian.check` requires max(z, z/ratio) >= MIN_NOISE_OVER_C of the setting z; `least` is over the sensitivity.
    least = MIN_NOISE_OVER_C * min(ratio, 1) / sensitivity_over_norm
    over_sensitivity = event.noise_for(target, accounted_delta(config), least)
    return TrialConfig(config.given, noise_multiplier=over_sensitivity * sensitivity_over_norm, target_epsilon=0.0)


def calibrated_noise(config: TrialConfig) -> dict[str, float]:
    """Return {setting: calibrated noise} of a trial with a target, else {}; the trial itself has only the target."""
    noise_settings = {"target_epsilon": "noise_multiplier", "target_label_epsilon": "sigma"}
    return {name: float(getattr(with_noise(config), name)) for target, name in noise_settings.items()
            if config.canonical().get(target)}


def calibrated(config: TrialConfig) -> dict[str, str]:
    """Return the tags `calibrated.<setting>` with a trial's calibrated noise; none without a target."""
    return {f"calibrated.{name}": repr(value) for name, value in calibrated_noise(config).items()}


def step_mu(config: TrialConfig) -> float:
    """Return mu (Gaussian DP) of one step of a certified trial, without amplification; refuse a trial without noise."""
    noise_multiplier = event_of(with_noise(config), 1).noise_multiplier
    if not noise_multiplier:
        raise ValueError(f"noise_multiplier: must be > 0, or nothing is certified, got {noise_multiplier}")
    return 1 / noise_multiplier


def one_step(config: TrialConfig) -> Epsilon:
    """Return epsilon of one step of a certified trial, without amplification."""
    # The attacker knows that the record may be in the batch, so sampling does not amplify privacy.
    return Epsilon(gdp_eps(step_mu(config), config.delta), "certified", variant="one_step",
                   relation=config.parts.sampler.relation, sampler=IN_THE_BATCH, delta=config.delta,
                   conversion=CONVERSIONS["gdp"], note="one release, no amplification")


def certified_epsilons(config: TrialConfig, epochs_done: int) -> list[Epsilon]:
    """Return the certified epsilons, if any, of all released iterates by every accountant, tightest first.

    Noise is calibrated here for the whole run, whatever `epochs_done`; epsilons may be infinite.
    """
    if not config.parts.mechanism.certified:
        return []
    event = event_of(with_noise(config), epochs_done)
    note = "no noise, no guarantee"
    if event.z:
        part = config.parts.sampler.part_in_step.format(trial=config, event=event)
        over = " over twice a contribution, as one record replaces another" if event.relation == "replace-one" else ""
        note = f"noise multiplier {event.z:.4g}{over}; {part}; holds for every released iterate"
    return [Epsilon(with_sampler_error(config, event.value(accounted_delta(config), accountant)),
                    "certified", accountant, event.relation, event.sampler, config.delta, CONVERSIONS[accountant], note)
            for accountant in event.accountants]
