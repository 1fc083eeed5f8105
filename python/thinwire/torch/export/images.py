"""Images: convolutions, batch norm and pools."""

from __future__ import annotations

from typing import Any

from thinwire.torch.export.graph import NORMAL
from thinwire.torch.export.walk import Walk, converts


def square(name: str, value: Any) -> int:
    """The number that a list repeats."""
    numbers = {value} if isinstance(value, int) else set(value)
    if len(numbers) != 1:
        raise ValueError(f"{name} is {list(value)}, expected the same in all directions")
    return numbers.pop()


def both(name: str, value: Any) -> list[int]:
    """A number for rows and one for columns."""
    numbers = [value] if isinstance(value, int) else list(value)
    numbers = numbers * 2 if len(numbers) == 1 else numbers
    if len(numbers) != 2:
        raise ValueError(f"{name} is {numbers}, expected 2 numbers")
    return numbers


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
    flat = walk.tensor(bias, "zeros")
    flat = walk.graph.reshape(f"{walk.name}.bias_of_channels", flat, [*bias.shape, 1, 1])
    return walk.graph.one(
        f"{walk.name}.bias", {"arithmetic": "add"}, [y, flat], walk.graph.shape(y)
    )


@converts("batch_norm")
def batch_norm(walk: Walk, x: Any, gain: Any, bias: Any, *rest: Any) -> int:
    """Batch norm as it is in training."""
    epsilon = rest[4] if len(rest) > 4 else 1e-5
    graph, x = walk.graph, walk.tensor(x)
    channels = graph.shape(x)[1]
    moments = graph.add(f"{walk.name}.moments", {"moments": None}, [x], [[channels], [channels]])
    inputs = [x, *moments, walk.tensor(gain, "ones"), walk.tensor(bias, "zeros")]
    return graph.one(walk.name, {"batch_norm": {"epsilon": epsilon}}, inputs, graph.shape(x))


def pool(walk: Walk, x: Any, kind: str, size: int, stride: int, padding: int) -> int:
    """The largest or the mean of windows."""
    operator = {"kind": kind, "size": size, "stride": stride, "padding": padding}
    return walk.graph.one(walk.name, {"pool": operator}, [walk.tensor(x)], walk.result)


@converts("max_pool2d", "avg_pool2d")
def windows(walk: Walk, x: Any, size: Any, stride: Any = (), padding: Any = 0, *rest: Any) -> int:
    """Windows of the module's own size."""
    kind = "max" if "max" in str(walk.node.target) else "mean"
    size, padding = square("kernel_size", size), square("padding", padding)
    stride = square("stride", stride) if stride else size
    if kind == "mean" and padding > 0 and len(rest) > 1 and not rest[1]:
        raise ValueError("count_include_pad is False, expected True where there is padding")
    return pool(walk, x, kind, size, stride, padding)


@converts("adaptive_avg_pool2d")
def adaptive(walk: Walk, x: Any, size: Any) -> int:
    """Windows as large as the output asks for."""
    x = walk.tensor(x)
    image, target = walk.graph.shape(x)[2:], walk.result[2:]
    ratio = square("image / output", [image[at] / target[at] for at in (0, 1)])
    if ratio != int(ratio):
        raise ValueError(f"an image of {image} to {target}, expected a whole ratio")
    return x if ratio == 1 else pool(walk, x, "mean", int(ratio), int(ratio), 0)
