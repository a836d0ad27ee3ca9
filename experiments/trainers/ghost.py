"""DP-SGD by Opacus with ghost clipping, on any `torch.nn.Module`.

Ghost clipping (Li, Tramer, Liang and Hashimoto 2022) finds the norm of each record's gradient without forming the
gradient, and then back-propagates the loss with one weight per record. It takes the memory of one gradient, where a
gradient per record does not fit. It is what Opacus' `make_private(grad_sample_mode="ghost")` sets up.

`ghost_module: my_networks:resnet` names a function or class beside the experiment file, or of an installed package. It
is called as `resnet(shape, classes)`, with the shape of one record, channels first, and returns the module. What it
computes is no part of a trial's identity: give a changed network another name. Empty: `small`, below.

If you only want your module trained, use `@network` (docs/networks.md): this package then computes the contributions,
by back-propagation or DFA, and certifies the epsilon that is stated here.

States: every step is a Poisson sampled Gaussian mechanism, sampling rate q = m/N, noise multiplier z, for neighbours
that differ by one record added or removed. Why it holds:
    - every record is in a batch with probability q, independently of all others, and N is the public number of
      training records: `trial.sampling_rate`. Without a record, or with one more, q stays the same.
    - a record's loss is weighted by min(1, C/norm), so that its gradient has at most the norm C, and N(0, (z C)^2) is
      added to the sum.
    - m, by which the sum is divided, is public, and an empty batch makes a step, too.
What a reader must check:
    - the module computes the logits of a record from that record alone. Opacus refuses layers with buffers, such as
      batch normalisation, and parameters that two layers share. It cannot see all else that mixes records.
    - the norms are right for the layers of the module. Opacus has formulas for the common ones and forms the gradients
      of others; a layer with a custom backward pass has to be compared with gradients of single records.
    - a batch that is too large for one pass is summed in parts, and noise is added once, with the last part.
    - what is yielded is the model, and no number that was computed from private records.
Sampling and noise come from the trial's seed, so that a restart from `state` goes on with the same bits.
"""

import importlib
import math
import re

import torch
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
from torch import nn

from pipeline import Epoch, trainer
from pipeline.trials.fields import ConfigError, setting

AT_ONCE = 1024  # records in one pass
NAME = r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*"


def small(shape, classes):
    """A network for records of any shape: one layer of 128 units."""
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), 128), nn.Tanh(), nn.Linear(128, classes))


def check(trial):
    """The name's form alone: who only reads a trial imports nothing that it names."""
    if trial.ghost_module and not re.fullmatch(NAME, trial.ghost_module):
        raise ConfigError(f"ghost_module: must be 'module:attribute', or empty, got '{trial.ghost_module}'")


def module(trial):
    make = small
    if trial.ghost_module:
        name, attribute = trial.ghost_module.split(":")
        make = getattr(importlib.import_module(name), attribute)
    return make(trial.parts.features.shape(trial), trial.parts.data.spec.n_classes)


@trainer("ghost", version=1, calibrates="noise_multiplier", requires=("opacus",), check=check, label="ghost clipping",
         event=lambda trial: PoissonSampledDpEvent(trial.sampling_rate, GaussianDpEvent(trial.noise_multiplier)),
         settings={"learning_rate": None, "momentum": None, "clipping_norm": None,
                   "ghost_module": setting("", "network, as `module:attribute`; by default a small one")})
def train(trial, records, labels, device):
    from opacus.grad_sample import GradSampleModuleFastGradientClipping
    from opacus.optimizers import DPOptimizerFastGradientClipping
    from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping

    model = module(trial).to(device)
    private = GradSampleModuleFastGradientClipping(model, loss_reduction="sum", max_grad_norm=trial.clipping_norm)
    step = trial.learning_rate / trial.batch_size  # all of this sums; a mean would divide by a batch's private size
    sgd = torch.optim.SGD(model.parameters(), lr=step, momentum=trial.momentum)
    optimizer = DPOptimizerFastGradientClipping(
        sgd, noise_multiplier=trial.noise_multiplier, max_grad_norm=trial.clipping_norm,
        expected_batch_size=trial.batch_size, loss_reduction="sum", generator=trial.generator("noise", device))
    loss = DPLossFastGradientClipping(private, optimizer, nn.CrossEntropyLoss(reduction="sum"), loss_reduction="sum")
    sampling = trial.generator("sampling", device)
    if trial.state:
        model.load_state_dict(trial.state["model"])
        sgd.load_state_dict(trial.state["sgd"])
    for _ in trial.epochs_left:
        for _ in range(trial.steps_per_epoch):
            drawn = torch.rand(len(records), generator=sampling, device=device, dtype=torch.float64)
            batch = (drawn < trial.sampling_rate).nonzero()[:, 0].split(AT_ONCE)  # one part, empty, of no record
            for k, part in enumerate(batch, 1):
                loss(private(records[part]), labels[part]).backward()
                optimizer.signal_skip_step(do_skip=k < len(batch))  # the last part adds noise, and makes the step
                optimizer.step()
                optimizer.zero_grad()
        yield Epoch(model, state={"model": model.state_dict(), "sgd": sgd.state_dict()})
