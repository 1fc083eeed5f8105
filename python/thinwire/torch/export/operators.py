"""What the operators of a traced module are in a model file."""

from __future__ import annotations

import math
import operator as python
from collections.abc import Callable
from typing import Any

import torch

from thinwire.torch.export.graph import Causal, Graph, Weight

FAR = -1e4  # what stands for minus infinity in masks is at most this

Converter = Callable[..., Any]
SUPPORTED: dict[str, Converter] = {}


def converts(*names: str) -> Callable[[Converter], Converter]:
    """Registers a function for operators; in-place ones are those without the underscore."""

    def register(function: Converter) -> Converter:
        SUPPORTED.update(dict.fromkeys(names, function))
        return function

    return register


class Walk:
    """A node at its place, with what its arguments have become."""

    def __init__(self, graph: Graph, program: Any) -> None:
        self.graph = graph
        self.program = program
        self.values: dict[Any, Any] = {}
        self.node: Any = None
        self.name = ""

    def tensor(self, value: Any) -> int:
        """A value as a tensor; known numbers are told like data."""
        if isinstance(value, Weight):
            return self.graph.parameter(value)
        if isinstance(value, torch.Tensor):
            element = "float" if value.dtype.is_floating_point else "index"
            return self.graph.source(f"{self.name}.constant", value.shape, element, "input")
        if type(value) is not int:
            raise ValueError(f"expected a tensor, not {type(value).__name__}")
        return value

    def shape(self, value: Any) -> list[int]:
        return list(value.shape) if not isinstance(value, int) else self.graph.shape(value)

    @property
    def result(self) -> list[int]:
        """The shape that torch found."""
        return [int(length) for length in self.node.meta["val"].shape]

    def users_of(self, weight: Weight) -> int:
        """How many nodes read a parameter."""
        signature = self.program.graph_signature.inputs_to_parameters
        nodes = [n for n in self.program.graph.nodes if signature.get(n.name) == weight.name]
        return sum(len(node.users) for node in nodes)


def convert(program: Any) -> dict[str, Any]:
    """The graph of an exported program."""
    graph = Graph()
    walk = Walk(graph, program)
    places(walk)
    output = None
    for at, node in enumerate(program.graph.nodes):
        walk.node, walk.name = node, path(node)
        if node.op == "output":
            outputs = [out for out in node.args[0] if out is not None]
            if len(outputs) != 1:
                raise ValueError(f"the module has {len(outputs)} outputs, expected one")
            output = walk.tensor(walk.values[outputs[0]])
        elif node.op == "call_function":
            try:
                walk.values[node] = visit(walk)
            except ValueError as error:
                raise ValueError(f"node {at} '{node.name}': {error}") from None
    return graph.finished(before_softmax(graph, output))


def places(walk: Walk) -> None:
    """What the placeholders stand for."""
    signature = walk.program.graph_signature
    for node in walk.program.graph.nodes:
        if node.op != "placeholder":
            continue
        if node.name in signature.inputs_to_parameters:
            name = signature.inputs_to_parameters[node.name]
            walk.values[node] = Weight(name, tuple(node.meta["val"].shape))
        elif node.name in signature.inputs_to_buffers:
            name = signature.inputs_to_buffers[node.name]
            known = {**walk.program.constants, **walk.program.state_dict}
            walk.values[node] = known[name]
        elif node.name in signature.inputs_to_lifted_tensor_constants:
            name = signature.inputs_to_lifted_tensor_constants[node.name]
            walk.values[node] = walk.program.constants[name]
        elif isinstance(node.meta.get("val"), torch.Tensor):
            value = node.meta["val"]
            element = "float" if value.dtype.is_floating_point else "index"
            walk.values[node] = walk.graph.source(node.name, value.shape, element, "input")


def path(node: Any) -> str:
    """The module that a node belongs to, and what it does there."""
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    module = stack[-1][0] if stack else ""
    target = getattr(node.target, "_opname", node.name)
    return f"{module}.{target}" if module else target


def visit(walk: Walk) -> Any:
    """What a node becomes."""
    node = walk.node
    args = torch.fx.node.map_arg(node.args, lambda n: walk.values[n])
    kwargs = torch.fx.node.map_arg(node.kwargs, lambda n: walk.values[n])
    if node.target is python.getitem:
        return args[0][args[1]]
    name = str(node.target).removeprefix("aten.")
    function = SUPPORTED.get(name.split(".")[0].removesuffix("_"))
    inputs = [walk.values[n] for n in node.all_input_nodes]
    if all(isinstance(value, torch.Tensor) for value in inputs):
        return node.target(*args, **kwargs)  # numbers that are known
    if function is None:
        known = ", ".join(sorted(SUPPORTED))
        raise ValueError(f"operator {node.target} is not supported, only {known}")
    return function(walk, *args, **kwargs)


def before_softmax(graph: Graph, output: int) -> int:
    """What a softmax at the end is of: the loss has its own."""
    node = graph.made_by(output, "softmax")
    return output if node is None else node["inputs"][0]


@converts("alias", "clone", "contiguous", "detach", "lift_fresh_copy", "to", "_to_copy", "type_as")
def same(walk: Walk, x: Any, *_: Any, **__: Any) -> Any:
    return x


@converts("_assert_tensor_metadata")
def nothing(walk: Walk, *_: Any, **__: Any) -> None:
    return None


@converts("linear")
def linear(walk: Walk, x: Any, weight: Any, bias: Any = None) -> int:
    graph, x = walk.graph, walk.tensor(x)
    shape = graph.shape(x)
    if isinstance(weight, Weight) and walk.users_of(weight) == 1:
        inputs = [x, graph.parameter(weight.turn())]
        inputs += [] if bias is None else [walk.tensor(bias)]
        operator = {"linear": {"bias": bias is not None}}
        return graph.one(walk.name, operator, inputs, [*shape[:-1], weight.shape[0]])
    rows = "bgtuv"[: len(shape) - 1]
    y = graph.matmul(walk.name, x, walk.tensor(weight), (f"{rows}k", "nk", f"{rows}n"))
    return y if bias is None else arithmetic(walk, "add", y, bias)


@converts("matmul", "mm", "bmm")
def matmul(walk: Walk, x: Any, y: Any) -> int:
    if isinstance(y, Weight):
        turned = y.turn() if y.turned else y
        if y.turned and walk.users_of(y) == 1 or not y.turned:
            x = walk.tensor(x)
            inputs = [x, walk.graph.parameter(y)]
            shape = [*walk.graph.shape(x)[:-1], y.shape[-1]]
            return walk.graph.one(walk.name, {"linear": {"bias": False}}, inputs, shape)
        return linear(walk, x, turned)
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
    if (beta, alpha) != (1, 1):
        raise ValueError(f"beta and alpha are {beta} and {alpha}, expected 1")
    if isinstance(weight, Weight) and isinstance(bias, Weight):
        return linear(walk, x, weight.turn(), bias)
    return arithmetic(walk, "add", matmul(walk, x, weight), bias)


@converts("embedding")
def embedding(walk: Walk, table: Any, ids: Any, *_: Any, **__: Any) -> int:
    inputs = [walk.tensor(table), walk.tensor(ids)]
    return walk.graph.one(walk.name, {"embedding": None}, inputs, walk.result)


@converts("layer_norm")
def layer_norm(walk: Walk, x: Any, shape: Any, gain: Any = None, bias: Any = None, *_: Any) -> int:
    if len(shape) != 1:
        raise ValueError(f"a norm over {list(shape)}, expected the last dimension")
    fill = walk.graph.fill
    gain = fill(f"{walk.name}.ones", shape, 1.0) if gain is None else walk.tensor(gain)
    bias = fill(f"{walk.name}.zeros", shape, 0.0) if bias is None else walk.tensor(bias)
    inputs = [walk.tensor(x), gain, bias]
    return walk.graph.one(walk.name, {"layer_norm": None}, inputs, walk.result)


@converts("rms_norm")
def rms_norm(walk: Walk, x: Any, shape: Any, gain: Any = None, *_: Any) -> int:
    if len(shape) != 1:
        raise ValueError(f"a norm over {list(shape)}, expected the last dimension")
    ones = walk.graph.fill
    gain = ones(f"{walk.name}.ones", shape, 1.0) if gain is None else walk.tensor(gain)
    return walk.graph.one(walk.name, {"rms_norm": None}, [walk.tensor(x), gain], walk.result)


@converts("gelu", "relu", "silu", "tanh")
def activation(walk: Walk, x: Any, **_: Any) -> int:
    name = str(walk.node.target).removeprefix("aten.").split(".")[0].removesuffix("_")
    x = walk.tensor(x)
    return walk.graph.one(walk.name, {"activation": name}, [x], walk.graph.shape(x))


@converts("softmax", "_softmax")
def softmax(walk: Walk, x: Any, dim: int, *_: Any, **__: Any) -> int:
    causal = isinstance(x, Causal)
    x = x.scores if isinstance(x, Causal) else walk.tensor(x)
    if dim not in (-1, len(walk.graph.shape(x)) - 1):
        raise ValueError(f"softmax over dimension {dim}, expected the last one")
    return walk.graph.one(walk.name, {"softmax": {"causal": causal}}, [x], walk.graph.shape(x))


@converts("log_softmax")
def log_softmax(walk: Walk, x: Any, dim: int, *_: Any) -> Any:
    if any(user.op != "output" for user in walk.node.users):
        raise ValueError("log_softmax is only supported as the output")
    return x


@converts("masked_fill")
def masked_fill(walk: Walk, x: Any, mask: Any, value: Any) -> Causal:
    if isinstance(mask, torch.Tensor) and float(value) <= FAR:
        size = mask.shape[-1]
        hidden = torch.ones(size, size, dtype=torch.bool).triu(1)
        if mask.numel() == size * size and torch.equal(mask.reshape(size, size).bool(), hidden):
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
    if attn_mask is not None:
        raise ValueError("attention with a mask is not supported, only with is_causal=True")
    graph, name = walk.graph, walk.name
    q, k, v = (walk.tensor(value) for value in (q, k, v))
    batch, heads, tokens, size = graph.shape(q)
    groups = graph.shape(k)[1]
    if scale is not None:
        q = graph.scale(f"{name}.scale", q, scale * math.sqrt(size))
    if dropout_p > 0.0 and groups == heads:
        scores = graph.matmul(f"{name}.scores", q, k, ("bgsd", "bgtd", "bgst"))
        scores = graph.scale(f"{name}.scale", scores, 1.0 / math.sqrt(size))
        operator = {"softmax": {"causal": is_causal}}
        weights = graph.one(f"{name}.softmax", operator, [scores], graph.shape(scores))
        weights = dropout(walk, weights, dropout_p, True)
        return graph.matmul(name, weights, v, ("bgst", "bgtd", "bgsd"))
    flat = [graph.transpose(f"{name}.turned", value, [0, 2, 1, 3]) for value in (q, k, v)]
    flat = [_merged(walk, value) for value in flat]
    operator = {"head_size": size, "queries_per_key": heads // groups, "causal": is_causal}
    y = graph.one(name, {"attention": operator}, flat, [batch, tokens, heads * size])
    y = graph.reshape(f"{name}.heads", y, [batch, tokens, heads, size])
    return graph.transpose(f"{name}.back", y, [0, 2, 1, 3])


def _merged(walk: Walk, value: int) -> int:
    """Heads side by side in one dimension."""
    batch, tokens, heads, size = walk.graph.shape(value)
    return walk.graph.reshape(f"{walk.name}.flat", value, [batch, tokens, heads * size])


@converts("dropout")
def dropout(walk: Walk, x: Any, rate: float, train: bool) -> Any:
    if not train or rate == 0.0:
        return x
    walk.graph.dropouts += 1
    x = walk.tensor(x)
    operator = {"dropout": {"rate": float(rate), "stream": walk.graph.dropouts}}
    return walk.graph.one(f"{walk.name}.dropout", operator, [x], walk.graph.shape(x))


def square(name: str, value: Any) -> int:
    """The number that a list repeats."""
    numbers = {value} if isinstance(value, int) else set(value)
    if len(numbers) != 1:
        raise ValueError(f"{name} is {list(value)}, expected the same in all directions")
    return numbers.pop()


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
    if square("dilation", dilation) != 1 or groups != 1:
        raise ValueError(f"dilation {dilation} and groups {groups}, expected 1")
    operator = {"stride": square("stride", stride), "padding": square("padding", padding)}
    inputs = [walk.tensor(x), walk.tensor(weight)]
    y = walk.graph.one(walk.name, {"conv2d": operator}, inputs, walk.result)
    if bias is None:
        return y
    flat = walk.graph.parameter(Weight(bias.name, (*bias.shape, 1, 1)))
    return walk.graph.one(
        f"{walk.name}.bias", {"arithmetic": "add"}, [y, flat], walk.graph.shape(y)
    )


@converts("batch_norm")
def batch_norm(walk: Walk, x: Any, gain: Any, bias: Any, *_: Any) -> int:
    graph, x = walk.graph, walk.tensor(x)
    channels = graph.shape(x)[1]
    moments = graph.add(f"{walk.name}.moments", {"moments": None}, [x], [[channels], [channels]])
    inputs = [x, *moments, walk.tensor(gain), walk.tensor(bias)]
    return graph.one(walk.name, {"batch_norm": None}, inputs, graph.shape(x))


def pool(walk: Walk, x: Any, kind: str, size: int, stride: int, padding: int) -> int:
    operator = {"kind": kind, "size": size, "stride": stride, "padding": padding}
    return walk.graph.one(walk.name, {"pool": operator}, [walk.tensor(x)], walk.result)


@converts("max_pool2d", "avg_pool2d")
def windows(
    walk: Walk, x: Any, size: Any, stride: Any = (), padding: Any = 0, *rest: Any
) -> int:
    kind = "max" if "max" in str(walk.node.target) else "mean"
    size, padding = square("kernel_size", size), square("padding", padding)
    stride = square("stride", stride) if stride else size
    if kind == "mean" and padding > 0 and len(rest) > 1 and not rest[1]:
        raise ValueError("count_include_pad is False, expected True where there is padding")
    return pool(walk, x, kind, size, stride, padding)


@converts("adaptive_avg_pool2d")
def adaptive(walk: Walk, x: Any, size: Any) -> int:
    x = walk.tensor(x)
    image, target = walk.graph.shape(x)[2:], walk.result[2:]
    ratio = square("image / output", [image[at] / target[at] for at in (0, 1)])
    if ratio != int(ratio):
        raise ValueError(f"an image of {image} to {target}, expected a whole ratio")
    return x if ratio == 1 else pool(walk, x, "mean", int(ratio), int(ratio), 0)


@converts("view", "reshape", "_unsafe_view", "flatten", "unflatten", "squeeze", "unsqueeze")
def reshape(walk: Walk, x: Any, *_: Any) -> int:
    return walk.graph.reshape(walk.name, walk.tensor(x), walk.result)


@converts("transpose", "permute", "t", "numpy_T")
def transpose(walk: Walk, x: Any, *dims: Any) -> Any:
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


@converts("split", "split_with_sizes", "chunk")
def split(walk: Walk, x: Any, *_: Any, **__: Any) -> list[int]:
    x = walk.tensor(x)
    shapes = [list(value.shape) for value in walk.node.meta["val"]]
    pairs = enumerate(zip(walk.graph.shape(x), shapes[0], strict=True))
    dim = next((at for at, (whole, part) in pairs if whole != part), 0)
    return walk.graph.unpack(walk.name, x, dim, [shape[dim] for shape in shapes])


@converts("unbind")
def unbind(walk: Walk, x: Any, dim: int = 0) -> list[int]:
    x = walk.tensor(x)
    shape = walk.graph.shape(x)
    dim %= len(shape)
    parts = walk.graph.unpack(walk.name, x, dim, [1] * shape[dim])
    left = [*shape[:dim], *shape[dim + 1 :]]
    return [walk.graph.reshape(f"{walk.name}.part", part, left) for part in parts]


@converts("select")
def select(walk: Walk, x: Any, dim: int, index: int) -> int:
    x = walk.tensor(x)
    shape = walk.graph.shape(x)
    dim, index = dim % len(shape), index % shape[dim]
    part = walk.graph.part(f"{walk.name}.part", x, dim, index, index + 1)
    return walk.graph.reshape(walk.name, part, walk.result)


@converts("slice")
def cut(walk: Walk, x: Any, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> int:
    x = walk.tensor(x)
    whole = walk.graph.shape(x)[dim]
    start, end, step = slice(start, end, step).indices(whole)
    if step != 1:
        raise ValueError(f"a slice in steps of {step}, expected 1")
    return walk.graph.part(walk.name, x, dim, start, end)


@converts("cat")
def cat(walk: Walk, parts: Any, dim: int = 0) -> int:
    inputs = [walk.tensor(part) for part in parts]
    dim %= len(walk.result)
    sections = [walk.graph.shape(part)[dim] for part in inputs]
    operator = {"pack": {"dim": dim, "pieces": 1, "sections": sections}}
    return walk.graph.one(walk.name, operator, inputs, walk.result)


@converts("expand")
def expand(walk: Walk, x: Any, *_: Any) -> int:
    x = walk.tensor(x)
    shape, whole = walk.graph.shape(x), walk.result
    if shape == whole:
        return x
    missing = len(whole) - len(shape)
    dims = ["away"] * missing + ["to_one" if length == 1 else "no" for length in shape]
    operator = {"broadcast": {"shape": whole, "sum": {"dims": dims}}}
    return walk.graph.one(walk.name, operator, [x], whole)


@converts("mean")
def mean(walk: Walk, x: Any, dim: Any = None, keepdim: bool = False, **_: Any) -> int:
    x = walk.tensor(x)
    count = len(walk.graph.shape(x))
    over = range(count) if dim is None else [at % count for at in dim]
    return walk.graph.mean(walk.name, x, list(over), keepdim)


@converts("neg")
def negative(walk: Walk, x: Any) -> int:
    return walk.graph.scale(walk.name, walk.tensor(x), -1.0)


@converts("add", "sub", "mul", "div")
def elementwise(walk: Walk, x: Any, y: Any, *, alpha: float = 1) -> int:
    name = str(walk.node.target).removeprefix("aten.").split(".")[0].removesuffix("_")
    if alpha != 1:
        raise ValueError(f"alpha is {alpha}, expected 1")
    return arithmetic(walk, name, x, y)


NAMES = {"add": "add", "sub": "subtract", "mul": "multiply", "div": "divide"}


def number(walk: Walk, value: Any, at: int) -> float | None:
    """An argument that is a number, not a tensor."""
    if isinstance(value, torch.Tensor) and value.ndim == 0:
        return float(value)
    is_node = isinstance(walk.node.args[at], torch.fx.Node) if at < len(walk.node.args) else True
    return float(value) if isinstance(value, int | float) and not is_node else None


def arithmetic(walk: Walk, name: str, x: Any, y: Any) -> int:
    """Arithmetic of two tensors, or of a tensor and a number; the larger one first."""
    graph = walk.graph
    factor = number(walk, y, 1) if walk.node.target is not None else None
    if factor is not None and name in ("mul", "div"):
        return graph.scale(walk.name, walk.tensor(x), factor if name == "mul" else 1.0 / factor)
    x = walk.tensor(x)
    y = graph.fill(f"{walk.name}.fill", [], factor) if factor is not None else walk.tensor(y)
    shapes = [graph.shape(x), graph.shape(y)]
    if (len(shapes[0]), shapes[0]) < (len(shapes[1]), shapes[1]):
        if name not in ("add", "mul"):
            raise ValueError(f"{name} of shapes {shapes}, expected the larger one first")
        x, y = y, x
    return graph.one(walk.name, {"arithmetic": NAMES[name]}, [x, y], graph.shape(x))
