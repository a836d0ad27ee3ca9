import dataclasses
import re

import pytest

from pipeline.trials.config import ConfigError, TrialConfig, settings
from pipeline.trials.shapes import n_parameters

PRIVATE = {"mechanism": "photonic"}


def test_every_field_is_documented():
    for f in settings():
        assert len(f.metadata["doc"]) >= 8, f.name


@pytest.mark.parametrize(("values", "message"), [
    ({"sigma": -0.1}, r"sigma: must be >= 0, got -0.1"),
    ({"sigma": float("nan")}, r"sigma: must be a finite number, got nan"),
    ({"sigma": "0.1"}, r"sigma: must be a number, got the text '0.1'"), ({"tau_f": 0}, r"tau_f: must be > 0, got 0"),
    ({"threshold": 1.0}, r"threshold: must be < 1, got 1.0"),
    ({"algorithm": "fa"}, "algorithm: must be one of bp, dfa, tdfa"),
    ({"algoritm": "bp"}, "algoritm: unknown field, got 'bp'; did"),
    ({"nose": 1}, "nose: unknown field, got 1; did you mean"), ({"qqq": 1}, "qqq: unknown field, got 1; `photonic"),
    ({"batch_size": 54_001}, "batch_size: must be at most the 54000"),
    ({"batch_size": 0}, r"batch_size: must be >= 1, got 0"),
    ({"noise": "secret"}, "noise: must be one of research, secure"),
    ({"epochs": 1.5}, r"epochs: must be a whole number, got 1.5"),
    ({"epochs": True}, r"epochs: must be a whole number, got True"),
    ({"hidden": []}, "hidden: without hidden layers .* got"),
    ({"channels": []}, "channels: must be a list of at least one"),
    ({"hidden": 512}, "hidden: must be a list of whole numbers"),
    ({"algorithm": "tdfa", "projector": "opu_simulated"}, "projector: tdfa takes 'gaussian', got"),
    ({"algorithm": "bp", "projector": "gaussian"}, r"projector: bp takes 'none', got 'gaussian'"),
    ({"mechanism": "photonic", "tau_h": 1, "tau_h_min": 2}, "tau_h_min: must be at most tau_h = 1.0"),
    ({"mechanism": "per_example", "noise_multiplier": 1, "target_epsilon": 3}, r"target_epsilon: sets the noise"),
    ({"mechanism": "per_example", "noise_multiplier": 0.1}, r"noise_multiplier: must be 0 .* or at least 0.2"),
    ({"mechanism": "per_example", "noise_multiplier": 1, "sampler": "poisson", "delta": 1e-13},
     "delta: must be at least 3.15e-11 with"),
    ({"mechanism": "component", "target_epsilon": 1, "sampler": "without_replacement", "delta": 3e-11},
     "delta: must be at least 3.15e-11 with"),
    ({"mechanism": "photonic", "sampler": "poisson"}, "sampler: nothing is claimed or proved of"),
    ({"mechanism": "component", "algorithm": "pdfa", "projector": "opu_hardware"}, r"mechanism: component clipping"),
    ({"canaries": 29, "sampler": "poisson"}, "canaries: must be 0, or at least 30"),
    ({"canaries": 54_001, "sampler": "poisson"}, "canaries: must be 0, or at least 30"),
    ({"canaries": 100}, "canaries: need sampler 'poisson'"),
    ({"canaries": 100, "sampler": "without_replacement"}, "canaries: need .*, got sampler"),
    ({"canaries": 100, "sampler": "poisson", "mechanism": "photonic"}, r"sampler: nothing is claimed or proved"),
    ({**PRIVATE, "joint_release": True, "algorithm": "bp"}, "joint_release: must be false with bp"),
    ({**PRIVATE, "denoise": True, "algorithm": "bp"}, "denoise: must be false with bp, whose"),
    ({**PRIVATE, "denoise": True, "algorithm": "pdfa", "projector": "opu_hardware"},
     "denoise: needs the feedback matrix B"),
    ({**PRIVATE, "joint_release": True, "output_noise": False}, r"output_noise: must be true with joint_release"),
    ({**PRIVATE, "joint_release": True, "hidden": [4, 5]}, "hidden: must sum to at least the 10"),
    ({**PRIVATE, "target_label_epsilon": 3, "sigma": 0.1}, "target_label_epsilon: sets sigma; give"),
    ({**PRIVATE, "target_label_epsilon": 3, "output_noise": False}, "target_label_epsilon: cannot be met with"),
    ({**PRIVATE, "target_label_epsilon": float("inf")}, "target_label_epsilon: must be a finite"),
    ({**PRIVATE, "target_label_epsilon": -1}, r"target_label_epsilon: must be >= 0, got -1"),
    ({**PRIVATE, "target_label_epsilon": 1e7}, r"target_label_epsilon: must be <= 1e\+06"),
    ({**PRIVATE, "target_label_epsilon": 1e-9}, "target_label_epsilon: must be 0 .* or at"),
    ({"dataset": "digits", "validation_fraction": 1e-5}, "validation_fraction: leaves no"),
    ({"train_records": 60_001}, "train_records: must be at most the 60000"),
    ({"train_records": 100}, "batch_size: must be at most the 90"),
    ({"algorithm": "hybrid"}, "algorithm: hybrid back-propagates"),
    ({"network": "convnet", "algorithm": "hybrid", "projector": "opu_simulated"}, r"projector: hybrid takes 'gauss"),
    ({"network": "convnet", "mechanism": "photonic"}, "mechanism: Eq. 8 clips .* got 'photonic'"),
    ({"network": "convnet", "kernel": 4}, "kernel: must be odd, so that padding"),
    ({"network": "convnet", "channels": []}, "channels: must be a list of at least one"),
    ({"network": "convnet", "dataset": "digits", "channels": [4] * 4}, r"channels: every convolution halves .* got 4"),
    ({"network": "convnet", "mechanism": "component"}, "target_norm: must be > 0 with mechanism"),
    ({"mechanism": "component", "target_norm": 0.17}, "target_norm: must be > 0.1732, which")])
def test_refused_with_field_value_and_remedy(values, message):
    with pytest.raises(ConfigError, match="^" + message):
        TrialConfig.from_mapping(values)


def test_projector_follows_the_algorithm():
    assert [TrialConfig(algorithm=a).projector for a in ("bp", "dfa", "tdfa", "pdfa")] == [
        "none", "gaussian", "gaussian", "opu_simulated"]
    assert [TrialConfig(algorithm=a).needs_opu for a in ("bp", "dfa", "tdfa", "pdfa")] == [False, False, False, True]


# Another value of every field; per mechanism, those that its trials depend on.
OTHER = dict(dataset="mnist", validation_fraction=0.2, inputs="unit", input_norm=4.0, hidden=(10,), activation="relu",
             algorithm="dfa", feedback_std=0.5, threshold=0.1, mechanism="none", sigma=0.1, tau_f=2.0, tau_h=2.0,
             tau_h_min=0.5, gamma_min=0.1, activation_floor=True, output_noise=False, tau_e=0.2, feedback_norm=0.5,
             clipping_norm=2.0, noise_multiplier=2.0, target_epsilon=3.0, delta=1e-6, sampler="without_replacement",
             noise="secure", canaries=1000, batch_size=128, epochs=3, optimizer="adam", learning_rate=0.1, momentum=0.5,
             averaging=0.9, matmul_precision="bfloat16", alignment_batches=1, seed=7, train_records=30_000,
             channels=(16,), kernel=3, conv_activation="relu", target_norm=2.0, joint_release=True, denoise=True,
             target_label_epsilon=3.0, private_metrics="withheld", schedule="linear", output_init="zero",
             init="glorot", init_gain=2.0, error_clip=False, loss="label_smoothing")
CONVOLUTIONAL = {"channels", "kernel", "conv_activation"}
PHOTONIC = {"sigma", "tau_f", "tau_h", "tau_h_min", "gamma_min", "activation_floor", "output_noise", "delta",
            "noise", "joint_release", "denoise", "target_label_epsilon"}
GAUSSIAN = {"sigma", "noise_multiplier", "target_epsilon", "delta", "noise", "denoise"}
USES = {"none": set(), "photonic": PHOTONIC, "component": GAUSSIAN | {"tau_h", "tau_e", "feedback_norm", "target_norm",
                                                                       "error_clip"},
        "per_example": GAUSSIAN | {"clipping_norm"}}


HYBRID = dict(network="convnet", algorithm="hybrid", mechanism="component", target_norm=2.0)
SMOOTHING, ADAMW, NESTEROV = {"loss": "label_smoothing"}, {"optimizer": "adamw"}, {"optimizer": "nesterov"}
POISSON, AUDITED = {"sampler": "poisson"}, {"sampler": "poisson", "canaries": 100}
NOISY = {"photonic": {"sigma": 10.0}, "component": {"noise_multiplier": 1.0}, "per_example": {"noise_multiplier": 1.0}}


@pytest.mark.parametrize(("one", "change", "same"), [
    ({}, {"learning_rate": 0.01, "hidden": [512, 512]}, True),
    ({}, {"threshold": 0.3, "sigma": 0.1, "tau_h": 2, "gamma_min": 0.5}, True),  # plain DFA without a mechanism
    ({"optimizer": "adam"}, {"momentum": 0.1}, True),
    (PRIVATE, {"sigma": 0}, True),
    ({"output_init": "zero", "output_std": 0.2}, {"output_std": 0.3}, True),
    ({"output_init": "feedback", "output_std": 0.2}, {"output_std": 0.3}, False),
    ({"output_init": "feedback"}, {"output_init": "zero"}, False),
    *((part, {name: value}, same) for part, name, *values in (
        (SMOOTHING, "smoothing", 0.1, 0.2), (ADAMW, "weight_decay", 0.01, 0.1), (NESTEROV, "momentum", 0.9, 0.8))
      for value, same in zip(values, (True, False), strict=True)),
    *(({}, part, False) for part in (SMOOTHING, ADAMW, NESTEROV)),
    (POISSON, {"canaries": 100}, False), (AUDITED, {"canaries": 101}, False), (AUDITED, {"delta": 1e-6}, False),
    (POISSON, {"delta": 1e-6}, True),
    *(({"mechanism": mechanism, **noise}, {"noise": "secure"}, False) for mechanism, noise in NOISY.items()),
    ({}, {"noise": "secure"}, True),
    (HYBRID, {"network": "mlp", "algorithm": "dfa"}, False),
    *((HYBRID, {name: OTHER[name]}, False) for name in sorted(CONVOLUTIONAL | {"hidden"})),
    (HYBRID, {"target_norm": 3.0}, False), (HYBRID, {"tau_h": 3.0}, True),  # tau_h follows from target_norm
])
def test_two_trials_have_one_key_where_what_differs_has_no_effect(one, change, same):
    assert (TrialConfig(**one).trial_key == TrialConfig(**{**one, **change}).trial_key) == same


# Settings whose other values are in other tests; another projector for an algorithm that can run here does not exist.
ELSEWHERE = {
    "above": {"network", "projector", "output_std", "smoothing", "weight_decay"},
    "test_features, test_feature_maps, test_patches, test_encoder": {
        f.name for f in settings() if f.name.startswith(("feature", "scattering_", "patch_", "optical_", "encoder_"))},
    "test_readings": {"bounding", "tau_h_rule", "conv_error", "conv_clip"},
    "test_automatic": {"clipping_gamma"},
    "test_physical": {"photons", "reference_ratio", "dark_counts", "read_noise", "full_well", "adc_bits"},
    "test_trainer": {"trainer"}}
REFUSED = {"canaries": "canaries: need sampler 'poisson'", "noise": "noise: needs a guarantee that it can keep",
           "matmul_precision": "matmul_precision: must be 'float32'"}


@pytest.mark.parametrize(("mechanism", "refused"), [
    ("none", {"canaries"}), ("photonic", {"canaries", "noise"}), ("component", set(REFUSED)),
    ("per_example", set(REFUSED))])
def test_trial_key_changes_with_every_field_that_matters(mechanism, refused):
    base = dict(algorithm="pdfa", mechanism=mechanism, tau_h_min=0.2)
    key, changes = TrialConfig(**base).trial_key, set()
    for name, value in OTHER.items():
        changed = {**base, name: "photonic" if (name, mechanism) == ("mechanism", "none") else value}
        if name in refused:
            with pytest.raises(ConfigError, match=REFUSED[name]):
                TrialConfig(**changed)
        elif TrialConfig(**changed).trial_key != key:
            changes.add(name)
    of_all = OTHER.keys() - CONVOLUTIONAL.union(*USES.values())
    assert changes == (USES[mechanism] | of_all) - refused


def test_every_setting_has_another_value_in_some_test():
    assert OTHER.keys() == {f.name for f in settings()} - set().union(*ELSEWHERE.values())


def test_a_key_is_sixteen_digits_and_of_settings_that_the_trial_has():
    assert re.fullmatch("[0-9a-f]{16}", TrialConfig().trial_key)
    for part, setting in ((SMOOTHING, "smoothing"), (ADAMW, "weight_decay"), (NESTEROV, "momentum")):
        assert setting in TrialConfig(**part).canonical()
    assert "smoothing" not in TrialConfig().canonical()
    assert TrialConfig(**AUDITED).pack_key != TrialConfig(**{**AUDITED, "canaries": 101}).pack_key


def test_layers_of_a_convnet_and_the_records_that_it_trains_on():
    convnet = TrialConfig(network="convnet", algorithm="hybrid", hidden=(384, 384))
    assert convnet.layer_sizes == (784, 64 * 14 * 14, 64 * 7 * 7, 384, 384, 10)
    assert [layer.weight_shape for layer in convnet.layers] == [
        (64, 1, 5, 5), (64, 64, 5, 5), (384, 3136), (384, 384), (10, 384)]
    assert n_parameters(convnet.layers) == 1_664 + 102_464 + 1_204_608 + 147_840 + 3_850
    assert TrialConfig(network="convnet", dataset="cifar10").layer_sizes[:3] == (3072, 64 * 16 * 16, 64 * 8 * 8)
    assert TrialConfig(train_records=10_000).split_sizes == (9_000, 1_000)
    assert TrialConfig(train_records=10_000, validation_fraction=0).split_sizes == (10_000, 0)
    assert TrialConfig(validation_fraction=0).split_sizes == (60_000, 0)


def test_packs_group_by_shape_and_not_by_noise_clipping_or_seed():
    one = TrialConfig(mechanism="photonic", tau_h_min=0.2)
    assert dataclasses.replace(one, target_label_epsilon=2.0).pack_key == one.pack_key
    assert dataclasses.replace(one, joint_release=True).pack_key != one.pack_key
    same = dict(sigma=0.1, tau_f=2.0, tau_h=2.0, tau_h_min=0.5, gamma_min=0.1, seed=3)
    assert dataclasses.replace(one, **same).pack_key == one.pack_key
    for name, value in dict(batch_size=128, hidden=(512,), algorithm="bp", epochs=3, learning_rate=0.1).items():
        replaced = TrialConfig(**{"mechanism": "photonic", name: value})
        assert replaced.pack_key != one.pack_key, name
