"""What the shipped experiment files lead to: the keys and settings of their trials, and the noise that targets take.

Trials are known by their keys, and finished ones are not trained again because of them. So neither a file nor a stored
trial may get another key when the code changes. `data/shipped.json` has the number of every file's trials and a digest
of their keys and settings; `data/shipped.json.xz` has these in full, so that a changed trial is named.

`data/calibrated.json` has what is calibrated, to the last bit. NumPy rounds exponentials otherwise where a processor
has other instructions, and with them the noise multiplier changes by 5e-10 of itself. A fingerprint of a few fixed
results tells; where it is another, numbers are compared to a tolerance.

`PYTHONPATH=.:tests/tools python tests/experiment/test_shipped.py` writes these files anew, but keeps the calibrated
numbers that are there.
"""

import functools
import hashlib
import json
import lzma
import sys
from pathlib import Path

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution
from registries import forgotten_plugins
from scipy import special

from pipeline.accounting.certified import event_of, with_noise
from pipeline.accounting.evaluations import evaluation_noise, is_noisy
from pipeline.accounting.finite_precision import accounted_delta
from pipeline.experiment import experiment as of_files
from pipeline.learning.mechanisms import contribution_bound
from pipeline.trials.component import Component
from pipeline.trials.config import TrialConfig

ROOT = Path(__file__).parents[2]
DIGESTS, TRIALS, CALIBRATED = (ROOT / "tests" / "data" / name
                               for name in ("shipped.json", "shipped.json.xz", "calibrated.json"))
FILES = sorted((path for path in (ROOT / "experiments").rglob("*.yaml") if path.parent.name != "cluster"),
               key=lambda path: path.name)
ELSEWHERE = 1e-8  # of a calibrated number, relative; other instruction sets change it by 5e-10
# One in so many is tested fast: noise multipliers take half a second each.
FAST = {"noise_multiplier": 112, "evaluation_noise": 112}


load_experiment = functools.cache(of_files.load_experiment)


def trials_of(path):
    """All that a file leads to: its trials, and those that stand for what chance or a search decides."""
    experiment = load_experiment(path)
    return list(dict.fromkeys([*experiment.trials, *experiment.possible]))


def shipped():
    return {path.name: trials_of(path) for path in FILES}


def flat(trials):
    """Settings by key."""
    return {trial.trial_key: trial.canonical() for trial in trials}


def summary(settings):
    """Number of trials, and a digest of their keys and settings."""
    text = json.dumps(settings, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return [len(settings), hashlib.sha256(text.encode()).hexdigest()]


def said(**facts):
    return " ".join(f"{name}={value}" for name, value in facts.items() if value is not None)


def calibrations(trials):
    """By kind and by all that decides it: a function that gives a calibrated number.

    Of component clipping it gives a list: C as stated, C, their ratio, and the bounds of the layers.
    """
    found = {"noise_multiplier": {}, "evaluation_noise": {}, "sigma": {}, "component": {}}
    for t in trials:
        target = t.canonical().get("target_epsilon")
        if target:
            event = event_of(t, t.epochs)
            name = said(sampler=event.sampler, relation=event.relation, steps=event.steps, epochs=event.epochs,
                        sampling_rate=event.sampling_rate, N=event.N, m=event.m, target=t.target_epsilon,
                        delta=accounted_delta(t), excess=t.parts.mechanism.sensitivity_ratio(t))
            found["noise_multiplier"][name] = lambda t=t: with_noise(t).noise_multiplier
            if is_noisy(t):
                found["evaluation_noise"][name] = lambda t=t: evaluation_noise(t)
        if t.canonical().get("target_label_epsilon"):
            releases = 1 if t.algorithm == "bp" or t.joint_release else len(t.hidden) + 1
            name = said(sampler=t.sampler, N=t.split_sizes[0], m=t.batch_size, epochs=t.epochs, tau_f=t.tau_f,
                        releases=releases, target=t.target_label_epsilon, delta=accounted_delta(t))
            found["sigma"][name] = lambda t=t: with_noise(t).sigma
        if isinstance(part := t.parts.mechanism, Component):
            used = t.canonical()
            reading = {name: used[name] for name in ("bounding", "error_clip") if used.get(name) in ("scale", False)}
            name = said(**{field: used.get(field) for field in (
                "network", "channels", "hidden", "activation", "tau_e", "tau_h", "feedback_norm", "target_norm")},
                        **reading)
            found["component"][name] = lambda t=t, part=part: [
                part.stated_norm(t), contribution_bound(t), part.sensitivity_ratio(t), *part.conv_bounds(t),
                *part.delta_bounds(t, getattr(part, "error_bound", t.tau_e)), *part.activation_bounds(t)]
    return found


def fingerprint():
    """Digest of what the noise for a target follows from, as it is rounded here: exponentials, logarithms, tails of the
    normal law, and a composition by Fourier transforms."""
    x = np.linspace(-20.0, 20.0, 4001)
    losses = privacy_loss_distribution.from_gaussian_mechanism(1.0, value_discretization_interval=0.01,
                                                               sampling_prob=0.1).self_compose(100)
    results = [np.exp(x), np.expm1(x), np.log1p(np.exp(x)), special.ndtr(x), special.log_ndtr(x),
               np.array([losses.get_epsilon_for_delta(delta) for delta in (1e-3, 1e-5, 1e-7)])]
    return hashlib.sha256(b"".join(result.tobytes() for result in results)).hexdigest()


def in_hex(value):
    return [number.hex() for number in value] if isinstance(value, list) else value.hex()


def from_hex(value):
    return [float.fromhex(number) for number in value] if isinstance(value, list) else float.fromhex(value)


@pytest.fixture(scope="module", autouse=True)
def files():
    """With the plugins that some of them name, for this module alone."""
    with forgotten_plugins():
        yield shipped()


@pytest.fixture(scope="module")
def stored():
    return json.loads(lzma.decompress(TRIALS.read_bytes()))


@pytest.fixture(scope="module")
def golden():
    return json.loads(CALIBRATED.read_text())


@pytest.fixture(scope="module")
def ours(files):
    return calibrations([trial for trials in files.values() for trial in trials])


def differences(before, after):
    """`setting: was -> is` of every setting that differs."""
    return [f"{name}: {before.get(name, 'none')} -> {after.get(name, 'none')}"
            for name in sorted(before.keys() | after.keys()) if before.get(name) != after.get(name)]


def moved(before, after):
    """Every key that is new, the key that it stands in place of, and the settings that differ; keys that are gone."""
    gone = {key: settings for key, settings in before.items() if key not in after}
    for key, settings in after.items():
        if key not in before:
            nearest = min(gone, key=lambda k: len(differences(gone[k], settings)), default=None)
            yield f"{key} in place of {nearest}: {differences(gone.pop(nearest, {}), settings)}"
        elif before[key] != settings:
            yield f"{key} has {differences(before[key], settings)}"
    yield from (f"{key} is gone" for key in gone)


def test_trials_have_the_keys_and_settings_that_they_had(files, stored):
    assert files.keys() == stored.keys(), "python tests/experiment/test_shipped.py enters a new file"
    for name, trials in files.items():
        changes = list(moved(stored[name], flat(trials)))
        assert not changes, f"{name}: {len(changes)} trials, the first: {changes[0]}"


def test_every_file_has_its_own_name_and_says_what_it_is_for():
    for path in FILES:
        experiment = load_experiment(path)
        assert experiment.name == path.stem and experiment.possible and experiment.description


def test_the_digests_are_of_the_trials_in_full(stored):
    assert {name: summary(settings) for name, settings in stored.items()} == json.loads(DIGESTS.read_text())


def test_stored_settings_are_read_as_the_trial_that_they_were(stored):
    for name, trials in stored.items():
        read = flat(TrialConfig(**settings) for settings in trials.values())
        changes = list(moved(trials, read))
        assert not changes, f"{name}: {len(changes)} trials, the first: {changes[0]}"


def test_files_lead_to_the_same_events_and_targets(ours, golden):
    assert {kind: sorted(of_kind) for kind, of_kind in ours.items()} == {
        kind: sorted(of_kind) for kind, of_kind in golden["numbers"].items()}


def check(ours, golden, one_in):
    """Calibrate anew and compare; of some kinds one number in so many."""
    same = fingerprint() == golden["fingerprint"]
    for kind, expected in golden["numbers"].items():
        for name in sorted(expected)[:: one_in.get(kind, 1)]:
            value = from_hex(expected[name])
            exact = same or kind == "component"  # products, quotients and roots are the same everywhere
            assert ours[kind][name]() == (value if exact else pytest.approx(value, rel=ELSEWHERE, abs=0)), (kind, name)


def test_calibrated_noise_is_what_it_was_to_the_last_bit(ours, golden):
    check(ours, golden, FAST)


@pytest.mark.nightly
def test_all_calibrated_noise_is_what_it_was_to_the_last_bit(ours, golden):
    check(ours, golden, {})


def main():
    files = shipped()
    settings = {name: flat(trials) for name, trials in files.items()}
    TRIALS.write_bytes(lzma.compress(json.dumps(settings, sort_keys=True).encode(), preset=9))
    lines = (f"{json.dumps(name)}: {json.dumps(summary(of_file))}" for name, of_file in settings.items())
    DIGESTS.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    here = {"fingerprint": fingerprint(), "numbers": {}}
    golden = json.loads(CALIBRATED.read_text()) if CALIBRATED.exists() else here
    if golden["fingerprint"] != here["fingerprint"]:
        sys.exit(f"{CALIBRATED}: left as it is, as numbers are rounded otherwise here than where it was written")
    known, golden["numbers"] = golden["numbers"], {}
    for kind, of_kind in calibrations(trial for trials in files.values() for trial in trials).items():
        golden["numbers"][kind] = {name: known.get(kind, {}).get(name) or in_hex(calibrate())
                                   for name, calibrate in sorted(of_kind.items())}
    CALIBRATED.write_text(json.dumps(golden, indent=1) + "\n")


if __name__ == "__main__":
    main()
