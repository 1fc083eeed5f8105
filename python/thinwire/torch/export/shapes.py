"""Operators that change shape, order or division of elements."""

from __future__ import annotations

from typing import Any

from thinwire.model_file.graph import Weight
from thinwire.torch.export.walk import Walk, converts


@converts("view", "reshape", "_unsafe_view", "flatten", "unflatten", "squeeze", "unsqueeze")
def reshape(walk: Walk, x: Any, *_: Any) -> int:
    """The same elements in another shape."""
    return walk.graph.reshape(walk.name, walk.tensor(x), walk.result)


@converts("transpose", "permute", "t", "numpy_T")
def transpose(walk: Walk, x: Any, *dims: Any) -> Any:
    """A transpose; a weight is used transposed."""
    count = len(walk.shape(x))
    order = list(range(count))
    if len(dims) == 2:
        first, second = (dim % count for dim in dims)
        order[first], order[second] = second, first
    elif dims:
        order = [dim % count for dim in dims[0]]
    else:
        order.reverse()
    if isinstance(x, Weight) and order == [1, 0]:
        return x.turn()
    return walk.graph.transpose(walk.name, walk.tensor(x), order)


@converts("split", "split_with_sizes", "chunk", "tensor_split")
def split(walk: Walk, x: Any, *_: Any, **__: Any) -> list[int]:
    """A dimension split into several."""
    x = walk.tensor(x)
    shapes = [list(value.shape) for value in walk.node.meta["val"]]
    pairs = enumerate(zip(walk.graph.shape(x), shapes[0], strict=True))
    dim = next((at for at, (whole, part) in pairs if whole != part), 0)
    return walk.graph.unpack(walk.name, x, dim, [shape[dim] for shape in shapes])


@converts("unbind")
def unbind(walk: Walk, x: Any, dim: int = 0) -> list[int]:
    """All indices of a dimension, as separate tensors."""
    x = walk.tensor(x)
    shape = walk.graph.shape(x)
    dim %= len(shape)
    parts = walk.graph.unpack(walk.name, x, dim, [1] * shape[dim])
    left = [*shape[:dim], *shape[dim + 1 :]]
    return [walk.graph.reshape(f"{walk.name}.part", part, left) for part in parts]


@converts("select")
def select(walk: Walk, x: Any, dim: int, index: int) -> int:
    """One index of a dimension."""
    x = walk.tensor(x)
    shape = walk.graph.shape(x)
    dim, index = dim % len(shape), index % shape[dim]
    part = walk.graph.part(f"{walk.name}.part", x, dim, index, index + 1)
    return walk.graph.reshape(walk.name, part, walk.result)


@converts("slice")
def cut(walk: Walk, x: Any, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> int:
    """A range of a dimension."""
    x = walk.tensor(x)
    dim %= len(walk.graph.shape(x))
    whole = walk.graph.shape(x)[dim]
    start, end, step = slice(start, end, step).indices(whole)
    if step != 1:
        raise ValueError(f"a slice in steps of {step}, expected 1")
    return walk.graph.part(walk.name, x, dim, start, end)


@converts("cat")
def cat(walk: Walk, parts: Any, dim: int = 0) -> int:
    """Concatenation of tensors along one dimension."""
    inputs = [walk.tensor(part) for part in parts]
    return walk.graph.pack(walk.name, inputs, dim % len(walk.result))


@converts("expand")
def expand(walk: Walk, x: Any, *_: Any) -> int:
    """Broadcast to more dimensions."""
    return walk.graph.repeat(walk.name, walk.tensor(x), walk.result)
