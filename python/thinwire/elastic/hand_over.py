"""The hand-over of bytes of a job's state, from the holders to the joiners of an epoch.

Bytes that are equal on all holders come from all of them, each of which sends a part; others come from
rank 0, the oldest holder.
"""

from __future__ import annotations

import numpy as np

from thinwire._core import Epoch


def from_oldest(epoch: Epoch, mine: bytes) -> bytes:
    """Returns rank 0's `mine` on all ranks; that of other ranks is ignored."""
    return from_holders(epoch, 1, octets(mine)).tobytes()


def from_holders(epoch: Epoch, holders: int, mine: np.ndarray | None) -> np.ndarray:
    """Returns the bytes of the first `holders` ranks, which are the same, on every rank; these get their
    own array back. `mine` of other ranks is ignored. The array is contiguous, of uint8."""
    flat = octets(b"") if mine is None or epoch.rank >= holders else mine
    if epoch.world == holders:
        return flat
    found = epoch.hand_over(holders, flat.ctypes.data if flat.nbytes else 0, flat.nbytes)
    return flat if epoch.rank < holders else octets(found)


def octets(found: bytes) -> np.ndarray:
    """Bytes as an array that may be written to."""
    return np.frombuffer(bytearray(found), np.uint8)
