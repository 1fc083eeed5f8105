"""The hand-over of bytes of a job's state, from the state sources to the joiners of an epoch.

Bytes that are equal on all state sources come from all of them, each of which sends a part; others come
from rank 0, the oldest state source.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from thinwire._core import Epoch


def from_oldest(epoch: Epoch, mine: bytes) -> bytes:
    """Returns rank 0's `mine` on all ranks; that of other ranks is ignored."""
    return from_state_sources(epoch, 1, octets(mine)).tobytes()


def from_state_sources(
    epoch: Epoch, state_sources: int, mine: np.ndarray[Any, Any] | None
) -> np.ndarray[Any, Any]:
    """Returns the bytes of the first `state_sources` ranks, which are the same, on every rank; these get
    their own array back. `mine` of other ranks is ignored. The array is contiguous, of uint8."""
    flat = octets(b"") if mine is None or epoch.rank >= state_sources else mine
    if epoch.world == state_sources:
        return flat
    found = epoch.hand_over(state_sources, flat.ctypes.data if flat.nbytes else 0, flat.nbytes)
    return flat if epoch.rank < state_sources else octets(found)


def octets(found: bytes) -> np.ndarray[Any, Any]:
    """Bytes as an array that may be written to."""
    return np.frombuffer(bytearray(found), np.uint8)
