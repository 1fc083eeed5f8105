"""Norms, softmax and attention."""

from __future__ import annotations

import math
from typing import Any

import torch

from thinwire.model_file import layers
from thinwire.model_file.graph import Causal
from thinwire.model_file.masks import FAR, added, lessened, seen
from thinwire.torch.export.walk import Walk, converts, known

SMALL = torch.finfo(torch.float32).eps  # what RMS norm adds where nothing is said


@converts("layer_norm")
def layer_norm(
    walk: Walk,
    x: Any,
    shape: Any,
    gain: Any = None,
    bias: Any = None,
    epsilon: float = 1e-5,
) -> int:
    """Layer norm: mean zero and variance one, then gain and bias."""
    if len(shape) != 1:
        raise ValueError(f"a norm over {list(shape)}, expected the last dimension")
    fill = walk.graph.fill
    gain = fill(f"{walk.name}.ones", shape, 1.0) if gain is None else walk.tensor(gain, "ones")
    bias = fill(f"{walk.name}.zeros", shape, 0.0) if bias is None else walk.tensor(bias, "zeros")
    return layers.layer_norm(walk.graph, walk.name, walk.tensor(x), [gain, bias], epsilon)


@converts("rms_norm")
def rms_norm(walk: Walk, x: Any, shape: Any, gain: Any = None, epsilon: float | None = None) -> int:
    """RMS norm: mean square one, then gain."""
    if len(shape) != 1:
        raise ValueError(f"a norm over {list(shape)}, expected the last dimension")
    fill = walk.graph.fill
    gain = fill(f"{walk.name}.ones", shape, 1.0) if gain is None else walk.tensor(gain, "ones")
    operator = {"rms_norm": {"epsilon": SMALL if epsilon is None else epsilon}}
    return walk.graph.one(walk.name, operator, [walk.tensor(x), gain], walk.result)


@converts("softmax", "_softmax")
def softmax(walk: Walk, x: Any, dim: int) -> int:
    """Softmax."""
    causal = isinstance(x, Causal)
    x = x.scores if isinstance(x, Causal) else walk.tensor(x)
    if dim not in (-1, len(walk.graph.shape(x)) - 1):
        raise ValueError(f"softmax over dimension {dim}, expected the last one")
    return walk.graph.one(walk.name, {"softmax": {"causal": causal}}, [x], walk.graph.shape(x))


@converts("log_softmax")
def log_softmax(walk: Walk, x: Any, dim: int) -> Any:
    """Log-softmax, only as the output, where the loss replaces it."""
    if any(user.op != "output" for user in walk.node.users):
        raise ValueError("log_softmax is only supported as the output")
    if dim not in (-1, len(walk.result) - 1):
        raise ValueError(f"log_softmax over dimension {dim}, expected the last one")
    walk.ending = "log_softmax"
    return x


@converts("masked_fill")
def masked_fill(walk: Walk, x: Any, mask: Any, value: Any) -> Causal:
    """A causal mask."""
    if (
        isinstance(mask, torch.Tensor)
        and float(value) <= FAR
        and seen(known(~mask.bool())) == "earlier"
    ):
        return Causal(walk.tensor(x))
    raise ValueError("masked_fill is only supported with a causal mask and minus infinity")


@converts("scaled_dot_product_attention")
def attention(
    walk: Walk,
    q: Any,
    k: Any,
    v: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> int:
    """Attention; it is written as separate nodes if it has dropout."""
    if attn_mask is not None and not isinstance(attn_mask, torch.Tensor):
        raise ValueError(
            "attention with a computed mask is not supported, only attention with a constant mask"
        )
    found = "all" if attn_mask is None else seen(known(attn_mask))
    causal = is_causal or found == "earlier"
    graph, name = walk.graph, walk.name
    q, k, v = (walk.tensor(value) for value in (q, k, v))
    batch, heads, tokens, size = graph.shape(q)
    groups = graph.shape(k)[1]
    if scale is not None and not math.isclose(scale * math.sqrt(size), 1.0, rel_tol=1e-6):
        q = graph.scale(f"{name}.scale", q, scale * math.sqrt(size))
    if found is None or dropout_p > 0.0:
        if groups != heads:
            raise ValueError(
                f"{heads} heads of queries and {groups} of keys, expected equal numbers here"
            )
        scores = graph.matmul(f"{name}.scores", q, k, ("bgsd", "bgtd", "bgst"))
        scores = graph.scale(f"{name}.scale", scores, 1.0 / math.sqrt(size))
        if found is None and attn_mask is not None:
            mask = graph.constant(f"{name}.mask", lessened(added(known(attn_mask))))
            shape = graph.shape(scores)
            scores = graph.one(f"{name}.masked", {"arithmetic": "add"}, [scores, mask], shape)
        operator = {"softmax": {"causal": causal}}
        weights = graph.one(f"{name}.softmax", operator, [scores], graph.shape(scores))
        weights = dropout(walk, weights, dropout_p, True)
        return graph.matmul(name, weights, v, ("bgst", "bgtd", "bgsd"))
    k, v = (graph.unrepeated(value) for value in (k, v))
    groups = graph.shape(k)[1]
    flat = [graph.transpose(f"{name}.turned", value, [0, 2, 1, 3]) for value in (q, k, v)]
    flat = [_merged(walk, value) for value in flat]
    sizes = {"head_size": size, "queries_per_key": heads // groups, "causal": causal}
    y = graph.one(name, {"attention": sizes}, flat, [batch, tokens, heads * size])
    y = graph.reshape(f"{name}.heads", y, [batch, tokens, heads, size])
    return graph.transpose(f"{name}.back", y, [0, 2, 1, 3])


def _merged(walk: Walk, value: int) -> int:
    """Returns the heads concatenated in one dimension."""
    batch, tokens, heads, size = walk.graph.shape(value)
    return walk.graph.reshape(f"{walk.name}.flat", value, [batch, tokens, heads * size])


@converts("alpha_dropout", "feature_alpha_dropout", "feature_dropout")
def off(walk: Walk, x: Any, rate: float, train: bool) -> Any:
    """Dropout outside of training, which does nothing."""
    if train and rate > 0.0:
        raise ValueError(
            f"operator {walk.node.target} is not supported in training (hint: export module.eval())"
        )
    return x


@converts("dropout")
def dropout(walk: Walk, x: Any, rate: float, train: bool) -> Any:
    """Dropout in training."""
    if not train or rate == 0.0:
        return x
    walk.graph.dropouts += 1
    x = walk.tensor(x)
    operator = {"dropout": {"rate": float(rate), "stream": walk.graph.dropouts}}
    return walk.graph.one(f"{walk.name}.dropout", operator, [x], walk.graph.shape(x))
