"""Elementwise functions, and sums."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from thinwire.mindspore.export.walk import Bell, Made, Walk, converts, folds
from thinwire.model_file import layers
from thinwire.model_file.graph import Causal, Weight
from thinwire.model_file.masks import lessened, seen

ACTIVATIONS = {
    "GeLU": "gelu",
    "ReLU": "relu",
    "Sigmoid": "sigmoid",
    "SiLU": "silu",
    "Tanh": "tanh",
}
KINDS = {
    "Add": "add",
    "Sub": "sub",
    "Mul": "mul",
    "Muls": "mul",
    "Div": "div",
    "Divs": "div",
    "RealDiv": "div",
}
NEAR = 1e-5  # relative error that a factor may have, which programs keep in single precision
# MindSpore's numbers of types, which `Cast` has.
INTEGERS, REALS = (32, 33, 34, 35), (43, 44)


@converts("Depend", "Identity", "Load")
def same(walk: Walk, x: Any, *_: Any) -> Any:
    """An operator that does nothing in the file."""
    return x


@converts("Cast")
def cast(walk: Walk, x: Any, dtype: int) -> Any:
    """A cast that keeps single precision, or keeps indices, and so does nothing."""
    if dtype not in (INTEGERS if walk.is_index(x) else REALS):
        raise ValueError("it casts to a type other than float32, which is not supported")
    return x


@folds("Cast")
def known_cast(x: Any, dtype: int) -> Any:
    """A cast of constants, under which integers stay integers."""
    if np.asarray(x).dtype.kind != "i" and dtype not in REALS:
        raise ValueError("it casts constants to integers, which is not supported")
    return x


@converts(*ACTIVATIONS)
def activation(walk: Walk, x: Any, *_: Any) -> int:
    """An elementwise function."""
    return _activation(walk, ACTIVATIONS[walk.node.operator], walk.tensor(x))


@converts("GeluExt")
def gelu(walk: Walk, x: Any, by_tanh: int) -> int:
    """GELU by the error function (0) or by tanh (1)."""
    return _activation(walk, "gelu" if by_tanh else "gelu_erf", walk.tensor(x))


def _activation(walk: Walk, name: str, x: int) -> int:
    return walk.graph.one(walk.name, {"activation": name}, [x], walk.graph.shape(x))


@converts("ReLU6")
def relu6(walk: Walk, x: Any) -> int:
    """Elements clamped to the range from 0 to 6."""
    return layers.between(walk.graph, walk.name, walk.tensor(x), (0.0, 6.0))


@converts("HSigmoid", "HSwish")
def hard(walk: Walk, x: Any) -> int:
    """A hard sigmoid (three straight lines), or x times it."""
    x = walk.tensor(x)
    gate = layers.hard_sigmoid(walk.graph, walk.name, x)
    if walk.node.operator == "HSigmoid":
        return gate
    return walk.graph.one(walk.name, {"arithmetic": "multiply"}, [x, gate], walk.graph.shape(x))


@converts("Erf")
def erf(walk: Walk, x: Any) -> Bell:
    """The error function; supported only in GELU."""
    scaled = walk.graph.made_by(walk.tensor(x), "scale")
    if scaled is None or not math.isclose(scaled["operator"]["scale"], 0.5**0.5, rel_tol=NEAR):
        raise ValueError("Erf is only supported on x / √2, in GELU")
    return Bell(scaled["inputs"][0])


@converts("Neg")
def negative(walk: Walk, x: Any) -> int:
    """Negation."""
    return walk.graph.scale(walk.name, walk.tensor(x), -1.0)


@converts("Square")
def square(walk: Walk, x: Any) -> int:
    """Elements times themselves."""
    return power(walk, x, 2)


@converts("Pow")
def power(walk: Walk, x: Any, exponent: Any) -> int:
    """A small integer power."""
    exponent = _number(exponent)
    if exponent not in (1, 2, 3):
        raise ValueError(f"a power of {exponent}, expected 1, 2 or 3")
    x = walk.tensor(x)
    y = x
    for _ in range(int(exponent) - 1):
        y = walk.graph.one(walk.name, {"arithmetic": "multiply"}, [y, x], walk.graph.shape(x))
    return y


@converts("ReduceMean", "MeanExt")
def mean(walk: Walk, x: Any, dims: Any = (), keep: bool = False, *_: Any) -> int:
    """The mean over some dimensions."""
    x = walk.tensor(x)
    return walk.graph.mean(walk.name, x, _dims(walk, x, dims), keep)


@converts("ReduceSum", "SumExt")
def total(walk: Walk, x: Any, dims: Any = (), keep: bool = False, *_: Any) -> int:
    """The sum over some dimensions."""
    x = walk.tensor(x)
    return walk.graph.sum(walk.name, x, _dims(walk, x, dims), keep)


def _dims(walk: Walk, x: int, dims: Any) -> list[int]:
    count = len(walk.graph.shape(x))
    dims = (dims,) if isinstance(dims, int) else dims
    return [at % count for at in dims] if dims else list(range(count))


@converts(*KINDS)
def arithmetic(walk: Walk, x: Any, y: Any) -> Any:
    """Arithmetic of two tensors, or of a tensor and a number; the larger operand comes first."""
    kind = KINDS[walk.node.operator]
    if kind in ("add", "mul") and (_number(x) is not None or isinstance(y, Bell)):
        x, y = y, x
    factor = _number(y)
    if isinstance(x, Bell):
        return _bell(walk, kind, x, y)
    if factor is not None and kind in ("mul", "div"):
        return walk.graph.scale(walk.name, walk.tensor(x), factor if kind == "mul" else 1 / factor)
    if factor is not None:
        return layers.shifted(
            walk.graph, walk.name, walk.tensor(x), factor if kind == "add" else -factor
        )
    for one, other in ((x, y), (y, x)):
        found = _masked(one, other) if kind == "add" else None
        if found is not None:
            return found
    operands = (_operand(walk, kind, value) for value in (x, y))
    return layers.combine(walk.graph, walk.name, kind, *operands)


def _number(value: Any) -> float | None:
    """Returns an operand if it is a single number, and otherwise None."""
    if isinstance(value, np.ndarray):
        return float(value.item()) if value.size == 1 and value.ndim <= 1 else None
    return float(value) if isinstance(value, int | float) else None


def _operand(walk: Walk, kind: str, value: Any) -> int:
    """Returns an operand of arithmetic. A trained row that multiplies elements is described as
    initially one."""
    gain = isinstance(value, Weight) and value.is_row and kind in ("mul", "div")
    value = lessened(value) if isinstance(value, np.ndarray) else value
    return walk.tensor(value, "ones" if gain else None)


def _masked(scores: Any, mask: Any) -> Any:
    """Returns scores under a known mask that hides nothing, or hides later keys; None for any other
    mask."""
    if not isinstance(scores, Made) or not isinstance(mask, np.ndarray) or mask.ndim < 2:
        return None
    return {"earlier": Causal(scores.tensor), "all": scores}.get(seen(mask) or "")


def _bell(walk: Walk, kind: str, bell: Bell, y: Any) -> Any:
    """Adds a step to a partly recognised x · (1 + erf(x / √2)) / 2. The steps may come in any
    order; after the last one, the result is GELU."""
    factor, one, whole = bell.factor, bell.one, bell.whole
    number = _number(y)
    if kind == "add" and number == 1.0 and (one, factor, whole) == (0.0, 1.0, False):
        return Bell(bell.x, 1.0)
    if kind in ("mul", "div") and number is not None:
        factor *= number if kind == "mul" else 1 / number
    elif kind == "mul" and isinstance(y, Made) and not whole:
        scaled = walk.graph.made_by(y.tensor, "scale")
        x = scaled["inputs"][0] if scaled else y.tensor
        factor *= scaled["operator"]["scale"] if scaled else 1.0
        whole = x == bell.x
    if (factor, whole) == (bell.factor, bell.whole):
        raise ValueError("Erf is only supported in GELU")
    if one and whole and math.isclose(factor, 0.5, rel_tol=NEAR):
        return _activation(walk, "gelu_erf", bell.x)
    return Bell(bell.x, one, factor, whole)
