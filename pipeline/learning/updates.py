"""Optimizers, and the moving average of the iterates that may be released instead of the last one."""

from __future__ import annotations

import contextlib
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping

import torch
from torch.optim.adam import adam
from torch.optim.sgd import sgd

from pipeline.trials import optimizer
from pipeline.trials.config import TrialConfig
from pipeline.trials.part import Workers

# Adam's decay of the moments, and the number added to the root of the second (Kingma & Ba 2015, Algorithm 1).
BETA_1, BETA_2, EPSILON = 0.9, 0.999, 1e-8


class Update(ABC):
    """Moves the weights with torch's fused optimizers: element-wise, so that stacked trials are independent.

    It calls the functions behind torch's classes, which give the same bits. The classes import torch's compiler, which
    takes most of a second at a worker's start.

    Args:
        config: shared settings of the pack.
        parameters: the weights, changed in place.
        update: a tensor of the same shape, read at every step.

    Attributes:
        learning_rate: eta of the next step.
        state: momentum and moments, by torch's names.
    """

    def __init__(self, config: TrialConfig, parameters: torch.Tensor, update: torch.Tensor) -> None:
        self.config, self.parameters, self.update = config, parameters, update
        self.learning_rate = config.learning_rate
        self.state: dict[str, torch.Tensor] = {}

    @abstractmethod
    def step(self) -> None:
        """Move the parameters."""

    def restore(self, state: Mapping[str, torch.Tensor]) -> None:
        """Resume from a copy of `state`."""
        self.state = {name: value.to(self.parameters.device, copy=True) for name, value in state.items()}


UPDATES: Workers[type[Update]] = Workers()


@UPDATES.of(optimizer.Sgd)
class SgdUpdate(Update):
    """SGD with momentum; the momentum buffer exists after the first step."""

    nesterov = False

    def step(self) -> None:
        """Move the parameters: w <- w - eta (mu b + u)."""
        if self.config.exact:
            return self._step_bit_exact()
        buffers = [self.state.get("momentum_buffer")]
        sgd([self.parameters], [self.update], buffers, fused=True, lr=self.learning_rate,
            momentum=self.config.momentum, dampening=0.0, nesterov=self.nesterov, weight_decay=0.0, maximize=False)
        if buffers[0] is not None:
            self.state["momentum_buffer"] = buffers[0]

    def _step_bit_exact(self) -> None:
        """Move the parameters with the same bits on every processor: each operation rounds by itself."""
        direction = self.update
        if momentum := self.config.momentum:
            buffer = self.state.get("momentum_buffer")
            buffer = self.update.clone() if buffer is None else buffer.mul_(momentum).add_(self.update)
            self.state["momentum_buffer"] = buffer
            direction = buffer.mul(momentum).add_(self.update) if self.nesterov else buffer
        self.parameters.sub_(direction.mul(self.learning_rate))


@UPDATES.of(optimizer.Nesterov)
class NesterovUpdate(SgdUpdate):
    """w <- w - eta (u + mu b) (Sutskever et al. 2013)."""

    nesterov = True


@UPDATES.of(optimizer.Adam)
class AdamUpdate(Update):
    """Kingma & Ba 2015, Algorithm 1."""

    weight_decay, decoupled = 0.0, False

    def __init__(self, config: TrialConfig, parameters: torch.Tensor, update: torch.Tensor) -> None:
        super().__init__(config, parameters, update)
        self.state = {"exp_avg": torch.zeros_like(parameters), "exp_avg_sq": torch.zeros_like(parameters),
                      "step": torch.zeros((), device=parameters.device)}

    def step(self) -> None:
        """Move the parameters: w <- w - eta m/(sqrt(v) + 1e-8), with bias-corrected m and v."""
        if self.config.exact:
            return self._step_bit_exact()
        mean, mean_square, steps = ([self.state[name]] for name in ("exp_avg", "exp_avg_sq", "step"))
        adam([self.parameters], [self.update], mean, mean_square, [], steps, fused=True, lr=self.learning_rate,
             beta1=BETA_1, beta2=BETA_2, eps=EPSILON, amsgrad=False, weight_decay=self.weight_decay, maximize=False,
             decoupled_weight_decay=self.decoupled)

    def _step_bit_exact(self) -> None:
        mean, square, steps = (self.state[name] for name in ("exp_avg", "exp_avg_sq", "step"))
        t = int(steps.add_(1))  # number of this step
        mean.mul_(BETA_1).add_(self.update.mul(1 - BETA_1))
        square.mul_(BETA_2).add_(self.update.square().mul_(1 - BETA_2))
        denominator = square.div(1 - BETA_2**t).sqrt_().add_(EPSILON)
        if self.decoupled:
            self.parameters.mul_(1 - self.learning_rate * self.weight_decay)
        self.parameters.sub_(mean.div(1 - BETA_1**t).div_(denominator).mul_(self.learning_rate))


@UPDATES.of(optimizer.AdamW)
class AdamWUpdate(AdamUpdate):
    """Loshchilov & Hutter 2019, Algorithm 2: w <- w - eta lambda w before each step."""

    decoupled = True

    def __init__(self, config: TrialConfig, parameters: torch.Tensor, update: torch.Tensor) -> None:
        super().__init__(config, parameters, update)
        self.weight_decay = config.weight_decay


def learning_rate(config: TrialConfig, done: int) -> float:
    """Return the learning rate after `done` steps; schedules `linear` and `cosine` let it fall to 0 at the end."""
    progress = done / (config.epochs * config.steps_per_epoch)
    factors = {"constant": 1.0, "linear": 1 - progress, "cosine": (1 + math.cos(math.pi * progress)) / 2}
    return config.learning_rate * factors[config.schedule]


class MovingAverage:
    """Exponential moving average of the iterates, w <- d w + (1 - d) w_t: post-processing of a release.

    The decay of step t is min(d, t/(t + 9)), so that the first iterates soon lose their weight. With `exact` the
    average has the same bits on every processor.
    """

    def __init__(self, iterate: torch.Tensor, decay: float, exact: bool = False) -> None:
        self.iterate, self.decay, self.exact, self.steps = iterate, decay, exact, 0
        self.mean = iterate.clone()

    def update(self) -> None:
        self.steps += 1
        decay = min(self.decay, self.steps / (self.steps + 9))
        if self.exact:
            self.mean.mul_(decay).add_(self.iterate.mul(1 - decay))
        else:
            self.mean.lerp_(self.iterate, 1 - decay)

    @contextlib.contextmanager
    def applied(self) -> Iterator[None]:
        """Replace the iterate by the average within the context."""
        iterate = self.iterate.clone()
        self.iterate.copy_(self.mean)
        try:
            yield
        finally:
            self.iterate.copy_(iterate)
