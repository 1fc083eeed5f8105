"""The traversal of a traced module, node by node."""

from __future__ import annotations

import operator as python
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from thinwire.model_file.graph import NORMAL, Graph, Root, Weight
from thinwire.torch.export.arguments import check_numbers, taken

Converter = Callable[..., Any]
SUPPORTED: dict[str, Converter] = {}
LINE = 200
# Regions of a program, and the place of their first input among the arguments.
REGIONS = {"wrap_with_set_grad_enabled": 2, "wrap_with_autocast": 5}


@dataclass(frozen=True)
class Exported:
    """A graph, and the origin of its tensors.

    `inputs` are the names of the module's inputs, `ending` is the softmax that the loss replaces, and
    `nodes` are the last nodes of the program that became a tensor.
    """

    program: Any
    graph: dict[str, Any]
    batch: int
    inputs: tuple[str, ...]
    ending: str | None
    nodes: dict[int, Any]


def converts(*names: str) -> Callable[[Converter], Converter]:
    """Registers a function for operators; in-place operators are treated as those without the
    underscore."""

    def register(function: Converter) -> Converter:
        SUPPORTED.update(dict.fromkeys(names, function))
        return function

    return register


class Walk:
    """A node of the traced module, with its place and its converted arguments."""

    def __init__(self, graph: Graph, program: Any) -> None:
        self.graph = graph
        self.program = program
        self.values: dict[Any, Any] = {}
        self.node: Any = None
        self.name = ""
        self.ending: str | None = None  # the softmax at the end, which the loss replaces

    def tensor(self, value: Any, initial: Any = None) -> int:
        """A value as a tensor; plain numbers become constants.

        `initial` describes the values of a parameter in this place before the first step. Without
        it a parameter of one row is zero, like a bias, and a larger one is random.
        """
        if isinstance(value, Weight):
            usual = "zeros" if value.is_row else NORMAL
            return self.graph.parameter(value, usual if initial is None else initial)
        if isinstance(value, torch.Tensor):
            return self.graph.constant(f"{self.name}.constant", known(value))
        if isinstance(value, Root):
            return self.rooted(value)
        if type(value) is not int:
            raise ValueError(f"expected a tensor, not {type(value).__name__}")
        return value

    def rooted(self, value: Root) -> int:
        """Returns the tensor of squares, or of their mean, that turned out not to be part of a
        norm."""
        if value.stage not in ("square", "mean"):
            raise ValueError(f"{value.stage} of a mean square is only supported in an RMS norm")
        square = self.graph.one(
            f"{self.name}.square",
            {"arithmetic": "multiply"},
            [value.x, value.x],
            self.graph.shape(value.x),
        )
        if value.stage == "square":
            return square
        return self.graph.mean(
            f"{self.name}.mean", square, [len(self.graph.shape(square)) - 1], True
        )

    def shape(self, value: Any) -> list[int]:
        """The shape of a value."""
        if isinstance(value, Root):
            whole = self.graph.shape(value.x)
            return whole if value.stage == "square" else [*whole[:-1], 1]
        return list(value.shape) if not isinstance(value, int) else self.graph.shape(value)

    def value(self, node: Any) -> Any:
        """The value of a converted node of the program."""
        if node not in self.values:
            raise ValueError(f"it reads '{node}', which is not a tensor that the module computes")
        return self.values[node]

    def is_trained(self, value: Any) -> bool:
        """Whether a value depends on a parameter."""
        return self.graph.is_trained(value) if type(value) is int else not torch.is_tensor(value)

    @property
    def result(self) -> list[int]:
        """The shape that torch found."""
        return [int(length) for length in self.node.meta["val"].shape]

    def users_of(self, weight: Weight) -> int:
        """Number of nodes that read a parameter."""
        own = weight.turn() if weight.turned else weight
        values = self.values.items()
        nodes = [node for node, value in values if isinstance(value, Weight) and value == own]
        return sum(len(node.users) for node in nodes)


def known(value: torch.Tensor) -> np.ndarray[Any, Any]:
    """Constants as NumPy arrays, in single precision or as booleans."""
    value = value.detach().cpu()
    return (value if value.dtype is torch.bool else value.float()).numpy()


def convert(program: Any, names: dict[str, str], batch: int) -> Exported:
    """The graph of a program traced for a batch; its parameters have these names."""
    graph = Graph()
    walk = Walk(graph, program)
    places(walk, names)
    outputs = [out for out in through(walk, program.graph_module) if out is not None]
    if len(outputs) != 1:
        raise ValueError(
            f"the module has {len(outputs)} outputs, expected one (hint: return the logits alone; "
            "for a model of transformers, set config.use_cache = False)"
        )
    if outputs[0] not in walk.values:
        raise ValueError(f"the module returns {type(outputs[0]).__name__}, expected a tensor")
    finished = graph.finished(before_softmax(walk, walk.tensor(walk.values[outputs[0]])))
    made = {value: node for node, value in walk.values.items() if type(value) is int}
    nodes = {graph.places[value]: node for value, node in made.items() if value in graph.places}
    inputs = tuple(str(name) for name in program.graph_signature.user_inputs)
    return Exported(program, finished, batch, inputs, walk.ending, nodes)


def through(walk: Walk, module: Any) -> Any:
    """Walks through the nodes of a traced module; returns the values of its outputs."""
    for at, node in enumerate(module.graph.nodes):
        walk.node, walk.name = node, path(node)
        if node.op == "output":
            return node.args[0]
        if node.op == "get_attr":
            walk.values[node] = attribute(module, node.target)
        elif node.op == "call_function":
            try:
                walk.values[node] = visit(walk)
            except ValueError as error:
                raise ValueError(f"node {at} '{walk.name}': {error}") from None
            except Exception as error:  # arguments that its converter does not know
                said = (str(error).splitlines() or [""])[0][:LINE]
                raise ValueError(
                    f"node {at} '{walk.name}': operator {node.target} is not supported with these "
                    f"arguments: {type(error).__name__}: {said}"
                ) from error
    return []


def attribute(module: Any, name: str) -> Any:
    """A submodule of a traced module, or one of its tensors."""
    for part in name.split("."):
        module = getattr(module, part)
    return module.clone() if isinstance(module, torch.Tensor) else module


def places(walk: Walk, names: dict[str, str]) -> None:
    """The values of the placeholders."""
    signature = walk.program.graph_signature
    for node in walk.program.graph.nodes:
        if node.op != "placeholder":
            continue
        if node.name in signature.inputs_to_parameters:
            name = signature.inputs_to_parameters[node.name]
            weight = Weight(names.get(name, name), tuple(node.meta["val"].shape))
            known = walk.program.state_dict[name]
            walk.values[node] = weight if known.requires_grad else known.clone()
        elif node.name in signature.inputs_to_buffers:
            name = signature.inputs_to_buffers[node.name]
            known = {**walk.program.constants, **walk.program.state_dict}
            walk.values[node] = known[name].clone()  # operators in place must not change the module
        elif node.name in signature.inputs_to_lifted_tensor_constants:
            name = signature.inputs_to_lifted_tensor_constants[node.name]
            walk.values[node] = walk.program.constants[name].clone()
        elif isinstance(node.meta.get("val"), torch.Tensor):
            value = node.meta["val"]
            element = "float" if value.dtype.is_floating_point else "index"
            walk.values[node] = walk.graph.source(node.name, value.shape, element, "input")


def path(node: Any) -> str:
    """The module that a node belongs to, and the node's name there."""
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    module = stack[-1][0] if stack else ""
    target = getattr(node.target, "_opname", node.name)
    return f"{module}.{target}" if module else target


def visit(walk: Walk) -> Any:
    """The converted value of a node."""
    node = walk.node
    name = str(node.target).removeprefix("aten.")
    short = name.split(".")[0].removesuffix("_")
    function = SUPPORTED.get(short)
    is_item = node.target is python.getitem
    if name in REGIONS:
        return region(walk, name)
    fixed = all(isinstance(walk.values.get(n), torch.Tensor) for n in node.all_input_nodes)
    if (function is None or fixed) and draws(node):
        raise ValueError(
            f"operator {node.target} draws random numbers, which is not supported (hint: export "
            "module.eval(), or set rates of stochastic depth to 0)"
        )
    if function is None and not is_item and not (fixed and is_pure(node)):
        raise ValueError(
            f"operator {named(node)} is not supported (hint: docs/planning.md lists what is)"
        )
    args = torch.fx.node.map_arg(node.args, walk.value)
    kwargs = torch.fx.node.map_arg(node.kwargs, walk.value)
    if is_item:
        return args[0][args[1]]
    if fixed:
        return node.target(*args, **kwargs)  # numbers that are known
    sources = [x for x in node.all_input_nodes if not isinstance(walk.values[x], torch.Tensor)]
    check_numbers(node, short, sources)
    assert function is not None  # or it was refused above
    args, kwargs = taken(node, function, args, kwargs)
    return function(walk, *args, **kwargs)


def is_pure(node: Any) -> bool:
    """Whether a node may be run during export: ATen's operators have no effect but their result,
    whereas a node that begins a vmap region changes the state of torch itself."""
    return isinstance(node.target, torch._ops.OpOverload) or node.target in vars(python).values()


def named(node: Any) -> str:
    """The name of the function that a node calls."""
    target = node.target
    return str(target if isinstance(target, torch._ops.OpOverload) else target.__name__)


def draws(node: Any) -> bool:
    """Whether a node draws random numbers; dropouts draw them only in training."""
    if torch.Tag.nondeterministic_seeded not in getattr(node.target, "tags", ()):
        return False
    names = [argument.name for argument in node.target._schema.arguments]
    said = {**dict(zip(names, node.args, strict=False)), **node.kwargs}
    is_off = said.get("train", said.get("training", True)) is False
    return not is_off and said.get("dropout", 1.0) != 0.0


def region(walk: Walk, name: str) -> Any:
    """Converts a region without gradients or with another precision."""
    node = walk.node
    inputs = node.args[REGIONS[name] :]
    values = [walk.value(value) for value in inputs]
    known = all(isinstance(value, torch.Tensor) for value in values)
    of_gradients = name == "wrap_with_set_grad_enabled"
    if of_gradients and not node.args[0] and not known:
        raise ValueError(
            f"operator {node.target} is not supported where gradients would have to stop"
        )
    if not of_gradients and node.args[2]:
        raise ValueError(f"operator {node.target} is not supported with another precision")
    module = walk.value(node.args[REGIONS[name] - 1])
    places = [inner for inner in module.graph.nodes if inner.op == "placeholder"]
    walk.values.update(zip(places, values, strict=True))
    outputs = [walk.value(output) for output in through(walk, module)]
    walk.node, walk.name = node, path(node)
    return outputs


def before_softmax(walk: Walk, output: int) -> int:
    """The input of a softmax at the end, which is dropped because the loss has its own."""
    node = walk.graph.made_by(output, "softmax")
    if node is None or node["operator"]["softmax"]["causal"]:
        return output
    walk.ending = "softmax"
    return int(node["inputs"][0])
