"""The scripts of docs/ that print what its pages quote."""

import contributions
import pilots
import pytest
import yaml
from stored import attached

from pipeline.accounting.evaluations import selected_epsilon
from pipeline.experiment.experiment import parse_experiment

BASE = "dataset: digits, hidden: [8], batch_size: 64, epochs: 1, sampler: poisson, noise_multiplier: 1"
PILOTS = """\
name: pilots_digits
base: {dataset: digits, hidden: [8], mechanism: per_example, private_metrics: noisy, sampler: poisson, batch_size: 256,
       target_epsilon: 0.5, epochs: 4, validation_fraction: 0.2}
cases:
  - base: {learning_rate: 0.001}
  - base: {learning_rate: 1}
report: []
"""


def test_contributions_use_all_of_a_small_bound_and_little_of_a_large_one(tmp_path, capsys):
    file = tmp_path / "e.yaml"
    for bound, low, high in (0.001, 1.0, 1.0), (1000, 0.0, 0.1):
        file.write_text(f"name: e\nbase: {{{BASE}, mechanism: per_example, clipping_norm: {bound}}}\n")
        contributions.main(file)
        *_, row = capsys.readouterr().out.splitlines()
        method, first, second, both, *_ = (cell.strip() for cell in row.strip("|").split("|"))
        assert method == "digits dfa per_example" and low <= float(both) <= high
        assert float(both) == pytest.approx((float(first)**2 + float(second)**2) ** 0.5, abs=0.01)


@pytest.mark.nightly
def test_the_best_pilot_is_trained_again_and_all_trials_are_paid_for(tmp_path, monkeypatch):
    file = tmp_path / "pilots_digits.yaml"
    file.write_text(PILOTS)
    monkeypatch.setattr(pilots, "STUDY", tmp_path)
    monkeypatch.setattr(pilots, "FILES", {"digits": "pilots_digits"})
    monkeypatch.setattr(pilots, "TOTALS", {total: ({"target_epsilon": 0.4, "seed": 0}, last)
                                           for total, last in ((2.0, 2.5), (3.0, 2.5), (8.0, 7.9))})
    monkeypatch.setattr(pilots, "last_settings", lambda dataset, total: {
        "target_epsilon": pilots.TOTALS[total][1], "epochs": 3, "validation_fraction": 0.0})
    rows = [pilots.row("digits", 1, total, tmp_path / "mlruns") for total in (3.0, 8.0)]
    text = PILOTS.replace("digits\n", "digits_s1\n", 1).replace("target_epsilon: 0.5", "seed: 1, target_epsilon: 0.4")
    for row, last, lowest, bound in zip(rows, (2.5, 7.9), (2.5, 7.8), (2.75, 8), strict=True):
        case = f"  - base: {{learning_rate: 1, target_epsilon: {last}, epochs: 3, validation_fraction: 0.0}}\n"
        experiment = parse_experiment(text.replace("report", case + "report"), file)
        price = selected_epsilon(experiment.trials).value
        assert row["map"] == 1 and row["trial_key"] == experiment.trials[-1].trial_key
        assert row["selected_epsilon"] == pytest.approx(price) and lowest < price < bound
    trained = [sum("reused.run" not in run.tags for run in attached(name, tmp_path / "mlruns").runs())
               for name in ("pilots_digits_s1", "pilots_digits_s1_e3", "pilots_digits_s1_e8")]
    assert trained == [2, 1, 1], "pilots are shared"
    with pytest.raises(SystemExit, match=r"pilots and last trial cost epsilon 2\.\d+, of 2$"):
        pilots.row("digits", 1, 2.0, tmp_path / "mlruns")


@pytest.mark.nightly
def test_the_parts_of_every_total_are_within_it_and_every_rule_has_a_step_size_there():
    for dataset in pilots.FILES:
        totals = {1.0: (1.5, 1.2), 3.0: (4.0, 2.5), 8.0: (7.0, 4.5)}
        for total, rates in totals.items() if dataset == "cifar10" else [*totals.items()][:1]:
            last = pilots.last_settings(dataset, total)
            assert last["learning_rate"] == rates[dataset != "cifar10"]
            path, content = pilots.pilots_of(dataset, 0, total)
            content["cases"].append({"base": {**content["cases"][0]["base"], **last}})
            experiment = parse_experiment(yaml.safe_dump(content), path)
            assert 0.98 * total < selected_epsilon(experiment.trials).value <= total
