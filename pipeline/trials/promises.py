"""Conditions on a trial before training, so that its epsilon covers everything that leaves the private folder.

A trial that breaks one is read, reported and counted, but not trained.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from pipeline.trials.fields import refuse
from pipeline.trials.mechanism import LARGEST_NUMBER
from pipeline.trials.shapes import n_parameters

if TYPE_CHECKING:
    from pipeline.trials.config import TrialConfig

LONGEST_ROW = 2**23  # numbers, for which the margins of a row's norm hold


def check_promises(trials: Iterable[TrialConfig], stored: bool = True) -> None:
    """Refuse trials that may not be trained: their epsilon would not cover all that leaves the private folder.

    Unless they are `stored`, in a tracking store, feature files need no names.
    """
    for trial in trials:
        check_noise(trial)
        trial.parts.network.why_alone(trial)
        unnamed = trial.parts.features.of_file and trial.disclosure != "plain" and not trial.feature_name
        refuse(stored and unnamed, "feature_name", f"must be given with features 'file' and private_metrics "
               f"'{trial.disclosure}'", "''", "it stands for the file in the tracking store; by a digest anyone could "
               "test whether a candidate file is the private one")
        if not trial.secure:
            continue
        # What follows is a gap in the guarantee: statistics of training records, or norms that round.
        refuse(trial.inputs == "standardized" and not trial.parts.data.spec.published, "inputs", "'standardized' takes "
               f"means and deviations of the training records of {trial.dataset}, which no epsilon covers",
               "it with noise 'secure'", "use 'centered'")
        n_weights = n_parameters(trial.layers)
        refuse(trial.parts.network.own and n_weights > LONGEST_ROW, "noise", f"'secure' takes contributions of at most "
               f"{LONGEST_ROW:,} numbers, for which its proof holds", f"it with {n_weights:,}", "use 'research'")


def check_noise(trial: TrialConfig) -> None:
    """Refuse a trial whose noise is not given or too large, or whose version of a user's network is not loaded."""
    mechanism, network = trial.parts.mechanism, trial.parts.network
    given = getattr(trial, "network_version", 0)  # a setting of users' networks alone
    refuse(network.own and given != network.version, "network_version",
           f"must be {network.version}, that of network '{network.name}' as it is loaded", given)
    refuse(trial.noise_multiplier > LARGEST_NUMBER, "noise_multiplier", f"must be at most {LARGEST_NUMBER:g}, whose "
           "square is a number", f"{trial.noise_multiplier:g}")
    got = "target_epsilon 0" if "target_epsilon" in dict(trial.given) else "neither that nor target_epsilon"
    # A trial from a store always gives its noise, because its params name every setting.
    refuse(mechanism.certified and not mechanism.kind(trial) and "noise_multiplier" not in dict(trial.given),
           "noise_multiplier", f"must be given with mechanism '{trial.mechanism}'", f"{got}, which leaves epsilon "
           "infinite", "give it, or a target_epsilon > 0, or write 0 for no noise and no guarantee")
