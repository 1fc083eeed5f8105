"""The traversal of a compiled network, operator by operator."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from thinwire.mindspore.export.program import Program
from thinwire.model_file.graph import NORMAL, Causal, Graph, Weight

Converter = Callable[..., Any]
SUPPORTED: dict[str, Converter] = {}
FOLDED: dict[str, Converter] = {}
LINE = 200
# Operators that inputs of indices may go through.
OF_INDICES = ("Cast", "Depend", "Embedding", "Flatten", "Gather", "MakeTuple", "Reshape")


@dataclass(frozen=True)
class Made:
    """A tensor of the graph, by its number."""

    tensor: int


@dataclass(frozen=True)
class Bell:
    """A part of GELU by the error function: factor · (one + erf(x / √2)), multiplied by x if it is
    `whole`."""

    x: int
    one: float = 0.0
    factor: float = 1.0
    whole: bool = False


def converts(*names: str) -> Callable[[Converter], Converter]:
    """Registers a function for operators."""

    def register(function: Converter) -> Converter:
        SUPPORTED.update(dict.fromkeys(names, function))
        return function

    return register


def folds(*names: str) -> Callable[[Converter], Converter]:
    """Registers a function that computes the result of an operator whose inputs are all
    constants."""

    def register(function: Converter) -> Converter:
        FOLDED.update(dict.fromkeys(names, function))
        return function

    return register


class Walk:
    """An operator of the network, with its place and its converted inputs."""

    def __init__(self, graph: Graph, program: Program, batch: int) -> None:
        self.graph = graph
        self.program = program
        self.batch = batch
        self.values: dict[str, Any] = {}
        self.node: Any = None
        self.uses: dict[str, int] = {}

    @property
    def name(self) -> str:
        """The name for the operator's nodes."""
        return self.node.path

    @property
    def result(self) -> list[int]:
        """The shape of the result according to MindSpore; of several results, the first one's."""
        shape = self.node.shape
        return list(shape[0] if shape and isinstance(shape[0], list) else shape)

    def attribute(self, name: str) -> Any:
        """An attribute of the operator: a number or a word."""
        return self.node.attributes[name]

    def tensor(self, value: Any, initial: Any = None) -> int:
        """A value as a tensor; plain numbers become constants.

        `initial` describes the values of a parameter in this place before the first step. Without
        it a parameter of one row is zero, like a bias, and a larger one is random.
        """
        if isinstance(value, Weight):
            usual = "zeros" if value.is_row else NORMAL
            return self.graph.parameter(value, usual if initial is None else initial)
        if isinstance(value, np.ndarray):
            return self.graph.constant(f"{self.name}.constant", value)
        if not isinstance(value, Made):
            said = "a part of GELU" if isinstance(value, Bell) else type(value).__name__
            raise ValueError(f"expected a tensor, not {said}")
        return value.tensor

    def shape(self, value: Any) -> list[int]:
        """The shape of a value."""
        return self.graph.shape(value.tensor) if isinstance(value, Made) else list(value.shape)

    def is_index(self, value: Any) -> bool:
        """Whether a value is an input of indices, such as tokens."""
        return isinstance(value, Made) and self.graph.tensors[value.tensor]["element"] == "index"

    def is_alone(self, at: int) -> bool:
        """Whether no other operator reads this input."""
        return self.program.users[self.node.inputs[at]] == 1


def convert(program: Program, batch: int) -> dict[str, Any]:
    """The graph of a compiled network for a batch."""
    graph = Graph()
    walk = Walk(graph, program, batch)
    _begin(walk)
    for node in program.nodes:
        walk.node = node
        try:
            walk.values[node.name] = _visit(walk)
        except ValueError as error:
            raise ValueError(f"node '{node.path}': {error}") from None
        except Exception as error:  # inputs that its converter does not know
            said = (str(error).splitlines() or [""])[0][:LINE]
            raise ValueError(
                f"node '{node.path}': operator {node.operator} is not supported with these inputs: "
                f"{type(error).__name__}: {said}"
            ) from error
    output = walk.values[program.output]
    if isinstance(output, tuple):
        raise ValueError(
            f"the network has {len(output)} outputs, expected one (hint: return the logits alone)"
        )
    if not isinstance(output, Made):
        raise ValueError(f"the network returns {type(output).__name__}, expected a tensor")
    softmax = graph.made_by(output.tensor, "softmax")  # the loss has its own
    return graph.finished(softmax["inputs"][0] if softmax else output.tensor)


def _begin(walk: Walk) -> None:
    """Sets the values of inputs and parameters, before the first operator."""
    program = walk.program
    for place, parameter in program.parameters.items():
        if parameter.requires_grad:
            if str(parameter.dtype) != "Float32":
                raise ValueError(
                    f"parameter '{parameter.name}' is {parameter.dtype}, expected Float32"
                )
            weight = Weight(parameter.name, tuple(parameter.shape))
            walk.values[place] = weight
            walk.uses[parameter.name] = program.users[place]
        else:
            walk.values[place] = parameter.asnumpy().copy()
    for node in program.nodes:
        loaded = walk.values.get(node.inputs[0]) if node.operator == "Load" else None
        if isinstance(loaded, Weight):
            walk.uses[loaded.name] += program.users[node.name]
    for place, (shape, element) in program.inputs.items():
        name = place.split(":", 1)[-1]
        walk.values[place] = Made(walk.graph.source(name, shape, element, "input"))


def _visit(walk: Walk) -> Any:
    """Converts an operator, and returns its value."""
    node = walk.node
    if node.operator == "Constant":
        return node.attributes["value"]
    if node.operator == "UpdateState":
        return None
    values = [walk.values[name] for name in node.inputs]
    known = all(
        not isinstance(value, Made | Weight | Bell | Causal | tuple) for value in values[:1]
    )
    if known and node.operator in FOLDED:
        return np.asarray(FOLDED[node.operator](*values))
    function = SUPPORTED.get(node.operator)
    if function is None:
        raise ValueError(
            f"operator {node.operator} is not supported (hint: docs/planning.md lists what is)"
        )
    if node.operator not in OF_INDICES and any(walk.is_index(value) for value in values):
        raise ValueError(f"operator {node.operator} of an input of indices is not supported")
    made = function(walk, *values)
    if isinstance(made, list):
        return tuple(Made(tensor) for tensor in made)
    return Made(made) if type(made) is int else made
