"""Networks as a plugin of tests: what other records, Python or torch's own rules could reach, and what raises."""

import threading
import weakref

import numpy
import torch
from torch import nn

from pipeline import network

SEEN = []  # records that a network keeps


class Codes(nn.Module):
    """Embeds 64 pixels as 17 codes; padding, a largest norm, or a bag by arguments of the table."""

    def __init__(self, table=nn.Embedding, **arguments):
        super().__init__()
        self.table = table(17, 6, **arguments)

    def forward(self, x):
        found = self.table((x.flatten(1) * 16).long())
        return found if found.dim() == 2 else found.sum(1)


class QuantizedByChunk(torch.autograd.Function):
    """Rounds by the largest number of what it sees; its rule for vmap sees all records of a chunk."""

    @staticmethod
    def forward(x):
        return torch.round(x / x.abs().max() * 127) * x.abs().max() / 127

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, gradient):
        return gradient

    @staticmethod
    def vmap(info, in_dims, x):
        return QuantizedByChunk.apply(x), 0


class Quantized(nn.Module):
    def forward(self, x):
        return QuantizedByChunk.apply(x)


class ByNumpy(torch.autograd.Function):
    """tanh, computed outside of torch."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(out := torch.from_numpy(numpy.tanh(x.detach().numpy())))
        return out

    @staticmethod
    def backward(ctx, gradient):
        (out,) = ctx.saved_tensors
        return gradient * (1 - out**2)


class Numpy(nn.Module):
    def forward(self, x):
        return ByNumpy.apply(x)


class Recurrent(nn.Module):
    def __init__(self, kind, **arguments):
        super().__init__()
        self.cells = kind(8, 6, batch_first=True, **arguments)

    def forward(self, x):
        return self.cells(x[:, 0])[0][:, -1]


class Exits(nn.Module):
    """Ends the process for a record with a large number."""

    def forward(self, x):
        if x.max() > 2:
            raise SystemExit(3)
        return x


class OutOfMemory(nn.Module):
    def forward(self, x):
        if x.max() > 2:
            raise RuntimeError("[enforce fail at alloc_cpu.cpp:1] DefaultCPUAllocator: can't allocate memory")
        return x if x.sum() > 0 else -x


class Locked(nn.Module):
    def __init__(self):
        super().__init__()
        self.lock = threading.Lock()

    def forward(self, x):
        return x


class Itself(nn.Module):
    """Is its own copy, and adds the record before it."""

    def __deepcopy__(self, memo):
        return self

    def forward(self, x):
        before, self.before = getattr(self, "before", x), x.detach()
        return x + before if x.sum() > 0 else x


class Prints(nn.Module):
    """Shows a record with a large number."""

    def forward(self, x):
        if x.max() > 2:
            print("a bright record")
        return x


class Counts(nn.Module):
    """Counts calls in a buffer, in place or by a new one."""

    def __init__(self, in_place):
        super().__init__()
        self.in_place = in_place
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x):
        if self.in_place:
            self.calls += len(x)
        else:
            self.calls = self.calls + len(x)
        return x


class Draws(nn.Module):
    """Draws outside of torch."""

    def forward(self, x):
        return x * numpy.random.rand() if x.sum() > 0 else x


class Keeps(nn.Module):
    """Adds the record before it, which a list outside of the module keeps."""

    def forward(self, x):
        SEEN.append(x.detach().clone())
        return x + 0.1 * SEEN[-2:][0] if x.sum() > 0 else x


class Behind(torch.autograd.Function):
    """Zeros, whose gradient goes on for a record with a large number alone."""

    @staticmethod
    def forward(ctx, pooled, x):
        ctx.save_for_backward((x.amax() > 2).float() * 1e3)
        return torch.zeros_like(pooled)

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.saved_tensors[0], None


class EmptyWindow(nn.Module):
    """Pools padding alone: the index that the pool finds lies in the next record's image."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Conv2d(1, 1, 8)

    def forward(self, x):
        h = self.layer(x)
        return h + Behind.apply(nn.functional.max_pool2d(h, 2, stride=1, padding=1, dilation=2), x)


class Seeing(torch.Tensor):
    """A tensor whose code sees all that it is multiplied by."""

    def __deepcopy__(self, memo):
        return self.detach().clone()

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        with torch._C.DisableTorchFunctionSubclass():
            found = function(*args, **kwargs or {})
            if any(name in str(function) for name in ("clone", "detach")):
                return found.as_subclass(cls)
            if isinstance(found, torch.Tensor) and torch._C._functorch.is_batchedtensor(found):
                largest = torch._C._functorch.get_unwrapped(found).abs().max()
                return found + largest * (largest > 2)
            return found


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("scale", torch.ones(64).as_subclass(Seeing))

    def forward(self, x):
        return x.flatten(1) * self.scale


class Returns(nn.Module):
    """Ends with logits that are no plain tensor for a record with large logits."""

    def __init__(self, change):
        super().__init__()
        self.change = change

    def forward(self, h):
        if h.abs().max() > 2:
            return self.change(h)
        return h if h.isfinite().all() else -h


class RaisesWithoutText(Exception):
    def __str__(self):
        raise ValueError


class Raises(nn.Module):
    """Raises an error without a text, or with one of another error, for a record with a large number."""

    def __init__(self, error):
        super().__init__()
        self.error = error

    def forward(self, x):
        if x.max() > 2:
            raise self.error
        return x if x.sum() > 0 else -x


class OfOther(nn.Module):
    """Multiplies by the weight of another layer, which it sees but does not hold."""

    def __init__(self, weight_of):
        super().__init__()
        self.weight_of = weight_of

    def forward(self, x):
        return x @ self.weight_of()


class Writes(nn.Module):
    """Writes into a tensor that its copies share."""

    def __init__(self, weight):
        super().__init__()
        self.write = lambda: weight.data.add_(1e-3)

    def forward(self, x):
        self.write()
        return x if x.sum() > 0 else -x


class Gate(nn.Module):
    """Starts at 0, which hides what lies behind it."""

    def __init__(self, inner):
        super().__init__()
        self.inner, self.scale = inner, nn.Parameter(torch.zeros([]))

    def forward(self, x):
        return x + self.scale * self.inner(x)


def _writes():
    first = nn.Linear(64, 12)
    return nn.Sequential(nn.Flatten(), first, Writes(first.weight), nn.Tanh(), nn.Linear(12, 10))


def _of_other(is_weak):
    layer = nn.Linear(64, 64)
    reference = weakref.ref(layer)
    other = OfOther((lambda: reference().weight) if is_weak else (lambda: layer.weight))
    return nn.Sequential(nn.Flatten(), layer, nn.Tanh(), other, nn.Linear(64, 10))


def _hooked(register):
    network = _after()
    register(network[1].weight)
    return network


def _returns(change):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.ReLU(), nn.Linear(12, 10), Returns(change))


def _activation_twice():
    activation = nn.Tanh()
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), activation, nn.Linear(16, 16), activation, nn.Linear(16, 10))


def _layer_twice():
    layer = nn.Linear(16, 16)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.Tanh(), layer, nn.Tanh(), layer, nn.Tanh(),
                         nn.Linear(16, 10))


def _weight_shared():
    first, second = nn.Linear(16, 16), nn.Linear(16, 16)
    second.weight = first.weight
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), Gate(nn.Sequential(first, nn.Tanh(), second)),
                         nn.Linear(16, 10))


def _assigned():
    first = nn.Linear(64, 12)
    weight = torch.randn(12, 64, generator=torch.Generator().manual_seed(0)) / 8
    first.load_state_dict({"weight": weight, "bias": torch.zeros(12)}, assign=True)
    slope = torch.linspace(0, 0.1, 2)[1].item()
    return nn.Sequential(nn.Flatten(), first, nn.LeakyReLU(slope), nn.Linear(12, 10))


def _after(*layers):
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(64, 12), nn.Tanh(), nn.Linear(12, 10))


class Dropped(nn.Module):
    def __init__(self, p):
        super().__init__()
        self.p = p

    def forward(self, x):
        return nn.functional.dropout(x, self.p)


BUILT = {
    "window": lambda: nn.Sequential(EmptyWindow(), nn.Flatten(), nn.Linear(1, 10)),
    "seeing": lambda: _after(Scaled()), "no_text": lambda: _after(Raises(RaisesWithoutText())),
    "other_text": lambda: _after(Raises(ValueError("not enough memory"))),
    "returns_sparse": lambda: _returns(torch.Tensor.to_sparse),
    "returns_seeing": lambda: _returns(lambda h: h.as_subclass(Seeing)),
    "closure": lambda: _of_other(False), "weak": lambda: _of_other(True),
    "hooked": lambda: _hooked(lambda weight: weight.register_hook(lambda gradient: gradient * 0)),
    "hooked_after": lambda: _hooked(lambda weight: weight.register_post_accumulate_grad_hook(lambda weight: None)),
    "codes": lambda: nn.Sequential(Codes(), nn.Tanh(), nn.Linear(6, 10)),
    "padded": lambda: nn.Sequential(Codes(padding_idx=0), nn.Tanh(), nn.Linear(6, 10)),
    "renormed": lambda: nn.Sequential(Codes(max_norm=0.5), nn.Tanh(), nn.Linear(6, 10)),
    "sparse": lambda: nn.Sequential(Codes(sparse=True), nn.Tanh(), nn.Linear(6, 10)),
    "bag": lambda: nn.Sequential(Codes(nn.EmbeddingBag), nn.Tanh(), nn.Linear(6, 10)),
    "quantized": lambda: _after(Quantized()), "numpy": lambda: _after(Numpy()), "exits": lambda: _after(Exits()),
    "out_of_memory": lambda: _after(OutOfMemory()), "counts": lambda: _after(Counts(True)),
    "counts_anew": lambda: _after(Counts(False)),
    "locked": lambda: _after(Locked()), "itself": lambda: _after(Itself()), "prints": lambda: _after(Prints()),
    "draws": lambda: _after(Draws()), "keeps": lambda: _after(Keeps()), "writes": _writes,
    "activation_twice": _activation_twice, "layer_twice": _layer_twice, "weight_shared": _weight_shared,
    "assigned": _assigned, "plain": lambda: _after(), "dropped": lambda: _after(Dropped(0.5)),
    "gru": lambda: nn.Sequential(Recurrent(nn.GRU), nn.Linear(6, 10)),
    "lstm": lambda: nn.Sequential(Recurrent(nn.LSTM), nn.Linear(6, 10)),
    "lazy": lambda: nn.Sequential(nn.Flatten(), nn.LazyLinear(12), nn.Tanh(), nn.Linear(12, 10)),
    "frozen_first": lambda: nn.Sequential(nn.Sequential(nn.Flatten(), nn.Linear(64, 16)).requires_grad_(False),
                                          nn.Linear(16, 12), nn.Tanh(), nn.Linear(12, 10))}
for _name, _make in BUILT.items():
    network(f"others_{_name}", version=1)(lambda trial, shape, n_classes, make=_make: make())
