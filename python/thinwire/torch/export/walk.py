"""The way through a traced module, node by node."""

from __future__ import annotations

import operator as python
from collections.abc import Callable
from typing import Any

import torch

from thinwire.torch.export.graph import NORMAL, Graph, Weight

Converter = Callable[..., Any]
SUPPORTED: dict[str, Converter] = {}
LINE = 200


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

    def tensor(self, value: Any, initial: Any = None) -> int:
        """A value as a tensor; constants become inputs, like data.

        `initial` describes the values of a parameter in this place before the first step. Without it
        a parameter of one row is zero, as biases are, and a larger one is drawn at random.
        """
        if isinstance(value, Weight):
            usual = "zeros" if value.is_row else NORMAL
            return self.graph.parameter(value, usual if initial is None else initial)
        if isinstance(value, torch.Tensor):
            element = "float" if value.dtype.is_floating_point else "index"
            return self.graph.source(f"{self.name}.constant", value.shape, element, "input")
        if type(value) is not int:
            raise ValueError(f"expected a tensor, not {type(value).__name__}")
        return value

    def shape(self, value: Any) -> list[int]:
        """The lengths of a value's dimensions."""
        return list(value.shape) if not isinstance(value, int) else self.graph.shape(value)

    def value(self, node: Any) -> Any:
        """The value of a converted node of the program."""
        if node not in self.values:
            raise ValueError(f"it reads '{node}', which is no tensor that the module computes")
        return self.values[node]

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
    output = -1
    for at, node in enumerate(program.graph.nodes):
        walk.node, walk.name = node, path(node)
        if node.op == "output":
            outputs = [out for out in node.args[0] if out is not None]
            if len(outputs) != 1:
                raise ValueError(f"the module has {len(outputs)} outputs, expected one")
            if outputs[0] not in walk.values:
                kind = type(outputs[0]).__name__
                raise ValueError(f"the module returns {kind}, expected a tensor")
            output = walk.tensor(walk.values[outputs[0]])
        elif node.op == "call_function":
            try:
                walk.values[node] = visit(walk)
            except ValueError as error:
                raise ValueError(f"node {at} '{node.name}': {error}") from None
            except Exception as error:  # arguments that its converter does not know
                said = (str(error).splitlines() or [""])[0][:LINE]
                raise ValueError(
                    f"node {at} '{node.name}': operator {node.target} is not supported with these "
                    f"arguments: {type(error).__name__}: {said}"
                ) from error
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
    name = str(node.target).removeprefix("aten.")
    function = SUPPORTED.get(name.split(".")[0].removesuffix("_"))
    is_item = node.target is python.getitem
    fixed = all(isinstance(walk.values.get(n), torch.Tensor) for n in node.all_input_nodes)
    if function is None and not fixed and not is_item:
        known = ", ".join(sorted(SUPPORTED))
        raise ValueError(f"operator {node.target} is not supported, only {known}")
    args = torch.fx.node.map_arg(node.args, walk.value)
    kwargs = torch.fx.node.map_arg(node.kwargs, walk.value)
    if is_item:
        return args[0][args[1]]
    if fixed:
        return node.target(*args, **kwargs)  # numbers that are known
    return function(walk, *args, **kwargs)


def before_softmax(graph: Graph, output: int) -> int:
    """What a softmax at the end is of: the loss has its own."""
    node = graph.made_by(output, "softmax")
    return output if node is None else node["inputs"][0]
