"""Conditions on a trial before training, so that its epsilon covers everything that leaves the private folder.

`TrialConfig` accepts trials that break a condition, because stores of earlier versions have them. Such trials are read,
reported and counted, but not trained any more.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

from pipeline.trials.fields import ConfigError

if TYPE_CHECKING:
    from pipeline.trials.config import TrialConfig


def check_promises(trials: Iterable[TrialConfig], published: Collection[str] | None = ()) -> None:
    """Refuse trials that may not be trained.

    Args:
        trials: `TrialConfig`s.
        published: digests of feature files that were in the tracking store from its beginning; None if no store is
            written, so that files need no names.

    Raises:
        ConfigError: naming the field and value of the first refused trial, and what would be accepted.
    """
    for c in trials:
        check_noise(c)
        unnamed = c.parts.features.of_file and c.disclosure != "plain" and not c.feature_name
        if unnamed and published is not None and c.feature_sha256 not in published:
            raise ConfigError(f"feature_name: must be given with features 'file' and private_metrics '{c.disclosure}', "
                              "got ''; it stands for the file in the tracking store, where a digest of private records "
                              "lets anyone with a candidate file check whether it is that one")
        if c.secure:
            _check_secure(c)


def check_noise(c: TrialConfig, place: str = "") -> None:
    """Refuse a mechanism that bounds contributions unless its noise is given; an explicit 0 is accepted.

    A user's trainer is also refused in another version than the trial's.

    Args:
        c: a `TrialConfig`; a trial from a store always gives its noise, because its params name every setting.
        place: of the mechanism in a file.

    Raises:
        ConfigError: for such a mechanism with neither a target nor a noise multiplier, and for another version.
    """
    mechanism, trainer = c.parts.mechanism, c.parts.trainer
    if not trainer.own and c.trainer_version != trainer.version:
        raise ConfigError(f"trainer_version: must be {trainer.version}, that of trainer '{trainer.name}' as it is "
                          f"loaded, got {c.trainer_version}")
    name = "noise_multiplier" if mechanism.certified else trainer.calibrates
    if name and not mechanism.kind(c) and name not in dict(c.given):
        whose = f"trainer '{c.trainer}'" if mechanism.held else f"mechanism '{c.mechanism}'"
        raise ConfigError(f"{name}: must be given with {whose}, got neither that nor "
                          "target_epsilon, which leaves epsilon infinite; give one of them, or write 0 for no noise "
                          f"and no guarantee{place and f', at {place}'}")


def _check_secure(c: TrialConfig) -> None:
    """Refuse secret noise for a trial whose guarantee would have a gap.

    Gaps are statistics of the training records in the inputs, and sums that are rounded.

    Raises:
        ConfigError: naming the setting.
    """
    if c.inputs == "standardized" and not c.parts.data.spec.published:
        raise ConfigError(f"inputs: 'standardized' takes means and deviations of the training records of {c.dataset}, "
                          "which no epsilon covers, got it with noise 'secure'; use 'centered'")
    if c.parts.network.convolutional:
        raise ConfigError("network: the proof of noise 'secure' is of integers, which convolutions are not "
                          "computed in, got 'convnet'; use 'mlp', or noise 'research'")
    check_exact(c)


def check_exact(c: TrialConfig) -> None:
    """Refuse secret noise with a Gaussian mechanism unless contributions are integers.

    Raises:
        ConfigError: for a trial of this package's networks in floating point. Stores of earlier versions have such
            trials.
    """
    if sums_in_floating_point(c):
        why_not = c.parts.mechanism.not_integer
        instead = f" with mechanism 'per_example' ({why_not})" if why_not else ""
        raise ConfigError(f"arithmetic: must be 'integer' with noise 'secure' and mechanism '{c.mechanism}', whose "
                          f"guarantee is of sums without rounding, got '{c.matmul_precision}'; use that{instead}, or "
                          "noise 'research' (a sweep that was begun so trains no more: copy it under another name)")


def sums_in_floating_point(c: TrialConfig) -> bool:
    """Whether contributions to a release with secret noise would be summed in floating point.

    Earlier versions did this: such trials are read and reported, but not trained any more.
    """
    return c.secure and c.parts.mechanism.certified and c.parts.trainer.own and not c.exact
