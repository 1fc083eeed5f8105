"""What a synchronizer must know after a restart, in a form that every checkpoint of PyTorch can hold.

A state dict has one entry per rank, because residuals differ between ranks. The entry is a tuple of
plain values and CPU tensors: `torch.save` keeps it as it is, `torch.load` reads it with
`weights_only=True`, and `torch.distributed.checkpoint` takes a tuple as one value of any size, so that
an object without state yet can load one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch

from thinwire._core import InvalidError, Synchronizer

Tensors = dict[str, torch.Tensor]


@dataclasses.dataclass(frozen=True)
class Saved:
    """The plan as JSON, the names of the parameters in each bucket, the buckets of the next step if
    those are others, and residuals and factors by name."""

    plan: str
    tensors: Tensors
    buckets: list[list[str]]
    following: list[list[str]] | None = None


def read(sync: Synchronizer) -> tuple[str, Tensors]:
    """The plan of a synchronizer and its tensors, on the CPU."""
    plan, raw = sync.state()
    return plan, {name: tensor(shape, values) for name, (shape, values) in raw.items()}


def write(sync: Synchronizer, plan: str, tensors: Tensors) -> None:
    """Makes a synchronizer go on from what `read` returned."""
    raw = {
        name: (list(values.shape), values.detach().cpu().contiguous().numpy().tobytes())
        for name, values in tensors.items()
    }
    sync.load(plan, raw)


def tensor(shape: list[int], values: bytes) -> torch.Tensor:
    """The f32 tensor whose values these bytes are."""
    if not values:
        return torch.empty(shape)
    return torch.frombuffer(bytearray(values), dtype=torch.float32).reshape(shape)


def of_rank(rank: int, saved: Saved | None) -> dict[str, tuple[Any, ...]]:
    """The state dict of one rank."""
    entry = () if saved is None else tuple(vars(saved).values())
    return {f"rank{rank}": entry}


def for_rank(rank: int, entries: Mapping[str, tuple[Any, ...]]) -> Saved | None:
    """What a state dict says to one rank.

    # Errors

    InvalidError if it says nothing to this rank: it was saved by other ranks.
    """
    if f"rank{rank}" not in entries:
        ranks = ", ".join(entries) or "nobody"
        raise InvalidError(
            f"the state is that of {ranks}, expected rank{rank} (hint: residuals differ between "
            "ranks: save on every rank, or through torch.distributed.checkpoint)"
        )
    entry = entries[f"rank{rank}"]
    return Saved(*entry) if entry else None
