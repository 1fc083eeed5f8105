"""The state of a job, from the ranks that have it to those that do not.

Rank 0 tells all what is small: steps, positions, schedulers, and the form of everything else. Parameters,
moments and what codecs have learnt come from all holders, whose tensors are equal bit by bit, each sending
a part. Buffers, which differ between ranks, are those of rank 0, the oldest holder, on all ranks.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

import torch

from thinwire._core import Epoch, InvalidError
from thinwire.torch.elastic import tree
from thinwire.torch.elastic.tree import Shapes, Tensors


def notice(epoch: Epoch, mine: Mapping[str, Any]) -> dict[str, Any]:
    """What rank 0 says, on all ranks; the others' `mine` does not count."""
    file = io.BytesIO()
    if epoch.rank == 0:
        torch.save(dict(mine), file)
    found = handed(epoch, 1, octets(file.getvalue()))
    said: dict[str, Any] = torch.load(io.BytesIO(found.numpy().tobytes()), weights_only=True)
    return said


def shapes(tensors: Tensors) -> dict[str, tuple[torch.dtype, list[int]]]:
    """Dtypes and shapes by path, as `notice` can carry them."""
    return {path: (each.dtype, list(each.shape)) for path, each in tree.described(tensors).items()}


def taken(epoch: Epoch, holders: int, said: Mapping[str, Any], mine: Tensors) -> Tensors:
    """The tensors that `said` describes, as the first `holders` ranks have them; on these, their own.

    # Errors

    InvalidError if a holder has others than rank 0.
    """
    form: Shapes = {
        path: tree.Described(dtype, tuple(shape)) for path, (dtype, shape) in said.items()
    }
    if epoch.rank < holders and tree.described(mine) != form:
        differs = min(set(form.items()) ^ set(tree.described(mine).items()), key=str)
        raise InvalidError(f"this rank and rank 0 differ in {differs[0]}")
    if not form:
        return {}
    flat = handed(epoch, holders, tree.packed(mine) if epoch.rank < holders else None)
    return mine if epoch.rank < holders else tree.viewed(flat, form)


def handed(epoch: Epoch, holders: int, flat: torch.Tensor | None) -> torch.Tensor:
    """The bytes of the first `holders` ranks on every rank."""
    if epoch.world == holders:
        return torch.empty(0, dtype=torch.uint8) if flat is None else flat
    address, size = (0, 0) if flat is None else (flat.data_ptr(), flat.numel())
    found = epoch.hand_over(holders, address, size)
    return octets(found) if flat is None or epoch.rank >= holders else flat


def octets(found: bytes) -> torch.Tensor:
    """Bytes as a tensor of its own."""
    return torch.frombuffer(bytearray(found or b"\0"), dtype=torch.uint8)[: len(found)]
