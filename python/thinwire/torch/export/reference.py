"""Implementations of a graph's operators in torch, to run a file and compare it with the module
from which it was made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

Values = dict[int, torch.Tensor]
Meaning = Callable[..., Any]
MEANINGS: dict[str, Meaning] = {}
ACTIVATIONS: dict[str, Callable[[Any], Any]] = {
    "gelu": lambda x: functional.gelu(x, approximate="tanh"),
    "gelu_erf": functional.gelu,
    "relu": functional.relu,
    "sigmoid": torch.sigmoid,
    "silu": functional.silu,
    "tanh": torch.tanh,
}
ARITHMETIC: dict[str, Callable[[Any, Any], Any]] = {
    "add": torch.add,
    "subtract": torch.sub,
    "multiply": torch.mul,
    "divide": torch.div,
}


def run(graph: dict[str, Any], sources: dict[str, torch.Tensor], known: Values) -> Values:
    """Returns all tensors of a graph, computed from its inputs and parameters. Nodes whose results
    are given are not run.

    Dropouts keep all elements. Raises ValueError if the shape of a result differs from the graph's.
    """
    like = next(value for value in sources.values() if value.is_floating_point())
    values = dict(known)
    for at, tensor in enumerate(graph["tensors"]):
        if tensor["name"] in sources and tensor["role"] != "activation":
            values[at] = sources[tensor["name"]]
        elif tensor["role"] == "input":  # places, which count
            values[at] = torch.arange(tensor["shape"][0], device=like.device)
    for node in graph["nodes"]:
        if all(output in values for output in node["outputs"]):
            continue
        operator = node["operator"]
        name, settings = next(iter(operator.items()))
        results = MEANINGS[name](settings, *(values[at] for at in node["inputs"]), like=like)
        for output, result in zip(node["outputs"], results, strict=True):
            expected = graph["tensors"][output]["shape"]
            if list(result.shape) != list(expected):
                raise ValueError(
                    f"node '{node['name']}': operator {name} gives shape {list(result.shape)}, but the "
                    f"module gives {list(expected)}, which the export does not support"
                )
            values[output] = result
    return values


def means(name: str) -> Callable[[Meaning], Meaning]:
    """Registers a function that computes the one result of an operator from the operator's settings
    and inputs."""

    def register(function: Meaning) -> Meaning:
        def one(settings: Any, *inputs: Any, like: torch.Tensor) -> list[torch.Tensor]:
            return [function(settings, *inputs)]

        MEANINGS[name] = one
        return function

    return register


@means("linear")
def _linear(settings: Any, x: Any, weight: Any, bias: Any = None) -> Any:
    return functional.linear(x, weight if settings.get("turned") else weight.t(), bias)


@means("activation")
def _activation(name: str, x: Any) -> Any:
    return ACTIVATIONS[name](x)


@means("arithmetic")
def _arithmetic(name: str, x: Any, y: Any) -> Any:
    return ARITHMETIC[name](x, y)


@means("scale")
def _scale(factor: float, x: Any) -> Any:
    return x * factor


@means("sum")
def _sum(settings: Any, x: Any) -> Any:
    dims = settings["dims"]
    over = [at for at, becomes in enumerate(dims) if becomes != "no"]
    x = x.sum(over, keepdim=True) if over else x
    return x.squeeze([at for at, becomes in enumerate(dims) if becomes == "away"])


@means("broadcast")
def _broadcast(settings: Any, x: Any) -> Any:
    return x.expand(settings["shape"])


@means("pack")
def _pack(settings: Any, *parts: Any) -> Any:
    return torch.cat(parts, settings["dim"])


@means("transpose")
def _transpose(settings: Any, x: Any) -> Any:
    return x.permute([settings["input"].index(letter) for letter in settings["output"]])


@means("matmul")
def _matmul(settings: Any, x: Any, y: Any) -> Any:
    return torch.einsum(f"{settings['left']},{settings['right']}->{settings['output']}", x, y)


@means("reshape")
def _reshape(settings: Any, x: Any) -> Any:
    return x.reshape(settings["shape"])


@means("embedding")
def _embedding(settings: Any, table: Any, ids: Any) -> Any:
    return functional.embedding(ids, table, None if settings is None else settings["padding"])


@means("conv2d")
def _conv2d(settings: Any, x: Any, weight: Any) -> Any:
    top, left, bottom, right = settings["padding"]
    x = functional.pad(x, (left, right, top, bottom))
    return functional.conv2d(
        x, weight, None, settings["stride"], 0, settings["dilation"], settings["groups"]
    )


@means("pool")
def _pool(settings: Any, x: Any) -> Any:
    function = functional.max_pool2d if settings["kind"] == "max" else functional.avg_pool2d
    return function(x, settings["size"], settings["stride"], settings["padding"])


@means("batch_norm")
def _batch_norm(settings: Any, x: Any, mean: Any, variance: Any, gain: Any, bias: Any) -> Any:
    shape = [1, -1, *[1] * (x.ndim - 2)]
    scale = gain / (variance + settings["epsilon"]).sqrt()
    return (x - mean.view(shape)) * scale.view(shape) + bias.view(shape)


@means("layer_norm")
def _layer_norm(settings: Any, x: Any, gain: Any, bias: Any) -> Any:
    return functional.layer_norm(x, x.shape[-1:], gain, bias, settings["epsilon"])


@means("rms_norm")
def _rms_norm(settings: Any, x: Any, gain: Any) -> Any:
    return functional.rms_norm(x, x.shape[-1:], gain, settings["epsilon"])


@means("softmax")
def _softmax(settings: Any, x: Any) -> Any:
    if settings["causal"]:
        later = torch.ones(x.shape[-2:], dtype=torch.bool, device=x.device).triu(1)
        x = x.masked_fill(later, float("-inf"))
    return functional.softmax(x, -1)


@means("attention")
def _attention(settings: Any, q: Any, k: Any, v: Any) -> Any:
    size, times = settings["head_size"], settings["queries_per_key"]
    q, k, v = (x.unflatten(-1, (-1, size)).transpose(1, 2) for x in (q, k, v))
    k, v = (x.repeat_interleave(times, 1) for x in (k, v))
    scores = _softmax(settings, q @ k.transpose(-1, -2) / size**0.5)
    return (scores @ v).transpose(1, 2).flatten(2)


@means("rotary")
def _rotary(settings: Any, x: Any) -> Any:
    size = settings["head_size"]
    half = size // 2
    slowness = settings["base"] ** (torch.arange(half, dtype=torch.float64) / half)
    angles = (torch.arange(x.shape[1])[:, None] / slowness).repeat(1, 2)[:, None].to(x.device)
    heads = x.unflatten(-1, (-1, size))
    across = torch.cat([-heads[..., half:], heads[..., :half]], -1)
    return (heads * angles.cos().to(x.dtype) + across * angles.sin().to(x.dtype)).flatten(2)


@means("dropout")
def _dropout(settings: Any, x: Any) -> Any:
    return x / (1.0 - settings["rate"])


def _moments(_: Any, x: Any, *, like: Any) -> list[Any]:
    over = [at for at in range(x.ndim) if at != 1]
    return list(reversed(torch.var_mean(x, over, correction=0)))


def _unpack(settings: Any, x: Any, *, like: Any) -> list[Any]:
    return list(x.split(settings["sections"], settings["dim"]))


def _fill(settings: Any, *, like: torch.Tensor) -> list[Any]:
    return [like.new_full(settings["shape"], settings["value"])]


def _constant(settings: Any, *, like: torch.Tensor) -> list[Any]:
    return [like.new_tensor(settings["values"]).view(settings["shape"])]


MEANINGS |= {"moments": _moments, "unpack": _unpack, "fill": _fill, "constant": _constant}
