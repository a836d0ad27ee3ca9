"""The whole idea on one page: private training by back-propagation (DP-SGD) and by direct feedback alignment (DP-DFA).

    python experiments/one_step.py    # seconds on a CPU

Both clip what a record contributes and add noise to the sum, and both cost the same epsilon. They differ in one line:
back-propagation carries the error e through the weights, W^T delta; DFA projects it by a fixed random matrix, B e.
"""

import torch
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
from dp_accounting.pld import PLDAccountant
from sklearn.datasets import load_digits
from torch import Tensor

SIZES = (64, 64, 64, 10)  # units: input, hidden, hidden, classes
N, M, EPOCHS, RATE = 1437, 256, 60, 0.5  # training records, expected batch, passes over the records, step size
C, Z, DELTA = 1.0, 4.0, 1e-5  # clipping norm, noise multiplier (standard deviation of the noise over C), delta
Layer = tuple[Tensor, Tensor]  # weights [n_out, n_in] and biases [n_out], or what is to move them


def forward(layers: list[Layer], x: Tensor) -> tuple[list[Tensor], Tensor]:
    """What enters each layer, h^0..h^{L-1} [m, n], and the logits [m, classes]."""
    entering, (*hidden, (weight, bias)) = [x], layers
    for w, b in hidden:
        entering.append(torch.tanh(entering[-1] @ w.T + b))
    return entering, entering[-1] @ weight.T + bias


def signals(layers: list[Layer], entering: list[Tensor], error: Tensor, matrices: list[Tensor] | None) -> list[Tensor]:
    """delta^1..delta^L [m, n_l]: by back-propagation, or by DFA with matrices B [classes, n_l]."""
    deltas = [error]
    for k in range(len(layers) - 1, 0, -1):
        carried = deltas[0] @ layers[k][0] if matrices is None else error @ matrices[k - 1]
        deltas.insert(0, carried * (1 - entering[k] ** 2))  # tanh'
    return deltas


def step(layers: list[Layer], x: Tensor, y: Tensor, noise: list[Layer], matrices: list[Tensor] | None = None) -> None:
    """Move the layers by -RATE/M (sum of clipped contributions + noise), for a batch x [n, n_0] with labels y [n].

    n varies from step to step; M, its expectation, is public. The noise is N(0, (Z C)^2), in the layers' shapes.
    """
    entering, logits = forward(layers, x)
    error = torch.softmax(logits, dim=1) - torch.nn.functional.one_hot(y, logits.shape[1])
    deltas = signals(layers, entering, error, matrices)
    # A record contributes delta h^T and delta to a layer: squared norm ||delta||^2 (||h||^2 + 1).
    squares = [d.square().sum(1) * (h.square().sum(1) + 1) for d, h in zip(deltas, entering, strict=True)]
    factor = (C / torch.stack(squares).sum(0).sqrt()).clamp(max=1).unsqueeze(1)
    for (weight, bias), (of_weight, of_bias), d, h in zip(layers, noise, deltas, entering, strict=True):
        weight -= RATE / M * ((d * factor).T @ h + of_weight)
        bias -= RATE / M * ((d * factor).sum(0) + of_bias)


def epsilon(steps: int) -> float:
    """Of all steps: a record is in a batch with probability M/N; neighbours differ in one record, added or removed."""
    one = PoissonSampledDpEvent(M / N, GaussianDpEvent(Z))
    return float(PLDAccountant().compose(SelfComposedDpEvent(one, steps)).get_epsilon(DELTA))


def train(direct: bool, seed: int) -> float:
    """Test accuracy on 360 digits, with DFA if `direct`."""
    generator = torch.Generator().manual_seed(seed)
    pixels, y = (torch.from_numpy(array) for array in load_digits(return_X_y=True))
    x = pixels.float() / 8 - 1
    layers = [(torch.empty(b, a).uniform_(-(a**-0.5), a**-0.5, generator=generator), torch.zeros(b))
              for a, b in zip(SIZES, SIZES[1:], strict=False)]
    matrices = [0.1 * torch.randn(SIZES[-1], width, generator=generator) for width in SIZES[1:-1]] if direct else None
    for _ in range(EPOCHS * (N // M)):
        batch = torch.rand(N, generator=generator) < M / N
        noise = [(Z * C * torch.randn(w.shape, generator=generator), Z * C * torch.randn(b.shape, generator=generator))
                 for w, b in layers]
        step(layers, x[:N][batch], y[:N][batch], noise, matrices)
    return float((forward(layers, x[N:])[1].argmax(1) == y[N:]).float().mean())


if __name__ == "__main__":
    torch.set_num_threads(1)  # faster: the products are small
    for name, direct in (("back-propagation", False), ("direct feedback alignment", True)):
        mean, spent = sum(train(direct, seed) for seed in range(3)) / 3, epsilon(EPOCHS * (N // M))
        print(f"{name}: test accuracy {mean:.1%} (n = 3 seeds), epsilon {spent:.2f} at delta {DELTA:g}")
