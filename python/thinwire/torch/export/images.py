"""Images: convolutions, batch norm and pools."""

from __future__ import annotations

from typing import Any

from thinwire.model_file import layers
from thinwire.model_file.graph import NORMAL
from thinwire.model_file.layers import both, square
from thinwire.torch.export.walk import Walk, converts


@converts("conv2d")
def conv2d(
    walk: Walk,
    x: Any,
    weight: Any,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> int:
    """A convolution, and its bias."""
    operator = {
        "stride": both("stride", stride),
        "padding": both("padding", padding) * 2,
        "dilation": both("dilation", dilation),
        "groups": groups,
    }
    inputs = [walk.tensor(x), walk.tensor(weight, NORMAL)]
    y = walk.graph.one(walk.name, {"conv2d": operator}, inputs, walk.result)
    if bias is None:
        return y
    return layers.channel_bias(walk.graph, walk.name, y, walk.tensor(bias, "zeros"))


@converts("batch_norm")
def batch_norm(
    walk: Walk,
    x: Any,
    gain: Any,
    bias: Any,
    _mean: Any = None,
    _variance: Any = None,
    _training: bool = True,
    _momentum: float = 0.1,
    epsilon: float = 1e-5,
) -> int:
    """Batch norm in training."""
    x = walk.tensor(x)
    affine = (walk.tensor(*pair) for pair in ((gain, "ones"), (bias, "zeros")))
    return layers.batch_norm(walk.graph, walk.name, x, affine, epsilon)


def pool(walk: Walk, x: Any, kind: str, size: int, stride: int, padding: int) -> int:
    """Max or average pooling."""
    operator = {"kind": kind, "size": size, "stride": stride, "padding": padding}
    return walk.graph.one(walk.name, {"pool": operator}, [walk.tensor(x)], walk.result)


@converts("max_pool2d")
def largest(
    walk: Walk, x: Any, size: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1
) -> int:
    """Max pooling with the module's own window size."""
    if square("dilation", dilation) != 1:
        raise ValueError(f"dilation is {dilation}, expected 1")
    size, padding = square("kernel_size", size), square("padding", padding)
    return pool(walk, x, "max", size, square("stride", stride) if stride else size, padding)


@converts("avg_pool2d")
def means(
    walk: Walk,
    x: Any,
    size: Any,
    stride: Any = (),
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> int:
    """Average pooling with the module's own window size."""
    size, padding = square("kernel_size", size), square("padding", padding)
    if padding > 0 and not count_include_pad:
        raise ValueError("count_include_pad is False, expected True where there is padding")
    if ceil_mode:
        raise ValueError("ceil_mode is True, expected False")
    return pool(walk, x, "mean", size, square("stride", stride) if stride else size, padding)


@converts("adaptive_avg_pool2d")
def adaptive(walk: Walk, x: Any, size: Any) -> int:
    """Adaptive pooling, whose windows follow from the size of the output."""
    return layers.adaptive_mean(walk.graph, walk.name, walk.tensor(x), walk.result[2:])
