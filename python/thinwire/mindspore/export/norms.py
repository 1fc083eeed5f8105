"""Norms, softmax and dropout."""

from __future__ import annotations

from typing import Any

import numpy as np

from thinwire.mindspore.export.walk import Walk, converts
from thinwire.model_file import layers
from thinwire.model_file.graph import Causal
from thinwire.model_file.masks import FAR, seen


@converts("LayerNorm")
def layer_norm(
    walk: Walk, x: Any, gain: Any, bias: Any, begin: int, of_gain: int, epsilon: float
) -> list[int]:
    """Layer norm: mean zero and variance one, then gain and bias."""
    last = len(walk.shape(x)) - 1
    if begin not in (-1, last) or of_gain not in (-1, last):
        raise ValueError(
            f"a norm over dimension {begin} and all after it, expected only the last dimension"
        )
    affine = [walk.tensor(gain, "ones"), walk.tensor(bias, "zeros")]
    return [layers.layer_norm(walk.graph, walk.name, walk.tensor(x), affine, epsilon)]


@converts("LayerNormExt")
def layer_norm_of_shape(
    walk: Walk, x: Any, shape: Any, gain: Any, bias: Any, epsilon: float
) -> list[int]:
    """Layer norm, given the lengths of its dimensions."""
    return layer_norm(walk, x, gain, bias, -len(shape), -len(shape), epsilon)


@converts("Softmax")
def softmax(walk: Walk, x: Any, dims: Any) -> int:
    """Softmax."""
    causal = isinstance(x, Causal)
    x = x.scores if isinstance(x, Causal) else walk.tensor(x)
    shape = walk.graph.shape(x)
    dims = (dims,) if isinstance(dims, int) else tuple(dims)
    if dims not in ((-1,), (len(shape) - 1,)):
        raise ValueError(f"a softmax over dimensions {list(dims)}, expected the last one")
    return walk.graph.one(walk.name, {"softmax": {"causal": causal}}, [x], shape)


@converts("LogSoftmax")
def log_softmax(walk: Walk, x: Any, dim: int) -> Any:
    """Log-softmax, only as the output, where the loss replaces it."""
    if walk.node.name != _last(walk) or dim not in (-1, len(walk.shape(x)) - 1):
        raise ValueError("LogSoftmax is only supported as the output, over the last dimension")
    return x


def _last(walk: Walk) -> str:
    """The value that the network returns, without the operators after it that only enforce an
    order."""
    made = {node.name: node for node in walk.program.nodes}
    name = walk.program.output
    while name in made and made[name].operator == "Depend":
        name = made[name].inputs[0]
    return name


@converts("MaskedFill")
def masked_fill(walk: Walk, x: Any, mask: Any, value: Any) -> Causal:
    """A causal mask."""
    known = isinstance(mask, np.ndarray) and mask.dtype == bool
    if known and np.all(np.asarray(value) <= FAR) and seen(~mask) == "earlier":
        return Causal(walk.tensor(x))
    raise ValueError("MaskedFill is only supported with a constant causal mask and minus infinity")


@converts("Dropout")
def dropout(walk: Walk, x: Any, kept: float, *_: Any) -> Any:
    """Dropout in training."""
    if kept == 1.0:
        return (x,)
    walk.graph.dropouts += 1
    x = walk.tensor(x)
    operator = {
        "dropout": {"rate": float(str(np.float32(1.0 - kept))), "stream": walk.graph.dropouts}
    }
    return [walk.graph.one(walk.name, operator, [x], walk.graph.shape(x))]
