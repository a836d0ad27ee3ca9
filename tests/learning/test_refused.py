"""Settings of trials that learning cannot keep, each refused in one line with its value and the remedy."""

import pytest
from mapped import BESIDE, ENCODER, JOINT, PATCHES, SCATTERING
from test_automatic import TRIAL as AUTOMATIC
from test_feedback_space import DFA as DENOISED
from test_fixed_point import BASE as SECURE
from test_integers import BASE

from pipeline.trials.config import ConfigError, TrialConfig

INTEGERS = {name: value for name, value in BASE.given if name != "arithmetic"} | {"arithmetic": "integer"}
REFUSED = {  # settings that are valid, and changes to them with what is said of each
    "automatic": (AUTOMATIC.given, [
        ({"clipping_gamma": 0.0}, "clipping_gamma: must be >= 1e-06")]),
    "encoder": (ENCODER.given, [
        ({"encoder_pools": 3}, "encoder_pools: must be at most the 2 places in a row of the encoder's third layer for "
                               "images of digits, got 3"),
        ({"encoder_pools": 1, "feature_groups": 288}, "feature_groups: leaves groups of one value, .* got 288")]),
    "maps side by side": (JOINT.given, [
        ({"network": "convnet", "channels": (4,), "kernel": 3, "algorithm": "bp", "projector": ""},
         "network: convolutions take images .*, and records of "
         r"features 'patches' have the shape \(1260,\), got 'convnet'; use 'mlp'"),
        ({"patch_beside": "scattering", "beside_weight": 0.0, **BESIDE}, "beside_weight: must be > 0 for"),
        ({"patch_beside": "encoder_and_scattering", "beside_weight": 0.0, **BESIDE},
         "beside_weight: must be > 0 for scattering, which has pools of its own, got 0"),
        ({"feature_groups": 2}, "beside_weight: takes features that are normalised in one group")]),
    "scattering": (SCATTERING.given, [
        ({"scattering_scales": 4}, r"scattering_scales: averages over 2\^J pixels, of which images of digits have 8"),
        ({"feature_decorrelation": 0.5}, "feature_decorrelation: takes channels that are standardised .* got 0.5 with "
                                         "feature_reference 'none'; use 'dead_leaves', or 0")]),
    "patches": (PATCHES.given, [
        ({"patch_size": 9}, "patch_size: must be at most the 8 rows of images of digits, got 9"),
        ({"patch_pools": 7},
         "patch_pools: must be at most the 6 places in a row of patches of size 3 in images of digits, "
         r"got 7; smaller patches \(patch_size\) have more"),
        ({"patch_filters": 5556, "patch_pools": 3},
         r"patch_filters: with 3 x 3 pools \(patch_pools\) must give at most "
         "100,000 features of a record, got 5,556, which give 100,008"),
        ({"patch_filters": 2049, "feature_decorrelation": 0.5},
         "feature_decorrelation: takes at most 4,096 channels, got 0.5 with 4,098; "),
        ({"patch_beside": "encoder", "patch_pools": 3},
         "patch_pools: must be at most the 2 places in a row of the encoder's third"),
        ({"feature_groups": 5}, "feature_groups: must divide the 24 channels of the features, got 5")]),
    "denoise": (DENOISED.given, [
        ({"network": "convnet"}, "denoise: puts signals of fully connected layers .* use algorithm 'hybrid'")]),
    "secure": (SECURE.given, [
        ({"mechanism": "photonic", "sampler": "shuffled", "noise_multiplier": 0.0}, "noise: needs a guarantee"),
        ({"noise_multiplier": 0.0},
         "noise: needs a guarantee that it can keep: mechanism 'per_example' or 'automatic' or "
         "'component'"),
        ({"algorithm": "pdfa", "projector": "opu_hardware"}, "projector: nobody has shown that a real OPU projects"),
        ({"canaries": 100}, "canaries: their audit is computed from private records"),
        ({"clipping_norm": 1e-300}, "clipping_norm: must be at least 1e-15 and at most 1e.15 with noise 'secure'"),
        ({"noise_multiplier": 2e6},
         r"noise_multiplier: must be at most [\d.e+]+ with arithmetic 'integer', or the grid"),
        ({"arithmetic": "float32"},
         "arithmetic: must be 'integer' with noise 'secure' and mechanism 'per_example', whose guarantee is of sums "
         "without rounding, got 'float32'; use that, or noise 'research'"),
        ({"mechanism": "component", "arithmetic": "float32"},
         "arithmetic: must be 'integer' with noise 'secure' and mechanism 'component', "),
        ({"network": "convnet", "channels": (4,), "kernel": 3, "algorithm": "hybrid", "projector": ""},
         "network: the proof of noise 'secure' is of integers, .* got 'convnet'; use 'mlp', or noise 'research'"),
        ({"noise": "research", "private_metrics": "noisy", "canaries": 100},
         "canaries: their audit is computed from priv"),
        ({"private_metrics": "plain"}, "private_metrics: must be 'noisy' or 'withheld' with noise 'secure'")]),
    "integers": (INTEGERS, [
        ({"mechanism": "none", "noise_multiplier": 0.0}, "arithmetic: 'integer' does not go with mechanism 'none': .*; "
         "use mechanism 'per_example' or 'automatic' or 'component', or arithmetic 'float32'"),
        ({"network": "convnet", "channels": (4,),
         "kernel": 3}, "arithmetic: 'integer' does not go with network 'convnet'"),
        ({"noise_multiplier": 1e7}, "noise_multiplier: must be at most .* with arithmetic 'integer', or the grid"),
        ({"clipping_norm": 1e-320}, "clipping_norm: must be at least 1e-290 with arithmetic .*, got 9.9.*e-321"),
        ({"input_norm": 1e160}, "input_norm: must be 0, or at least 1e-06 and at most 1e.06 with arithmetic 'integer'"),
        ({"features": "scattering", "scattering_scales": 1, "feature_groups": 0},
         "input_norm: must be > 0 with arithmetic 'integer' and features")]),
    "output layer of feedback": ({"output_init": "feedback"}, [
        ({"algorithm": "bp"}, "output_init: 'feedback' needs a feedback matrix B that is known"),
        ({"algorithm": "pdfa", "projector": "opu_hardware"},
         "output_init: 'feedback' needs a feedback matrix B that")]),
}


@pytest.mark.parametrize(("settings", "change", "message"), [
    pytest.param(dict(settings), *row, id=f"{name}-{number}")
    for name, (settings, rows) in REFUSED.items() for number, row in enumerate(rows)])
def test_refused_in_one_line_with_value_and_remedy(settings, change, message):
    assert TrialConfig(**settings)
    with pytest.raises(ConfigError, match=f"^{message}") as raised:
        TrialConfig(**{**settings, **change})
    assert "\n" not in str(raised.value)
