"""A module and its file, run side by side on random numbers.

Logits and the gradient of every parameter must be equal. This finds everything that the trace does
not show, such as a custom `autograd.Function` or a hook that changes gradients.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

from thinwire.torch.export.reference import Values, run
from thinwire.torch.export.suspects import Witness, first_other, suspects
from thinwire.torch.export.walk import Exported

LINE = 200
NEAR = 1e-4  # relative error of logits and gradients
ROUNDING = 1e-6  # error of gradients that are zero but for rounding, relative to all gradients
SEED = 5
ENDINGS = {"softmax": torch.softmax, "log_softmax": torch.log_softmax}


@dataclass(frozen=True)
class Found:
    """Logits, and the gradients of a weighted sum of them."""

    logits: torch.Tensor
    gradients: dict[str, torch.Tensor]


def verify(module: torch.nn.Module, inputs: tuple[Any, ...], exported: Exported) -> None:
    """Refuses a file whose results or gradients differ from its module's.

    Both are compared in single precision. If they differ, for example because rounding decides what
    passes a ReLU, both are compared in double precision.
    """
    parameters = {name: value for name, value in module.named_parameters() if value.requires_grad}
    for name, value in parameters.items():
        if value.is_meta:
            raise ValueError(
                f"parameter '{name}' has no values, so that the file cannot be compared with the "
                "module (hint: verify=False writes the file without this check)"
            )
        if getattr(value, "_post_accumulate_grad_hooks", None):
            raise ValueError(
                f"parameter '{name}' has a hook of register_post_accumulate_grad_hook, which is "
                "not supported (hint: export the module before hooks are registered)"
            )
    try:
        _compare(module, parameters, inputs, exported, torch.float32)
    except ValueError as error:
        try:
            _compare(module, parameters, inputs, exported, torch.float64)
        except RuntimeError:  # a module that mixes precisions
            raise error from None
    except Exception as error:
        said = (str(error).splitlines() or [""])[0][:LINE]
        raise ValueError(
            f"the file cannot be compared with the module: {type(error).__name__}: {said} (hint: "
            "verify=False writes the file without this check)"
        ) from error


def _compare(
    module: torch.nn.Module,
    parameters: dict[str, Any],
    inputs: tuple[Any, ...],
    exported: Exported,
    dtype: torch.dtype,
) -> None:
    """Refuses a file that differs from its module in a precision."""
    from torch.nn.attention import SDPBackend, sdpa_kernel  # which PyTorch 2.2 lacks

    with _prepared(module, dtype):
        leaves, structure = pytree.tree_flatten(inputs)
        drawn = _drawn(leaves, exported, dtype)
        witness = Witness()
        with witness, sdpa_kernel(SDPBackend.MATH):
            logits, again = (
                _logits(module, pytree.tree_unflatten([_copy(x) for x in drawn], structure))
                for _ in range(2)
            )
        _check_calls(module, witness, _is_near(again.detach(), logits.detach()))
        weights = torch.randn_like(logits)
        theirs = _found(logits, weights, parameters)
        sources = dict(zip(exported.inputs, drawn, strict=True))
        tensors = {name: x for name, x in sources.items() if isinstance(x, torch.Tensor)}
        # Others than the module's own, whose hooks would change these gradients, too.
        own = {name: value.detach().requires_grad_() for name, value in parameters.items()}
        values = run(exported.graph, {**tensors, **own}, {})
        ours = _found(_ended(values[exported.graph["output"]], exported), weights, own)
        if not _is_near(ours.logits, theirs.logits):
            other = first_other(module, exported, drawn, lambda at, x: _is_near(values[at], x))
            raise ValueError(
                f"{other} computes a different result in a file, so this operator is not supported "
                "with these arguments"
            )
        _check_gradients(theirs, ours, suspects(module, logits, witness))
        with torch.no_grad():
            _check_rows(exported, tensors, own, values)


def _logits(module: torch.nn.Module, inputs: Any) -> torch.Tensor:
    """The logits that a module computes."""
    found: torch.Tensor = next(
        x for x in pytree.tree_leaves(module(*inputs)) if isinstance(x, torch.Tensor)
    )
    return found


def _copy(value: Any) -> Any:
    """An input that a module may write into."""
    return value.clone() if isinstance(value, torch.Tensor) else value


def _check_calls(module: torch.nn.Module, witness: Witness, is_same: bool) -> None:
    """Refuses a module whose calls are not all the same function."""
    name = type(module).__name__
    if witness.drawn:
        raise ValueError(
            f"the forward of {name} draws from {witness.drawn}, which is not supported (hint: "
            "export module.eval(), or set rates of stochastic depth to 0)"
        )
    if not is_same:
        raise ValueError(
            f"the forward of {name}, called again, gives a different result, which is not "
            "supported (hint: a model file has no state but its parameters)"
        )


@contextmanager
def _prepared(module: torch.nn.Module, dtype: torch.dtype) -> Iterator[None]:
    """A context in which a module's parameters have the given precision, and the elements of no
    trained parameter are all equal.

    Batch norms are in training mode, as in the file. Parameters remain the same objects, because
    they may have hooks.
    """
    values = {parameter: parameter.data for parameter in module.parameters()}
    buffers = [(part, dict(part._buffers)) for part in module.modules()]
    norms = [
        part
        for part in module.modules()
        if isinstance(part, torch.nn.modules.batchnorm._BatchNorm) and not part.training
    ]
    try:
        with torch.random.fork_rng():
            torch.manual_seed(SEED)
            for parameter, value in values.items():
                parameter.data = value.to(dtype) if value.is_floating_point() else value
                if parameter.requires_grad and bool((value == value.flatten()[:1]).all()):
                    parameter.data = parameter.data + 0.1 * torch.randn_like(parameter)
            for part, held in buffers:
                for name, buffer in held.items():
                    part._buffers[name] = None if buffer is None else _copied(buffer, dtype)
            for part in norms:
                part.train()
            yield
    finally:
        for parameter, value in values.items():
            parameter.data = value
        for part, held in buffers:
            part._buffers.update(held)
        for part in norms:
            part.eval()


def _copied(value: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Returns a copy, in the given precision if it is floating-point."""
    return value.clone().to(dtype) if value.is_floating_point() else value.clone()


def _drawn(leaves: list[Any], exported: Exported, dtype: torch.dtype) -> list[Any]:
    """Returns random inputs: floating-point numbers, or row numbers of the tables in which an input
    is looked up."""
    return [
        _other(value, _rows(exported.graph, name), dtype)
        for name, value in zip(exported.inputs, leaves, strict=True)
    ]


def _other(value: Any, rows: int | None, dtype: torch.dtype) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    if value.is_floating_point():
        return torch.randn_like(value, dtype=dtype)
    return value.clone() if rows is None else torch.randint_like(value, rows)


def _rows(graph: dict[str, Any], name: str) -> int | None:
    """Returns the number of rows of the smallest table in which an input is looked up."""
    tensors = graph["tensors"]
    ids = {at for at, x in enumerate(tensors) if x["name"] == name and x["role"] == "input"}
    found = []
    for node in graph["nodes"]:
        kind = next(iter(node["operator"]))
        if kind == "embedding" and node["inputs"][1] in ids:
            found.append(tensors[node["inputs"][0]]["shape"][0])
        elif ids.intersection(node["inputs"]):
            ids.update(node["outputs"])
    return min(found, default=None)


def _ended(logits: torch.Tensor, exported: Exported) -> torch.Tensor:
    """Returns logits after the module's final softmax, which the file leaves to the loss."""
    return ENDINGS[exported.ending](logits, -1) if exported.ending else logits


def _found(logits: torch.Tensor, weights: torch.Tensor, parameters: dict[str, Any]) -> Found:
    """Returns logits and gradients; the gradients of parameters that are not read are zero."""
    given: Any = [None] * len(parameters)
    if parameters and logits.requires_grad and logits.shape == weights.shape:
        total = (logits * weights).sum()
        given = torch.autograd.grad(
            total, list(parameters.values()), allow_unused=True, retain_graph=True
        )
    pairs = zip(parameters.items(), given, strict=True)
    gradients = {
        name: torch.zeros_like(value) if gradient is None else gradient.to_dense()
        for (name, value), gradient in pairs
    }
    return Found(logits.detach(), gradients)


def _is_near(ours: Any, theirs: Any) -> bool:
    """Whether two tensors are equal up to rounding."""
    if not isinstance(theirs, torch.Tensor) or ours.shape != theirs.shape:
        return False
    error, whole = (ours - theirs).norm().item(), theirs.norm().item()
    return bool(error <= NEAR * whole + ROUNDING)


def _check_gradients(theirs: Found, ours: Found, said: str) -> None:
    whole = sum(value.norm().item() ** 2 for value in theirs.gradients.values()) ** 0.5
    for name, gradient in theirs.gradients.items():
        size = gradient.norm().item()
        other = ours.gradients[name]
        error = (other - gradient).norm().item()
        if not error <= NEAR * size + ROUNDING * whole:
            raise ValueError(
                f"the gradient of '{name}' differs by "
                f"{100 * error / max(size, other.norm().item()):.3g} % from the gradient that the "
                f"module's operators give: {said}"
            )


def _check_rows(
    exported: Exported, inputs: dict[str, Any], parameters: dict[str, Any], values: Values
) -> None:
    """Refuses a module whose logits of one row of the batch depend on other rows.

    The statistics of batch norm may depend on them, and are held fixed.
    """
    graph, batch = exported.graph, exported.batch
    logits = values[graph["output"]]
    if logits.ndim == 0 or logits.shape[0] % batch:
        raise ValueError(
            f"the output has shape {list(logits.shape)} for a batch of {batch}, expected the batch "
            "as its first dimension"
        )
    moments = [node["outputs"] for node in graph["nodes"] if "moments" in node["operator"]]
    kept = {at: values[at] for outputs in moments for at in outputs}
    each = logits.shape[0] // batch
    for row in (0, batch - 1):
        others = {name: _changed(x, row, batch, _rows(graph, name)) for name, x in inputs.items()}
        again = run(graph, {**others, **parameters}, kept)[graph["output"]]
        own = slice(row * each, (row + 1) * each)
        change = (again[own] - logits[own]).norm().item()
        if not change <= NEAR * logits[own].norm().item() + ROUNDING:
            raise ValueError(
                f"the logits of row {row} of the batch depend on other rows of the batch (hint: "
                "the first dimension of the first example is the batch, even if a module has "
                "batch_first=False; operators that mix examples are not supported)"
            )


def _changed(value: torch.Tensor, row: int, batch: int, rows: int | None) -> torch.Tensor:
    """Returns an input in which all rows of the batch except one are changed."""
    if value.ndim == 0 or value.shape[0] != batch:
        return value
    if value.is_floating_point():
        other = torch.randn_like(value)
    else:
        other = value if rows is None else (value + 1) % rows
    other = other.clone()
    other[row] = value[row]
    return other
