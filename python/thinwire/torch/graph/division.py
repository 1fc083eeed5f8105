"""Division of seeds over ranks, and the check that all ranks agree on the seeds.

Laws: no rank begins a pass of divided seeds before all ranks have compared their seeds; either all
ranks raise, or none; and rank 0 leaves the comparison last, because PyTorch's store may end with
rank 0's process.
"""

from __future__ import annotations

import json
import time
import warnings
import zlib
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist

from thinwire._core import InvalidError, PeerError
from thinwire.agreement import difference
from thinwire.torch.barrier import came
from thinwire.torch.group import store_used
from thinwire.torch.layout import raw_bytes
from thinwire.torch.pauses import Pauses

PROMPT_S, WARNED_S, MOST_S = 1.0, 15.0, 300.0
"""Seconds for which rank 0 waits without polling, for which a rank waits before it logs this, and
for which it waits at most."""
ALONE = "hint: split=False for a loader of one rank, or of seeds that the script has divided"
READ = " has read"
"""End of the key that a rank sets once it has read the lines of all ranks."""


class Place(NamedTuple):
    """The number of a rank, and the number of ranks, that divide seeds."""

    rank: int
    world: int


def found_place() -> Place:
    """Returns this rank's current place in `torch.distributed`; without it, that of a single rank."""
    if dist.is_available() and dist.is_initialized():
        return Place(dist.get_rank(), dist.get_world_size())
    return Place(0, 1)


def checksum(tensor: torch.Tensor | None) -> str:
    """Returns a short string that differs if the tensors differ: the last dimension and a
    checksum."""
    if tensor is None:
        return "none"
    return f"{tensor.shape[-1]} with checksum {zlib.crc32(raw_bytes(tensor).data):08x}"


def agree(lines: Sequence[str], place: Place) -> None:
    """Compares these lines with those of all ranks, through PyTorch's store.

    # Errors

    InvalidError on all ranks if the lines of any rank differ from rank 0's; PeerError if a rank
    does not answer.
    """
    store = dist.distributed_c10d._get_default_store()
    with store_used():
        number = store.add(f"thinwire/loaders/{place.rank}", 1)
        said = dist.PrefixStore(f"thinwire/loader/{number}", store)
        said.set(str(place.rank), json.dumps(list(lines)))
        first, *others = [json.loads(heard(said, rank)) for rank in range(place.world)]
        if place.rank > 0:
            said.set(f"{place.rank}{READ}", "")
        else:
            for rank in range(1, place.world):
                # Mostly it is there at once: a poll's first pause would take longer.
                if not came(said, f"{rank}{READ}", PROMPT_S):
                    heard(said, rank, READ)
    for rank, theirs in enumerate(others, 1):
        if text := difference(theirs, first):
            raise InvalidError(f"ranks disagree about a loader: rank {rank} {text} ({ALONE})")


def heard(store: dist.Store, rank: int, what: str = "") -> bytes:
    """Waits for a rank's text in the store, and returns it."""
    begun, key = time.monotonic(), f"{rank}{what}"
    pauses, has_warned = Pauses(begun + MOST_S), False
    while not store.check([key]):
        if not pauses.make():
            raise PeerError(f"rank {rank} began no pass of this loader in {MOST_S:g} s ({ALONE})")
        if not has_warned and time.monotonic() - begun > WARNED_S:
            has_warned = True
            text = f"rank {rank} has begun no pass of this loader for {WARNED_S:g} s ({ALONE})"
            warnings.warn(text, stacklevel=5)
    return store.get(key)
