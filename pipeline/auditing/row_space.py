"""The row space attack: it finds the records of the batch from one released update of a real trial.

A layer's update is sum_i delta_i h_i^T, whatever the deltas and their noise are. Its rows lie in span{h_i : i in
batch}; with at least as many rows as records they generically span it. An activation of the batch lies in this span. If
there are fewer records than inputs, any other activation generically does not.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

import numpy as np
import torch

from pipeline.accounting.audited import auc, tpr_at_fpr
from pipeline.learning.data.dataset import Dataset
from pipeline.learning.data.sampling import ABSENT
from pipeline.learning.mechanisms.photonic import PhotonicStep
from pipeline.learning.rows import IntegerRows
from pipeline.learning.train import prepare
from pipeline.learning.training import Training
from pipeline.trials.config import TrialConfig
from pipeline.trials.packs import Pack
from pipeline.trials.shapes import ConvShape

# Below this many rounding units of the update's type a value counts as rounding: a residual, or a singular value
# relative to the largest. In float32, updates of 256 records had such singular values at 0.1 to 0.3 units, and the
# smallest true one at 400 units and more.
ROUNDING_UNITS = 4


def row_space_membership(update_weight: torch.Tensor, candidates: torch.Tensor,  # [n_out, n_in]; [k, n_in]
                         max_rank: int | None = None) -> torch.Tensor:
    """Return ||h - P h|| / ||h|| of every candidate h [k], float64: how far it lies outside an update's row space.

    Candidates are activations as the mechanism multiplies them. The right singular vectors with a singular value above
    the rounding tolerance span the row space. The tolerance is `ROUNDING_UNITS` units of the update's type, relative
    to the largest value. The result is 0 within it, so that rounding does not rank candidates, and for h = 0.

    `max_rank` limits the singular vectors, to the batch size if it is public. It is needed if noise was added to the
    update, or if it was rounded to fewer bits than its type has.
    """
    if update_weight.ndim != 2 or candidates.ndim != 2 or update_weight.shape[1] != candidates.shape[1]:
        raise ValueError("candidates: must be [k, n_in] for an update [n_out, n_in], got "
                         f"{list(candidates.shape)} for {list(update_weight.shape)}")
    basis, h = row_space_basis(update_weight, max_rank), candidates.double()
    projected = h @ basis.T @ basis
    norm = torch.linalg.vector_norm(h, dim=1)
    distance = torch.linalg.vector_norm(h - projected, dim=1)
    residual = torch.where(norm > 0, distance / norm, 0.0)
    return torch.where(residual > _tolerance(update_weight), residual, 0.0)


def row_space_basis(update_weight: torch.Tensor, max_rank: int | None = None) -> torch.Tensor:
    """Return an orthonormal basis [rank, n_in], float64, of the row space of an update [n_out, n_in].

    Singular values within rounding of 0 do not count. `max_rank` limits the rank, if given.
    """
    _, singular, right = torch.linalg.svd(update_weight.double(), full_matrices=False)
    rank = int((singular > _tolerance(update_weight) * singular[0]).sum())
    return right[:rank][:max_rank]


def _tolerance(update_weight: torch.Tensor) -> float:
    """Return the largest relative value that counts as rounding in the update's floating-point type."""
    return ROUNDING_UNITS * torch.finfo(update_weight.dtype).eps


@dataclass(frozen=True, eq=False)
class RowSpaceAudit:
    """The result of the row space attack: residuals (`row_space_membership`) of the batches' and held-out records."""

    members: np.ndarray
    non_members: np.ndarray

    @property
    def auc(self) -> float:
        """Return the AUC of the residuals; 1 if every member is closer to the row space than every non-member."""
        return auc(-self.members, -self.non_members)

    def tpr(self, fpr: float = 0.001) -> float:
        """Return the share of members found while at most a share `fpr` of the non-members is mistaken for members."""
        return tpr_at_fpr(-self.members, -self.non_members, fpr)


def row_space_audit(config: TrialConfig, data: Dataset, layer: int = 1, steps: int = 1) -> RowSpaceAudit:
    """Return how well each step's batch is inferred from its released update, in the first steps of a trial.

    The attacker sees the update of one layer, l from 1, as the mechanism releases it. The attacker knows the weights
    before the step and the batch size, and tests the batch's records and all held-out ones. A convolution's update is
    no sum of outer products of activations, so it is refused.
    """
    _check_attack(config, layer, steps)
    members, non_members = [], []
    with contextlib.closing(prepare(Pack((config,)), data, data.train_x.device)) as training:
        for indices in training.sampler.epoch()[:steps]:
            batch_records = indices[indices != ABSENT].unsqueeze(0)  # some places of a batch may have no record
            batch = _activations(training, batch_records, layer)
            held_out = _activations(training, training.validation, layer)
            training.step(indices)
            # The optimizer only reads the update, so it is unchanged.
            update = training.update.weights[layer - 1][0]  # of the only trial
            residuals = row_space_membership(update, torch.cat([batch, held_out]), max_rank=len(batch)).cpu().numpy()
            members.append(residuals[: len(batch)])
            non_members.append(residuals[len(batch):])
    return RowSpaceAudit(np.concatenate(members), np.concatenate(non_members))


def _check_attack(config: TrialConfig, layer: int, steps: int) -> None:
    n_layers = len(config.layer_sizes) - 1
    if not 1 <= layer <= n_layers:
        raise ValueError(f"layer: must be at least 1 and at most {n_layers}, got {layer}")
    if isinstance(config.layers[layer - 1], ConvShape):
        raise ValueError("layer: must be fully connected (the update of a convolution lies in the span of patches), "
                         f"got {layer}")
    _, n_validation = config.split_sizes
    if not n_validation:
        raise ValueError("validation_fraction: must be > 0, as the attack needs records that were held out, got 0.0")
    if not 1 <= steps <= config.steps_per_epoch:
        raise ValueError(f"steps: must be at least 1 and at most the {config.steps_per_epoch} of an epoch, got {steps}")


def _activations(training: Training, indices: torch.Tensor, layer: int) -> torch.Tensor:
    """Return the activations h^{l-1} [m, n_{l-1}] of records [1, m], as the update of layer l multiplies them.

    The photonic mechanism clips every component of them, which moves them out of their span. Clipping by norm, as in
    other mechanisms, does not.
    """
    activations, _ = training.net.forward(training.train_inputs.batch(indices))
    if isinstance(training.mechanism, PhotonicStep):
        activations = training.mechanism.clipped(activations)
    layer_inputs = activations[layer - 1]
    if isinstance(layer_inputs, IntegerRows):  # integers and their step, in integer arithmetic
        layer_inputs = layer_inputs.real()
    return layer_inputs[0]  # of the only trial
