"""DP-SGD by Opacus on a small convolutional network with tempered sigmoids.

Papernot, Thakurta, Song, Chien and Erlingsson 2021, "Tempered Sigmoid Activations for Deep Learning with Differential
Privacy". Activations are s sigmoid(T x) - o; the default s = 2, T = 2, o = 1 is tanh. With the default kernel 8 and
stride 2 the network is theirs for 28 x 28 images: 16 filters of 8 x 8, 32 filters of 4 x 4, each with stride 2 and
followed by a maximum over 2 x 2 with stride 1; 32 units; softmax.

States: every step is a Poisson sampled Gaussian mechanism, sampling rate q = m/N, noise multiplier z, for neighbours
that differ by one record added or removed. Why it holds:
    - every record is in a batch with probability q, independently of all others, and N is the public number of
      training records: `trial.sampling_rate`. Without a record, or with one more, q stays the same.
    - Opacus shortens each record's gradient to the norm C, and adds N(0, (z C)^2) to their sum: `DPOptimizer`.
    - m, by which the sum is divided, is public, and an empty batch makes a step, too.
What a reader must check:
    - the loss is a sum over records, and no layer mixes records; else a row of gradients is not of one record.
    - a batch that is too large for one pass is summed in parts, and noise is added once, with the last part.
    - what is yielded is the model, and no number that was computed from private records.
Sampling and noise come from the trial's seed, so that a restart from `state` goes on with the same bits.
"""

import torch
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
from torch import nn

from pipeline import Epoch, trainer
from pipeline.trials.fields import ConfigError, setting

AT_ONCE = 512  # records whose gradients are in memory at the same time


class TemperedSigmoid(nn.Module):
    """s sigmoid(T x) - o."""

    def __init__(self, scale, temperature, offset):
        super().__init__()
        self.scale, self.temperature, self.offset = scale, temperature, offset

    def forward(self, x):
        if (self.scale, self.temperature, self.offset) == (2, 2, 1):
            return torch.tanh(x)  # the same function, in one step
        return self.scale * torch.sigmoid(self.temperature * x) - self.offset


def sides(trial):
    """Height and width after the second maximum."""
    kernel, stride = trial.tempered_kernel, trial.tempered_stride

    def after(side):
        first = (side + 2 * (kernel // 2 - 1) - kernel) // stride + 1 - 1
        return (first - kernel // 2) // stride + 1 - 1
    return tuple(map(after, trial.parts.features.shape(trial)[1:]))


def check(trial):
    shape = trial.parts.features.shape(trial)
    if len(shape) != 3:
        raise ConfigError(f"features: must be images with trainer 'opacus_cnn', got records of shape {list(shape)}")
    if min(sides(trial)) < 1:
        raise ConfigError(f"tempered_kernel: must leave a pixel of images of {shape[1]} x {shape[2]}, got "
                          f"{trial.tempered_kernel} with tempered_stride {trial.tempered_stride}; smaller ones do")


def network(trial):
    """From records [n, channels, height, width] to logits [n, classes]."""
    kernel, stride = trial.tempered_kernel, trial.tempered_stride
    height, width = sides(trial)

    def activation():
        return TemperedSigmoid(trial.tempered_scale, trial.tempered_temperature, trial.tempered_offset)
    return nn.Sequential(
        nn.Conv2d(trial.parts.features.shape(trial)[0], 16, kernel, stride, padding=kernel // 2 - 1), activation(),
        nn.MaxPool2d(2, 1),
        nn.Conv2d(16, 32, kernel // 2, stride), activation(),
        nn.MaxPool2d(2, 1),
        nn.Flatten(), nn.Linear(32 * height * width, 32), activation(),
        nn.Linear(32, trial.parts.data.spec.n_classes))


@trainer("opacus_cnn", version=1, calibrates="noise_multiplier", requires=("opacus",), check=check,
         label="CNN with tempered sigmoids",
         event=lambda trial: PoissonSampledDpEvent(trial.sampling_rate, GaussianDpEvent(trial.noise_multiplier)),
         settings={"learning_rate": None, "momentum": None, "clipping_norm": None,
                   "tempered_scale": setting(2.0, "s of the activation s sigmoid(T x) - o", low=0, open_low=True),
                   "tempered_temperature": setting(2.0, "T of the activation, its inverse temperature", low=0,
                                                   open_low=True),
                   "tempered_offset": setting(1.0, "o of the activation"),
                   "tempered_kernel": setting(8, "side of the first filters; the second have half", low=2),
                   "tempered_stride": setting(2, "stride of both convolutions", low=1)})
def train(trial, records, labels, device):
    from opacus import GradSampleModule
    from opacus.optimizers import DPOptimizer

    model = network(trial).to(device)
    private = GradSampleModule(model, loss_reduction="sum")  # `private` computes gradients, `model` is what it trains
    sgd = torch.optim.SGD(model.parameters(), lr=trial.learning_rate, momentum=trial.momentum)
    optimizer = DPOptimizer(sgd, noise_multiplier=trial.noise_multiplier, max_grad_norm=trial.clipping_norm,
                            expected_batch_size=trial.batch_size, loss_reduction="mean",
                            generator=trial.generator("noise", device))
    sampling = trial.generator("sampling", device)
    if trial.state:
        model.load_state_dict(trial.state["model"])
        sgd.load_state_dict(trial.state["sgd"])
    for _ in trial.epochs_left:
        for _ in range(trial.steps_per_epoch):
            drawn = torch.rand(len(records), generator=sampling, device=device, dtype=torch.float64)
            batch = (drawn < trial.sampling_rate).nonzero()[:, 0].split(AT_ONCE)  # one part, empty, of no record
            for k, part in enumerate(batch, 1):
                loss = nn.functional.cross_entropy(private(records[part]), labels[part], reduction="sum")
                loss.backward()
                optimizer.signal_skip_step(do_skip=k < len(batch))  # the last part adds noise, and makes the step
                optimizer.step()
                optimizer.zero_grad()
        yield Epoch(model, state={"model": model.state_dict(), "sgd": sgd.state_dict()})
