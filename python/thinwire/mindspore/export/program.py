"""A network as MindSpore compiles it: a list of operators, each with the scope that it comes from.

`mindspore.export` passes its MindIR to a function before it writes a file. This function takes the
MindIR and removes the values of parameters, so the file, which is discarded, is small.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import mindspore as ms
import numpy as np
from mindspore.train.mind_ir_pb2 import AttributeProto, ModelProto, TensorProto

LINE = 200
DTYPES = {
    "FLOAT": np.float32,
    "DOUBLE": np.float64,
    "INT8": np.int8,
    "UINT8": np.uint8,
    "INT16": np.int16,
    "INT32": np.int32,
    "INT64": np.int64,
    "BOOL": np.bool_,
}
# Attributes of numbers and words, by the field that has one of them and the field that has several.
FIELDS = {"FLOAT": ("f", "floats"), "DOUBLE": ("d", "doubles"), "STRING": ("s", "strings")}
NOTHING = ("NONE", "UMONAD", "IOMONAD", "TYPE_NULL")


@dataclass(frozen=True)
class Node:
    """An operator at its place in the network."""

    name: str
    operator: str
    path: str
    inputs: tuple[str, ...]
    attributes: dict[str, Any]
    shape: Any


@dataclass(frozen=True)
class Program:
    """Operators in an order in which they can be computed, with their inputs."""

    nodes: list[Node]
    inputs: dict[str, tuple[list[int], str]]
    parameters: dict[str, ms.Parameter]
    output: str
    users: Counter[str]


def compiled(network: ms.nn.Cell, examples: list[Any]) -> Program:
    """The program that MindSpore compiles from a network for its examples.

    Raises ValueError if MindSpore cannot compile it, or if the choice of operators depends on values.
    """
    model = _exported(network, examples)
    _check_straight(model)
    graph = model.graph
    named = {parameter.name: parameter for parameter in network.get_parameters()}
    held = {proto.name: proto.name.split(":", 1)[-1] for proto in graph.parameter}
    for name in held.values():
        if name not in named:
            raise ValueError(f"parameter '{name}' belongs to no cell of the network")
    primitives = {primitive.name: primitive for primitive in model.primitives}
    nodes = [_node(proto, primitives) for proto in graph.node]
    inputs = {value.name: _typed(value.tensor[0]) for value in graph.input if value.tensor}
    parameters = {place: named[name] for place, name in held.items()}
    return Program(nodes, inputs, parameters, graph.output[0].name, _users(nodes))


def _check_straight(model: ModelProto) -> None:
    """Refuses operators that are chosen by values."""
    if not model.functions:
        return
    graphs = [model.graph, *model.functions]
    protos = [proto for graph in graphs for proto in graph.node if "Switch" in proto.op_type]
    place = _path(protos[0].domain, "Switch") if protos else model.functions[0].name
    raise ValueError(f"node '{place}': control flow that depends on values is not supported")


def _exported(network: ms.nn.Cell, examples: list[Any]) -> ModelProto:
    """Returns the MindIR of a network without the values of parameters; shortens MindSpore's errors
    to one line."""
    taken = ModelProto()

    def take(model: ModelProto) -> None:
        taken.CopyFrom(model)
        del model.graph.parameter[:]

    syntax = ms.get_context("jit_syntax_level")
    try:
        with TemporaryDirectory() as folder:
            file = str(Path(folder) / "network")
            ms.export(network, *examples, file_name=file, file_format="MINDIR", custom_func=take)
    except Exception as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        said = lines[0][:LINE] if lines else type(error).__name__
        raise ValueError(
            f"mindspore.export cannot compile {type(network).__name__}: {said} (hint: call the network "
            "with the examples in Graph mode)"
        ) from error
    finally:
        ms.set_context(jit_syntax_level=syntax)
    return taken


def _node(proto: Any, primitives: dict[str, Any]) -> Node:
    """A node, with the attributes of its operator."""
    primitive = primitives.get(proto.op_type.removeprefix("REF::"))
    operator = proto.op_type if primitive is None else primitive.op_type
    own = {attribute.name: attribute for attribute in proto.attribute}
    if operator == "Constant":
        attributes = {"value": _value(own["value"])}
    else:
        attributes = {a.name: _value(a) for a in primitive.attribute} if primitive else {}
    shape = _shape(own["shape"]) if "shape" in own else None
    path = _path(proto.domain, operator)
    return Node(proto.output[0], operator, path, tuple(proto.input), attributes, shape)


def _path(scope: str, operator: str) -> str:
    """Returns the path of the cell that an operator belongs to, by names of attributes, followed by
    the operator's name."""
    cells = [part.rsplit("-", 1)[0] for part in scope.split("/")[1:-1]]
    return ".".join([*cells, operator])


def _users(nodes: list[Node]) -> Counter[str]:
    """Returns the number of operators that read each value, without those that only enforce an
    order."""
    order = {name for node in nodes if node.operator == "UpdateState" for name in node.inputs}
    real = [node for node in nodes if node.operator not in ("Load", "UpdateState")]
    reading = [node for node in real if node.operator != "MakeTuple" or node.name not in order]
    return Counter(name for node in reading for name in node.inputs)


def _typed(tensor: TensorProto) -> tuple[list[int], str]:
    name = TensorProto.DataType.Name(tensor.data_type)
    return list(tensor.dims), "float" if "FLOAT" in name or name == "DOUBLE" else "index"


def _shape(attribute: AttributeProto) -> Any:
    """Returns the lengths of a result's dimensions; a list of these for several results."""
    if attribute.tensors:
        return list(attribute.tensors[0].dims)
    return [_shape(value) for value in attribute.values]


def _value(attribute: AttributeProto) -> Any:
    """Returns the value of a constant or an attribute: a number, a word, a known tensor or a tuple
    of these."""
    kind = AttributeProto.AttributeType.Name(attribute.type)
    if kind in ("TUPLE", "LIST"):
        return tuple(_value(value) for value in attribute.values)
    if kind in ("TENSOR", "TENSORS"):
        return _known(attribute.tensors[0] if attribute.tensors else attribute.t)
    if kind in NOTHING:
        return None
    whole = kind == "BOOL" or "INT" in kind
    one, several = ("i", "ints") if whole else FIELDS.get(kind, ("", ""))
    if not one:
        return f"<{kind.lower()}>"  # no converter takes it
    values = getattr(attribute, several)
    value = values[0] if values else getattr(attribute, one)
    if kind == "STRING":
        return value.decode()
    if kind == "FLOAT":
        return float(str(np.float32(value)))  # 0.1, where its 32 bits are nearest to that
    return bool(value) if kind == "BOOL" else value


def _known(tensor: TensorProto) -> Any:
    """Returns the values of a known tensor."""
    kind = TensorProto.DataType.Name(tensor.data_type)
    if kind not in DTYPES:
        return f"<tensor of {kind.lower()}>"
    return np.frombuffer(tensor.raw_data, DTYPES[kind]).reshape(tuple(tensor.dims))
