"""Layers that are one operator in frameworks, and several nodes or another operator in the model file."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from thinwire.model_file.graph import NORMAL, Graph, Shape, Weight

NAMES = {"add": "add", "sub": "subtract", "mul": "multiply", "div": "divide"}


def linear(graph: Graph, name: str, x: int, weight: Weight, bias: Weight | int | None) -> int:
    """A linear layer with a weight `[n,k]` that nothing else reads."""
    stored = weight.turn() if weight.turned else weight
    inputs = [x, graph.parameter(stored, NORMAL)]
    if bias is not None:
        inputs.append(graph.parameter(bias, "zeros") if isinstance(bias, Weight) else bias)
    operator = {"linear": {"bias": bias is not None} | ({} if weight.turned else {"turned": True})}
    return graph.one(name, operator, inputs, [*graph.shape(x)[:-1], weight.shape[0]])


def table_product(graph: Graph, name: str, x: int, table: int) -> int:
    """A product with a table `[n,k]` that other nodes read, too."""
    rows = "bgtuv"[: len(graph.shape(x)) - 1]
    return graph.matmul(name, x, table, (f"{rows}k", "nk", f"{rows}n"))


def product(graph: Graph, name: str, x: int, y: int) -> int:
    """A product over the last dimension of x and the second to last of y."""
    left, right = len(graph.shape(x)), len(graph.shape(y))
    if min(left, right) < 2:
        raise ValueError(f"{left} and {right} dimensions, expected 2 or more")
    most = max(left, right) - 2
    leading = "bgtuv"[:most]
    letters = [leading[most + 2 - count :] for count in (left, right)]
    return graph.matmul(name, x, y, (f"{letters[0]}sk", f"{letters[1]}kn", f"{leading}sn"))


def combine(graph: Graph, name: str, kind: str, x: int, y: int) -> int:
    """Elementwise arithmetic; the larger operand comes first."""
    shapes = [graph.shape(x), graph.shape(y)]
    if (len(shapes[0]), shapes[0]) < (len(shapes[1]), shapes[1]):
        if kind not in ("add", "mul"):
            raise ValueError(f"{kind} of shapes {shapes}, expected the larger one first")
        x, y = y, x
    return graph.one(name, {"arithmetic": NAMES[kind]}, [x, y], graph.shape(x))


def embedding(padding: int | None) -> dict[str, Any]:
    """Rows of a table. Every row can be read; the padding row gets no gradient."""
    return {"embedding": None if padding is None else {"padding": padding}}


def rows(graph: Graph, name: str, table: int, row: np.ndarray[Any, Any], shape: Shape) -> int:
    """Constant rows, the same for every sequence: positions, a range of positions or a single
    one."""
    first, count = int(row[0]), len(row)
    if np.array_equal(row, np.arange(count)):
        places = graph.source(f"{name}.constant", [count], "index", "input")
        found = graph.one(name, {"embedding": None}, [table, places], [count, shape[-1]])
    elif np.array_equal(row, first + np.arange(count)):
        found = graph.part(name, table, 0, first, first + count)
    elif (row == first).all():
        found = graph.part(name, table, 0, first, first + 1)
    else:
        raise ValueError(
            f"it looks up rows {row[:4].tolist()}… of a table, expected a range of rows"
        )
    return graph.repeat(f"{name}.rows", found, shape)


def channel_bias(graph: Graph, name: str, y: int, bias: int) -> int:
    """Arithmetic of images `[b,c,h,w]` and one number per channel."""
    flat = graph.reshape(f"{name}.bias_of_channels", bias, [*graph.shape(bias), 1, 1])
    return graph.one(f"{name}.bias", {"arithmetic": "add"}, [y, flat], graph.shape(y))


def batch_norm(graph: Graph, name: str, x: int, affine: Iterable[int], epsilon: float) -> int:
    """Batch norm in training, with gain and bias."""
    channels = graph.shape(x)[1]
    moments = graph.add(f"{name}.moments", {"moments": None}, [x], [[channels], [channels]])
    inputs = [x, *moments, *affine]
    return graph.one(name, {"batch_norm": {"epsilon": epsilon}}, inputs, graph.shape(x))


def layer_norm(graph: Graph, name: str, x: int, affine: Iterable[int], epsilon: float) -> int:
    """Layer norm: mean zero and variance one over the last dimension, then gain and bias."""
    return graph.one(name, {"layer_norm": {"epsilon": epsilon}}, [x, *affine], graph.shape(x))


def adaptive_mean(graph: Graph, name: str, x: int, target: Shape) -> int:
    """Adaptive average pooling to an output of `[y,x]`."""
    image = graph.shape(x)[2:]
    ratio = square("image / output", [image[at] / target[at] for at in (0, 1)])
    if ratio != int(ratio):
        raise ValueError(
            f"adaptive pooling of an image of {image} to {target}, expected sizes with a whole "
            "ratio"
        )
    if ratio == 1:
        return x
    operator = {"kind": "mean", "size": int(ratio), "stride": int(ratio), "padding": 0}
    return graph.one(name, {"pool": operator}, [x], [*graph.shape(x)[:2], *target])


def square(name: str, value: Any) -> Any:
    """Returns the number that all entries of a list are equal to."""
    numbers = {value} if isinstance(value, int) else set(value)
    if len(numbers) != 1:
        raise ValueError(f"{name} is {list(value)}, expected the same number in all directions")
    return numbers.pop()


def both(name: str, value: Any) -> list[int]:
    """Returns one number for rows and one for columns."""
    numbers = [value] if isinstance(value, int) else list(value)
    numbers = numbers * 2 if len(numbers) == 1 else numbers
    if len(numbers) != 2:
        raise ValueError(f"{name} is {numbers}, expected 2 numbers")
    return numbers


def hard_sigmoid(graph: Graph, name: str, x: int) -> int:
    """A hard sigmoid (three straight lines)."""
    return graph.scale(
        f"{name}.gate", between(graph, name, shifted(graph, name, x, 3.0), (0.0, 6.0)), 1 / 6
    )


def shifted(graph: Graph, name: str, x: int, by: float) -> int:
    """Arithmetic of a tensor and a number."""
    if by == 0.0:
        return x
    number = graph.fill(f"{name}.fill", [], by)
    return graph.one(f"{name}.shift", {"arithmetic": "add"}, [x, number], graph.shape(x))


def between(graph: Graph, name: str, x: int, ends: tuple[float, float]) -> int:
    """Clamps elements to a range: low + relu(x - low) - relu(x - high)."""
    shape = graph.shape(x)
    above, beyond = (
        graph.one(f"{name}.above", {"activation": "relu"}, [shifted(graph, name, x, -end)], shape)
        for end in ends
    )
    inside = graph.one(f"{name}.inside", {"arithmetic": "subtract"}, [above, beyond], shape)
    return shifted(graph, name, inside, ends[0])
