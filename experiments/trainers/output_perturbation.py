"""Logistic regression by output perturbation, with pure epsilon.

Chaudhuri, Monteleoni and Sarwate 2011, "Differentially Private Empirical Risk Minimization", algorithm 1: minimise,
then add noise to the minimiser. Here for neighbours that differ by one record added or removed, with one classifier for
each class against the rest.

Objective of a class, over the records D, each ||x|| <= 1, y = 1 for the class and -1 for others:

    J(w; D) = sum over D of l(y w.x) + (Lambda/2) ||w||^2,    l(t) = log(1 + exp(-t)),    Lambda = lambda N

It is a sum, and N is the public number of training records, so that a further record changes one term alone. Lambda
stays the same, where the mean of the paper would change it.

Sensitivity. Let D' be D with a record (x, y) more, w and w' the exact minimisers. Then the gradient of J(.; D') at w'
is 0, and so the gradient of J(.; D) at w' is -l'(y w'.x) y x, whose norm is at most |l'| ||x|| <= 1. J(.; D) is
Lambda-strongly convex, so that

    Lambda ||w' - w|| <= ||grad J(w'; D) - grad J(w; D)|| <= 1.

Minimisers are computed until the gradient's norm is at most tau, which by the same inequality puts each within
tau/Lambda of the exact one. What is computed thus moves by at most

    Delta = (1 + 2 tau)/Lambda.

(The paper's 2/(n lambda) is of a mean and of a record replaced: two terms change.)

Noise of density proportional to exp(-||b|| / (s Delta)), with s the `perturbation`: a uniform direction, and a length
that is Gamma distributed with shape d, the dimension of w, and scale s Delta. The densities of w + b and w' + b differ
by a factor of at most exp(||w' - w||/(s Delta)) <= exp(1/s): one class is released with epsilon 1/s. A record is in the
objectives of all K classes, whose releases compose to at most K/s.

States: K-fold composition of randomized response with two answers, whose epsilon is 1/s; of one epoch, as there is one.
Randomized response dominates all that is epsilon-private by pure epsilon (Kairouz, Oh and Viswanath 2015, theorem 3.4):
it is what the definition allows at worst, and its epsilon at delta after composition is never above K/s.
What a reader must check:
    - records are scaled one by one, and to ||x|| <= 1: `scaled`. No mean or norm of the whole set is used.
    - N and lambda are public, and K is the data set's number of classes, whichever of them occur.
    - the minimiser's tolerance holds in float64: the gradient is computed there, and its rounding is far below tau.
    - the search for the minimiser never gives up: a trial that fails only for some records would tell about them. Its
      time depends on the records, and is not covered by epsilon.
    - noise is drawn in floating point, which pure epsilon does not cover (Mironov 2012).
"""

import math

import torch
from dp_accounting import RandomizedResponseDpEvent, SelfComposedDpEvent
from torch import nn

from pipeline import Epoch, trainer
from pipeline.trials.fields import ConfigError, setting


def scaled(records):
    """Records [n, *shape] as [n, d], each of norm at most 1: its direction, and a constant in place of a bias."""
    flat = records.flatten(1)
    flat = flat / flat.norm(dim=1, keepdim=True).clamp(min=1e-12)
    return torch.cat([flat, flat.new_ones(len(flat), 1)], 1) / math.sqrt(2)


def strength(trial):
    """Lambda, of public numbers."""
    return trial.ridge * trial.split_sizes[0]


def sensitivity(trial):
    """Delta: how far one record more moves the minimiser that is computed."""
    return (1 + 2 * trial.tolerance) / strength(trial)


def minimisers(x, y, Lambda, tau):
    """Of every class, w [K, d] where the gradient of J has at most the norm tau.

    Accelerated gradient descent of Nesterov: J is (n/4 + Lambda)-smooth, as ||x|| <= 1 and l'' <= 1/4.

    Args:
        x: records [n, d], float64, each of norm at most 1.
        y: 1 for records of a class and -1 for others [n, K].
    """
    smooth = len(x) / 4 + Lambda
    root = math.sqrt(smooth / Lambda)
    w = ahead = x.new_zeros(y.shape[1], x.shape[1])
    while True:
        gradient = (-y * torch.sigmoid(-y * (x @ ahead.T))).T @ x + Lambda * ahead
        if gradient.norm(dim=1).max() <= tau:
            return ahead
        before, w = w, ahead - gradient / smooth
        ahead = w + (root - 1) / (root + 1) * (w - before)


def noise(like, scale, generator):
    """Of every row [K, d], density proportional to exp(-||b||/scale)."""
    direction = torch.randn(like.shape, dtype=torch.float64, generator=generator)
    length = torch.empty(like.shape, dtype=torch.float64).exponential_(generator=generator).sum(1)  # Gamma(d)
    return direction / direction.norm(dim=1, keepdim=True) * (scale * length)[:, None]


class Classifier(nn.Module):
    """Logits w.x of scaled records."""

    def __init__(self, weights):
        super().__init__()
        self.weights = nn.Parameter(weights, requires_grad=False)

    def forward(self, records):
        return scaled(records) @ self.weights.T


def event(trial):
    """With q = 2/(1 + exp(epsilon)) two answers have the probabilities q/2 and 1 - q/2, whose ratio is exp(epsilon)."""
    share = math.exp(-1 / trial.perturbation) if trial.perturbation else 0.0
    return SelfComposedDpEvent(RandomizedResponseDpEvent(2 * share / (1 + share), 2), trial.parts.data.spec.n_classes)


def check(trial):
    if trial.epochs != 1:
        raise ConfigError(f"epochs: must be 1 with trainer 'output_perturbation', which releases once, got "
                          f"{trial.epochs}")


@trainer("output_perturbation", version=1, calibrates="perturbation", per="epoch", event=event, check=check,
         label="output perturbation",
         settings={"perturbation": setting(0.0, "s: scale of the noise over the sensitivity; one class is released "
                                           "with epsilon 1/s", low=0),
                   "ridge": setting(1e-3, "lambda: strength of the penalty, per record", low=0, open_low=True),
                   "tolerance": setting(1e-3, "tau: norm of the gradient at which a minimiser is found", low=1e-9,
                                        high=1)})
def train(trial, records, labels, device):
    x, classes = scaled(records.double()), trial.parts.data.spec.n_classes
    y = 2.0 * nn.functional.one_hot(labels.long(), classes).double() - 1
    weights = minimisers(x, y, strength(trial), trial.tolerance)
    if trial.perturbation:
        weights = weights + noise(weights, trial.perturbation * sensitivity(trial), trial.generator("noise")).to(device)
    yield Epoch(Classifier(weights.float()), state=weights)
