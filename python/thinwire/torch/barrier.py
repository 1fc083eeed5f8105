"""The monitored barrier, which names the ranks that did not arrive.

It goes through c10d's store, not over the group's connections, so it works even when these are
stuck, and does not disturb them. The texts of its errors are PyTorch's, because people and tests
look for them.
"""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

from thinwire._core import PeerError


def monitored(store: Any, rank: int, world: int, timeout_s: float, wait_all_ranks: bool) -> None:
    """Returns when all ranks have arrived. `store` must be used for this one barrier only.

    # Errors

    PeerError on all ranks that arrived if one does not arrive within `timeout_s`; rank 0 names it
    or, with `wait_all_ranks`, all missing ranks.
    """
    if rank == 0:
        missing = absent(store, world, timeout_s, wait_all_ranks)
        store.set("outcome", "failed" if missing or timeout_s == 0 else "passed")
        if timeout_s == 0:
            raise PeerError("Rank 0 timed out in monitoredBarrier after 0 ms")
        if missing:
            names = ("Ranks " if len(missing) > 1 else "Rank ") + ", ".join(map(str, missing))
            raise PeerError(f"{names} failed to pass monitoredBarrier in {timeout_s * 1e3:.0f} ms")
        return
    store.set(f"rank{rank}", "here")
    if not came(store, "outcome", timeout_s) or store.get("outcome") != b"passed":
        raise PeerError(
            f"Rank {rank} successfully reached monitoredBarrier, but received errors while waiting "
            "for send/recv from rank 0. Please check rank 0 logs for faulty rank."
        )


def absent(store: Any, world: int, timeout_s: float, wait_all_ranks: bool) -> list[int]:
    """The ranks that do not arrive in time, or only the first one."""
    deadline = time.monotonic() + timeout_s
    missing: list[int] = []
    for rank in range(1, world):
        if not came(store, f"rank{rank}", deadline - time.monotonic()):
            missing.append(rank)
            if not wait_all_ranks:
                break
    return missing


def came(store: Any, key: str, timeout_s: float) -> bool:
    """Returns whether the key appears in the store in time."""
    if timeout_s <= 0:
        return bool(store.check([key]))
    try:
        store.wait([key], timedelta(seconds=max(timeout_s, 0.001)))
    except RuntimeError:
        return False
    return True
