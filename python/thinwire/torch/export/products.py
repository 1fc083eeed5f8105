"""Products: linear layers, tables and batched products."""

from __future__ import annotations

from typing import Any

import torch

from thinwire.torch.export.elements import arithmetic
from thinwire.torch.export.graph import NORMAL, Weight
from thinwire.torch.export.walk import Walk, converts


@converts("linear")
def linear(walk: Walk, x: Any, weight: Any, bias: Any = None) -> int:
    """A linear layer, or a product with a table that is also read otherwise."""
    graph, x = walk.graph, walk.tensor(x)
    shape = graph.shape(x)
    if isinstance(weight, Weight) and walk.users_of(weight) == 1:
        stored = weight.turn() if weight.turned else weight
        inputs = [x, graph.parameter(stored)]
        inputs += [] if bias is None else [walk.tensor(bias, "zeros")]
        operator = {
            "linear": {"bias": bias is not None} | ({} if weight.turned else {"turned": True})
        }
        return graph.one(walk.name, operator, inputs, [*shape[:-1], weight.shape[0]])
    rows = "bgtuv"[: len(shape) - 1]
    weight = walk.tensor(weight, NORMAL)
    y = graph.matmul(walk.name, x, weight, (f"{rows}k", "nk", f"{rows}n"))
    return y if bias is None else arithmetic(walk, "add", y, bias)


@converts("matmul", "mm", "bmm")
def matmul(walk: Walk, x: Any, y: Any) -> int:
    """A product over the last dimension of x and the one before the last of y."""
    if isinstance(y, Weight) and len(y.shape) == 2:
        return linear(walk, x, y.turn())
    x, y = walk.tensor(x), walk.tensor(y)
    left, right = len(walk.graph.shape(x)), len(walk.graph.shape(y))
    if min(left, right) < 2:
        raise ValueError(f"{left} and {right} dimensions, expected 2 or more")
    most = max(left, right) - 2
    leading = "bgtuv"[:most]
    letters = [leading[most + 2 - count :] for count in (left, right)]
    return walk.graph.matmul(
        walk.name, x, y, (f"{letters[0]}sk", f"{letters[1]}kn", f"{leading}sn")
    )


@converts("addmm")
def addmm(walk: Walk, bias: Any, x: Any, weight: Any, *, beta: float = 1, alpha: float = 1) -> int:
    """A linear layer whose weight is the other way round."""
    if (beta, alpha) != (1, 1):
        raise ValueError(f"beta and alpha are {beta} and {alpha}, expected 1")
    if isinstance(weight, Weight) and isinstance(bias, Weight):
        return linear(walk, x, weight.turn(), bias)
    return arithmetic(walk, "add", matmul(walk, x, weight), bias)


@converts("embedding")
def embedding(walk: Walk, table: Any, ids: Any, *_: Any, **__: Any) -> int:
    """Rows of a table."""
    table = walk.tensor(table, NORMAL)
    if isinstance(ids, torch.Tensor):
        return rows(walk, table, ids)
    return walk.graph.one(walk.name, {"embedding": None}, [table, walk.tensor(ids)], walk.result)


def rows(walk: Walk, table: int, ids: torch.Tensor) -> int:
    """Rows that are known: positions, or a range, or one of them, for every sequence alike."""
    graph, whole = walk.graph, walk.result
    row = ids.reshape(-1, ids.shape[-1])
    if bool((row != row[:1]).any()):
        raise ValueError("it looks up known rows that differ between sequences, expected the same")
    row = row[0]
    first, count = int(row[0]), len(row)
    if torch.equal(row, torch.arange(count)):
        places = graph.source(f"{walk.name}.constant", [count], "index", "input")
        found = graph.one(walk.name, {"embedding": None}, [table, places], [count, whole[-1]])
    elif torch.equal(row, row[0] + torch.arange(count)):
        found = graph.part(walk.name, table, 0, first, first + count)
    elif bool((row == first).all()):
        found = graph.part(walk.name, table, 0, first, first + 1)
    else:
        raise ValueError(
            f"it looks up rows {row[:4].tolist()}… of a table, expected a range of rows"
        )
    return graph.repeat(f"{walk.name}.rows", found, whole)
