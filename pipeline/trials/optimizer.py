"""Optimizers: how an update changes the weights."""

from __future__ import annotations

from pipeline.trials.part import Part, again, part, setting


class Optimizer(Part):
    """Settings of all optimizers."""

    learning_rate: float = setting(0.01, "step size eta", low=0, open_low=True)
    schedule: str = setting(
        "constant", "learning rate over the run: `constant`, or falling from eta to 0, `linear` or as a `cosine`",
        choices=("constant", "linear", "cosine"))
    averaging: float = setting(
        0.0, "decay of the exponential moving average of the iterates that is evaluated and kept; 0 takes the last "
        "iterate", low=0, high=1, open_high=True)


@part("optimizer", "sgd")
class Sgd(Optimizer):
    """Stochastic gradient descent with momentum."""

    momentum: float = setting(0.9, "momentum: share of the last step that goes on", low=0, high=1, open_high=True)


@part("optimizer", "nesterov")
class Nesterov(Optimizer):
    """Stochastic gradient descent that looks ahead by its momentum (Sutskever et al. 2013)."""

    momentum: float = again("momentum")


@part("optimizer", "adam")
class Adam(Optimizer):
    """Adam (Kingma & Ba 2015)."""


@part("optimizer", "adamw")
class AdamW(Optimizer):
    """Adam with decoupled weight decay (Loshchilov & Hutter 2019)."""

    weight_decay: float = setting(0.01, "lambda: weights shrink by eta lambda at every step", low=0, high=1)
