"""The possible reasons why a module differs from its file, for the text of the error."""

from __future__ import annotations

import random
from contextlib import ExitStack
from typing import Any

import numpy
import torch
from torch.autograd.function import BackwardCFunction
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from thinwire.torch.export.walk import Exported, path


class Witness:
    """A context in which dropouts keep all elements, and hooks on tensors are counted.

    The random states of Python and of NumPy are restored; `drawn` tells which of them were used.
    """

    def __init__(self) -> None:
        self.hooks = _Hooks()
        self.stack = ExitStack()
        self.drawn = ""
        self.before: Any = (random.getstate(), numpy.random.get_state())

    def __enter__(self) -> Witness:
        self.stack.enter_context(self.hooks)
        self.stack.enter_context(_Kept())  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *_: Any) -> None:
        self.stack.close()
        python, (_, words, *rest) = self.before
        state: Any = numpy.random.get_state()
        _, found, *other = state
        if random.getstate() != python:
            self.drawn = "Python's random"
        elif rest != other or (words != found).any():
            self.drawn = "numpy.random"
        random.setstate(python)
        numpy.random.set_state(self.before[1])


class _Hooks(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func is torch.Tensor.register_hook
        return func(*args, **(kwargs or {}))


class _Kept(TorchDispatchMode):
    """Replaces the draws of all dropouts, so that no element is dropped."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name
        if name == "aten::bernoulli_":
            return args[0].fill_(1.0)
        if name == "aten::native_dropout" and args[2]:
            return args[0] / (1.0 - args[1]), torch.ones_like(args[0], dtype=torch.bool)
        return func(*args, **(kwargs or {}))


def suspects(module: torch.nn.Module, logits: torch.Tensor, witness: Witness) -> str:
    """The possible causes of a changed gradient, and what to do about them."""
    found = [f"autograd.Function {name}" for name in _functions(logits)]
    if witness.hooks.count:
        found.append("Tensor.register_hook in forward")
    hooked = [name for name, value in module.named_parameters() if value._backward_hooks]
    found += [f"register_hook of '{name}'" for name in hooked]
    for name, part in module.named_modules():
        if part._backward_hooks or part._backward_pre_hooks:
            found.append(f"a backward hook of module '{name}'")
    said = " and ".join(found[:3]) or "something that torch.export does not show"
    return f"{said} is not supported (hint: a model file has the operators' own gradients)"


def _functions(logits: torch.Tensor) -> list[str]:
    """The names of custom functions that logits depend on."""
    found: dict[str, None] = {}
    seen, waiting = set(), [logits.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        waiting += [before for before, _ in node.next_functions]
        if isinstance(node, BackwardCFunction):
            found[type(node).__name__.removesuffix("Backward")] = None
    return list(found)


def first_other(
    module: torch.nn.Module,
    exported: Exported,
    inputs: list[Any],
    near: Any,
) -> str:
    """Returns the first operator whose result in torch differs from its result in the file."""
    runner = _Runner(exported, near)
    signature = exported.program.graph_signature
    held = {
        **exported.program.constants,
        **dict(module.named_buffers(remove_duplicate=False)),
        **dict(module.named_parameters(remove_duplicate=False)),
    }
    names = {
        **signature.inputs_to_parameters,
        **signature.inputs_to_buffers,
        **signature.inputs_to_lifted_tensor_constants,
    }
    given = iter(inputs)
    places = [node for node in exported.program.graph.nodes if node.op == "placeholder"]
    with torch.no_grad(), _Kept():  # type: ignore[no-untyped-call]
        runner.run(*(held[names[x.name]] if x.name in names else next(given) for x in places))
    # Where the program and the file agree, a call of the module is not what was traced.
    return runner.found or f"the forward of {type(module).__name__}, called again,"


class _Runner(torch.fx.Interpreter):
    """Runs a traced module up to the first node whose value differs from the file's."""

    def __init__(self, exported: Exported, near: Any) -> None:
        super().__init__(exported.program.graph_module)
        self.near = near
        self.nodes = {node: tensor for tensor, node in exported.nodes.items()}
        self.found = ""

    def run_node(self, node: Any) -> Any:
        """Returns the value of a node, after comparing it with the file's."""
        value = super().run_node(node)
        tensor = self.nodes.get(node)
        if tensor is not None and not self.found and not self.near(tensor, value):
            self.found = f"operator {node.target} at '{path(node)}'"
        return value
