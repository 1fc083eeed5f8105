"""Arguments of ATen's operators; a converter accepts only those that it knows."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch

# What may be done with whole numbers that the module is given, such as tokens.
OF_TOKENS = (
    *("_to_copy", "alias", "cat", "chunk", "clone", "contiguous", "detach", "embedding", "expand"),
    *(
        "_assert_tensor_metadata",
        "flatten",
        "lift_fresh_copy",
        "permute",
        "reshape",
        "select",
        "slice",
        "split",
        "squeeze",
    ),
    *("t", "to", "transpose", "type_as", "unflatten", "unsqueeze", "view", "_unsafe_view"),
)
# They decide where and how numbers lie in memory, not the numbers or their gradients.
LAYOUT = ("cudnn_enable", "cudnn_enabled", "implicit", "memory_format", "sparse")


def taken(node: Any, function: Callable[..., Any], args: Any, kwargs: Any) -> tuple[Any, Any]:
    """The arguments of a node in the form that its converter takes, according to the operator's schema.

    Raises ValueError, which names the operator and the argument, if an argument differs from the
    operator's default and the converter does not support it.
    """
    schema = getattr(node.target, "_schema", None)
    if schema is None:
        return args, kwargs
    parameters = list(inspect.signature(function).parameters.values())[1:]  # without the walk
    room = sum(p.kind is p.POSITIONAL_OR_KEYWORD for p in parameters)
    rest = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    every = any(p.kind is p.VAR_KEYWORD for p in parameters)
    named = {p.name for p in parameters if p.kind is p.KEYWORD_ONLY}
    places, words, ended = [], {}, False
    for at, argument in enumerate(schema.arguments):
        is_given = at < len(args) or argument.name in kwargs
        value = args[at] if at < len(args) else kwargs.get(argument.name, argument.default_value)
        if argument.kwarg_only:
            if argument.name in named or (every and is_given):
                words[argument.name] = value
                continue
        elif at < room or (rest and is_given):
            # A converter has defaults of its own for what nobody said.
            if is_given or not ended:
                places.append(value)
            continue
        if is_given and not _is_usual(node, argument, value):
            raise ValueError(
                f"operator {node.target} is not supported with {argument.name}={_said(value)} "
                f"(hint: only with {argument.name}={_said(argument.default_value)})"
            )
    return tuple(places), words


def check_numbers(node: Any, name: str, computed: list[Any]) -> None:
    """Refuses floating-point numbers that are not in single precision, and conversions to or from
    integers.

    `computed` are the nodes that a node reads whose values are not constant.
    """
    tokens = [x for source in computed for x in _tensors(source) if not x.dtype.is_floating_point]
    if tokens and name not in OF_TOKENS:
        raise ValueError(
            f"operator {node.target} on integer inputs of the module is not supported (hint: "
            "integers can only look up rows of tables)"
        )
    found = {value.dtype for value in _tensors(node)}
    read = {value.dtype for source in node.all_input_nodes for value in _tensors(source)}
    real = {dtype for dtype in found if dtype.is_floating_point or dtype.is_complex}
    if real - {torch.float32}:
        said = str(sorted(real - {torch.float32}, key=str)[0]).removeprefix("torch.")
        raise ValueError(
            f"operator {node.target} computes in {said}, expected float32 (hint: export "
            "module.float(), without conversions)"
        )
    if found and bool(real) != any(dtype.is_floating_point for dtype in read):
        kinds = [str(next(iter(kind), "")).removeprefix("torch.") for kind in (read, found)]
        raise ValueError(
            f"operator {node.target} converts {kinds[0]} to {kinds[1]}, which is not supported "
            "(hint: no gradient passes such a conversion)"
        )


def _tensors(node: Any) -> list[torch.Tensor]:
    """Returns the tensors that a node computes, according to torch's trace."""
    value = node.meta.get("val")
    values = value if isinstance(value, list | tuple) else [value]
    return [value for value in values if isinstance(value, torch.Tensor)]


def _is_usual(node: Any, argument: Any, value: Any) -> bool:
    """Whether an argument has no effect."""
    if argument.name in LAYOUT or value == argument.default_value:
        return True
    read = [value.dtype for source in node.all_input_nodes for value in _tensors(source)]
    return isinstance(value, torch.dtype) and value in read[:1]


def _said(value: Any) -> str:
    """Returns the text of a value in a message."""
    return (
        str(value)[:60]
        if isinstance(value, int | float | str | list | None)
        else type(value).__name__
    )
