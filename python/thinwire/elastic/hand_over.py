"""The hand-over of bytes of a job's state, from the state sources to the joiners of an epoch.

If bytes are equal on all state sources, each state source sends a part of them. Other bytes are
sent by rank 0, the oldest state source.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from thinwire._core import Epoch, Synchronizer


def state(
    epoch: Epoch, state_sources: int, sync: Synchronizer, arrays: Sequence[np.ndarray[Any, Any]]
) -> list[np.ndarray[Any, Any]]:
    """Copies arrays, and the codecs' shared state, from the first `state_sources` ranks to the others.

    The others pass arrays of the same sizes. Returns the bytes of each array on all ranks.
    """
    plan, tensors = sync.shared_state()
    mine = {name: (shape, len(values)) for name, (shape, values) in sorted(tensors.items())}
    form = plain_of_oldest(epoch, [plan, mine])
    sizes = [each.nbytes for each in arrays]
    if epoch.rank < state_sources:
        factors = [np.frombuffer(tensors[name][1], np.uint8) for name in mine]
        flat = from_state_sources(epoch, state_sources, packed([*arrays, *factors]))
        return unpacked(flat, sizes)
    plan, theirs = form
    sizes += [size for _, size in theirs.values()]
    values = unpacked(from_state_sources(epoch, state_sources, None), sizes)
    factors = values[len(arrays) :]
    found = {
        name: (shape, each.tobytes()) for (name, (shape, _)), each in zip(theirs.items(), factors)
    }
    sync.load_shared(plan, found)
    return values[: len(arrays)]


def plain_of_oldest(epoch: Epoch, mine: Any) -> Any:
    """Returns rank 0's `mine`, plain values as JSON has them, on all ranks; the `mine` of other ranks
    is ignored."""
    return json.loads(from_oldest(epoch, json.dumps(mine).encode()))


def arrays_of_oldest(
    epoch: Epoch, arrays: Sequence[np.ndarray[Any, Any]]
) -> list[np.ndarray[Any, Any]]:
    """Returns the bytes of each of rank 0's arrays on all ranks; the others pass arrays of the same
    sizes."""
    flat = from_state_sources(epoch, 1, packed(arrays))
    return unpacked(flat, [each.nbytes for each in arrays])


def from_oldest(epoch: Epoch, mine: bytes) -> bytes:
    """Returns rank 0's `mine` on all ranks; the `mine` of other ranks is ignored."""
    return from_state_sources(epoch, 1, octets(mine)).tobytes()


def from_state_sources(
    epoch: Epoch, state_sources: int, mine: np.ndarray[Any, Any] | None
) -> np.ndarray[Any, Any]:
    """Returns, on every rank, the bytes that the first `state_sources` ranks have in common; those
    ranks get their own array back. `mine` of other ranks is ignored. The result is a contiguous
    array of uint8."""
    flat = octets(b"") if mine is None or epoch.rank >= state_sources else mine
    if epoch.world == state_sources:
        return flat
    found = epoch.hand_over(state_sources, flat.ctypes.data if flat.nbytes else 0, flat.nbytes)
    return flat if epoch.rank < state_sources else octets(found)


def octets(found: bytes) -> np.ndarray[Any, Any]:
    """Returns bytes as a writable array."""
    return np.frombuffer(bytearray(found), np.uint8)


def packed(values: Iterable[np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
    """Returns the concatenated bytes of arrays."""
    flat = [np.ascontiguousarray(each).reshape(-1).view(np.uint8) for each in values]
    return np.concatenate(flat) if flat else octets(b"")


def unpacked(flat: np.ndarray[Any, Any], sizes: Sequence[int]) -> list[np.ndarray[Any, Any]]:
    """Returns the bytes of each array; `sizes` are the lengths of the arrays in bytes."""
    ends = np.cumsum(sizes)
    return [flat[end - size : end] for end, size in zip(ends, sizes)]
