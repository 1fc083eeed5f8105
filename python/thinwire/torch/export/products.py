"""Products: linear layers, tables and batched products."""

from __future__ import annotations

from typing import Any

import torch

from thinwire.model_file import layers
from thinwire.model_file.graph import NORMAL, Weight
from thinwire.torch.export.elements import arithmetic
from thinwire.torch.export.walk import Walk, converts


@converts("linear")
def linear(walk: Walk, x: Any, weight: Any, bias: Any = None) -> int:
    """A linear layer, or a product with a table that is also used elsewhere."""
    graph, x = walk.graph, walk.tensor(x)
    if isinstance(weight, Weight) and walk.users_of(weight) == 1:
        known = bias is None or isinstance(bias, Weight)
        return layers.linear(graph, walk.name, x, weight, bias if known else walk.tensor(bias))
    y = layers.table_product(graph, walk.name, x, walk.tensor(weight, NORMAL))
    return y if bias is None else arithmetic(walk, "add", y, bias)


@converts("matmul", "mm", "bmm")
def matmul(walk: Walk, x: Any, y: Any) -> int:
    """A product over the last dimension of x and the second to last of y."""
    if isinstance(y, Weight) and len(y.shape) == 2:
        found: int = linear(walk, x, y.turn())
        return found
    return layers.product(walk.graph, walk.name, walk.tensor(x), walk.tensor(y))


@converts("addmm")
def addmm(walk: Walk, bias: Any, x: Any, weight: Any, *, beta: float = 1, alpha: float = 1) -> int:
    """A linear layer whose weight is transposed."""
    if (beta, alpha) != (1, 1):
        raise ValueError(f"beta and alpha are {beta} and {alpha}, expected 1")
    if isinstance(weight, Weight) and isinstance(bias, Weight):
        return int(linear(walk, x, weight.turn(), bias))
    found: int = arithmetic(walk, "add", matmul(walk, x, weight), bias)
    return found


@converts("embedding")
def embedding(
    walk: Walk,
    table: Any,
    ids: Any,
    padding_idx: int = -1,
    scale_grad_by_freq: bool = False,
) -> int:
    """Rows of a table, one of which may be padding."""
    if scale_grad_by_freq:
        raise ValueError("scale_grad_by_freq is True, expected False")
    padding = padding_idx if padding_idx >= 0 else None
    table = walk.tensor(table, NORMAL)
    if not isinstance(ids, torch.Tensor):
        operator = layers.embedding(padding)
        return walk.graph.one(walk.name, operator, [table, walk.tensor(ids)], walk.result)
    row = ids.reshape(-1, ids.shape[-1])
    if bool((row != row[:1]).any()):
        raise ValueError(
            "it looks up constant rows that differ between sequences, expected equal rows"
        )
    if padding is not None and padding in row[0]:
        raise ValueError(
            f"constant ids look up row {padding}, which is padding, expected only other rows"
        )
    return layers.rows(walk.graph, walk.name, table, row[0].numpy(), walk.result)
