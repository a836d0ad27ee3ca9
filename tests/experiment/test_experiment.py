import functools
import re
from pathlib import Path

import pytest
import yaml
from commands import load
from generated import ANYTHING, given_settings
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from analysis.catalogue import check, listed
from pipeline.experiment.experiment import ENTRIES, Experiment, parse_experiment
from pipeline.experiment.yaml_text import parse_yaml
from pipeline.sweep.dry_run import preview
from pipeline.trials.config import ConfigError, TrialConfig


def test_grid_is_a_product_and_cases_are_a_union(tmp_path):
    experiment = load(tmp_path, """
name: small
base: {dataset: digits, batch_size: 32}
grid: {algorithm: [bp, dfa], seed: {range: [0, 3]}}
cases:
  - {}
  - base: {mechanism: photonic, algorithm: tdfa}
    grid: {sigma: {logspace: [0.01, 1, 3]}}
""")
    assert experiment.name == "small" and len(experiment.trials) == 2 * 3 + 3 * 3
    assert sorted({t.sigma for t in experiment.trials if t.mechanism == "photonic"}) == [0.01, 0.1, 1.0]
    assert {t.algorithm for t in experiment.trials if t.mechanism == "photonic"} == {"tdfa"}


ZIPPED = """
base: {mechanism: per_example, noise_multiplier: 1}
grid: {seed: [0, 1]}
zip: {clipping_norm: {logspace: [0.1, 10, 3]}, learning_rate: [20, 2, 0.2]}
"""


def test_values_of_zip_move_together_and_are_crossed_with_the_grid(tmp_path):
    def found(text):
        return [(t.seed, t.clipping_norm, t.learning_rate, t.batch_size) for t in load(tmp_path, text).trials]

    pairs = [(0.1, 20.0, 256), (1.0, 2.0, 256), (10.0, 0.2, 256)]
    assert found(ZIPPED) == [(seed, *pair) for seed in (0, 1) for pair in pairs]
    assert load(tmp_path, ZIPPED).varied == ("clipping_norm", "learning_rate")
    assert found(ZIPPED.replace("grid: {seed: [0, 1]}\n", "")) == [(0, *pair) for pair in pairs]


@pytest.mark.parametrize(("case", "n_trials", "values"), [
    ("base: {clipping_norm: 5}", 6, {(5.0, 20.0), (5.0, 2.0), (5.0, 0.2)}),
    ("grid: {clipping_norm: [5, 6]}", 12, {(c, rate) for c in (5.0, 6.0) for rate in (20.0, 2.0, 0.2)}),
    ("zip: {clipping_norm: [5, 6], learning_rate: [7, 8]}", 4, {(5.0, 7.0), (6.0, 8.0)}),
    ("zip: {seed: [5, 6], batch_size: [64, 128]}", 6, {(0.1, 20.0), (1.0, 2.0), (10.0, 0.2)})])
def test_a_setting_of_a_case_replaces_that_of_the_files_zip(tmp_path, case, n_trials, values):
    trials = load(tmp_path, f"{ZIPPED}cases: [{{}}, {{{case}}}]").trials[6:]
    assert len(trials) == n_trials and {(t.clipping_norm, t.learning_rate) for t in trials} == values
    assert "batch_size" not in case or {(t.seed, t.batch_size) for t in trials} == {(5, 64), (6, 128)}


def test_ranges(tmp_path):
    text = "base: {mechanism: photonic}\ngrid: {sigma: {linspace: [0, 1, 5]}, seed: {range: [4, 1e1, 3]}}"
    huge = load(tmp_path, f"grid: {{learning_rate: {{logspace: [{10**99}, 1, 3]}}}}")
    assert [t.learning_rate for t in huge.trials] == [1e99, pytest.approx(3.16227766017e49), 1]
    trials = load(tmp_path, text).trials
    assert [t.sigma for t in trials[::2]] == [0, 0.25, 0.5, 0.75, 1] and {t.seed for t in trials} == {4, 7}


@settings(max_examples=20)
@given(st.from_regex(r"[-+]?(([0-9]{1,5}(_[0-9]{3})?\.[0-9]{0,5}|\.[0-9]{1,5})([eE][-+]?[0-9]{1,3})?"
                     r"|[0-9]{1,5}[eE][-+]?[0-9]{1,3}|[1-9][0-9]{0,14})", fullmatch=True))
def test_numbers_are_decimal_however_they_are_written(text):
    assert parse_yaml(f"[{text}]", "e.yaml") == [float(text)]


@pytest.mark.parametrize("text", ["'1e-5'", "1e", "e5", "1e-", "1e5x", "1-e5", "0100", "-007", "1:30", "1:30.5",
                                  "2021-01-01", "inf", "nan", "9" * 5000])
def test_other_text_stays_text(tmp_path, text):
    """YAML 1.1 would read 0100 as 64, 1:30 as 90 and a date as a day."""
    with pytest.raises(ConfigError, match=rf"delta: must be a number, got the text .{text.strip(chr(39))}."):
        load(tmp_path, f"base: {{delta: {text}}}")
    assert load(tmp_path, f"description: {text}").description == text.strip("'")


def test_a_name_may_look_like_a_number_and_whole_numbers_may_be_grouped(tmp_path):
    assert load(tmp_path, r'description: "\ud83d\ude00"').description == "\N{GRINNING FACE}", "as JSON writes it"
    assert load(tmp_path, "name: 007").name == "007" and load(tmp_path, "name: 2021-01-01").name == "2021-01-01"
    (trial,) = load(tmp_path, "base: {dataset: digits, batch_size: 1_000, epochs: 0x10}").trials
    assert (trial.batch_size, trial.epochs) == (1000, 16)


MERGED = """
cases:
  - base: &one {dataset: digits, mechanism: photonic, sigma: 0.1, algorithm: bp, epochs: 2}
  - base: &two
      <<: *one
      algorithm: dfa
  - base: {epochs: 3, <<: [{sigma: 0.2}, *two]}
"""


def test_merge_keys_take_entries_over_and_own_entries_win(tmp_path):
    found = [(t.algorithm, t.sigma, t.epochs) for t in load(tmp_path, MERGED).trials]
    assert found == [("bp", 0.1, 2), ("dfa", 0.1, 2), ("dfa", 0.2, 3)]
    with pytest.raises(ConfigError, match=r"line 6, column 7: not valid YAML: the key '<<' stands twice"):
        load(tmp_path, MERGED.replace("algorithm: dfa", "<<: *one"))
    with pytest.raises(ConfigError, match=r"sigma: must be >= 0, got -1.0, at cases\[1\].base.sigma \(.*, line 6\)"):
        load(tmp_path, MERGED.replace("algorithm: dfa", "sigma: -1"))
    with pytest.raises(ConfigError, match=r"nose: unknown .*\? It stands at cases\[0\].base.nose \(.*, line 3\)"):
        load(tmp_path, MERGED.replace("epochs: 2", "nose: 2"))


CERTIFIED = "base: {mechanism: per_example, sampler: poisson}\ngrid: "
CURVES = "algorithm: [bp, dfa], target_epsilon: [1, 3], seed: [0, 1]"
REFERENCE = "{source: They 2021, epsilon: 3, delta: 1.0e-5, accuracy: 89.7}"
WRONG_REFERENCES = [
    ("{They: 2021}", "references: must be a list of published results, or a CSV file with results, got {'They': 2021}"),
    ("[They 2021]", r"references\[0\]: must be a mapping with source, epsilon, delta, accuracy, got 'They 2021'"),
    ("[{source: They, epsilon: 3}]", r"references\[0\]: needs delta, accuracy, got"),
    (f"[{REFERENCE.replace('They 2021', '')}]", "references.source: must say who published the result, in one line"),
    (f"[{REFERENCE.replace('3', '0')}]", "references.epsilon: must be > 0, got 0"),
    (f"[{REFERENCE.replace('1.0e-5', '2')}]", "references.delta: must be > 0 and at most 1, got 2"),
    (f"[{REFERENCE.replace('89.7', '897')}]", "references.accuracy: must be > 0 and at most 100 percent, got 897")]
WRONG_CHOSEN = [
    ("45", "chosen: must be a mapping with runs, by, seeds, got 45"),
    ("{runs: 45}", r"chosen: needs by, got \{'runs': 45\}"),
    ("{runs: 45, by: luck}", r"chosen: needs seeds, got \{'runs': 45, 'by': 'luck'\}"),
    ("{runs: 45, by: luck, seeds: 1, when: 2021}", "chosen.when: unknown entry; .*accepted are runs, by, seeds"),
    ("{runs: 0, by: luck, seeds: 1}", "chosen.seeds: must be left out where no run was made, got 1"),
    ("{runs: -1, by: luck, seeds: 1}", "chosen.runs: must be a whole number >= 0, got -1"),
    ("{runs: 45, by: ' ', seeds: 1}", "chosen.by: must say what the runs were compared by, .*, got ' '"),
    ("{runs: 45, by: luck, seeds: []}", r"chosen.seeds: must be a list of different whole numbers >= 0, .*, got \[\]"),
    ("{runs: 45, by: luck, seeds: [1, 1]}", r"chosen.seeds: must be a list of different .*, got \[1, 1\]"),
    ("{runs: 45, by: luck, seeds: 0}", "chosen.seeds: must be a list of seeds, or a whole number >= 1 .*, got 0"),
    ("{runs: 45, by: luck, seeds: some}", "chosen.seeds: must be a list of seeds, or a whole .*, got 'some'")]
NAMES_OF_OTHER_TOOLS = [
    ("lr: 0.1", "did you mean 'learning_rate'"), ("max_grad_norm: 1", "did you mean 'clipping_norm'"),
    ("noise: 1.1", "must be text, got 1.1; how much noise there is, noise_multiplier says"),
    ("mechanism: dp-sgd", "got 'dp-sgd'; did you mean 'per_example'"),
    ("algorithm: DP-SGD", "got 'DP-SGD'; DP-SGD is algorithm 'bp' with mechanism 'per_example'"),
    ("dataset: FashionMNIST", "got 'FashionMNIST'; did you mean 'fashion_mnist'")]
NO_FRONTIER = [
    ("grid: {algorithm: [bp, dfa]}", r"needs trials with a certified epsilon .* or a label epsilon .* there are none"),
    (f"{CERTIFIED}{{noise_multiplier: [0]}}", r"needs trials with a certified epsilon"),
    (f"{CERTIFIED}{{{CURVES}, clipping_norm: [1, 2], validation_fraction: [0]}}",
     r"takes the best by validation accuracy over clipping_norm, but not all trials log that"),
    (f"{CERTIFIED}{{{CURVES}, clipping_norm: [1, 2], private_metrics: [withheld]}}", r"takes the best by validation"),
    ("base: {target_epsilon: 1, mechanism: per_example}\ngrid: {sampler: [poisson, shuffled]}",
     r"needs one neighbouring relation"),
    ("base: {target_epsilon: 1, mechanism: per_example}\ncases:\n  - base: {sampler: poisson, algorithm: bp}\n"
     "  - base: {sampler: shuffled, algorithm: dfa}", r"needs one neighbouring relation"),
    ("base: {target_epsilon: 1, mechanism: per_example}\ncases:\n  - base: {delta: 1.0e-6, algorithm: bp}\n"
     "  - base: {algorithm: dfa}", r"needs one delta")]


@pytest.mark.parametrize(("text", "message"), [
    ("base: {mechanism: photonic}\ngrid: {sigma: [0, 0.1, -0.1]}",
     r"sigma: must be >= 0, got -0.1, at grid.sigma\[2\] \(.*e.yaml, line 2\)"),
    ("cases: [{base: {batch_size: 99999}}]", r"batch_size: must be at most .*, at cases\[0\].base.batch_size"),
    ("grid: {sigma: []}", r"grid.sigma: the list is empty"),
    ("grid: {seeds: 3}", r"grid.seeds: unknown field, got 3; did you mean 'seed'\?"),
    ("grid: {zip: {tau_h: [1, 2]}}", r"grid.zip: unknown field, got .*; write it beside grid, not in it"),
    ("grid: {tau_B: [1, 2]}", r"grid.tau_B: unknown field, got .*; did you mean 'tau_f'\?"),
    ("grid: {sigma: 0.1}", r"grid.sigma: must be a list of values or a range, got 0.1"),
    ("grid: {seed: {range: [0]}}", r"grid.seed.range: must be \[start, stop\]"),
    ("grid: {sigma: {logspace: [0, 1, 3]}}", r"grid.sigma.logspace: needs low, high > 0"),
    ("grid: {sigma: {geomspace: [1, 2, 3]}}", r"grid.sigma: a range is one of range, linspace, logspace"),
    ("grid: {seed: [1, 2, 1]}", r"grid\[seed=1\]: the same trial as grid\[seed=1\]: .*seed=1"),
    ("cases: []", r"cases: must be a list of at least one case"), ("base: [1]", r"base: must be a mapping"),
    ("bose: {}", r"bose: unknown entry; did you mean 'base'\? accepted are name, description, preset, base"),
    ("", r"the file: must be a mapping"), ("base: {a: ]", r".*e.yaml: line 1, column \d+: not valid YAML"),
    ("name: a/b", r"name: must be letters, digits"), ("name: '..'", r"name: must be letters, digits.* got '..'"),
    ("grid: {seed: [1]}\ngrid: {seed: [2]}", r".*e.yaml: line 2, column 1: not valid YAML: the key 'grid' stands"),
    ("base:\n\tseed: 1", r".*e.yaml: line 2, column 1: not valid YAML: .* '\\t' \(use spaces\) that cannot"),
    ("grid:\n", r"grid: is blank"), ("base: {seed: 7}\ngrid: {seed: [1]}", r"grid.seed: also stands in base"),
    ("zip: {tau_h: [1, 2], seed: [0]}", r"zip: must have lists of one length, .*, got tau_h 2, seed 1; .* to grid"),
    ("cases: [{zip: {tau_h: [1, 2], seed: [0]}}]", r"cases\[0\].zip: must have lists of one length"),
    ("zip: {seed: []}", r"zip.seed: the list is empty"), ("zip: {}", r"zip: is empty"), ("zip:\n", r"zip: is blank"),
    ("grid: {seed: [1]}\nzip: {seed: [1]}", r"zip.seed: also stands in grid; give it once"),
    ("cases: [{base: {seed: 1}, zip: {seed: [1]}}]", r"cases\[0\].zip.seed: also stands in cases\[0\].base; give it"),
    ("zip: {seed: [0, 1], epochs: [2, -1]}", r"epochs: must be >= 1, got -1, at zip.epochs\[1\] \(.*e.yaml, line 1\)"),
    ("zip: {seed: [0, 0]}", r"zip\[seed=0\]: the same trial as zip\[seed=0\]"),
    ("zip: {sigma: [0.1, 0.2], seed: [0, 1]}", r"sigma: is not used with mechanism 'none', .*, at zip.sigma"),
    ("search: {algorithm: random, trials: 2, space: {tau_h: {uniform: [1, 2]}}}\nzip: {seed: [0]}",
     r"zip: must not stand beside a search"),
    ("base: {sigma: [0, 0.1]}", r"sigma: must be a finite number, got \[0, 0.1\]; several values go to grid"),
    ("grid: {seed: {range: [0, .inf]}}", r"grid.seed.range: must be"),
    ("base: {tau_h: 0,1}", r".*e.yaml: line 1, column 17: .*a key must be text, .* a point, not a comma, got '1'$"),
    ("no: 1", r".*e.yaml: line 1, column 1: .* got 'no'$"), ("base: {seed: {{n}}}", r".*: .*, got a mapping$"),
    (r'name: "\ud83d"', r".*e.yaml: not valid YAML: 'utf-16"),
    ("base: !!int a", r".*e.yaml: not valid YAML: invalid literal"), ("[" * 2000, r".*e.yaml: not valid YAML: maximum"),
    ("base: {epochs: 0100}", r"epochs: must be a whole number, got the text '0100'; write it without .*, line 1\)"),
    ("name: on", r"name: must be text, got True; in quotes it is text"),
    ("base: {optimizer: no}", r"optimizer: must be text, got False; in quotes it is text, at base.optimizer"),
    ("grid: {seed: {range: [0, 1_000_000_000]}}", r"grid.seed.range: must have at most 100000 values, got 1000000000"),
    ("grid: {sigma: {linspace: [0, 1, 1e9]}}", r"grid.sigma.linspace: must have at most 100000 values, got 1000000000"),
    ("cases: [{grid: {tau_h: {linspace: [1, 2, 9e4]}, seed: [1, 2]}}]", r"cases\[0\].grid: must have at most 100000"),
    ("base: {mechanism: per_example, noise_multiplier: 1}\nselection: {rule: random_stopping, mean: 1e9}",
     r"selection.mean: must have at most 100000 trials, got 1000000000; split the experiment"),
    ("search: {algorithm: random, trials: 1000000000, space: {tau_h: {uniform: [1, 2]}}}",
     r"search.trials: must have at most 100000 trials"),
    ("resources: {opu: 0}", r"resources.opu: must be > 0"),
    ("resources: {opu: 0.5}\nbase: {algorithm: pdfa, projector: opu_hardware}", r"resources.opu: must be at least 1"),
    ("grid: {tau_h: [1, 2]}\nbase: {mechanism: photonic}\nreport: [table1]", r"report: table1 has one cell .* tau_h"),
    ("report: [figure2]", r"report: figure2 shows the alignment of pdfa, but no trial"),
    ("report: {best_of: [lerning_rate]}", r"report.best_of: must be settings .*, got 'lerning_rate'"),
    ("grid: {tau_h: [1, 2]}\nbase: {mechanism: photonic}\nreport: {best_of: [tau_h, batch_size]}",
     r"report.best_of: must be settings in which trials .* differ, here tau_h, got 'batch_size' \(.*line 3"),
    ("report: {best_of: [sigma]}", r"report.best_of: must be settings .* differ, here none, got 'sigma'"),
    ("report: {best_of: learning_rate}", r"report.best_of: must be a list of settings, as `.*`, got 'le"),
    ("report: [table9]", r"report: must be a list of frontier, .*, or by_A or by_A_and_B of .*, got 'table9'; did you"),
    *((f"base: {{{setting}}}", f".*{message}") for setting, message in NAMES_OF_OTHER_TOOLS),
    *((f"references: {references}", message) for references, message in WRONG_REFERENCES),
    *((f"name: a\nchosen: {chosen}", rf"{message}.* \(.*e.yaml, line 2\)") for chosen, message in WRONG_CHOSEN),
    *((f"{CERTIFIED}{{{CURVES}}}\nreport: [{name}]", f"report: {name} has one cell .* target_epsilon, noise_multiplier")
      for name in ("table1", "figure2")),
    *((f"{text}\nreport: {{exhibits: [frontier]{', best_of: [clipping_norm]' * ('clipping' in text)}}}",
       f"report: frontier {message}") for text, message in NO_FRONTIER)])
def test_refused_in_one_line_with_the_place(tmp_path, text, message):
    with pytest.raises(ConfigError, match="^" + message) as raised:
        check(load(tmp_path, text))
    assert "\n" not in str(raised.value)


GOOD = """name: a
base: {dataset: digits, mechanism: per_example, noise_multiplier: 1, batch_size: 64}
grid: {seed: {range: [0, 2]}, learning_rate: {logspace: [0.1, 1, 2]}}
cases: [{}, {base: {algorithm: bp}}]
resources: {gpu: 0.5}
report: [means]
references: [{source: They 2021, epsilon: 3, delta: 1.0e-5, accuracy: 89.7}]
chosen: {runs: 4, by: luck, seeds: [0]}
"""
CUTS = st.tuples(st.integers(0, len(GOOD)), st.integers(0, 6), st.text("{}[]:,&*!|>'\"-#%@? \n\t019ax.e_~", max_size=4))


@given(st.dictionaries(st.sampled_from(ENTRIES), ANYTHING, min_size=1).map(yaml.safe_dump)
       | st.lists(CUTS, min_size=1, max_size=4).map(lambda cuts: functools.reduce(
           lambda text, cut: text[:cut[0]] + cut[2] + text[cut[0] + cut[1]:], cuts, GOOD)))
def test_a_file_with_anything_in_it_is_read_or_refused_in_one_line(text):
    try:
        parse_experiment(text, Path("e.yaml"))
    except ConfigError as error:
        assert "\n" not in str(error)


@given(given_settings({"algorithm", "hidden", "batch_size", "momentum", "init", "output_std", "activation"}),
       st.lists(st.integers(0, 99), unique=True, min_size=1, max_size=2),
       st.lists(st.floats(0.1, 9), unique=True, min_size=1, max_size=2), st.randoms(use_true_random=False))
def test_trials_are_the_product_of_a_grid_and_are_read_again_from_the_text(base, seeds, rates, random):
    def read(top, **changes):
        return parse_experiment(yaml.safe_dump(top, sort_keys=False), Path("e.yaml"), changes=changes)

    def turned(mapping):
        return {key: mapping[key] for key in random.sample([*mapping], len(mapping))}

    base, grid = {"dataset": "digits", "batch_size": 64, **base}, {"seed": seeds, "learning_rate": rates}
    try:
        experiment = read({"base": base, "grid": grid})
    except ConfigError:
        reject()
    assert experiment.trials == tuple(TrialConfig(**base, seed=seed, learning_rate=rate)
                                      for seed in seeds for rate in rates)
    assert set(experiment.trials) == set(read(turned({"grid": turned(grid), "base": turned(base)})).trials)
    for found in (experiment, read({"base": base, "grid": grid}, epochs=3, input_norm=0.1)):
        assert parse_experiment(found.text, Path("e.yaml")) == found


FRONTIERS = ("frontier", "frontier_worst_class", "frontier_alignment")


@pytest.mark.parametrize(("text", "exhibits", "varied"), [
    ("grid: {algorithm: [bp, pdfa], seed: [0, 1]}", ("table1", "figure2", "means"), ()),
    ("grid: {algorithm: [bp, dfa]}", ("table1", "means"), ()), ("grid: {seed: [0, 1]}", ("table1",), ()),
    ("base: {mechanism: photonic}\ngrid: {tau_h: [1, 2], batch_size: [64, 128]}",
     ("means", "by_batch_size", "by_tau_h", "by_batch_size_and_tau_h"), ("batch_size", "tau_h")),
    (f"{CERTIFIED}{{{CURVES}}}", (*FRONTIERS, "means"), ()),
    (f"{CERTIFIED}{{{CURVES}, clipping_norm: [1, 2]}}", (*FRONTIERS, "means", "by_clipping_norm"), ("clipping_norm",)),
    ("base: {mechanism: photonic}\ngrid: {sigma: [0, 1, 2], algorithm: [dfa, pdfa]}",
     (*FRONTIERS, "frontier_claimed", "table1", "figure2", "means", "by_sigma"), ()),
    ("base: {mechanism: photonic, joint_release: true}\ngrid: {target_label_epsilon: [1, 3]}",
     (*FRONTIERS, "means"), ()),
    ("base: {mechanism: photonic, output_noise: false, algorithm: dfa}\ngrid: {sigma: [0, 1]}",
     ("table1", "means", "by_sigma"), ())])
def test_a_silent_file_gets_the_exhibits_that_its_trials_fit(tmp_path, text, exhibits, varied):
    file = load(tmp_path, text)
    assert listed(file) == exhibits and file.varied == varied


PRIVATE = "base:\n  dataset: digits\n  mechanism: per_example\n  target_epsilon: 1\n"
SPACE = "search:\n  algorithm: random\n  trials: 2\n  space:\n    "


@pytest.mark.parametrize(("text", "says"), [
    ("name: a\nbase:\n  dataset: digits\n  nose: 1\n", r"nose: unknown .*\? It stands at base.nose \(a.yaml, line 4"),
    ("name: a\nbsae: {}\n", r"bsae: unknown entry; did you mean 'base'\? .* \(a.yaml, line 2"),
    ("name: a\nresources:\n  gpus: 1\n", r"resources.gpus: unknown entry; did you mean 'gpu'\? .* \(a.yaml, line 3"),
    ("name: a\nresources:\n  gpu: -1\n", r"resources.gpu: must be a number >= 0, got -1 \(a.yaml, line 3"),
    ("name: a\ngrid: {}\n", r"grid: is empty; .* \(a.yaml, line 2"),
    ("cases:\n  - {}\n  - base: {mechanism: photonic}\n    grid:\n      sigma:\n        - 0\n        - -1\n",
     r"sigma: must be >= 0, got -1.0, at cases\[1\].grid.sigma\[1\] \(a.yaml, line 7"),
    ("base: {mechanism: photonic}\ngrid:\n  sigma:\n    linspace: [-1, 1, 3]\n",
     r"sigma: must be >= 0, got -1.0, at grid.sigma\[0\] \(a.yaml, line 3"),
    ("base: {dataset: digits, target_epsilon: 3, mechanism: per_example, train_records: 10}\npreset: recommended\n",
     r"batch_size: .*, got 512; give batch_size in the file, in place of what the preset has \(a.yaml, line 2"),
    (f"{PRIVATE}  validation_fraction: 0\nselection: {{rule: composition}}",
     r"validation_fraction: .*, got 0.0, at base.validation_fraction \(a.yaml, line 5"),
    (f"{PRIVATE}grid:\n  delta: [1.0e-5, 1.0e-6]\nselection: {{rule: random_stopping, mean: 2}}",
     r"delta: must be one .*, got 1e-05, 1e-06, at grid.delta\[1\] \(a.yaml, line 6"),
    (f"{PRIVATE}  private_metrics: plain\n{SPACE}seed: {{choice: [0, 1]}}\nbudget: {{epsilon: 1, delta: 1.0e-5}}",
     r"private_metrics: must be 'noisy' .*, at base.private_metrics \(a.yaml, line 5"),
    (f"{PRIVATE}{SPACE}validation_fraction: {{choice: [0, 0.1]}}",
     r"validation_fraction: must leave .*, at search.space.validation_fraction \(a.yaml, line 9"),
    ("references:\n  - {source: a, epsilon: 3, delta: 1.0e-5, accuracy: 89}\n  - source: b\n    epsilon: 0\n"
     "    delta: 1.0e-5\n    accuracy: 89\n", r"references.epsilon: .*, at references\[1\].epsilon \(a.yaml, line 4")])
def test_what_is_wrong_names_file_and_line(text, says):
    with pytest.raises(ConfigError, match=says + r"\)$"):
        parse_experiment(text, Path("a.yaml"))


def test_what_the_accounting_or_a_promise_refuses_of_a_trial_names_file_and_line():
    experiment = parse_experiment(PRIVATE.replace("epsilon: 1", "epsilon: 1.0e+9"), Path("a.yaml"))
    with pytest.raises(ConfigError, match=r"target_epsilon: must be .*, at base.target_epsilon \(a.yaml, line 4\)$"):
        preview(experiment, None)
    of_python = Experiment("a", "", experiment.trials)
    assert of_python.plan == experiment.plan
    with pytest.raises(ConfigError, match=r"target_epsilon: must be .*, got 1e\+09$"):
        preview(of_python, None)


def test_a_line_of_the_option_set_is_not_one_of_the_file():
    text = "base:\n  dataset: digits\n  epochs: 1\n  sigma: -1\n"
    with pytest.raises(ConfigError, match=r"epochs: must be >= 1, got -3, at base.epochs \(a.yaml\)$"):
        parse_experiment(text.replace("-1", "0"), Path("a.yaml"), changes={"epochs": -3})
    with pytest.raises(ConfigError, match=r"sigma: .*, at base.sigma \(a.yaml, line 4\)$"):
        parse_experiment(text, Path("a.yaml"), changes={"epochs": 3})


def test_a_setting_in_place_of_that_of_base_is_another_experiment_text():
    text = "name: a\nbase: {dataset: digits, epochs: 2}  # few\ngrid: {seed: [0, 1]}\n"
    changes = {"epochs": 3, "learning_rate": 1e-5, "hidden": [8, 8]}
    experiment = parse_experiment(text, Path("a.yaml"), changes=changes)
    assert {(t.epochs, t.learning_rate, t.hidden) for t in experiment.trials} == {(3, 1e-5, (8, 8))}
    assert experiment.text.startswith("# a.yaml with --set epochs=3 --set learning_rate=1e-05 --set hidden=[8, 8]\n")
    again = parse_experiment(experiment.text, Path("a.yaml"))
    assert again == experiment and again.trials != parse_experiment(text, Path("a.yaml")).trials


@pytest.mark.parametrize(("changes", "says"), [
    ({"seed": 1}, "--set seed: must be a field that no grid, zip, case or space sets, got one of grid; edit the file"),
    ({"epochs": 1}, "--set epochs: must be a field that no grid, zip, case or space sets, got one of zip; edit"),
    ({"sigma": 1}, "--set sigma: must be a field that no .* sets, got one of cases[0].base; edit the file"),
    ({"nose": 1}, "--set nose: unknown field, got 1; did you mean 'noise'? (a.yaml)"),
    ({"delta": "many"}, "delta: must be a number")])
def test_a_setting_that_base_cannot_change_is_refused(changes, says):
    text = "base: {dataset: digits}\ngrid: {seed: [0, 1]}\nzip: {epochs: [2]}\n"
    text += "cases: [{base: {mechanism: photonic, sigma: 0.1}}]"
    with pytest.raises(ConfigError, match=re.escape(says).replace(r"\.\*", ".*")):
        parse_experiment(text, Path("a.yaml"), changes=changes)


@pytest.mark.parametrize(("seeds", "kept", "told"), [("[0]", (0,), "seed 0"), ("[0, 3]", (0, 3), "seeds 0, 3"),
                                                      ("3", 3, "3 seeds"), ("1", 1, "1 seed")])
def test_a_file_states_how_its_settings_were_found_and_no_trial_is_another_for_it(tmp_path, seeds, kept, told):
    entry = f"chosen: {{runs: 45, by: validation accuracy, seeds: {seeds}}}"
    experiment = load(tmp_path, f"base: {{dataset: digits}}\n{entry}")
    assert (experiment.chosen.runs, experiment.chosen.by, experiment.chosen.seeds) == (45, "validation accuracy", kept)
    assert str(experiment.chosen) == f"45 runs, by validation accuracy, {told}"
    silent = load(tmp_path, "base: {dataset: digits}")
    assert silent.chosen is None and silent.trials == experiment.trials
    published = load(tmp_path, "chosen: {runs: 0, by: those of a paper}\nbase: {dataset: digits}")
    assert str(published.chosen) == "by no run: those of a paper"
