"""From a trial to its privacy event, and calibration of the noise for a target epsilon.

One place derives the event from the settings that also build mechanism and sampler, so they cannot disagree. With
noise z C on a sum, the event has z under add/remove and z/2 under replace-one, divided by `Mechanism.sensitivity_ratio`
if noise is scaled to a smaller norm than the largest contribution.
"""

from __future__ import annotations

import dataclasses
import math
import traceback
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent

from pipeline.accounting.calibration import calibrate, kept
from pipeline.accounting.dp_events import LEAST_NOISE_OVER_SENSITIVITY, PLDAccountant, fault, hashable, unsampled
from pipeline.accounting.epsilon import Epsilon
from pipeline.accounting.event import BY_TRAINER, CONVERSIONS, PrivacyEvent, TooLittleNoise, gaussian, sensitivity
from pipeline.accounting.finite_precision import accounted_delta, with_sampler_error
from pipeline.accounting.label import with_sigma
from pipeline.trials.config import ConfigError, TrialConfig
from pipeline.trials.mechanism import MIN_NOISE_OVER_C
from pipeline.trials.part import names_with
from pipeline.trials.trainer import STEP

WORTH_SAYING = 0.9  # share of the noise, from which on a saving is not worth a line
IN_THE_BATCH = "none (the record is in the batch)"  # sampler of one step, for an attacker who knows that


def event_of(config: TrialConfig, epochs_done: int) -> PrivacyEvent:
    """Return the privacy event of a trial's first `epochs_done` epochs: of its Gaussian mechanism, or a stated one.

    Noise of a Gaussian mechanism with a target is None until `with_noise` sets it. Other mechanisms are refused.
    """
    mechanism, sampler = config.parts.mechanism, config.parts.sampler
    if not mechanism.composed:
        raise ValueError(f"mechanism: must be one of {', '.join(names_with('mechanism', 'certified'))}, got "
                         f"{mechanism.name}")
    if not mechanism.certified:
        return _stated_event(config, epochs_done)
    sensitivity_over_norm = sensitivity(mechanism.sensitivity_ratio(config), sampler.relation)
    # The setting is over the norm that scales the noise, the event's is over the sensitivity.
    noise_multiplier = None if config.target_epsilon else config.noise_multiplier / sensitivity_over_norm
    n_train, _ = config.split_sizes
    return gaussian(sampler.name, noise_multiplier, epochs_done * config.steps_per_epoch, epochs_done,
                    **sampler.rates(n_train))


def _stated_event(config: TrialConfig, epochs_done: int) -> PrivacyEvent:
    """Return the event that a trial's trainer states for its first epochs; refuse one that cannot be accounted for."""
    trainer = config.parts.trainer
    if config.trainer_version != trainer.version:  # another version may state another event
        raise ConfigError(f"trainer_version: version {config.trainer_version} of trainer '{trainer.name}' states what "
                          f"its trials cost, and version {trainer.version} is loaded; load that file")
    file = Path(trainer.source).name
    try:
        stated = trainer.stated_event(config)
    except Exception as error:
        lines = [f":{frame.lineno}" for frame in traceback.extract_tb(error.__traceback__)
                 if frame.filename == trainer.source]
        raise ConfigError(f"event: of trainer '{trainer.name}' fails with {type(error).__name__}: {error} "
                          f"({file}{''.join(lines[-1:])})") from error
    source = f"trainer '{trainer.name}' ({file}:{trainer.works.__code__.co_firstlineno})"
    if found := fault(stated):
        raise ConfigError(f"event: {found} of {source}")
    per_epoch = config.steps_per_epoch if trainer.per == STEP else 1  # repetitions of the stated event
    event = PrivacyEvent(hashable(stated), epochs_done * per_epoch, epochs_done, trainer.relation)
    if event.accountants:
        match trainer.relation, event.step:
            case "add/remove", PoissonSampledDpEvent(sampling_probability=q, event=GaussianDpEvent()) if q > 0:
                # the package's own accountants take it, as of built-in trainers
                return dataclasses.replace(event, sampler="poisson")
        return event
    if PLDAccountant(event.neighbours).supports(stated):
        raise TooLittleNoise("event: its noise must be 0 (no guarantee) or at least some "
                             f"{LEAST_NOISE_OVER_SENSITIVITY} times the sensitivity, below which nothing can be "
                             f"accounted for, got {stated} of {source}")
    raise ConfigError(f"event: no accountant takes {stated} under {trainer.relation}, got it of {source}; Poisson "
                      "sampled or plain Gaussian and Laplace events, randomized response for pure epsilon, "
                      "zero-concentrated ones, and their compositions are taken")


@lru_cache(maxsize=1024)
def with_noise(config: TrialConfig) -> TrialConfig:
    """Return the trial with the noise that its target epsilon, or label epsilon, needs for the whole run.

    The noise stands in the target's place. A trial without a target is returned as it is.
    """
    if config.recorded_noise:  # of a trial that has begun: earlier versions may have calibrated another
        return TrialConfig(config.given, target_epsilon=0.0, target_label_epsilon=0.0, **dict(config.recorded_noise))
    mechanism, target = config.parts.mechanism, config.target_epsilon
    if not mechanism.composed or not target:
        return with_sigma(config)
    if not mechanism.certified:
        setting = config.parts.trainer.calibrates  # which scales the noise of a user's trainer

        def with_setting(value: float) -> TrialConfig:
            return TrialConfig(config.given, target_epsilon=0.0, **{setting: value})

        def epsilon_of(value: float) -> float:
            try:
                return certified_epsilons(with_setting(value), config.epochs)[0].value  # the tightest comes first
            except TooLittleNoise:  # for the accountants
                return math.inf

        # The key stands for all settings, as a trainer's event may depend on every one.
        return with_setting(kept((setting, config.trial_key), target, epsilon_of, 0.0,
                                 lambda: calibrate(target, epsilon_of, setting)))
    event = event_of(config, config.epochs)
    ratio = mechanism.sensitivity_ratio(config)
    sensitivity_over_norm = sensitivity(ratio, event.relation)  # as in `event_of`
    least = MIN_NOISE_OVER_C * min(ratio, 1) / sensitivity_over_norm  # of the setting, or of noise over what is bounded
    over_sensitivity = event.noise_for(target, accounted_delta(config), least)
    return TrialConfig(config.given, noise_multiplier=over_sensitivity * sensitivity_over_norm, target_epsilon=0.0)


def calibrated_noise(config: TrialConfig) -> dict[str, float]:
    """Return {setting: calibrated noise} of a trial with a target, else {}; the trial itself has only the target."""
    noise_settings = {"target_epsilon": config.parts.trainer.calibrates or "noise_multiplier",
                      "target_label_epsilon": "sigma"}
    return {name: float(getattr(with_noise(config), name)) for target, name in noise_settings.items()
            if config.canonical().get(target)}


def without_amplification(trials: Iterable[TrialConfig]) -> list[str]:
    """Return a line on the noise that sampling would save the first trial with a target but shuffled batches.

    Noise under replace-one is twice that under add/remove; only what is saved beyond that is named.
    """
    trial = next((trial for trial in trials if trial.target_epsilon and trial.parts.mechanism.composed
                  and not trial.parts.sampler.amplified), None)
    if trial is None:
        return []
    try:
        sampled = calibrated_noise(TrialConfig(trial.given, sampler="poisson"))
    except ConfigError:  # some settings allow no Poisson batches
        return []
    return [f"sampler: {trial.sampler} batches amplify nothing: for epsilon {trial.target_epsilon:g}, {name} is "
            f"{noise:.4g}; with `sampler: poisson` (batches of random size; add/remove, which alone halves it) it is "
            f"{sampled[name]:.4g}" for name, noise in calibrated_noise(trial).items()
            if 2 * sampled[name] < WORTH_SAYING * noise]


def calibrated(config: TrialConfig) -> dict[str, str]:
    """Return the tags `calibrated.<setting>` with a trial's calibrated noise; none without a target."""
    return {f"calibrated.{name}": repr(value) for name, value in calibrated_noise(config).items()}


def step_mu(config: TrialConfig) -> float:
    """Return mu (Gaussian DP) of one step of a certified trial, without amplification; refuse a trial without noise."""
    noise_multiplier = event_of(with_noise(config), 1).noise_multiplier
    if not noise_multiplier:
        raise ValueError(f"noise_multiplier: must be > 0, or nothing is certified, got {noise_multiplier}")
    return 1 / noise_multiplier


def one_step(config: TrialConfig) -> tuple[float | None, Epsilon]:
    """Return (mu, epsilon) of one step of a certified or stated trial, without amplification.

    mu is None unless the step composes Gaussians alone. Of an event stated for an epoch, it is of one epoch.
    """
    event = event_of(with_noise(config), 1)
    # The attacker knows that the record may be in the batch, so sampling does not amplify privacy.
    step = PrivacyEvent(unsampled(event.step), steps=1, epochs=1, relation=event.relation)
    kind, note = "certified", "one release, no amplification"
    if not config.parts.mechanism.certified:
        kind, note = "stated", f"{note}: {step.step}"
    if not step.accountants:
        raise ConfigError(f"event: no accountant takes {step.step}, which is left of it without sampling")
    conversion = CONVERSIONS["gdp" if step.mu is not None else step.accountants[0]]  # a Gaussian's is exact
    return step.mu, Epsilon(step.value(config.delta), kind, variant="one_step", relation=step.relation,
                            sampler=IN_THE_BATCH, delta=config.delta, conversion=conversion, note=note)


def certified_epsilons(config: TrialConfig, epochs_done: int) -> list[Epsilon]:
    """Return the certified or stated epsilons, if any, of all released iterates by every accountant, tightest first.

    Noise is calibrated here for the whole run, whatever `epochs_done`; epsilons may be infinite.
    """
    mechanism = config.parts.mechanism
    kind = "stated" if mechanism.kind(config) == "stated" else "certified"
    if not (kind == "stated" or mechanism.certified):
        return []
    noisy = with_noise(config)
    event = event_of(noisy, epochs_done)
    if kind == "stated":
        sampler, note = BY_TRAINER, f"{stated_of(noisy)}, and nobody here checked it"
    else:
        sampler, note = event.sampler, "no noise, no guarantee"
        if event.z:
            note = (f"noise multiplier {event.z:.4g}; {config.parts.sampler.part_in_step}; holds for every released "
                    "iterate")
    epsilons = [Epsilon(with_sampler_error(config, event.value(accounted_delta(config), accountant), epochs_done),
                        kind, accountant, event.relation, sampler, config.delta, CONVERSIONS[accountant], note)
                for accountant in event.accountants]
    # A sampler lists its accountants by tightness; those of a stated event have no fixed order.
    return sorted(epsilons, key=lambda epsilon: epsilon.value) if kind == "stated" else epsilons


def stated_of(config: TrialConfig) -> str:
    """Return a clause with the event that a trainer states for a trial; `config` has its calibrated noise.

    Tracked notes begin with it, and `sweep.checks` compares them: another wording would refuse begun sweeps.
    """
    trainer = config.parts.trainer
    return f"of every {trainer.per} trainer '{trainer.name}' states {trainer.stated_event(config)}"
