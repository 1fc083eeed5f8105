"""Modules of PyTorch as model files, for `thinwire model show` and `thinwire plan make`.

    thinwire.torch.export_graph(module, (tokens,), "model.json")

The module is traced by `torch.export` for two batches; dimensions that grow with the batch are
marked as such. The only output is logits: the file gets a cross-entropy over its last dimension.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import redirect_stderr
from io import StringIO
from os import PathLike
from typing import Any

import torch

import thinwire.torch.export.operators  # noqa: F401  (they register themselves)
from thinwire._core import InvalidError
from thinwire.model_file import write
from thinwire.model_file.sizes import merged
from thinwire.torch.export.check import check
from thinwire.torch.export.verify import verify as compare
from thinwire.torch.export.walk import convert

__all__ = ["export_graph"]

LINE = 200


def export_graph(
    module: torch.nn.Module,
    example_inputs: Sequence[Any],
    path: str | PathLike[str],
    *,
    sequence: int | None = None,
    verify: bool = True,
) -> None:
    """Writes a module as a model file.

    The first dimension of the first example is the batch; every other example whose first dimension
    has this length is batched, too. `sequence` is the number of tokens in a sequence; by default
    the second dimension of the first example if that is a tensor of integers, and otherwise 1.
    Values of parameters are not written.

    Module and file are then run forward and backward on random numbers, in torch: logits and
    gradients must be equal. `verify=False` skips this check, for a module that is too large for it.

    Raises InvalidError, which names the node and its place, if an operator is not supported, if the
    module cannot be traced for these examples, and if the file would train differently from the module.
    """
    check(module, example_inputs, path, sequence)
    first = example_inputs[0]
    batch = max(2, first.shape[0])
    sizes = (batch, 2 * batch)
    inputs = [tuple(_repeated(x, first.shape[0], size) for x in example_inputs) for size in sizes]
    programs = [_traced(module, given) for given in inputs]
    try:
        names = _names(module)
        once, twice = (
            convert(program, names, size) for program, size in zip(programs, sizes, strict=True)
        )
        graph = merged(once.graph, twice.graph, batch)
        if verify:
            compare(module, inputs[0], once)
    except ValueError as error:
        raise InvalidError(str(error)) from None
    if sequence is None:
        tokens = not first.dtype.is_floating_point and first.ndim > 1
        sequence = first.shape[1] if tokens else 1
    write(path, type(module).__name__, sequence, graph)


def _traced(module: torch.nn.Module, inputs: tuple[Any, ...]) -> Any:
    """Returns the program that torch traces from a module for its inputs; shortens torch's errors
    to one line."""
    try:
        with redirect_stderr(StringIO()):  # where it fails torch prints the whole graph
            return torch.export.export(module, inputs, strict=False)
    except Exception as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        said = lines[0][:LINE] if lines else type(error).__name__
        raise InvalidError(
            f"torch.export cannot trace {type(module).__name__}: {said} (hint: call the module with "
            "the examples; it may depend on shapes, but not on values)"
        ) from error


def _names(module: torch.nn.Module) -> dict[str, str]:
    """Returns the name of every parameter, by all names that the parameter has; torch lists it
    under the first."""
    first = {id(value): name for name, value in module.named_parameters()}
    every = module.named_parameters(remove_duplicate=False)
    return {name: first[id(value)] for name, value in every}


def _repeated(value: Any, length: int, batch: int) -> Any:
    """An example for another batch."""
    if not isinstance(value, torch.Tensor) or value.ndim == 0 or value.shape[0] != length:
        return value
    times = -(-batch // length)
    return torch.cat([value] * times)[:batch]
