"""Products: linear layers, tables and batched products."""

from __future__ import annotations

from typing import Any

import numpy as np

from thinwire.mindspore.export.walk import Made, Walk, converts
from thinwire.model_file import layers
from thinwire.model_file.graph import NORMAL, Weight


@converts("MatMul", "BatchMatMul")
def matmul(walk: Walk, x: Any, y: Any, turned_x: bool = False, turned_y: bool = False) -> int:
    """A product whose operands may be transposed."""
    if turned_x:
        raise ValueError("transpose_a is True, expected False")
    if not turned_y:
        return product(walk, x, y)
    if isinstance(y, Weight) and len(y.shape) == 2:
        return linear(walk, x, y)
    y = walk.tensor(y)
    order = list(range(len(walk.graph.shape(y))))
    order[-2:] = order[:-3:-1]
    return product(walk, x, Made(walk.graph.transpose(f"{walk.name}.turned", y, order)))


@converts("MatMulExt")
def product(walk: Walk, x: Any, y: Any) -> int:
    """A product over the last dimension of x and the second to last of y."""
    if isinstance(y, Weight) and len(y.shape) == 2:
        return linear(walk, x, y.turn())
    return layers.product(walk.graph, walk.name, walk.tensor(x), walk.tensor(y))


@converts("Dense")
def dense(walk: Walk, x: Any, weight: Any, bias: Any = None) -> int:
    """A linear layer with its bias."""
    y = linear(walk, x, weight)
    return y if bias is None else _biased(walk, y, bias)


def linear(walk: Walk, x: Any, weight: Weight) -> int:
    """A linear layer, or a product with a table that is also used elsewhere.

    If sequences were concatenated for the product, the file keeps them separate.
    """
    graph, x = walk.graph, _unflattened(walk, walk.tensor(x))
    if walk.uses[weight.name] == 1:
        y = layers.linear(graph, walk.name, x, weight, None)
    else:
        y = layers.table_product(graph, walk.name, x, walk.tensor(weight, NORMAL))
    return graph.reshape(f"{walk.name}.flat", y, walk.result)


def _unflattened(walk: Walk, x: int) -> int:
    """Returns the features as they were before the rows of all sequences were concatenated, or `x`
    if they were not."""
    flat = walk.graph.made_by(x, "reshape")
    if flat is None or walk.graph.shape(flat["inputs"][0])[-1] != walk.graph.shape(x)[-1]:
        return x
    return flat["inputs"][0]


@converts("BiasAdd")
def bias_add(walk: Walk, x: Any, bias: Any, order: int = 0) -> int:
    """Adds one number per channel, or the bias of a linear layer."""
    y, count = walk.tensor(x), len(walk.result)
    if count not in (2, 4) or order != 0:
        raise ValueError(f"a bias of {count} dimensions in order {order}, expected [b,n] or NCHW")
    if count == 4:
        return layers.channel_bias(walk.graph, walk.name, y, walk.tensor(bias, "zeros"))
    if not walk.is_alone(0):
        return layers.combine(walk.graph, walk.name, "add", y, walk.tensor(bias, "zeros"))
    return _biased(walk, y, bias)


def _biased(walk: Walk, flat: int, bias: Any) -> int:
    """Adds a bias to the result of a linear layer. They become one node if the layer has no bias
    yet."""
    graph, bias = walk.graph, walk.tensor(bias, "zeros")
    y = _unflattened(walk, flat)
    layer = graph.made_by(y, "linear")
    if layer is None or layer["operator"]["linear"]["bias"]:
        y = layers.combine(graph, walk.name, "add", y, bias)
    else:
        layer["operator"]["linear"]["bias"] = True
        layer["inputs"].append(bias)
    return graph.reshape(f"{walk.name}.flat", y, walk.result)


@converts("Gather")
def gather(walk: Walk, table: Any, ids: Any, *rest: Any) -> int:
    """Rows of a table."""
    if any(rest):
        raise ValueError(
            f"it gathers along dimension {rest[0]}, expected dimension 0 without batch dimensions"
        )
    return looked_up(walk, table, ids)


@converts("Embedding")
def embedding(
    walk: Walk,
    ids: Any,
    table: Any,
    padding_idx: Any = None,
    max_norm: Any = None,
    _norm_type: Any = None,
    scale_grad_by_freq: Any = None,
    *_: Any,
) -> int:
    """Rows of a table, one of which may be padding."""
    if max_norm is not None or scale_grad_by_freq:
        raise ValueError(
            f"max_norm is {max_norm} and scale_grad_by_freq {scale_grad_by_freq}, expected neither"
        )
    padding = None if padding_idx is None else padding_idx % walk.shape(table)[0]
    if padding is not None and isinstance(ids, np.ndarray) and padding in ids:
        raise ValueError(
            f"constant ids look up row {padding}, which is padding, expected only other rows"
        )
    return looked_up(walk, table, ids, padding)


def looked_up(walk: Walk, table: Any, ids: Any, padding: int | None = None) -> int:
    """Rows of a table, which is constant or trained."""
    table = walk.tensor(table, NORMAL)
    if isinstance(ids, np.ndarray):
        found = _row(walk, ids.reshape(-1))
        times = ids.size // len(found)
        shape = [*([times] if times > 1 else []), len(found), walk.result[-1]]
        y = layers.rows(walk.graph, walk.name, table, found, shape)
    else:
        ids = _indices(walk, walk.tensor(ids))
        shape = [*walk.graph.shape(ids), walk.result[-1]]
        y = walk.graph.one(walk.name, layers.embedding(padding), [table, ids], shape)
    return walk.graph.reshape(f"{walk.name}.flat", y, walk.result)


def _indices(walk: Walk, ids: int) -> int:
    """Returns the indices as they were before the sequences were concatenated."""
    flat = walk.graph.made_by(ids, "reshape")
    return ids if flat is None else flat["inputs"][0]


def _row(walk: Walk, ids: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Returns the rows of one sequence, if `ids` repeats the same sequence for the whole batch;
    otherwise, returns `ids`."""
    if ids.size % walk.batch == 0 and (ids != ids[0]).any():
        sequences = ids.reshape(walk.batch, -1)
        if (sequences == sequences[0]).all():
            return sequences[0]
    return ids
