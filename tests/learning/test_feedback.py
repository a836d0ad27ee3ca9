"""Errors and back-propagation against autograd, and closed forms; test_step.py writes the papers' formulas out."""

import math

import pytest
import torch
from mlp import Mlp

from pipeline.learning.alignment import cosines, feedback_update, true_gradient
from pipeline.learning.feedback.algorithms import BackPropagationPath, DirectFeedback, ternarize
from pipeline.learning.feedback.losses import CrossEntropyLoss, LabelSmoothingLoss
from pipeline.learning.network.stacked import Parameters
from pipeline.trials.config import TrialConfig

output_error = CrossEntropyLoss(TrialConfig())

SIZES, R, M = (12, 9, 7, 5), 2, 6


class FixedMatrices:
    """A projector with given matrices B [R, n_classes, n_out_total], in their own precision."""

    def __init__(self, matrices):
        self.matrices = matrices

    def project(self, e):
        return torch.bmm(e, self.matrices)


@pytest.fixture(params=["tanh", "sigmoid", "relu"])
def case(request):
    generator = torch.Generator().manual_seed(0)
    net = Mlp(SIZES, request.param, seeds=[1, 2], dtype=torch.float64)
    net.parameters.flat.mul_(3)
    x = torch.randn(R, M, SIZES[0], generator=generator, dtype=torch.float64)
    y = torch.randint(SIZES[-1], (R, M), generator=generator)
    return request.param, net, x, y


@pytest.mark.parametrize("smoothing", [0.0, 0.3])
def test_error_is_the_gradient_of_the_loss_at_the_logits_and_no_longer_than_its_bound(case, smoothing):
    _, net, x, y = case
    _, logits = net.forward(x)
    leaf = logits.clone().requires_grad_()
    losses = torch.nn.functional.cross_entropy(leaf.flatten(0, 1), y.flatten(), reduction="none",
                                               label_smoothing=smoothing).view(R, M)
    losses.sum().backward()
    smoothed = LabelSmoothingLoss(TrialConfig(loss="label_smoothing", smoothing=smoothing))
    loss_of = smoothed if smoothing else output_error
    error, loss = loss_of(logits, y)
    torch.testing.assert_close(error, leaf.grad)
    torch.testing.assert_close(loss, losses.mean(dim=1).detach())
    present = torch.tensor([[1.0]] + [[0.0]] * (M - 1)).expand(R, M, 1)
    alone, of_one = loss_of(logits, y, present)
    assert not alone[:, 1:].any()
    torch.testing.assert_close(of_one, losses[:, 0].detach())
    # Not even where the label is the one class that the network excludes.
    error, _ = loss_of(torch.tensor([[[-1e4, 1e4, -1e4], [0.0, 0.0, 0.0]]]), torch.tensor([[0, 1]]))
    assert error.norm(dim=-1).max() <= math.sqrt(2)
    torch.testing.assert_close(error.sum(-1), torch.zeros(1, 2))


def test_bp_equals_autograd(case):
    name, net, x, y = case
    activations, logits = net.forward(x)
    error, _ = output_error(logits, y)
    ours = Parameters(SIZES, R, dtype=torch.float64)
    true_gradient(net, error, activations, ours)
    weights, biases = ([p.clone().requires_grad_() for p in group]
                       for group in (net.parameters.weights, net.parameters.biases))
    h = x
    for layer in range(len(SIZES) - 1):
        h = torch.einsum("rmi,roi->rmo", h, weights[layer]) + biases[layer].unsqueeze(1)
        if layer < len(SIZES) - 2:
            h = getattr(torch, name)(h)
    torch.nn.functional.cross_entropy(h.flatten(0, 1), y.flatten(), reduction="sum").backward()
    for update, leaf in zip(ours.weights + ours.biases, weights + biases, strict=True):
        torch.testing.assert_close(update, leaf.grad / M)


def test_closed_forms_of_ternary_errors_and_cosines():
    e = torch.tensor([[[-1.0, -0.2, -0.15, 0.0, 0.15, 0.151]]])
    assert ternarize(e, torch.full((1, 1, 1), 0.15)).tolist() == [[[-1, -1, 0, 0, 0, 1]]]
    update, other = Parameters((2, 1, 1), 2), Parameters((2, 1, 1), 2)
    update.weights[0][:] = torch.tensor([[[3.0, 0.0]], [[1.0, 1.0]]])
    update.biases[0][:] = torch.tensor([[4.0], [0.0]])
    other.weights[0][:] = torch.tensor([[[3.0, 0.0]], [[-2.0, -2.0]]])
    other.biases[0][:] = torch.tensor([[-4.0], [0.0]])
    other.weights[1][:] = 1.0
    result = cosines(update, other)
    torch.testing.assert_close(result[:, 0], torch.tensor([(9 - 16) / 25, -1.0]))
    assert result[:, 1].isnan().all(), "the cosine with a zero update is undefined, not 0"


class NoisyMatrices(FixedMatrices):
    """A device whose projections are wrong by 1, also of padding."""

    def project(self, e):
        return super().project(e) + 1


def linear(records):
    """A network of two layers with W = 1, which is linear as nothing is negative; inputs and errors of records."""
    net = Mlp((2, 2, 2), "relu", seeds=[1])
    for weight, bias in zip(net.parameters.weights, net.parameters.biases, strict=True):
        weight[0], bias[0] = torch.eye(2), 0
    x, error = torch.tensor([[[1.0, 2.0], [2.0, 1.0]]]), torch.tensor([[[0.5, -0.5], [0.5, 0.5]]])
    return net, x[:, :records], error[:, :records]


@pytest.mark.parametrize(("records", "expected"), [(1, 8 / 100**0.5), (2, 9 / 180**0.5)])
def test_alignment_of_a_linear_networks_feedback_has_a_closed_form(records, expected):
    """With B = diag(1, 7), B e = (1, -7)/2 and (1, 7)/2. With the bias's input 1, the products of the inputs are 6, 5
    and 6. So the mean update has the cosine 9/sqrt(180), its records 8/10 each."""
    net, x, error = linear(records)
    update, gradient = Parameters((2, 2, 2), 1), Parameters((2, 2, 2), 1)
    activations, _ = net.forward(x)
    true_gradient(net, error, activations, gradient)
    matrices = torch.diag(torch.tensor([1.0, 7.0]))[None]
    feedback_update(DirectFeedback(FixedMatrices(matrices), (2,)), net, error, activations, update)
    torch.testing.assert_close(cosines(update, gradient), torch.tensor([[expected, 1.0]]))
    feedback_update(BackPropagationPath(), net, error, activations, update)
    torch.testing.assert_close(cosines(update, gradient), torch.ones(1, 2))


def test_padding_has_no_part_in_the_feedbacks_update():
    (net, x, error), present = linear(2), torch.tensor([[[1.0], [0.0]]])
    feedback = DirectFeedback(NoisyMatrices(torch.eye(2)[None]), (2,))
    first, padded = Parameters((2, 2, 2), 1), Parameters((2, 2, 2), 1)
    feedback_update(feedback, net, error[:, :1], net.forward(x[:, :1])[0], first)
    feedback_update(feedback, net, error * present, net.forward(x)[0], padded, present)
    torch.testing.assert_close(2 * padded.flat, first.flat)  # a mean over 2 places, and over 1
    feedback_update(feedback, net, error * present, net.forward(x)[0], padded)
    assert not torch.allclose(2 * padded.flat, first.flat)
