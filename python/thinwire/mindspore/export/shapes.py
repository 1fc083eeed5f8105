"""Operators that change shape, order or division of elements."""

from __future__ import annotations

from typing import Any

import numpy as np

from thinwire.mindspore.export.walk import Walk, converts, folds
from thinwire.model_file.graph import Weight


@converts("Reshape", "Flatten", "ExpandDims", "Squeeze")
def reshape(walk: Walk, x: Any, *_: Any) -> int:
    """The same elements in another shape."""
    y = walk.graph.reshape(walk.name, walk.tensor(x), walk.result)
    if walk.is_index(x):
        walk.graph.tensors[y]["element"] = "index"
    return y


@converts("Transpose")
def transpose(walk: Walk, x: Any, order: Any) -> Any:
    """A transpose; a weight is used transposed."""
    order = [dim % len(order) for dim in order]
    if isinstance(x, Weight) and order == [1, 0]:
        return x.turn()
    return walk.graph.transpose(walk.name, walk.tensor(x), order)


@converts("MakeTuple")
def together(walk: Walk, *values: Any) -> tuple[Any, ...]:
    """A tuple of values."""
    return values


@converts("TupleGetItem")
def item(walk: Walk, values: Any, at: int) -> Any:
    """One of several results."""
    if at >= len(values):
        raise ValueError(
            f"it reads result {at} of an operator, but only the first {len(values)} are supported"
        )
    return values[at]


@converts("Split")
def split(walk: Walk, x: Any, dim: int, parts: int) -> list[int]:
    """A dimension split into several."""
    x = walk.tensor(x)
    shape = walk.graph.shape(x)
    dim %= len(shape)
    return walk.graph.unpack(walk.name, x, dim, [shape[dim] // parts] * parts)


@converts("Concat")
def cat(walk: Walk, parts: Any, dim: int) -> int:
    """Concatenation of tensors along one dimension."""
    inputs = [walk.tensor(part) for part in parts]
    return walk.graph.pack(walk.name, inputs, dim % len(walk.result))


@converts("BroadcastTo")
def expand(walk: Walk, x: Any, *_: Any) -> int:
    """Broadcast to more dimensions."""
    return walk.graph.repeat(walk.name, walk.tensor(x), walk.result)


@converts("StridedSlice")
def cut(walk: Walk, x: Any, start: Any, end: Any, step: Any, *masks: int) -> int:
    """Ranges of dimensions, some of which are a single index."""
    from_begin, to_end, ellipsis, new, one = masks
    x = walk.tensor(x)
    if ellipsis or new or any(length != 1 for length in step):
        raise ValueError("a slice with steps, an ellipsis or a new dimension, expected ranges")
    for dim in range(len(start)):
        whole = walk.graph.shape(x)[dim]
        last = start[dim] + 1 or None
        first = None if from_begin >> dim & 1 else start[dim]
        ending = last if one >> dim & 1 else None if to_end >> dim & 1 else end[dim]
        begin, stop, _ = slice(first, ending).indices(whole)
        if (begin, stop) != (0, whole):
            x = walk.graph.part(walk.name, x, dim, begin, stop)
    return walk.graph.reshape(walk.name, x, walk.result)


@folds("Reshape")
def known_reshape(x: Any, shape: Any) -> Any:
    """Constants in another shape."""
    return np.reshape(x, shape)


@folds("ExpandDims")
def known_unsqueeze(x: Any, dim: int) -> Any:
    """Constants with one more dimension, of length 1."""
    return np.expand_dims(x, dim)


@folds("BroadcastTo")
def known_expand(x: Any, shape: Any) -> Any:
    """Constants broadcast to more dimensions."""
    return np.broadcast_to(x, shape)
