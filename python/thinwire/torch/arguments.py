"""The arguments with which c10d calls a process group, in all their forms."""

from __future__ import annotations

from typing import Any

import torch
from torch._C import _distributed_c10d as c10d

from thinwire._core import InvalidError
from thinwire.torch import exchange


def options(kind: Any, given: Any, timeout: Any = None, field: str = "reduceOp") -> Any:
    """c10d's options: `given` itself, or new ones from a bare reduction or root rank."""
    if given is None or isinstance(given, (int, c10d.ReduceOp, c10d.ReduceOp.RedOpType)):
        made = kind()
        if given is not None:
            setattr(made, field, given)
        if timeout is not None:
            made.timeout = timeout
        return made
    return given


def listed(tensors: Any) -> list[torch.Tensor]:
    """Tensors as a list; c10d takes a bare one too."""
    return [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)


def one(tensors: Any, name: str) -> torch.Tensor:
    """The only tensor of a message."""
    if len(listed(tensors)) != 1:
        raise InvalidError(f"{name} takes one tensor, got {len(listed(tensors))}")
    return listed(tensors)[0]


def expect(name: str, tensor: torch.Tensor, elements: int, like: torch.Tensor) -> None:
    """Refuses a tensor that does not have this number of elements in the dtype of `like`.

    # Errors

    InvalidError, before anything is sent. Without this check, the core would write beyond the end
    of the tensor, or write bits of another dtype.
    """
    if tensor.dtype != like.dtype:
        raise InvalidError(
            f"{name} has tensors of {tensor.dtype} and {like.dtype}, expected one dtype"
        )
    if tensor.numel() != elements:
        raise InvalidError(
            f"{name} has a tensor of {tensor.numel()} elements where {elements} are expected"
        )


def expect_count(name: str, tensors: list[torch.Tensor], world: int) -> None:
    """Refuses a list unless it has exactly one tensor per rank."""
    if len(tensors) != world:
        raise InvalidError(
            f"{name} has {len(tensors)} tensors for {world} ranks, expected one for each"
        )


def expect_parts(
    name: str, parts: list[torch.Tensor], own: torch.Tensor, place: int, world: int
) -> None:
    """Refuses a list unless it has exactly one tensor per rank, all have one dtype, and the
    `place`-th has the size of `own`."""
    expect_count(name, parts, world)
    expect(name, parts[place], own.numel(), own)
    for part in parts:
        expect(name, part, part.numel(), own)


def overlaps(source: torch.Tensor, target: torch.Tensor, rank: int) -> bool:
    """Whether a tensor to be gathered overlaps with a part of the result other than its own."""
    shared = source.untyped_storage().data_ptr() == target.untyped_storage().data_ptr()
    return shared and source.data_ptr() != target.data_ptr() + rank * exchange.size(source)


def row_bytes(tensor: torch.Tensor, rows: Any, world: int, which: str) -> list[int]:
    """Bytes of each rank's rows.

    # Errors

    InvalidError if `rows`, or equal parts, do not add up to the tensor.
    """
    length = tensor.shape[0] if tensor.dim() else 0
    counts = list(rows) if rows else [length // world] * world
    if len(counts) != world or sum(counts) != length:
        raise InvalidError(
            f"all_to_all splits {length} rows of its {which} into {counts} for {world} ranks, "
            f"expected one number for each, {length} in total"
        )
    row = exchange.size(tensor) // length if length else 0
    return [count * row for count in counts]
