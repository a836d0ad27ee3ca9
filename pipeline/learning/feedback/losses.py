"""Losses of softmax outputs, and their errors for the feedback. Shapes: R trials, m records, n_L classes."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch

from pipeline.trials import loss
from pipeline.trials.config import TrialConfig
from pipeline.trials.part import Workers


class OutputLoss(ABC):
    """A function of logits and labels, record by record; `config` has the shared settings of the pack."""

    def __init__(self, config: TrialConfig) -> None:
        self.config = config

    @abstractmethod
    def of_records(self, logits: torch.Tensor, labels: torch.Tensor  # z^L [R, m, n_L]; [R, m, 1], int64
                   ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the error e [R, m, n_L] and the loss [R, m, 1] of every record.

        e is the gradient of the loss at z^L: softmax(z^L) - q, with q on the simplex.
        """

    def targets(self, labels: torch.Tensor, classes: int) -> torch.Tensor:
        """Return q of every record [R, m, n_L], float64, for labels [R, m]; e is softmax(z^L) - q."""
        raise NotImplementedError

    def __call__(self, logits: torch.Tensor, labels: torch.Tensor,  # [R, m, n_L]; [R, m], int64
                 present: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the error of every record [R, m, n_L] and the mean loss of a batch [R].

        `present` [R, m, 1] is 0 for padding, which has error 0 and no part in the loss. An empty batch has loss 0.
        """
        error, losses = self.of_records(logits, labels.unsqueeze(-1))
        if present is None:
            return error, losses.mean(dim=(1, 2))
        n_records = present.sum(dim=(1, 2)).clamp(min=1)
        return error.mul_(present), (losses * present).sum(dim=(1, 2)) / n_records


LOSSES: Workers[type[OutputLoss]] = Workers()


@LOSSES.of(loss.CrossEntropy)
class CrossEntropyLoss(OutputLoss):
    """The loss -log p of the label, with e = p - onehot."""

    def of_records(self, logits: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        log_p = torch.log_softmax(logits, dim=-1)
        losses = -log_p.gather(-1, labels)
        error = log_p.exp_()
        error.scatter_add_(-1, labels, torch.full_like(labels, -1, dtype=error.dtype))
        return error, losses

    def targets(self, labels: torch.Tensor, classes: int) -> torch.Tensor:
        return torch.nn.functional.one_hot(labels, classes).double()


@LOSSES.of(loss.LabelSmoothing)
class LabelSmoothingLoss(CrossEntropyLoss):
    """The loss -sum q log p, q = (1 - s) onehot + s/K, s = `smoothing`, e = p - q (Szegedy et al. 2016, section 7)."""

    def of_records(self, logits: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        share = self.config.smoothing
        log_p = torch.log_softmax(logits, dim=-1)
        losses = -(1 - share) * log_p.gather(-1, labels) - share * log_p.mean(dim=-1, keepdim=True)
        error = log_p.exp_().sub_(share / logits.shape[-1])
        error.scatter_add_(-1, labels, torch.full_like(labels, share - 1, dtype=error.dtype))
        return error, losses

    def targets(self, labels: torch.Tensor, classes: int) -> torch.Tensor:
        share = self.config.smoothing
        return super().targets(labels, classes).mul_(1 - share).add_(share / classes)
