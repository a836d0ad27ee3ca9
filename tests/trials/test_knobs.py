"""The table of knobs agrees with the settings of the mechanisms, with epsilon, and with what refusals say."""

import os
import re
from pathlib import Path

import pytest

from pipeline import account
from pipeline.experiment.experiment import parse_experiment
from pipeline.trials import knobs
from pipeline.trials.config import ConfigError, TrialConfig
from pipeline.trials.part import PARTS

PAGE = Path(__file__).parents[2] / "docs" / "knobs.md"
MECHANISMS = ("none", "photonic", "per_example", "automatic", "component")
NO_KNOBS = {"gamma_min", "clipping_gamma", "feedback_norm"}  # numbers of mechanisms that are no knob of the papers
VALUES = {"sigma": 0.3, "tau_f": 0.5, "tau_h": 2.0, "tau_h_min": 0.1, "tau_e": 0.5, "clipping_norm": 2.0,
          "target_norm": 2.0, "noise_multiplier": 2.0, "target_epsilon": 3.0, "target_label_epsilon": 3.0,
          "batch_size": 128}
PAIRS = [(mechanism, knob) for mechanism in MECHANISMS for knob in knobs.KNOBS]


def has(mechanism, knob):
    return mechanism in knobs.mechanisms_with(knob.setting)


def test_the_numbers_of_all_mechanisms_are_in_the_table():
    declared = {field.name for mechanism in MECHANISMS for field in PARTS["mechanism"][mechanism].settings
                if isinstance(field.default, float)}
    assert declared - NO_KNOBS == {knob.setting for knob in knobs.KNOBS} - {"batch_size"}


def test_the_page_has_the_table():
    """`APPROVE=1` writes it anew."""
    text = PAGE.read_text(encoding="utf-8")
    written = re.search(r"^\| setting \|.*?(?=\n\n)", text, re.DOTALL | re.MULTILINE)[0]
    if os.environ.get("APPROVE"):
        PAGE.write_text(text.replace(written, knobs.markdown()), encoding="utf-8")
    assert knobs.markdown() in PAGE.read_text(encoding="utf-8")


def epsilons(mechanism, sampler, **settings):
    noise = {"sigma": 1.0} if mechanism == "photonic" else {"noise_multiplier": 1.0}
    if any(name.startswith("target") and name.endswith("epsilon") for name in settings):
        noise = {}
    trial = TrialConfig(**{"dataset": "digits", "batch_size": 64, "epochs": 2, "mechanism": mechanism,
                           "sampler": sampler, **noise, **settings})
    return {(e.kind, e.variant): e.value for e in account(trial) if e.kind in ("certified", "label")}


@pytest.mark.parametrize(("mechanism", "knob"), [pair for pair in PAIRS if pair[0] != "none" and has(*pair)],
                         ids=lambda part: getattr(part, "setting", part))
def test_epsilon_follows_a_knob_as_the_table_says(mechanism, knob):
    value = VALUES[knob.setting]
    for sampler in ("shuffled", "without_replacement" if mechanism == "photonic" else "poisson"):
        before, after = epsilons(mechanism, sampler), epsilons(mechanism, sampler, **{knob.setting: value})
        assert before
        if knob.epsilon.startswith("unchanged") or (knob.setting == "batch_size" and sampler == "shuffled"):
            assert after == pytest.approx(before, rel=1e-9)
        else:
            assert all(after[name] != pytest.approx(before[name], rel=1e-9) for name in before)
        if knob.setting in ("target_epsilon", "target_label_epsilon"):
            assert 0.98 * value <= min(after.values()) <= value


@pytest.mark.parametrize(("mechanism", "knob"), [pair for pair in PAIRS if not has(*pair)],
                         ids=lambda part: getattr(part, "setting", part))
def test_a_knob_of_another_mechanism_is_refused_with_that_mechanism_and_what_to_write(mechanism, knob):
    noise = ", noise_multiplier: 1" if PARTS["mechanism"][mechanism].certified else ""
    text = f"base: {{mechanism: {mechanism}, {knob.setting}: {VALUES[knob.setting]}{noise}}}"
    with pytest.raises(ConfigError, match=f"^{knob.setting}: ") as raised:
        parse_experiment(text, Path("e.yaml"))
    line = str(raised.value)
    assert all(f"'{name}'" in line for name in (mechanism, *knobs.mechanisms_with(knob.setting))), line
    if mechanism != "none":
        written = re.search("; write (.*), at base", line)[1]
        named = [knob for knob in knobs.KNOBS if re.search(rf"\b{knob.setting}\b", written)]
        assert named and all(has(mechanism, knob) for knob in named), written
