"""A model's graph under construction: tensors and nodes as in the file."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

Shape = list[int]

SECTIONS_MAX = 8  # of one pack
KNOWN_MAX = 1 << 22  # numbers of a constant in a file
NORMAL = {"normal": 0.02}  # what weights are before the first step


@dataclass(frozen=True)
class Weight:
    """A parameter, with its dimensions in the order in which it is used."""

    name: str
    shape: tuple[int, ...]
    turned: bool = False

    @property
    def is_row(self) -> bool:
        """Whether at most one dimension is longer than 1."""
        return sum(length > 1 for length in self.shape) <= 1

    def turn(self) -> Weight:
        """The transposed matrix."""
        return Weight(self.name, self.shape[::-1], not self.turned)


@dataclass(frozen=True)
class Root:
    """The part of an RMS norm's divisor found so far: squares, their mean, or the inverse root."""

    x: int
    stage: str
    epsilon: float = 0.0


@dataclass(frozen=True)
class Causal:
    """Attention scores, which are minus infinity for keys after the query."""

    scores: int


class Graph:
    """Tensors and the nodes that compute them, by their numbers."""

    def __init__(self) -> None:
        self.tensors: list[dict[str, Any]] = []
        self.nodes: list[dict[str, Any]] = []
        self.weights: dict[Weight, int] = {}
        self.dropouts = 0
        self.names: set[str] = set()
        self.places: dict[int, int] = {}  # of tensors in the finished graph

    def source(self, name: str, shape: Any, element: str, role: Any) -> int:
        """A tensor that no node computes."""
        self.tensors.append({"name": name, "shape": list(shape), "element": element, "role": role})
        return len(self.tensors) - 1

    def shape(self, tensor: int) -> Shape:
        """The shape of a tensor."""
        return list(self.tensors[tensor]["shape"])

    def parameter(self, weight: Weight, initial: Any = NORMAL) -> int:
        """Adds a parameter if it is new, and returns its tensor, transposed if it is used that way.

        `initial` describes its values before the first step, which depend on its role, not on its name.
        """
        if weight.turned:
            return self.transpose(weight.name, self.parameter(weight.turn(), initial), [1, 0])
        if weight not in self.weights:
            role = {"parameter": initial}
            self.weights[weight] = self.source(weight.name, weight.shape, "float", role)
        return self.weights[weight]

    def constant(self, name: str, value: np.ndarray[Any, Any]) -> int:
        """Adds constants, which are never trained."""
        values = value.astype(np.float32)
        if values.size > KNOWN_MAX:
            raise ValueError(
                f"constants of shape {list(values.shape)}, expected at most {KNOWN_MAX} values"
            )
        if not np.isfinite(values).all():
            raise ValueError(f"constants of shape {list(values.shape)} are not all finite")
        first = float(values.flat[0])
        if (values == first).all():
            return self.fill(name, values.shape, first)
        known = {"shape": list(values.shape), "values": values.flatten().tolist()}
        return self.one(name, {"constant": known}, [], values.shape)

    def add(self, name: str, operator: Any, inputs: list[int], shapes: list[Shape]) -> list[int]:
        """A node with outputs of these shapes."""
        unique, count = name, 1
        while unique in self.names:
            count += 1
            unique = f"{name}.{count}"
        self.names.add(unique)
        outputs = [self.source(unique, shape, "float", "activation") for shape in shapes]
        self.nodes.append(
            {"name": unique, "operator": operator, "inputs": inputs, "outputs": outputs}
        )
        return outputs

    def one(self, name: str, operator: Any, inputs: list[int], shape: Any) -> int:
        """A node with one output."""
        return self.add(name, operator, inputs, [list(shape)])[0]

    def made_by(self, tensor: int, operator: str) -> dict[str, Any] | None:
        """The node that computes a tensor, if it is of this operator."""
        for node in reversed(self.nodes):
            if tensor in node["outputs"]:
                return node if operator in node["operator"] else None
        return None

    def is_trained(self, tensor: int) -> bool:
        """Whether a tensor depends on a parameter."""
        needed = {tensor}
        for node in reversed(self.nodes):
            if needed.intersection(node["outputs"]):
                needed.update(node["inputs"])
        return any(isinstance(self.tensors[at]["role"], dict) for at in needed)

    def readers(self, tensor: int) -> list[dict[str, Any]]:
        """The nodes that read a tensor."""
        return [node for node in self.nodes if tensor in node["inputs"]]

    def last(self, node: dict[str, Any]) -> None:
        """Moves a node to the end, because nodes that it reads were added after it."""
        self.nodes.remove(node)
        self.nodes.append(node)

    def unrepeated(self, x: int) -> int:
        """Returns the heads `[b,g,t,d]` as they were before each was repeated for several query
        heads; returns `x` if nothing was repeated."""
        merged = self.made_by(x, "reshape")
        repeated = merged and self.made_by(merged["inputs"][0], "broadcast")
        if not repeated:
            return x
        assert merged is not None  # what is repeated was merged
        before, after = self.shape(repeated["inputs"][0]), self.shape(repeated["outputs"][0])
        groups = [*before[:2], *before[3:]]
        if len(before) != 5 or before[2] != 1 or after != [*before[:2], after[2], *before[3:]]:
            return x
        return self.reshape(f"{merged['name']}.once", repeated["inputs"][0], groups)

    def reshape(self, name: str, x: int, shape: Any) -> int:
        """Changes the shape; two reshapes in sequence become one."""
        shape = list(shape)
        before = self.made_by(x, "reshape")
        if before is not None:
            x = before["inputs"][0]
        if self.shape(x) == shape:
            return x
        return self.one(name, {"reshape": {"shape": shape}}, [x], shape)

    def transpose(self, name: str, x: int, order: list[int]) -> int:
        """Permutes dimensions; a permutation and its inverse cancel."""
        letters = "abcdefgh"[: len(order)]
        before = self.made_by(x, "transpose")
        if before is not None:
            operator = before["operator"]["transpose"]
            order_before = [operator["input"].index(letter) for letter in operator["output"]]
            order, x = [order_before[at] for at in order], before["inputs"][0]
        if order == sorted(order):
            return x
        output = "".join(letters[at] for at in order)
        shape = [self.shape(x)[at] for at in order]
        return self.one(name, {"transpose": {"input": letters, "output": output}}, [x], shape)

    def matmul(self, name: str, x: int, y: int, letters: tuple[str, str, str]) -> int:
        """Adds a product, summed over the letters that the output lacks."""
        left, right, output = letters
        sizes = dict(zip(left, self.shape(x), strict=True))
        sizes |= dict(zip(right, self.shape(y), strict=True))
        operator = {"matmul": {"left": left, "right": right, "output": output}}
        return self.one(name, operator, [x, y], [sizes[letter] for letter in output])

    def scale(self, name: str, x: int, factor: float) -> int:
        """Adds the product of a tensor and a number."""
        if factor == 1.0:
            return x
        return self.one(name, {"scale": float(factor)}, [x], self.shape(x))

    def sum(self, name: str, x: int, over: list[int], keep: bool) -> int:
        """The sum over some dimensions."""
        shape = self.shape(x)
        becomes = "to_one" if keep else "away"
        dims = [becomes if at in over else "no" for at in range(len(shape))]
        left = [1 if at in over else n for at, n in enumerate(shape) if keep or at not in over]
        return self.one(name, {"sum": {"dims": dims}}, [x], left)

    def mean(self, name: str, x: int, over: list[int], keep: bool) -> int:
        """The mean over some dimensions."""
        count = math.prod(self.shape(x)[at] for at in over)
        return self.scale(name, self.sum(f"{name}.sum", x, over, keep), 1.0 / count)

    def fill(self, name: str, shape: Any, value: float) -> int:
        """A constant with the same number everywhere."""
        return self.one(name, {"fill": {"shape": list(shape), "value": float(value)}}, [], shape)

    def unpack(self, name: str, x: int, dim: int, sections: list[int]) -> list[int]:
        """A dimension split into several."""
        if len(sections) == 1:
            return [x]
        shape = self.shape(x)
        shapes = [[*shape[:dim], section, *shape[dim + 1 :]] for section in sections]
        operator = {"unpack": {"dim": dim, "pieces": 1, "sections": sections}}
        return self.add(name, operator, [x], shapes)

    def pack(self, name: str, parts: list[int], dim: int) -> int:
        """Concatenation of tensors, in groups."""
        while len(parts) > SECTIONS_MAX:
            groups = [parts[at : at + SECTIONS_MAX] for at in range(0, len(parts), SECTIONS_MAX)]
            parts = [self.pack(f"{name}.part", group, dim) for group in groups]
        if len(parts) == 1:
            return parts[0]
        shape = self.shape(parts[0])
        sections = [self.shape(part)[dim] for part in parts]
        shape[dim] = sum(sections)
        operator = {"pack": {"dim": dim, "pieces": 1, "sections": sections}}
        return self.one(name, operator, parts, shape)

    def repeat(self, name: str, x: int, whole: Shape) -> int:
        """Broadcast to more dimensions."""
        shape = self.shape(x)
        if shape == whole:
            return x
        missing = len(whole) - len(shape)
        dims = ["away"] * missing
        dims += [
            "to_one" if n != of_whole else "no"
            for n, of_whole in zip(shape, whole[missing:], strict=True)
        ]
        operator = {"broadcast": {"shape": whole, "sum": {"dims": dims}}}
        return self.one(name, operator, [x], whole)

    def part(self, name: str, x: int, dim: int, start: int, end: int) -> int:
        """A range of a dimension."""
        whole = self.shape(x)[dim]
        sections = [start, end - start, whole - end]
        at = 1 if start > 0 else 0
        return self.unpack(name, x, dim, [length for length in sections if length > 0])[at]

    def finished(self, output: int) -> dict[str, Any]:
        """The graph reduced to the nodes that its output depends on."""
        needed = {output}
        kept = []
        for node in reversed(self.nodes):
            if needed.intersection(node["outputs"]):
                needed.update(node["inputs"], node["outputs"])
                kept.append(node)
        places = self.places = {old: new for new, old in enumerate(sorted(needed))}
        for node in kept:
            node["inputs"] = [places[tensor] for tensor in node["inputs"]]
            node["outputs"] = [places[tensor] for tensor in node["outputs"]]
        tensors = [self.tensors[old] for old in sorted(needed)]
        return {"tensors": tensors, "nodes": kept[::-1], "output": places[output]}
