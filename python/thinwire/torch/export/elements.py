"""Functions of every element, and means."""

from __future__ import annotations

from typing import Any

import torch

from thinwire.torch.export.graph import Weight
from thinwire.torch.export.walk import Walk, converts

NAMES = {"add": "add", "sub": "subtract", "mul": "multiply", "div": "divide"}


@converts("alias", "clone", "contiguous", "detach", "lift_fresh_copy", "to", "_to_copy", "type_as")
def same(walk: Walk, x: Any, *_: Any, **__: Any) -> Any:
    """Nothing happens."""
    return x


@converts("_assert_tensor_metadata")
def nothing(walk: Walk, *_: Any, **__: Any) -> None:
    """It is there for torch alone."""
    return None


@converts("gelu", "relu", "sigmoid", "silu", "tanh")
def activation(walk: Walk, x: Any, *, approximate: str = "none") -> int:
    """A function of every element."""
    name = str(walk.node.target).removeprefix("aten.").split(".")[0].removesuffix("_")
    name = "gelu_erf" if name == "gelu" and approximate == "none" else name
    x = walk.tensor(x)
    return walk.graph.one(walk.name, {"activation": name}, [x], walk.graph.shape(x))


@converts("mean")
def mean(walk: Walk, x: Any, dim: Any = None, keepdim: bool = False, **_: Any) -> int:
    """The mean over some dimensions."""
    x = walk.tensor(x)
    count = len(walk.graph.shape(x))
    over = range(count) if dim is None else [at % count for at in dim]
    return walk.graph.mean(walk.name, x, list(over), keepdim)


@converts("neg")
def negative(walk: Walk, x: Any) -> int:
    """The same with the other sign."""
    return walk.graph.scale(walk.name, walk.tensor(x), -1.0)


@converts("add", "sub", "mul", "div")
def elementwise(walk: Walk, x: Any, y: Any, *, alpha: float = 1) -> int:
    """Arithmetic element by element."""
    name = str(walk.node.target).removeprefix("aten.").split(".")[0].removesuffix("_")
    if alpha != 1:
        raise ValueError(f"alpha is {alpha}, expected 1")
    return arithmetic(walk, name, x, y)


def number(walk: Walk, value: Any, at: int) -> float | None:
    """An argument that is a number, not a tensor."""
    if isinstance(value, torch.Tensor) and value.ndim == 0:
        return float(value)
    is_node = isinstance(walk.node.args[at], torch.fx.Node) if at < len(walk.node.args) else True
    return float(value) if isinstance(value, int | float) and not is_node else None


def operand(walk: Walk, name: str, value: Any) -> int:
    """An operand of arithmetic; a row that elements are multiplied by begins at one."""
    gain = isinstance(value, Weight) and value.is_row and name in ("mul", "div")
    return walk.tensor(value, "ones" if gain else None)


def arithmetic(walk: Walk, name: str, x: Any, y: Any) -> int:
    """Arithmetic of two tensors, or of a tensor and a number; the larger one first."""
    graph = walk.graph
    factor = number(walk, y, 1) if walk.node.target is not None else None
    if factor is not None and name in ("mul", "div"):
        return graph.scale(walk.name, walk.tensor(x), factor if name == "mul" else 1.0 / factor)
    x = operand(walk, name, x)
    y = (
        graph.fill(f"{walk.name}.fill", [], factor)
        if factor is not None
        else operand(walk, name, y)
    )
    shapes = [graph.shape(x), graph.shape(y)]
    if (len(shapes[0]), shapes[0]) < (len(shapes[1]), shapes[1]):
        if name not in ("add", "mul"):
            raise ValueError(f"{name} of shapes {shapes}, expected the larger one first")
        x, y = y, x
    return graph.one(walk.name, {"arithmetic": NAMES[name]}, [x, y], graph.shape(x))
