"""Small modules of torch, whose operators and arguments are drawn at random."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

ROWS, IMAGE = 9, (3, 4, 4)
CLASSES = 10


class Reversed(torch.autograd.Function):
    """The identity, whose gradient has the other sign."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return -gradient


class Drawn(nn.Module):
    """A linear layer, drawn functions of images `[b,4,4,4]` or of features, and a linear layer."""

    def __init__(self, functions: list[Callable[[Any, Any], Any]]) -> None:
        super().__init__()
        self.functions = functions
        self.first, self.kernel = nn.Linear(48, 64), nn.Parameter(torch.randn(4, 2, 3, 3) / 3)
        self.register_buffer("count", torch.ones(()))
        self.gain, self.shift = (
            nn.Parameter(torch.rand(64) + 0.5),
            nn.Parameter(torch.randn(64) / 5),
        )
        with torch.no_grad():
            features = self.features(torch.zeros(2, *IMAGE)).shape[1]
        self.last = nn.Linear(features, CLASSES)

    def features(self, x: Any) -> Any:
        """What the last layer reads."""
        x = self.first(x.flatten(1))
        for function in self.functions:
            x = function(self, x.reshape(x.shape[0], -1, 4, 4)).flatten(1)
        return x

    def forward(self, x: Any) -> Any:
        return self.last(self.features(x))


def modules(seed: int, count: int) -> list[tuple[list[str], Drawn]]:
    """Modules that torch can call, and the names of the operators that were drawn."""
    draw = random.Random(seed)
    torch.manual_seed(seed)
    found: list[tuple[list[str], Drawn]] = []
    while len(found) < count:
        names = draw.sample(sorted(OPERATORS), draw.choice((1, 1, 2)))
        try:
            module = Drawn([OPERATORS[name](draw) for name in names])
            module(torch.randn(3, *IMAGE)).sum().backward()
        except RuntimeError:  # arguments that torch refuses
            continue
        module.zero_grad()
        found.append((names, module))
    return found


def pool(kind: str) -> Callable[[random.Random], Any]:
    """Windows of every size, of which some count their padding and some do not."""

    def drawn(draw: random.Random) -> Any:
        size = draw.choice((1, 2, 2, 3, (2, 1)))
        known = {"stride": draw.choice((None, 1, 2)), "padding": draw.choice((0, 0, 1))}
        known["ceil_mode"] = draw.random() < 0.2
        if kind == "max":
            known["dilation"] = draw.choice((1, 1, 2))
            return lambda m, x: functional.max_pool2d(x, size, **known)
        known["count_include_pad"] = draw.random() < 0.5
        known["divisor_override"] = draw.choice((None, None, 3))
        return lambda m, x: functional.avg_pool2d(x, size, **known)

    return drawn


def convolution(draw: random.Random) -> Any:
    """A kernel at every stride, padding and dilation."""
    known = {"stride": draw.choice((1, 2)), "padding": draw.choice((0, 1, "same"))}
    known |= {"dilation": draw.choice((1, 2)), "groups": 2}
    bias = draw.random() < 0.5
    return lambda m, x: functional.conv2d(x, m.kernel, m.shift[:4] if bias else None, **known)


def conversion(draw: random.Random) -> Any:
    """To another precision or to whole numbers, and back."""
    dtypes = (torch.int32, torch.bfloat16, torch.float16, torch.float64, torch.bool, torch.float32)
    dtype = draw.choice(dtypes)
    return lambda m, x: x.to(dtype).float()


def stopped(draw: random.Random) -> Any:
    """Values through which no gradient goes, or another one."""
    return draw.choice(
        (
            lambda m, x: x * 0.5 + x.detach(),
            lambda m, x: x + (torch.tanh(x) - x).detach(),
            lambda m, x: x + torch.no_grad()(torch.relu)(x),
            lambda m, x: Reversed.apply(x),
            lambda m, x: hooked(x),
        )
    )


def hooked(x: Any) -> Any:
    """The identity, whose gradient is twice as large."""
    y = x * 1.5
    if y.requires_grad:
        y.register_hook(lambda gradient: 2 * gradient)
    return y


def rows(draw: random.Random) -> Any:
    """Dimensions in another order, or parts of them; some mix the rows of the batch."""
    dims = draw.sample(range(4), 2)
    return draw.choice(
        (
            lambda m, x: x.transpose(*dims).reshape(x.shape[0], -1),
            lambda m, x: torch.cat(x.split(2, 1)[::-1], 1),
            lambda m, x: x - x.mean(dims[0], keepdim=True),
            lambda m, x: torch.cat([x[1:], x[:1]]),
            lambda m, x: x.narrow(dims[0], 0, 2) + 0 * x.sum() if dims[0] else x.flip(1),
        )
    )


def attention(draw: random.Random) -> Any:
    """Four heads of four tokens."""
    known = {"is_causal": draw.random() < 0.5, "scale": draw.choice((None, 0.3))}
    return lambda m, x: functional.scaled_dot_product_attention(x, x * 0.5, x, **known)


def softmax(draw: random.Random) -> Any:
    """Over every dimension, in some precisions."""
    dim, dtype = draw.choice((-1, 3, 1, 0)), draw.choice((None, torch.float32, torch.float64))
    function = draw.choice((functional.softmax, functional.softmax, functional.log_softmax))
    return lambda m, x: function(x, dim, dtype=dtype).float()


def norm(draw: random.Random) -> Any:
    """Norms over the last dimensions, and over the batch."""
    epsilon, shape = draw.choice((1e-5, 1e-2)), draw.choice(((64,), (64,), (4, 4)))
    return draw.choice(
        (
            lambda m, x: functional.layer_norm(x.view(-1, *shape), shape, eps=epsilon).view_as(x),
            lambda m, x: functional.layer_norm(x.flatten(1), (64,), m.gain, m.shift, epsilon),
            lambda m, x: functional.rms_norm(x.flatten(1), (64,), m.gain, epsilon),
            lambda m, x: functional.batch_norm(
                x, None, None, m.gain[:4], m.shift[:4], training=True, eps=epsilon
            ),
        )
    )


def arithmetic(draw: random.Random) -> Any:
    """Sums, products and quotients, with numbers and with parameters."""
    number = draw.choice((0.5, 2, 3.0))
    alpha, mode = draw.choice((1, 2)), draw.choice((None, "floor"))
    dtype = draw.choice((None, torch.float64))
    return draw.choice(
        (
            lambda m, x: torch.add(x, m.shift.view(4, 4, 4), alpha=number),
            lambda m, x: torch.sub(x, x.tanh(), alpha=alpha),
            lambda m, x: number - x,
            lambda m, x: torch.div(x, number, rounding_mode=mode),
            lambda m, x: x.pow(number),
            lambda m, x: number**x,
            lambda m, x: x * m.gain.view(4, 4, 4) / number,
            lambda m, x: torch.addmm(m.shift, x.flatten(1), m.gain.outer(m.gain), beta=number),
            lambda m, x: x.mean((2, 3), dtype=dtype).float().repeat(1, 4),
        )
    )


def activation(draw: random.Random) -> Any:
    """Functions of every element, with other arguments than usual."""
    low, approximate = draw.choice((-0.5, 0.0, None)), draw.choice(("none", "tanh"))
    return draw.choice(
        (
            lambda m, x: functional.gelu(x, approximate=approximate),
            lambda m, x: functional.hardtanh(x, -0.3, 0.4),
            lambda m, x: x.clamp(low, 0.7),
            lambda m, x: functional.leaky_relu(x, 0.2),
            lambda m, x: functional.silu(x),
            lambda m, x: functional.elu(x, 0.5),
            lambda m, x: functional.hardswish(x),
            lambda m, x: functional.softplus(x, beta=2),
            lambda m, x: functional.dropout(x, 0.5, training=False),
            lambda m, x: functional.dropout2d(x, 0.5, training=False),
        )
    )


def state(draw: random.Random) -> Any:
    """What differs from call to call, and what only seems to."""
    rate = draw.choice((0.1, 0.5))

    def counted(m: Any, x: Any) -> Any:
        m.count = m.count + 1
        return x / m.count

    def unread(m: Any, x: Any) -> Any:
        m.count.add_(1)
        return x * 2

    return draw.choice(
        (
            counted,
            unread,
            lambda m, x: x if random.random() < rate else 2 * x,
            lambda m, x: x * numpy.random.choice([1.0, 2.0]).item(),
            lambda m, x: x * functional.dropout(m.count, rate),
            lambda m, x: torch.func.vmap(lambda row: row * m.gain)(x.flatten(1)),
            lambda m, x: checkpoint(torch.tanh, x, use_reentrant=False),
        )
    )


def in_place(draw: random.Random) -> Any:
    """Writes into values of which there are views."""
    number = draw.choice((0.0, 1.5))

    def written(change: Callable[[Any], Any], view: Callable[[Any], Any]) -> Any:
        def function(m: Any, x: Any) -> Any:
            y = x * 2
            z = view(y)
            change(z)
            return y.flatten(1) + z.flatten(1).sum(1, keepdim=True)

        return function

    views = (lambda y: y, lambda y: y[:, :2], lambda y: y.transpose(1, 2), lambda y: y.flatten(1))
    changes = (
        lambda z: z.add_(number),
        lambda z: z.mul_(number),
        lambda z: z.fill_(number),
        lambda z: z.clamp_(-0.3, 0.3),
        lambda z: functional.relu(z, inplace=True),
        lambda z: z.detach().mul_(number),
    )
    return written(draw.choice(changes), draw.choice(views))


OPERATORS: dict[str, Callable[[random.Random], Any]] = {
    "activation": activation,
    "arithmetic": arithmetic,
    "attention": attention,
    "avg_pool2d": pool("mean"),
    "conversion": conversion,
    "conv2d": convolution,
    "in_place": in_place,
    "max_pool2d": pool("max"),
    "norm": norm,
    "rows": rows,
    "softmax": softmax,
    "state": state,
    "stopped": stopped,
}
