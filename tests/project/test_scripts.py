"""The scripts of docs/ that print what its pages quote."""

from __future__ import annotations

import contributions
import pilots
import pytest

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


@pytest.mark.slow
def test_the_best_pilot_is_trained_again_and_all_trials_are_paid_for(tmp_path, monkeypatch):
    (tmp_path / "experiments").mkdir()
    file = tmp_path / "experiments" / "pilots_digits.yaml"
    file.write_text(PILOTS)
    monkeypatch.setattr(pilots, "ROOT", tmp_path)
    monkeypatch.setattr(pilots, "FILES", {"digits": "pilots_digits"})
    monkeypatch.setattr(pilots, "last_settings", lambda dataset: {
        "target_epsilon": 2.5, "epochs": 3, "validation_fraction": 0.0})
    row = pilots.row("digits", 1, tmp_path / "mlruns")
    text = PILOTS.replace("digits\n", "digits_s1\n", 1).replace("target_epsilon: 0.5", "seed: 1, target_epsilon: 0.5")
    last = "  - base: {learning_rate: 1, target_epsilon: 2.5, epochs: 3, validation_fraction: 0.0}\n"
    experiment = parse_experiment(text.replace("report", last + "report"), file)
    price = selected_epsilon(experiment.trials, experiment.selection).value
    assert row["map"] == 1 and row["trial_key"] == experiment.trials[-1].trial_key
    assert row["selected_epsilon"] == pytest.approx(price) and 2.5 < price < 2.75
