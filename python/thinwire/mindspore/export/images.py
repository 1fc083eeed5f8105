"""Images: convolutions, batch norm and pools."""

from __future__ import annotations

from typing import Any

from thinwire.mindspore.export.walk import Walk, converts
from thinwire.model_file import layers
from thinwire.model_file.graph import NORMAL


@converts("Conv2D")
def conv2d(walk: Walk, x: Any, weight: Any, *_: Any) -> int:
    """A convolution; its bias is another operator."""
    _check_format(walk)
    top, bottom, left, right = walk.attribute("pad_list")
    operator = {
        "stride": list(walk.attribute("stride")[2:]),
        "padding": [top, left, bottom, right],
        "dilation": list(walk.attribute("dilation")[2:]),
        "groups": walk.attribute("group"),
    }
    inputs = [walk.tensor(x), walk.tensor(weight, NORMAL)]
    return walk.graph.one(walk.name, {"conv2d": operator}, inputs, walk.result)


def _check_format(walk: Walk) -> None:
    order = walk.node.attributes.get("format", "NCHW")
    if order not in ("NCHW", "NCDHW"):
        raise ValueError(f"images as {order}, expected NCHW")


@converts("BatchNorm")
def batch_norm(walk: Walk, x: Any, gain: Any, bias: Any, *rest: Any) -> list[int]:
    """Batch norm in training."""
    affine = [walk.tensor(gain, "ones"), walk.tensor(bias, "zeros")]
    return [layers.batch_norm(walk.graph, walk.name, walk.tensor(x), affine, rest[3])]


@converts("MaxPool")
def max_pool(walk: Walk, x: Any) -> int:
    """Max pooling."""
    _check_format(walk)
    size, stride = walk.attribute("kernel_size")[2:], walk.attribute("strides")[2:]
    return _pool(walk, ("max", walk.tensor(x)), (size, stride), _padding(walk, x, (size, stride)))


@converts("AvgPool")
def mean_pool(walk: Walk, x: Any, size: Any, stride: Any, pad_mode: int, *_: Any) -> int:
    """Average pooling without padding."""
    sizes = layers.both("windows", size), layers.both("windows", stride)
    if pad_mode == 1 and any(_padding_of(walk.shape(x), walk.result, *sizes)):
        raise ValueError("average pooling does not count its padding, expected no padding")
    return _pool(walk, ("mean", walk.tensor(x)), sizes, [0] * 4)


@converts("MaxPool3DWithArgmax", "AvgPool3D")
def deep_pool(walk: Walk, x: Any) -> Any:
    """Pooling of images to which MindSpore adds a depth of one, in order to pad them."""
    _check_format(walk)
    is_max = walk.node.operator == "MaxPool3DWithArgmax"
    names = ("ksize", "strides", "pads") if is_max else ("kernel_size", "strides", "pad_list")
    size, stride, padding = (list(walk.attribute(name)) for name in names)
    shape = walk.shape(x)
    deep = is_max and list(walk.attribute("dilation")) != [1] * len(walk.attribute("dilation"))
    if shape[2] != 1 or size[-3] != 1 or deep or walk.attribute("ceil_mode"):
        raise ValueError("pooling with depth, dilation or ceil_mode, expected none of these")
    if not is_max and not walk.attribute("count_include_pad") and any(padding):
        raise ValueError("count_include_pad is False, expected True where there is padding")
    # One number for each of three directions, or two: before and after.
    padding = [at for at in padding for _ in (0, 1)] if len(padding) == 3 else padding
    top, bottom, left, right = padding[2:]
    flat = walk.graph.reshape(f"{walk.name}.flat", walk.tensor(x), [*shape[:2], *shape[3:]])
    kind = "max" if is_max else "mean"
    y = _pool(walk, (kind, flat), (size[-2:], stride[-2:]), [top, left, bottom, right])
    y = walk.graph.reshape(f"{walk.name}.deep", y, walk.result)
    return [y] if is_max else y


def _pool(walk: Walk, windows: tuple[str, int], sizes: tuple[Any, Any], padding: list[int]) -> int:
    """The maximum or the mean of windows with this `(size, stride)`."""
    kind, x = windows
    size, stride = (list(value) for value in sizes)
    operator = {"kind": kind, "size": size, "stride": stride, "padding": padding}
    shape = [*walk.graph.shape(x)[:2], *walk.result[-2:]]
    return walk.graph.one(walk.name, {"pool": operator}, [x], shape)


def _padding(walk: Walk, x: Any, sizes: tuple[Any, Any]) -> list[int]:
    """Returns the padding that `pad_mode` stands for."""
    if walk.attribute("pad_mode").upper() == "VALID":
        return [0] * 4
    return _padding_of(walk.shape(x), walk.result, *sizes)


def _padding_of(image: list[int], result: list[int], size: Any, stride: Any) -> list[int]:
    """Returns the padding (top, left, bottom, right) that this number of windows needs. If it is
    odd, the end gets one more."""
    whole = [max(0, (result[2 + d] - 1) * stride[d] + size[d] - image[2 + d]) for d in (0, 1)]
    before = [pixels // 2 for pixels in whole]
    return [*before, *(pixels - first for pixels, first in zip(whole, before))]


@converts("AdaptiveAvgPool2D")
def adaptive(walk: Walk, x: Any, *_: Any) -> int:
    """Adaptive pooling, whose windows follow from the size of the output."""
    return layers.adaptive_mean(walk.graph, walk.name, walk.tensor(x), walk.result[2:])
