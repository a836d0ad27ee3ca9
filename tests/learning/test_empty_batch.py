"""Poisson batches of no record, which a small sampling rate often draws."""

import torch

from pipeline import TrialConfig, train, trainer
from pipeline.learning.data.dataset import load
from pipeline.learning.training import Training
from pipeline.trials.packs import Pack


def test_inputs_of_no_record_have_their_width():
    inputs = Training(Pack((TrialConfig(dataset="digits"),)), load("digits"), torch.device("cpu")).train_inputs
    assert inputs.batch(torch.zeros(2, 0, dtype=torch.int64)).shape == (2, 0, 64)


def test_a_trainer_is_handed_empty_batches_and_releases_noise_for_them(extensions):
    sizes = []

    @trainer("noise_only", version=1, per_record="rows are zeros", parameters=lambda trial: 10)
    def noise_only(trial, device):
        biases = torch.zeros(10)
        for _ in trial.epochs_left:
            for records, labels in trial.batches():
                sizes.append(len(records))
                assert records.shape == (len(labels), 1, 8, 8)
                biases += trial.release(torch.zeros(len(records), 10))
            yield lambda records, biases=biases: biases.expand(len(records), 10)

    trial = TrialConfig(trainer="noise_only", dataset="digits", mechanism="per_example", sampler="poisson",
                        batch_size=1, noise_multiplier=1.0, epochs=1)
    (record,) = train(trial)
    assert record.outcome.status == "finished" and len(sizes) == trial.steps_per_epoch
    assert 0.25 < sizes.count(0) / len(sizes) < 0.5  # exp(-1) of them
