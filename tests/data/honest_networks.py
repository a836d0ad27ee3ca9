"""Honest networks of the kinds that people write, for records [1, 8, 8] with pixels in [0, 1] and 10 classes.

They have every operator that such networks are known to need. A kind whose operators others have stands here only if
it is built in another way, or has other arguments.

`NETWORKS` has a function for each that builds it. Layers of `Lazy...` take their shapes from a first record.
"""

import math
import warnings
from functools import partial

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint


class Map(nn.Module):
    """A function without parameters."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


class Plus(nn.Module):
    """A residual block."""

    def __init__(self, *layers):
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, x):
        return x + self.layers(x)


def flat(*layers):
    """From 64 pixels; the last layer has 16 outputs."""
    return nn.Sequential(nn.Flatten(), *layers, nn.Linear(16, 10))


def image(*layers, n):
    """Layers of images, the last of which has n outputs."""
    return nn.Sequential(*layers, nn.Sequential(nn.Flatten(), nn.Linear(n, 10)))


def rows(*layers, width=8):
    """Layers that see an image as a sequence of 8 rows of 8 pixels; the last one has outputs [8, width]."""
    return nn.Sequential(nn.Flatten(1, 2), *layers, nn.Flatten(), nn.Linear(8 * width, 10))


def activated(activation, n=16):
    """An activation inside a network, behind a convolution and a linear layer."""
    return nn.Sequential(nn.Conv2d(1, 4, 3, stride=2), activation(), nn.Flatten(), nn.Linear(36, 16), activation(),
                         nn.Linear(n, 10))


def perceptron():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 10))


# Convolutions, pools and norms

def cnn():
    return nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 8, 3, padding=1),
                         nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(32, 10))


def strided():
    return image(nn.Conv2d(1, 4, 3, stride=2, padding=1), nn.Tanh(), nn.Conv2d(4, 8, 3, stride=2, padding=1), nn.Tanh(),
                 n=32)


def dilated():
    return image(nn.Conv2d(1, 4, 3, dilation=2), nn.Tanh(), nn.Conv2d(4, 4, 3, dilation=(1, 2), padding="same"),
                 nn.Tanh(), n=64)


def grouped():
    return image(nn.Conv2d(1, 8, 3), nn.Tanh(), nn.Conv2d(8, 8, 3, groups=4, bias=False), nn.Tanh(), n=128)


def depthwise():
    return image(nn.Conv2d(1, 6, 3), nn.SiLU(), nn.Conv2d(6, 6, 3, groups=6, padding=1), nn.Conv2d(6, 4, 1), nn.SiLU(),
                 n=144)


def transposed_convolution():
    return image(nn.Conv2d(1, 4, 4, stride=4), nn.Tanh(), nn.ConvTranspose2d(4, 3, 3, stride=2, output_padding=1),
                 nn.Tanh(), n=108)


def circular():
    return image(nn.Conv2d(1, 2, 3), nn.Conv2d(2, 4, 3, padding=1, padding_mode="circular"), nn.Tanh(), n=144)


def reflected():
    return image(nn.Conv2d(1, 2, 3), nn.Conv2d(2, 4, 3, padding=1, padding_mode="reflect"), nn.Tanh(), n=144)


def replicated():
    return image(nn.Conv2d(1, 2, 3), nn.Conv2d(2, 4, 3, padding=1, padding_mode="replicate"), nn.Tanh(), n=144)


def convolution_1d():
    return rows(nn.Conv1d(8, 8, 3, padding=1), nn.Tanh(), nn.MaxPool1d(3, 1, 1))


def convolution_3d():
    return image(nn.Unflatten(2, (2, 4)), nn.Conv3d(1, 4, 2), nn.Tanh(), n=84)


def average_pools():
    return image(nn.Conv2d(1, 4, 3, padding=1), nn.Tanh(), nn.AvgPool2d(2), nn.Conv2d(4, 8, 1), nn.Tanh(),
                 nn.AvgPool2d(3, 1, 1, count_include_pad=False), n=128)


def adaptive_pools():
    return image(nn.Conv2d(1, 4, 3), nn.Tanh(), nn.AdaptiveAvgPool2d(4), nn.Conv2d(4, 8, 1), nn.Tanh(),
                 nn.AdaptiveAvgPool2d(1), n=8)


def adaptive_max_pool():
    return image(nn.Conv2d(1, 4, 3), nn.Tanh(), nn.AdaptiveMaxPool2d(3), n=36)


def overlapping_max_pool():
    return image(nn.Conv2d(1, 4, 3), nn.Tanh(), nn.MaxPool2d(3, 2, padding=1), n=36)


def norm_pool():
    return image(nn.Conv2d(1, 4, 3), nn.Softplus(), nn.LPPool2d(2, 2), n=36)


def group_norm():
    return image(nn.Conv2d(1, 8, 3), nn.GroupNorm(2, 8), nn.ReLU(), nn.Conv2d(8, 4, 3), nn.GroupNorm(4, 4), nn.ReLU(),
                 n=64)


def layer_norm():
    return flat(nn.Linear(64, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 16),
                nn.LayerNorm(16, elementwise_affine=False))


def instance_norm():
    return image(nn.Conv2d(1, 4, 3), nn.InstanceNorm2d(4, affine=True), nn.ReLU(), n=144)


def rms_norm():
    return flat(nn.Linear(64, 16), nn.RMSNorm(16), nn.SiLU())


def local_response_norm():
    return image(nn.Conv2d(1, 4, 3), nn.LocalResponseNorm(3), nn.ReLU(), n=144)


def upsampled():
    return image(nn.Conv2d(1, 4, 3, stride=2), nn.Upsample(scale_factor=2), nn.Conv2d(4, 2, 3), nn.Tanh(),
                 nn.Upsample(size=(6, 6), mode="bilinear"), n=72)


def pixel_shuffle():
    return image(nn.PixelUnshuffle(2), nn.Conv2d(4, 8, 3, padding=1), nn.Tanh(), nn.PixelShuffle(2), n=128)


def patches():
    return nn.Sequential(nn.Conv2d(1, 1, 1), nn.Unfold(4, stride=4), Map(lambda x: x.mT), nn.Linear(16, 8), nn.GELU(),
                         nn.Flatten(), nn.Linear(32, 10))


# Gates

class Maxout(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(64, 32)

    def forward(self, x):
        return self.linear(x).unflatten(1, (16, 2)).max(dim=2).values


class SqueezeExcite(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.down, self.up = nn.Conv2d(n, 2, 1), nn.Conv2d(2, n, 1)

    def forward(self, x):
        return x * self.up(F.relu(self.down(F.adaptive_avg_pool2d(x, 1)))).sigmoid()


class Gated(nn.Module):
    """Scales a layer by a learned number of a shape, which starts at a value."""

    def __init__(self, shape, start):
        super().__init__()
        self.layer, self.gate = nn.Linear(16, 16), nn.Parameter(torch.full(shape, start))

    def forward(self, x):
        return x + self.gate * self.layer(x).tanh()


def residual():
    def block():
        return Plus(nn.Conv2d(4, 4, 3, padding=1), nn.GroupNorm(1, 4), nn.ReLU(inplace=True),
                    nn.Conv2d(4, 4, 3, padding=1))

    return image(nn.Conv2d(1, 4, 3, stride=2), block(), nn.ReLU(), block(), nn.ReLU(), n=36)


# Sequences

class Attention(nn.Module):
    """Attention over the rows of an image, written out, with a bias for each relative position."""

    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(8, 24), nn.Linear(8, 8)
        self.bias = nn.Parameter(torch.zeros(15, 2))
        self.register_buffer("offsets", torch.arange(8)[:, None] - torch.arange(8) + 7)

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
        scores = q @ k.mT / math.sqrt(4) + self.bias[self.offsets].permute(2, 0, 1)
        return x + self.out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


class TorchAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x):
        return x + self.attention(x, x, x, need_weights=False)[0]


class Rotary(nn.Module):
    """Attention with rotary positions."""

    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(8, 24)

    def forward(self, x):
        angles = torch.arange(8)[:, None] * 100.0 ** -torch.arange(0, 1, 0.25)
        cos, sin = angles.cos(), angles.sin()
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        q, k = (torch.cat([a * cos - b * sin, a * sin + b * cos], -1) for a, b in (q.chunk(2, -1), k.chunk(2, -1)))
        return F.scaled_dot_product_attention(q, k, v)


class Recurrent(nn.Module):
    """The outputs of a recurrent layer of torch at all rows."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        return self.layer(x)[0]


class StateSpace(nn.Module):
    """A linear recurrence with a decay for each channel, by a sum over the past."""

    def __init__(self):
        super().__init__()
        self.decay, self.scale = nn.Parameter(torch.linspace(-1, 1, 8)), nn.Linear(8, 8)

    def forward(self, x):
        steps = (torch.arange(8)[:, None] - torch.arange(8)).clamp(min=0)
        kernel = (self.decay.sigmoid() ** steps[:, :, None]) * torch.ones(8, 8).tril()[:, :, None]
        return self.scale(torch.einsum("tsc,bsc->btc", kernel, x)).tanh()


def transformer_layer(**options):
    return nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True, **options)


# Tables

class Codes(nn.Module):
    """Looks pixels up in a table of 17 codes, and the places of pixels in a second table if wanted."""

    def __init__(self, has_places=False, **options):
        super().__init__()
        self.codes = nn.Embedding(17, 4, **options)
        self.places = nn.Embedding(64, 4) if has_places else None

    def forward(self, x):
        codes = self.codes((x.flatten(1) * 16).round().long())
        return codes + self.places(torch.arange(64)) if self.places else codes


class OneHot(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Parameter(torch.randn(17, 4))

    def forward(self, x):
        return (x.flatten(1)[..., None] * 16).round().eq(torch.arange(17)).float() @ self.table


# Quantised

class Sign(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sign()

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return gradient * (x.abs() <= 1)


class Binarised(nn.Linear):
    def forward(self, x):
        return F.linear(x, Sign.apply(self.weight), self.bias)


class StraightThrough(nn.Linear):
    """Weights and inputs of 4 bits."""

    def forward(self, x):
        def rounded(values):
            step = values.detach().abs().max() / 7
            return values + ((values / step).round() * step - values).detach()

        return F.linear(rounded(x), rounded(self.weight), self.bias)


class FakeQuantised(nn.Module):
    def forward(self, x):
        return torch.fake_quantize_per_tensor_affine(x, 0.1, 0, -128, 127)


# Weights that are shared, frozen or computed

class Tied(nn.Module):
    """Uses a weight, and once more transposed."""

    def __init__(self):
        super().__init__()
        self.up, self.back = nn.Linear(64, 16), nn.Linear(64, 16)

    def forward(self, x):
        return self.back(torch.tanh(self.up(x)) @ self.up.weight)


class Bilinear(nn.Module):
    def __init__(self):
        super().__init__()
        self.left, self.product = nn.Linear(64, 8), nn.Bilinear(8, 64, 16)

    def forward(self, x):
        return self.product(self.left(x), x)


class Cosine(nn.Module):
    """Cosines between a record and a weight for each class, with a learned temperature."""

    def __init__(self):
        super().__init__()
        self.weight, self.temperature = nn.Parameter(torch.randn(10, 16)), nn.Parameter(torch.tensor(2.0))

    def forward(self, x):
        return self.temperature.exp() * F.linear(F.normalize(x, dim=-1), F.normalize(self.weight, dim=-1))


class Spectrum(nn.Module):
    """Multiplies an image's Fourier transform by learned complex weights."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 5, 2) / 2)

    def forward(self, x):
        return torch.fft.irfft2(torch.fft.rfft2(x) * torch.view_as_complex(self.weight), s=(8, 8))


class Chebyshev(nn.Module):
    """Polynomials of each pixel by their recurrence."""

    def __init__(self):
        super().__init__()
        self.weights = nn.Parameter(torch.randn(4, 64, 16) / 8)

    def forward(self, x):
        x = 2 * x - 1
        terms = [torch.ones_like(x), x]
        while len(terms) < 4:
            terms.append(2 * x * terms[-1] - terms[-2])
        return torch.stack(terms, 1).flatten(1) @ self.weights.flatten(0, 1)


# Ways to write


class Assigned(nn.Module):
    """Writes into the pixels before the first layer."""

    def forward(self, x):
        x = x.clone()
        x[:, 0] = x[:, 1]
        x[:, 8:16] = 1 - x[:, :8]
        return x


class Functions(nn.Module):
    """Functions of numbers that are seldom written."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(64, 32)

    def forward(self, x):
        a, b = self.linear(x).chunk(2, dim=-1)
        positive = torch.log1p(a.abs()) + torch.sqrt(b * b + 1) + torch.log(b.square() + 1) + torch.expm1(-a.abs())
        bounded = torch.erf(a) + torch.maximum(a, b) + torch.minimum(a, b).clamp(max=0.5) + torch.atan(b)
        mask = (a > b) & ~(a >= 1) | (b <= -0.5) & (a != 0)
        steps = (torch.floor(a) + torch.ceil(b) + torch.trunc(a)).detach() / 8
        return torch.where(mask, positive, bounded) + torch.where(a < 0, b, 0.0) + steps + torch.lerp(a, b, 0.3)


class Reductions(nn.Module):
    """Sums, means and maxima of images."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Conv2d(1, 2, 3)

    def forward(self, x):
        x = self.layer(x)
        of_columns = torch.stack([x.amax(2), x.amin(2), x.logsumexp(2), x.std(2), x.mean(2), x.min(2).values], dim=1)
        deviations = of_columns.flatten(1) - x.mean()
        return torch.cat([deviations, x.var((2, 3)), torch.linalg.vector_norm(x, dim=(2, 3)), x.norm(dim=3).flatten(1)],
                         dim=1)


class Moves(nn.Module):
    """Rolls, flips, windows, repeats and parts of images."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x):
        x = self.layer(x[:, 0])
        parts = [x.roll(1, 1), x.flip(2), x.triu(), x.tril(), x.diagonal(dim1=1, dim2=2)[:, None].repeat(1, 8, 1)]
        windows = x.unfold(1, 4, 2).mean(-1)
        return torch.cat([*parts, windows, torch.cat(x.split([3, 5], dim=2)[::-1], dim=2)], dim=1).flatten(1)


class NumpyScale(nn.Module):
    """Scales a record by its largest pixel, which NumPy finds."""

    def forward(self, x):
        return x / float(x.detach().numpy().max())


class AttributeTensor(nn.Module):
    """Keeps a tensor that is no buffer."""

    def __init__(self):
        super().__init__()
        self.scale = torch.linspace(0, 1, 64)

    def forward(self, x):
        return x * self.scale


class Chosen(nn.Module):
    """Takes some pixels by a constant index, in three ways."""

    def __init__(self):
        super().__init__()
        self.register_buffer("places", torch.randperm(64)[:24])
        self.linear = nn.Linear(72, 16)

    def forward(self, x):
        gathered = x.gather(1, self.places.expand(len(x), -1))
        return self.linear(torch.cat([x[:, self.places], x.index_select(1, self.places), gathered], 1)).tanh()


class Sorted(nn.Module):
    """Sorts the outputs of a layer, or takes the largest ones."""

    def __init__(self, sort):
        super().__init__()
        self.linear, self.sort = nn.Linear(64, 32), sort

    def forward(self, x):
        return self.sort(self.linear(x))


class Branch(nn.Module):
    """One of two layers, by the mean of the record."""

    def __init__(self):
        super().__init__()
        self.dark, self.bright = nn.Linear(64, 16), nn.Linear(64, 16)

    def forward(self, x):
        return self.dark(x) if x.mean() < 0.3 else self.bright(x).tanh()


class Checkpointed(nn.Module):
    def __init__(self, use_reentrant):
        super().__init__()
        self.layers, self.use_reentrant = nn.Sequential(nn.Linear(64, 16), nn.Tanh()), use_reentrant

    def forward(self, x):
        return checkpoint(self.layers, x, use_reentrant=self.use_reentrant)


def old_weight_norm():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return flat(nn.utils.weight_norm(nn.Linear(64, 16)), nn.Tanh())


def module_twice():
    shared, activation = nn.Linear(16, 16), nn.Tanh()
    return flat(nn.Linear(64, 16), activation, shared, activation, shared, activation)


def frozen_first():
    return flat(nn.Linear(64, 24).requires_grad_(False), nn.Tanh(), nn.Linear(24, 16), nn.Tanh())


def frozen_middle():
    return image(nn.Conv2d(1, 4, 3), nn.Tanh(), nn.Conv2d(4, 4, 3).requires_grad_(False), nn.Tanh(), n=64)


def frozen_bias():
    network = perceptron()
    network[1].bias.requires_grad_(False)
    return network


def unused_parameter():
    network = perceptron()
    network[1].register_parameter("unused", nn.Parameter(torch.ones(3)))
    return network


def lazy():
    return nn.Sequential(nn.LazyConv2d(4, 3), nn.Tanh(), nn.Flatten(), nn.LazyLinear(16), nn.Tanh(), nn.LazyLinear(10))


def one_layer():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))


ACTIVATIONS = {
    "relu": nn.ReLU, "relu_inplace": partial(nn.ReLU, inplace=True), "relu6": nn.ReLU6, "leaky_relu": nn.LeakyReLU,
    "elu": nn.ELU, "selu": nn.SELU, "celu": nn.CELU, "gelu": nn.GELU, "gelu_tanh": partial(nn.GELU, "tanh"),
    "silu": nn.SiLU, "mish": nn.Mish, "softplus": nn.Softplus, "hardswish": nn.Hardswish, "hardtanh": nn.Hardtanh,
    "hardsigmoid": nn.Hardsigmoid, "sigmoid": nn.Sigmoid, "log_sigmoid": nn.LogSigmoid, "softsign": nn.Softsign,
    "softshrink": nn.Softshrink, "prelu": nn.PReLU, "sine": partial(Map, torch.sin), "squared_relu":
    partial(Map, lambda x: x.relu().square()), "threshold": partial(nn.Threshold, 0.1, 0.0)}

NETWORKS = {
    "perceptron": perceptron, "one_layer": one_layer, "cnn": cnn, "strided": strided, "dilated": dilated,
    "grouped": grouped, "depthwise": depthwise, "transposed_convolution": transposed_convolution, "circular": circular,
    "reflected": reflected, "replicated": replicated, "convolution_1d": convolution_1d,
    "convolution_3d": convolution_3d, "average_pools": average_pools, "adaptive_pools": adaptive_pools,
    "adaptive_max_pool": adaptive_max_pool, "overlapping_max_pool": overlapping_max_pool, "norm_pool": norm_pool,
    "group_norm": group_norm, "layer_norm": layer_norm, "instance_norm": instance_norm, "rms_norm": rms_norm,
    "local_response_norm": local_response_norm, "upsampled": upsampled, "pixel_shuffle": pixel_shuffle,
    "patches": patches, **{f"activation_{name}": partial(activated, layer) for name, layer in ACTIVATIONS.items()},
    "glu": lambda: flat(nn.Linear(64, 32), nn.GLU()), "maxout": lambda: flat(Maxout()),
    "squeeze_excite": lambda: image(nn.Conv2d(1, 4, 3), nn.ReLU(), SqueezeExcite(4), n=144),
    "scalar_gate": lambda: flat(nn.Linear(64, 16), Gated([], 0.0)),
    "gate_of_one": lambda: flat(nn.Linear(64, 16), Gated([1], 0.5)), "residual": residual,
    "relative_attention": lambda: rows(Attention()), "torch_attention": lambda: rows(TorchAttention()),
    "rotary": lambda: rows(Rotary()),
    "transformer": lambda: rows(nn.Linear(8, 8), transformer_layer(), transformer_layer(activation="gelu")),
    "transformer_norm_first": lambda: rows(transformer_layer(norm_first=True)),
    "gru": lambda: rows(Recurrent(nn.GRU(8, 8, batch_first=True))),
    "lstm": lambda: rows(Recurrent(nn.LSTM(8, 8, batch_first=True))), "state_space": lambda: rows(StateSpace()),
    "embedding": lambda: image(Codes(), n=256), "embedding_padding": lambda: image(Codes(padding_idx=0), n=256),
    "embedding_places": lambda: image(Codes(has_places=True), n=256),
    "embedding_scaled": lambda: image(Codes(scale_grad_by_freq=True), n=256),
    "embedding_max_norm": lambda: image(Codes(max_norm=1.0), n=256),
    "embedding_sparse": lambda: image(Codes(sparse=True), n=256), "one_hot": lambda: image(OneHot(), n=256),
    "binarised": lambda: flat(Binarised(64, 16), nn.Tanh()),
    "straight_through": lambda: flat(StraightThrough(64, 16), nn.Tanh()),
    "fake_quantised": lambda: flat(nn.Linear(64, 16), FakeQuantised(), nn.Tanh()), "tied": lambda: flat(Tied()),
    "module_twice": module_twice, "frozen_first": frozen_first, "frozen_middle": frozen_middle,
    "frozen_bias": frozen_bias, "unused_parameter": unused_parameter, "old_weight_norm": old_weight_norm,
    "weight_norm": lambda: flat(parametrizations.weight_norm(nn.Linear(64, 16)), nn.Tanh()),
    "spectral_norm": lambda: flat(parametrizations.spectral_norm(nn.Linear(64, 16)), nn.Tanh()),
    "orthogonal": lambda: flat(parametrizations.orthogonal(nn.Linear(64, 16)), nn.Tanh()),
    "bilinear": lambda: flat(Bilinear(), nn.Tanh()),
    "cosine": lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.Tanh(), Cosine()),
    "spectrum": lambda: image(Spectrum(), nn.Tanh(), n=64), "chebyshev": lambda: flat(Chebyshev(), nn.Tanh()),
    "assigned": lambda: nn.Sequential(nn.Flatten(), Assigned(), nn.Linear(64, 10)),
    "functions": lambda: flat(Functions()), "reductions": lambda: nn.Sequential(Reductions(), nn.Linear(88, 10)),
    "moves": lambda: nn.Sequential(Moves(), nn.Linear(408, 10)),
    "numpy_scale": lambda: nn.Sequential(nn.Flatten(), NumpyScale(), nn.Linear(64, 10)),
    "attribute_tensor": lambda: nn.Sequential(nn.Flatten(), AttributeTensor(), nn.Linear(64, 10)),
    "chosen": lambda: flat(Chosen()),
    "cumulative": lambda: flat(nn.Linear(64, 16), Map(lambda x: x.tanh().cumsum(-1))),
    "sorted": lambda: flat(Sorted(lambda x: x.sort(dim=-1, descending=True).values[:, :16])),
    "largest": lambda: flat(Sorted(lambda x: x.topk(16, dim=-1).values)), "branch": lambda: flat(Branch()),
    "checkpoint": lambda: flat(Checkpointed(False)), "checkpoint_reentrant": lambda: flat(Checkpointed(True)),
    "log_softmax": lambda: nn.Sequential(*perceptron(), nn.LogSoftmax(dim=-1)), "lazy": lazy}
