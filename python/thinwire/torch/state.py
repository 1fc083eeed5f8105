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

from thinwire._core import Group, InvalidError, Synchronizer

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
    """Makes a synchronizer go on from what `read` returned.

    # Errors

    InvalidError, before anything has changed, if it is of another model or not finite.
    """
    sync.load(
        plan, {name: (list(values.shape), octets(values)) for name, values in tensors.items()}
    )


def octets(values: torch.Tensor) -> bytes:
    """The values of a tensor of any dtype, as bytes of f32."""
    found: bytes = values.detach().cpu().float().contiguous().numpy().tobytes()
    return found


def tensor(shape: list[int], values: bytes) -> torch.Tensor:
    """The f32 tensor whose values these bytes are."""
    if not values:
        return torch.empty(shape)
    return torch.frombuffer(bytearray(values), dtype=torch.float32).reshape(shape)


def of_rank(group: Group, saved: Saved | None) -> dict[str, tuple[Any, ...]]:
    """The state dict of one rank; it ends with the number of ranks."""
    entry = () if saved is None else (*vars(saved).values(), group.world)
    return {f"rank{group.rank}": entry}


def for_rank(group: Group, entries: Mapping[str, tuple[Any, ...]]) -> Saved | None:
    """What a state dict says to one rank.

    # Errors

    InvalidError if it says nothing to this rank, or is no state, or another number of ranks has saved it.
    """
    entry = entry_of(group.rank, entries)
    if not entry:
        return None
    kinds = (str, Mapping, (list, tuple), (list, tuple, type(None)), int)
    if len(entry) != len(kinds) or not all(map(isinstance, entry, kinds)):
        found = ", ".join(type(part).__name__ for part in entry)
        raise InvalidError(
            f"the state of rank{group.rank} is ({found}), expected what state_dict gave"
        )
    *parts, world = entry
    same_world(world, group.world)
    return Saved(*parts)


def entry_of(rank: int, entries: Mapping[str, tuple[Any, ...]]) -> tuple[Any, ...]:
    """The part of a state dict that is for one rank; none if it has none."""
    if f"rank{rank}" not in entries:
        ranks = ", ".join(entries) or "nobody"
        raise InvalidError(
            f"the state is that of {ranks}, expected rank{rank} (hint: residuals differ between "
            "ranks: save on every rank, or through torch.distributed.checkpoint)"
        )
    return tuple(entries[f"rank{rank}"])


def same_world(found: int, expected: int) -> None:
    """Refuses a state of another number of ranks, whose other residuals would be lost in silence."""
    if found != expected:
        raise InvalidError(
            f"the state is of {found} ranks, this job has {expected} (hint: go on from the model and "
            "the optimizer alone; what the codec still owed is lost)"
        )
