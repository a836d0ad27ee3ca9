"""Layers with a leading replica axis: forward pass, backward pass, sums and norms of per-record gradients.

A layer maps h^{l-1} [R, m, n_{l-1}] to z^l [R, m, n_l], and delta^l is the learning signal at z^l. A record's gradient
in a layer is linear in delta^l. `write_sum` sums the gradients of all records, `squared_norms` returns the norm of
each. Activations and deltas are flat in all layers, so feedback and mechanisms need not know the kind of layer.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch.nn.grad import conv2d_weight

from pipeline.learning.rows import Activation
from pipeline.trials.shapes import POOL, ConvShape, DenseShape, LayerShape

# Otherwise a GPU rounds the factors of float32 convolutions to 10 bits, and no bound on contributions covers that.
torch.backends.cudnn.allow_tf32 = False

# Elements of the largest tensor of a chunk of records. On a CPU the chunk fits the cache: up to five times as fast as
# 2^23, measured.
CHUNK_ELEMENTS = {"cpu": 2**20, "cuda": 2**28}
# Largest rounding error of a record's norm when positions cancel, in machine epsilons of the norm that the record has
# if all positions (and the bias input 1) are aligned. The first bounds the error of the norm of a formed gradient, the
# second bounds the error of the squared norm from Gram matrices.
GRADIENT_ROUNDING, GRAM_ROUNDING = 64, 2

Matmul = Callable[..., torch.Tensor]


def matmul(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor | None = None,
           precision: torch.dtype | None = None) -> torch.Tensor:
    """Return the products [R, m, k] @ [R, k, n] -> [R, m, n] in the type of `a`, written to `out` if given.

    A CPU computes one product per replica: this is faster than a batched product, and a replica's bits do not depend on
    R. A GPU computes one batched product. Factors, unless float64, are rounded to `precision`. Sums are in float32, and
    the result is rounded once.
    """
    if precision is None or a.dtype == torch.float64:
        precision = a.dtype
    if a.device.type != "cpu":
        product = torch.bmm(a.to(precision), b.to(precision))
        return product.to(a.dtype) if out is None else out.copy_(product)
    out = a.new_empty(a.shape[0], a.shape[1], b.shape[2]) if out is None else out
    factors_a, factors_b = a.to(precision), b.to(precision)
    for r in range(a.shape[0]):
        if precision == a.dtype:
            torch.mm(factors_a[r], factors_b[r], out=out[r])
        else:
            out[r].copy_(torch.mm(factors_a[r], factors_b[r]))
    return out


class Dense:
    """A layer z = W h + b, factors rounded to `precision`; a record's gradient, delta (outer) h, is never formed."""

    def __init__(self, shape: DenseShape, precision: torch.dtype | None = None) -> None:
        self.shape = shape
        self.matmul: Matmul = functools.partial(matmul, precision=precision)

    def forward(self, h: Activation, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        """Return z [R, m, n_l] from h [R, m, n_{l-1}], weight [R, n_l, n_{l-1}] and bias [R, n_l]."""
        return self.matmul(h, weight.transpose(1, 2)).add_(bias.unsqueeze(1))

    def back(self, delta: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """Return W^T delta [R, m, n_{l-1}]: the signal for h^{l-1}."""
        return self.matmul(delta, weight)

    def write_sum(self, delta: torch.Tensor, h: Activation, out_weight: torch.Tensor, out_bias: torch.Tensor) -> None:
        """Write sum_i delta_i h_i^T and sum_i delta_i, over the m records, to the outputs."""
        self.matmul(delta.transpose(1, 2), h, out=out_weight)
        torch.sum(delta, dim=1, out=out_bias)

    def squared_norms(self, delta: torch.Tensor, h: Activation) -> torch.Tensor:
        """Return ||delta_i||^2 (||h_i||^2 + 1) [R, m, 1], of weights and bias; never too small, even at underflow."""
        return _squared_lengths(delta) * (_squared_lengths(h) + 1)


class Conv:
    """A layer z = pool(W * h + b): convolution of stride 1 with zero padding, and maximum of every 2 x 2 window.

    phi follows the pool; as phi increases, pooling after phi gives the same. If values in a window are equal, the first
    in row-major order wins. `forward` stores the places of the maxima, and the other methods scatter delta there: they
    are valid only for the batch of the last forward pass.

    Filters are rows of the weights, [R, C_out, C_in k^2]. On a GPU replicas are groups of one convolution. A CPU
    computes one replica after the other, so a replica's bits do not depend on R. Factors are rounded to `precision`.
    """

    def __init__(self, shape: ConvShape, precision: torch.dtype | None = None) -> None:
        self.shape, self.precision = shape, precision
        # A record's norm follows from Gram matrices of positions or from the gradient: take the fewer multiplications.
        positions, n_weights = shape.height * shape.width, math.prod(shape.weight_shape)
        gram_cost, gradient_cost = positions**2 * (shape.in_channels + shape.out_channels), positions * n_weights
        self.by_gram = gram_cost < gradient_cost

    def forward(self, h: Activation, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        """Return z [R, m, n_l] from h [R, m, n_{l-1}], weight [R, C_out, C_in k^2] and bias [R, C_out]."""
        pooled, self.places = _each_replica(self._forward, self._image(h), weight, bias)
        return pooled.flatten(2)

    def back(self, delta: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """Return the signal for h^{l-1} [R, m, n_{l-1}]."""
        return _each_replica(self._back, self._pooled(delta), weight, self.places)[0].flatten(2)

    def write_sum(self, delta: torch.Tensor, h: torch.Tensor, out_weight: torch.Tensor, out_bias: torch.Tensor) -> None:
        """Write the gradients of sum_i <delta_i, z_i> by weights and bias, over the m records, to the outputs."""
        pooled = self._pooled(delta)
        out_weight.copy_(_each_replica(self._sum, pooled, self._image(h), self.places)[0])
        torch.sum(pooled.flatten(3).sum(dim=-1), dim=1, out=out_bias)

    def squared_norms(self, delta: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
        """Return the squared norm of every record's gradient [R, m, 1], over weights and bias together."""
        pooled = self._pooled(delta)
        of_weights = _each_replica(self._weight_norms, pooled, self._image(h), self.places)[0]
        return of_weights.add_(squared_norm(pooled.flatten(3).sum(dim=-1), -1, keepdim=True))

    def _image(self, h: torch.Tensor) -> torch.Tensor:
        return h.view(*h.shape[:2], self.shape.in_channels, self.shape.height, self.shape.width)

    def _pooled(self, delta: torch.Tensor) -> torch.Tensor:
        return delta.reshape(*delta.shape[:2], *self.shape.pooled)

    def _filters(self, weight: torch.Tensor) -> torch.Tensor:
        """Return filters [R C_out, C_in, k, k]: groups of one convolution."""
        return self._rounded(weight).reshape(-1, *self.shape.weight_shape[1:])

    def _rounded(self, factor: torch.Tensor) -> torch.Tensor:
        """Return a factor of a convolution in the layer's `precision`; float64 stays as it is."""
        return factor if self.precision is None or factor.dtype == torch.float64 else factor.to(self.precision)

    def _forward(self, image: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return z after the pool, and the places of the maxima, for inputs [R, m, C_in, height, width]."""
        replicas = image.shape[0]
        z = F.conv2d(_side_by_side(self._rounded(image)), self._filters(weight), padding=self.shape.kernel // 2,
                     groups=replicas)
        # The bias shifts all values of a window equally, so it can follow the pool.
        pooled, places = pool(_apart(z.to(image.dtype), replicas))
        return pooled.add_(bias[:, None, :, None, None]), places

    def _back(self, delta: torch.Tensor, weight: torch.Tensor,  # delta [R, m, C_out, rows, columns], after the pool
              places: torch.Tensor) -> tuple[torch.Tensor]:  # of the maxima, from `forward`
        """Return the signal for the layer's inputs [R, m, C_in, height, width], as a tuple for `_each_replica`."""
        replicas = delta.shape[0]
        before_pool = self._rounded(self._unpool(delta, places))
        signal = F.conv_transpose2d(_side_by_side(before_pool), self._filters(weight),
                                    padding=self.shape.kernel // 2, groups=replicas)
        return (_apart(signal.to(delta.dtype), replicas),)

    def _sum(self, delta: torch.Tensor, image: torch.Tensor, places: torch.Tensor) -> tuple[torch.Tensor]:
        """Return the gradient [R, C_out, C_in k^2] by the filters, summed over records; arguments as of `_back`."""
        replicas, (n_filters, *filter_shape) = delta.shape[0], self.shape.weight_shape
        inputs = _side_by_side(self._rounded(image))
        signals = _side_by_side(self._rounded(self._unpool(delta, places)))
        total = conv2d_weight(inputs, (replicas * n_filters, *filter_shape), signals,
                              padding=self.shape.kernel // 2, groups=replicas)
        return (total.to(delta.dtype).view(replicas, n_filters, -1),)

    def _unpool(self, delta: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        return unpool(delta, places, self.shape.height, self.shape.width)

    def _weight_norms(self, delta: torch.Tensor, image: torch.Tensor, places: torch.Tensor) -> tuple[torch.Tensor]:
        """Return the squared norm of every record's gradient by the filters [R, m, 1], in chunks of records."""
        norms = self._norms_by_gram if self.by_gram else self._norms_by_gradient
        # The largest tensor of a chunk is a Gram matrix of positions, the patches of the input, or the signals.
        positions = self.shape.height * self.shape.width
        elements = positions * max(positions, self.shape.kernel**2 * self.shape.in_channels, self.shape.out_channels)
        chunk_size = max(1, CHUNK_ELEMENTS[delta.device.type] // elements)
        deltas, images, maxima = (x.flatten(0, 1).split(chunk_size) for x in (delta, image, places))
        chunks = [norms(self._unpool(d, p), h) for d, h, p in zip(deltas, images, maxima, strict=True)]
        return (torch.cat(chunks).view(*delta.shape[:2], 1),)

    def _norms_by_gradient(self, delta: torch.Tensor, image: torch.Tensor) -> torch.Tensor:
        """Return the squared norms of records' gradients by the filters, from the formed gradients, [records].

        A gradient is sum_p delta_p x_p^T over positions p: delta_p is the learning signal there, before the pool, and
        x_p the patch under the filter. A bound on the rounding error is added, so that no norm is too small.
        """
        patches = F.unfold(image, self.shape.kernel, padding=self.shape.kernel // 2)  # [c, C_in k^2, H W]
        signals = delta.flatten(2)
        gradients = torch.bmm(signals, patches.transpose(1, 2))
        squares = squared_norm(gradients.flatten(1), 1)
        # The norm if all positions were aligned: rounding errors are relative to it.
        aligned = ((squared_norm(patches, 1) + 1) * squared_norm(signals, 1)).sqrt_().sum(dim=1)
        return squares.add_(aligned.mul_(GRADIENT_ROUNDING * torch.finfo(squares.dtype).eps).square_())

    def _norms_by_gram(self, delta: torch.Tensor, image: torch.Tensor) -> torch.Tensor:
        """Return the squared norms of records' gradients by the filters, from Gram matrices of positions.

        For one record it is sum_{p,q} <delta_p, delta_q> <x_p, x_q> over positions p and q, as in `_norms_by_gradient`.
        Patches overlap, so their products are sums of products of pixels over all shifts within the kernel. Bounds on
        rounding errors are added, so that no norm is too small.
        """
        height, width = image.shape[2:]
        pixels = _gram(image).unflatten(2, (height, width)).unflatten(1, (height, width))
        reach = self.shape.kernel // 2
        patch_gram = _sum_of_shifts(_sum_of_shifts(pixels, 1, 3, reach), 2, 4, reach).flatten(1)
        delta_gram = _gram(delta)
        squares = (patch_gram * delta_gram.flatten(1)).sum(dim=1)
        # If n products underflow, their sum errs by less than n tiny: add this bound times the other factor.
        tiny = torch.finfo(squares.dtype).tiny
        delta_loss, patch_loss = delta.shape[1] * tiny, self.shape.kernel**2 * image.shape[1] * tiny
        patch_squares, delta_squares = _diagonal(patch_gram) + 1, _diagonal(delta_gram) + delta_loss
        squares.add_(patch_squares.sqrt().sum(dim=1).mul_(math.sqrt(delta_loss)).square_())
        squares.add_(delta_squares.sqrt().sum(dim=1).mul_(math.sqrt(patch_loss)).square_())
        aligned_squares = (patch_squares * delta_squares).sqrt_().sum(dim=1).square()  # without cancellation
        return squares.add_(aligned_squares, alpha=GRAM_ROUNDING * torch.finfo(squares.dtype).eps).clamp_(min=0)


def squared_norm(x: torch.Tensor, dim: int, keepdim: bool = False) -> torch.Tensor:
    """Return the sum of squares along `dim`, plus the largest loss from underflow, which changes only tiny sums."""
    return x.square().sum(dim=dim, keepdim=keepdim).add_(x.shape[dim] * torch.finfo(x.dtype).tiny)


def _squared_lengths(x: torch.Tensor) -> torch.Tensor:
    """Return the squared norm of every row, [R, m, n] -> [R, m, 1], computed in chunks of records."""
    records = max(1, CHUNK_ELEMENTS[x.device.type] // max(1, x.shape[0] * x.shape[2]))
    return torch.cat([squared_norm(part, -1, keepdim=True) for part in x.split(records, dim=1)], dim=1)


Layer = Dense | Conv


def make_layer(shape: LayerShape, precision: torch.dtype | None = None) -> Layer:
    """Make the layer of a shape."""
    return Conv(shape, precision) if isinstance(shape, ConvShape) else Dense(shape, precision)


def pool(z: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return maxima of 2 x 2 windows of z [..., H, W] and their places in the flattened map, each [..., H/2, W/2].

    It does what torch's `max_pool2d` does, which is slow on a CPU. An odd last row or column is ignored.
    """
    height, width = z.shape[-2] // POOL, z.shape[-1] // POOL
    windows = z[..., : height * POOL, : width * POOL].unflatten(-2, (height, POOL)).unflatten(-1, (width, POOL))
    left, right = windows.unbind(-1)
    upper, lower = torch.maximum(left, right).unbind(-2)
    is_lower = lower > upper
    is_right_above, is_right_below = (right > left).unbind(-2)
    is_right = torch.where(is_lower, is_right_below, is_right_above)
    corners = torch.arange(z.shape[-2] * z.shape[-1], device=z.device).view(z.shape[-2:])[:: POOL, :: POOL]
    places = (corners[:height, :width] + is_right).add_(is_lower, alpha=z.shape[-1])
    return torch.maximum(upper, lower), places


def unpool(delta: torch.Tensor, places: torch.Tensor, height: int, width: int) -> torch.Tensor:
    """Return maps [..., H, W]: delta [..., H/2, W/2] at the maxima's places from `pool`, zeros elsewhere."""
    full = delta.new_zeros(*delta.shape[:-2], height * width)
    return full.scatter_(-1, places.flatten(-2), delta.flatten(-2)).unflatten(-1, (height, width))


def _each_replica(function: Callable[..., tuple[torch.Tensor, ...]], *tensors: torch.Tensor) -> list[torch.Tensor]:
    """Return the results of `function` on tensors [R, ...]; a CPU computes them replica by replica."""
    if tensors[0].device.type != "cpu" or len(tensors[0]) == 1:
        return list(function(*tensors))
    parts = [function(*(x[r: r + 1] for x in tensors)) for r in range(len(tensors[0]))]
    return [torch.cat(part) for part in zip(*parts, strict=True)]


def _side_by_side(x: torch.Tensor) -> torch.Tensor:
    """Put replicas side by side as channels: [R, m, C, H, W] -> [m, R C, H, W]."""
    return x.transpose(0, 1).flatten(1, 2)


def _apart(x: torch.Tensor, replicas: int) -> torch.Tensor:
    """Split channels into replicas again: [m, R C, H, W] -> [R, m, C, H, W]."""
    return x.unflatten(1, (replicas, -1)).transpose(0, 1)


def _gram(x: torch.Tensor) -> torch.Tensor:
    """Return the inner products of positions: [c, C, H, W] -> [c, H W, H W]."""
    flat = x.flatten(2)
    return torch.bmm(flat.transpose(1, 2), flat)


def _diagonal(gram: torch.Tensor) -> torch.Tensor:
    """Return the diagonal, clamped at 0: [c, P, P] or [c, P^2] -> [c, P]."""
    flat = gram.flatten(1)
    return flat[:, :: math.isqrt(flat.shape[1]) + 1].clamp(min=0)


def _sum_of_shifts(gram: torch.Tensor, a: int, b: int, reach: int) -> torch.Tensor:
    """Return the sum of `gram` shifted by -reach..reach along dimensions a and b together, filled with zeros."""
    total = gram.clone()
    for shift in range(1, min(reach, gram.shape[a] - 1) + 1):
        n = gram.shape[a] - shift
        for target, source in ((shift, 0), (0, shift)):  # forward and backward
            total.narrow(a, target, n).narrow(b, target, n).add_(gram.narrow(a, source, n).narrow(b, source, n))
    return total
