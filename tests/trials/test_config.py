import dataclasses
import json
import pickle

import pytest
from generated import ANYTHING, given_settings
from hypothesis import assume, given
from hypothesis import strategies as st

from pipeline.tracking.artifacts import param_text, param_value
from pipeline.trials.config import ConfigError, TrialConfig, settings
from pipeline.trials.fields import setting
from pipeline.trials.optimizer import Optimizer
from pipeline.trials.part import again, extension
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
    ({"algorithm": "fa"}, r"algorithm: must be one of bp, dfa, tdfa, pdfa, hybrid, got 'fa'"),
    ({"nose": 1}, r"nose: unknown field, got 1; did you mean 'noise'\?$"),
    ({"qqq": 1}, r"qqq: unknown field, got 1; `photonic fields` lists all there are, and with FILE those"),
    ({"batch_size": 54_001}, r"batch_size: must be at most the 54000 training records of fashion_mnist, got 54001"),
    ({"batch_size": 0}, r"batch_size: must be >= 1, got 0"),
    ({"epochs": 1.5}, r"epochs: must be a whole number, got 1.5"),
    ({"epochs": True}, r"epochs: must be a whole number, got True"),
    ({"hidden": []}, r"hidden: without hidden layers .* got \[\] with algorithm 'dfa'"),
    ({"channels": []}, r"channels: must be a list of at least one whole number >= 1, got \[\]"),
    ({"hidden": 512}, r"hidden: must be a list of whole numbers, got 512"),
    ({"algorithm": "tdfa", "projector": "opu_simulated"}, r"projector: tdfa takes 'gaussian', got 'opu_simulated'"),
    ({"algorithm": "bp", "projector": "gaussian"}, r"projector: bp takes 'none', got 'gaussian'"),
    ({"mechanism": "photonic", "tau_h": 1, "tau_h_min": 2}, r"tau_h_min: must be at most tau_h = 1.0, got 2.0"),
    ({"mechanism": "per_example", "noise_multiplier": 1, "target_epsilon": 3}, r"target_epsilon: sets the noise"),
    ({"mechanism": "per_example", "noise_multiplier": 0.1}, r"noise_multiplier: must be 0 .* or at least 0.2"),
    ({"mechanism": "per_example", "noise_multiplier": 1, "sampler": "poisson", "delta": 1e-13},
     r"delta: must be at least 3.15e-11 with sampler 'poisson' and 3150 steps, .* got 1e-13; use a larger one"),
    ({"mechanism": "component", "target_epsilon": 1, "sampler": "without_replacement", "delta": 3e-11},
     r"delta: must be at least 3.15e-11 with sampler 'without_replacement'"),
    ({"mechanism": "photonic", "sampler": "poisson"}, r"sampler: nothing is claimed or proved of the photonic"),
    ({"mechanism": "component", "algorithm": "pdfa", "projector": "opu_hardware"}, r"mechanism: component clipping"),
    ({"canaries": 29, "sampler": "poisson"}, r"canaries: must be 0, or at least 30 .* 54000 .*, got 29"),
    ({"canaries": 54_001, "sampler": "poisson"}, r"canaries: must be 0, or at least 30 .* 54000 .*, got 54001"),
    ({"canaries": 100}, r"canaries: need sampler 'poisson', .*, got sampler 'shuffled'"),
    ({**PRIVATE, "joint_release": True, "algorithm": "bp"}, r"joint_release: must be false with bp, whose error is"),
    ({**PRIVATE, "denoise": True, "algorithm": "bp"}, r"denoise: must be false with bp, whose error is released once"),
    ({**PRIVATE, "denoise": True, "algorithm": "pdfa", "projector": "opu_hardware"},
     r"denoise: needs the feedback matrix B, which is not known of a real OPU, got projector 'opu_hardware'"),
    ({**PRIVATE, "joint_release": True, "output_noise": False}, r"output_noise: must be true with joint_release"),
    ({**PRIVATE, "joint_release": True, "hidden": [4, 5]}, r"hidden: must sum to at least the 10 classes with joint"),
    ({**PRIVATE, "target_label_epsilon": 3, "sigma": 0.1}, r"target_label_epsilon: sets sigma; give one of the two"),
    ({**PRIVATE, "target_label_epsilon": 3, "output_noise": False}, r"target_label_epsilon: cannot be met with output"),
    ({**PRIVATE, "target_label_epsilon": float("inf")}, r"target_label_epsilon: must be a finite number, got inf"),
    ({**PRIVATE, "target_label_epsilon": -1}, r"target_label_epsilon: must be >= 0, got -1"),
    ({**PRIVATE, "target_label_epsilon": 1e7}, r"target_label_epsilon: must be <= 1e\+06, got 10000000.0"),
    ({**PRIVATE, "target_label_epsilon": 1e-9}, r"target_label_epsilon: must be 0 .* or at least 0.001, below which"),
    ({"dataset": "digits", "validation_fraction": 1e-5}, r"validation_fraction: leaves no validation record"),
    ({"train_records": 60_001}, r"train_records: must be at most the 60000 of fashion_mnist, got 60001"),
    ({"train_records": 100}, r"batch_size: must be at most the 90 training records of fashion_mnist, got 256"),
    ({"algorithm": "hybrid"}, r"algorithm: hybrid back-propagates through convolutions, of which network 'mlp' has"),
    ({"network": "convnet", "algorithm": "hybrid", "projector": "opu_simulated"}, r"projector: hybrid takes 'gauss"),
    ({"network": "convnet", "mechanism": "photonic"}, r"mechanism: Eq. 8 clips .* got 'photonic' with network 'conv"),
    ({"network": "convnet", "kernel": 4}, r"kernel: must be odd, so that padding keeps the size of an image, got 4"),
    ({"network": "convnet", "dataset": "digits", "channels": [4] * 4}, r"channels: every convolution halves .* got 4"),
    ({"network": "convnet", "mechanism": "component"}, r"target_norm: must be > 0 with mechanism 'component' and"),
    *(({"mechanism": "component", "noise_multiplier": 1, **sizes},
       r"tau_e: must give contributions whose squared norms are numbers, got .*; use norms between 1e-50 and 1e50$")
      for sizes in ({"tau_e": 5e-324}, {"tau_e": 1e200}, {"feedback_norm": 9e155}, {"target_norm": 1e300},
                    {"tau_h": 1e200})),
    ({"mechanism": "component", "target_norm": 0.17}, r"target_norm: must be > 0.1732, as each .* may be 0.1 in")])
def test_refused_with_field_value_and_remedy(values, message):
    with pytest.raises(ConfigError, match="^" + message):
        TrialConfig(**values)


@pytest.mark.parametrize(("words", "text"), [
    (("sigma: is not known",), "sigma: is not known"),
    (("sigma", "must be >= 0", -0.1), "sigma: must be >= 0, got -0.1"),
    (("full_well", "must be > 0", 0, "0 sets no limit"), "full_well: must be > 0, got 0; 0 sets no limit"),
    (("noise", "its proof covers no filter", "'secure'"), "noise: its proof covers no filter, got 'secure'")])
def test_an_error_words_itself_and_says_the_same_in_another_process(words, text):
    assert str(ConfigError(*words)) == str(pickle.loads(pickle.dumps(ConfigError(*words)))) == text


# Another value of every field; per mechanism, those that its trials depend on.
OTHER = dict(dataset="mnist", validation_fraction=0.2, inputs="unit", input_norm=4.0, hidden=(10,), activation="relu",
             algorithm="dfa", feedback_std=0.5, threshold=0.1, mechanism="none", sigma=0.1, tau_f=2.0, tau_h=2.0,
             tau_h_min=0.5, gamma_min=0.1, activation_floor=True, output_noise=False, tau_e=0.2, feedback_norm=0.5,
             clipping_norm=2.0, noise_multiplier=2.0, target_epsilon=3.0, delta=1e-6, sampler="without_replacement",
             noise="secure", canaries=1000, batch_size=128, epochs=3, optimizer="adam", learning_rate=0.1, momentum=0.5,
             averaging=0.9, arithmetic="bfloat16", alignment_batches=1, seed=7, train_records=30_000,
             channels=(16,), kernel=3, conv_activation="relu", target_norm=2.0, joint_release=True, denoise=True,
             target_label_epsilon=3.0, private_metrics="withheld", schedule="linear", output_init="zero",
             init="glorot", init_gain=2.0, loss="label_smoothing", feedback_by_width=True)
CONVOLUTIONAL = {"channels", "kernel", "conv_activation"}
PHOTONIC = {"feedback_by_width", "sigma", "tau_f", "tau_h", "tau_h_min", "gamma_min", "activation_floor",
            "output_noise", "delta", "noise", "joint_release", "denoise", "target_label_epsilon"}
GAUSSIAN = {"sigma", "noise_multiplier", "target_epsilon", "delta", "noise", "denoise"}
USES = {"none": {"feedback_by_width"}, "photonic": PHOTONIC,
        "component": GAUSSIAN | {"tau_h", "tau_e", "feedback_norm", "target_norm"},
        "per_example": GAUSSIAN | {"clipping_norm", "feedback_by_width"}}


HYBRID = dict(network="convnet", algorithm="hybrid", mechanism="component", target_norm=2.0)
SMOOTHING, ADAMW, NESTEROV = {"loss": "label_smoothing"}, {"optimizer": "adamw"}, {"optimizer": "nesterov"}
POISSON, AUDITED = {"sampler": "poisson"}, {"sampler": "poisson", "canaries": 100}
EXACT = {"noise_multiplier": 1.0, "arithmetic": "integer"}
NOISY = {"photonic": {"sigma": 10.0}, "component": EXACT, "per_example": EXACT}


@pytest.mark.parametrize(("one", "change", "same"), [
    ({}, {"threshold": 0.3, "sigma": 0.1, "tau_h": 2, "gamma_min": 0.5}, True),  # plain DFA without a mechanism
    ({"optimizer": "adam"}, {"momentum": 0.1}, True),
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
    *(({"algorithm": "pdfa", **mechanism}, {"feedback_centered": True}, same)
      for mechanism, same in (({}, False), (PRIVATE, True))),
    ({}, {"feedback_by_width": True}, False), ({"algorithm": "bp"}, {"feedback_by_width": True}, True),
    ({"mechanism": "component", "noise_multiplier": 1.0}, {"feedback_by_width": True}, True),  # has B of one norm
    (HYBRID, {"target_norm": 3.0}, False), (HYBRID, {"tau_h": 3.0}, True),  # tau_h follows from target_norm
])
def test_two_trials_have_one_key_where_what_differs_has_no_effect(one, change, same):
    assert (TrialConfig(**one).trial_key == TrialConfig(**{**one, **change}).trial_key) == same


@pytest.mark.usefixtures("extensions")
def test_a_setting_that_a_part_gets_later_leaves_keys_as_they_were_if_it_is_elided():
    def made_up(learning_rate=0.1, **settings):
        extension("optimizer", "made_up", Optimizer, {"learning_rate": None, **settings}, Optimizer)
        return TrialConfig(optimizer="made_up", learning_rate=learning_rate)

    before = made_up()
    after = made_up(warmth=setting(0.0, "made up", elide=True))
    assert after.trial_key == before.trial_key and "warmth" not in after.used() and after.warmth == 0.0
    assert dataclasses.replace(after, warmth=0.0).trial_key == before.trial_key
    other = dataclasses.replace(after, warmth=0.5)
    assert other.trial_key != before.trial_key and other.canonical() == {**before.canonical(), "warmth": 0.5}
    assert made_up(warmth=setting(0.0, "made up")).trial_key != before.trial_key
    extension("optimizer", "another", Optimizer, {"learning_rate": again("learning_rate", elide=True)}, Optimizer)
    elided = TrialConfig(optimizer="another")
    assert "learning_rate" not in elided.canonical() and "learning_rate" in made_up().canonical()


# Settings whose other values are in other tests; another projector for an algorithm that can run here does not exist.
ELSEWHERE = {
    "above": {"network", "projector", "output_std", "feedback_centered", "smoothing", "weight_decay"},
    "test_features, test_feature_maps, test_patches": {
        f.name for f in settings()
        if f.name.startswith(("feature", "scattering_", "patch_", "encoder_", "beside_"))},
    "test_automatic": {"clipping_gamma"}}
REFUSED = {"canaries": "canaries: need sampler 'poisson'", "noise": "noise: needs a guarantee that it can keep",
           "arithmetic": "arithmetic: must be 'float32'"}


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


def composed(values):
    """The trial of settings; None where they are refused, which takes one line about a setting."""
    try:
        return TrialConfig(**values)
    except ConfigError as error:
        assert error.field in {f.name for f in settings()} and "\n" not in str(error)


@given(given_settings(), st.randoms(use_true_random=False))
def test_a_trial_keeps_its_key_however_it_is_written_and_wherever_it_was_kept(values, random):
    assume(trial := composed(values))
    respelt = {name: int(value) if isinstance(value, float) and value.is_integer() else
               tuple(value) if isinstance(value, list) else value
               for name, value in random.sample([*values.items()], len(values))}
    params = {name: param_text(value) for name, value in trial.used().items()}
    for other in (TrialConfig(**respelt), TrialConfig(trial.given), trial.pruned(), pickle.loads(pickle.dumps(trial)),
                  TrialConfig(**json.loads(json.dumps(trial.used()))),
                  TrialConfig(**{name: param_value(name, text) for name, text in params.items()})):
        assert (other.trial_key, other.canonical()) == (trial.trial_key, trial.canonical())


@given(ANYTHING)
def test_a_value_of_any_kind_is_taken_or_refused_in_one_line(anything):
    for f in settings():
        composed({f.name: anything})


def test_every_setting_has_another_value_in_some_test():
    assert OTHER.keys() == {f.name for f in settings()} - set().union(*ELSEWHERE.values())


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
    assert TrialConfig(**AUDITED).pack_key != TrialConfig(**{**AUDITED, "canaries": 101}).pack_key
    same = dict(sigma=0.1, tau_f=2.0, tau_h=2.0, tau_h_min=0.5, gamma_min=0.1, seed=3)
    assert dataclasses.replace(one, **same).pack_key == one.pack_key
    for name, value in dict(batch_size=128, hidden=(512,), algorithm="bp", epochs=3, learning_rate=0.1).items():
        replaced = TrialConfig(**{"mechanism": "photonic", name: value})
        assert replaced.pack_key != one.pack_key, name
