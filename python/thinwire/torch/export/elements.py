"""Elementwise functions, and means."""

from __future__ import annotations

from typing import Any

import torch

from thinwire.model_file import layers
from thinwire.model_file.graph import Causal, Root, Weight
from thinwire.model_file.masks import lessened, seen
from thinwire.torch.export.rotary import turned
from thinwire.torch.export.walk import Walk, converts, known


@converts("alias", "clone", "contiguous", "lift_fresh_copy", "to", "_to_copy", "type_as")
def same(walk: Walk, x: Any, *_: Any, **__: Any) -> Any:
    """An operator that does nothing in the file: conversions between dtypes were refused before,
    and the layout of memory matters only to torch."""
    return x


@converts("detach")
def detach(walk: Walk, x: Any) -> Any:
    """Detach; it is supported where no gradient would flow, and then does nothing."""
    if not walk.is_trained(x):
        return x
    raise ValueError(
        f"operator {walk.node.target} is not supported: no gradient passes it (hint: in a model "
        "file, gradients pass through every operator)"
    )


@converts("_assert_tensor_metadata")
def nothing(walk: Walk, *_: Any, **__: Any) -> None:
    """A node that matters only to torch, and does nothing in the file."""
    return None


@converts("gelu", "relu", "sigmoid", "silu", "tanh")
def activation(walk: Walk, x: Any, *, approximate: str = "none") -> int:
    """An elementwise function."""
    name = str(walk.node.target).removeprefix("aten.").split(".")[0].removesuffix("_")
    name = "gelu_erf" if name == "gelu" and approximate == "none" else name
    x = walk.tensor(x)
    return walk.graph.one(walk.name, {"activation": name}, [x], walk.graph.shape(x))


@converts("hardtanh", "clamp", "relu6")
def bounded(walk: Walk, x: Any, low: float = -1.0, high: float = 1.0) -> int:
    """Clamps elements to a range."""
    if low is None or high is None:
        raise ValueError(f"bounds {low} and {high}, expected two numbers")
    if "relu6" in str(walk.node.target):
        low, high = 0.0, 6.0
    return layers.between(walk.graph, walk.name, walk.tensor(x), (low, high))


@converts("hardsigmoid", "hardswish")
def hard(walk: Walk, x: Any) -> int:
    """A hard sigmoid (three straight lines), or x times it."""
    x = walk.tensor(x)
    gate = layers.hard_sigmoid(walk.graph, walk.name, x)
    if "hardsigmoid" in str(walk.node.target):
        return gate
    return walk.graph.one(walk.name, {"arithmetic": "multiply"}, [x, gate], walk.graph.shape(x))


@converts("pow")
def power(walk: Walk, x: Any, exponent: Any) -> Any:
    """A small integer power; a square may be the beginning of an RMS norm."""
    x = walk.tensor(x)
    if exponent == 2:
        return Root(x, "square")
    if exponent not in (1, 3):
        raise ValueError(f"a power of {exponent}, expected 1, 2 or 3")
    y = x
    for _ in range(int(exponent) - 1):
        y = walk.graph.one(walk.name, {"arithmetic": "multiply"}, [y, x], walk.graph.shape(x))
    return y


@converts("rsqrt")
def inverse_root(walk: Walk, x: Any) -> Root:
    """The inverse root in an RMS norm."""
    if not isinstance(x, Root) or x.stage != "mean":
        raise ValueError("rsqrt is only supported on the mean square in an RMS norm")
    return Root(x.x, "inverse root", x.epsilon)


@converts("mean")
def mean(walk: Walk, x: Any, dim: Any = None, keepdim: bool = False) -> Any:
    """The mean over some dimensions."""
    if isinstance(x, Root) and x.stage == "square" and keepdim and dim in ([-1], -1):
        return Root(x.x, "mean")
    x = walk.tensor(x)
    count = len(walk.graph.shape(x))
    over = range(count) if dim is None else [at % count for at in dim]
    return walk.graph.mean(walk.name, x, list(over), keepdim)


@converts("neg")
def negative(walk: Walk, x: Any) -> int:
    """Negation."""
    return walk.graph.scale(walk.name, walk.tensor(x), -1.0)


@converts("add", "sub", "mul", "div")
def elementwise(walk: Walk, x: Any, y: Any, *, alpha: float = 1) -> int:
    """Arithmetic element by element."""
    name = str(walk.node.target).removeprefix("aten.").split(".")[0].removesuffix("_")
    if alpha != 1:
        raise ValueError(f"alpha is {alpha}, expected 1")
    found: int = arithmetic(walk, name, x, y)
    return found


def number(walk: Walk, value: Any, at: int) -> float | None:
    """An argument that is a number, not a tensor."""
    if isinstance(value, torch.Tensor):
        return float(value) if value.numel() == 1 and value.ndim <= 1 else None
    is_node = isinstance(walk.node.args[at], torch.fx.Node) if at < len(walk.node.args) else True
    return float(value) if isinstance(value, int | float) and not is_node else None


def operand(walk: Walk, name: str, value: Any) -> int:
    """Returns an operand of arithmetic. A trained row that multiplies elements is described as
    initially one."""
    gain = isinstance(value, Weight) and value.is_row and name in ("mul", "div")
    if isinstance(value, torch.Tensor):
        return walk.graph.constant(f"{walk.name}.constant", lessened(known(value)))
    return walk.tensor(value, "ones" if gain else None)


def normal(walk: Walk, x: Any, y: Any) -> int | None:
    """An RMS norm: x over the root of its mean square, times a gain."""
    graph = walk.graph
    if isinstance(y, Root) and y.stage == "inverse root" and x == y.x:
        ones = graph.fill(f"{walk.name}.ones", graph.shape(x)[-1:], 1.0)
        operator = {"rms_norm": {"epsilon": y.epsilon}}
        return graph.one(walk.name, operator, [x, ones], graph.shape(x))
    norm = None if isinstance(x, Weight | Root) else graph.made_by(x, "rms_norm")
    if norm is None or len(walk.node.all_input_nodes) != 2 or isinstance(y, Root):
        return None
    if not graph.made_by(norm["inputs"][1], "fill") or graph.readers(x):
        return None
    gain = y if isinstance(y, Weight) or type(y) is int else None
    if gain is None or walk.shape(gain) != graph.shape(x)[-1:]:
        return None
    norm["inputs"][1] = walk.tensor(gain, "ones")
    graph.last(norm)
    known: int | None = x
    return known


def formula(walk: Walk, name: str, x: Any, y: Any) -> Any:
    """The pattern that ends with this sum or product: an RMS norm, rotary positions, masked scores."""
    for one, other in ((x, y), (y, x)):
        found = None
        if name == "mul" and type(one) is int:
            found = normal(walk, one, other)
        elif name == "add" and type(one) is int and type(other) is int:
            found = turned(walk, one, other)
        if found is not None:
            return found
    if name == "add" and type(x) is int and isinstance(y, torch.Tensor) and y.ndim > 1:
        return {"earlier": Causal(x), "all": x}.get(seen(known(y)) or "")
    return None


def arithmetic(walk: Walk, name: str, x: Any, y: Any) -> Any:
    """Arithmetic of two tensors, or of a tensor and a number; the larger operand comes first."""
    graph = walk.graph
    if name in ("add", "mul") and number(walk, x, 0) is not None:
        x, y = y, x
    factor = number(walk, y, 1) if walk.node.target is not None else None
    if isinstance(x, Root) and x.stage == "mean" and name == "add" and factor is not None:
        return Root(x.x, "mean", x.epsilon + factor)
    found = formula(walk, name, x, y) if factor is None else None
    if found is not None:
        return found
    if factor is not None and name in ("mul", "div"):
        return graph.scale(walk.name, walk.tensor(x), factor if name == "mul" else 1.0 / factor)
    x = operand(walk, name, x)
    y = (
        graph.fill(f"{walk.name}.fill", [], factor)
        if factor is not None
        else operand(walk, name, y)
    )
    return layers.combine(graph, walk.name, name, x, y)
