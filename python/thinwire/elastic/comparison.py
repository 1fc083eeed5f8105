"""The comparison, every `compare_every` steps, of values that must be equal on all ranks.

Without it, ranks that differ would continue without an error, and their training would be
worthless. So each rank computes digests of its entries in a thread, while the rank computes
gradients and changes none of the entries. Ranks compare the digests one step later. Each rank sends
eight bytes; if these differ, it sends the digests of all entries.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import zlib
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np

Gather = Callable[[bytes], list[bytes]]
"""Returns the bytes of every rank, in rank order."""


@dataclasses.dataclass(frozen=True)
class Difference:
    """The first entry that differs, and a description of all that differ."""

    path: str
    text: str


class Comparison:
    """Digests of the latest entries, until all ranks have compared them."""

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        self._digests: Future[dict[str, str]] | None = None
        self._step = 0
        self._said: set[str] = set()

    def begin(self, step: int, entries: Mapping[str, Any]) -> None:
        """Begins to compute digests of entries: arrays, functions that return arrays, or plain
        values. The entries must not change before `wait` has returned."""
        self._pool = self._pool or ThreadPoolExecutor(1, "thinwire-comparison")
        self._step, self._digests = step, self._pool.submit(digests, entries)

    def wait(self) -> None:
        """Waits until the entries may change again."""
        if self._digests is not None:
            self._digests.result()

    def drop(self) -> None:
        """Drops the digests, because the ranks have changed."""
        self.wait()
        self._digests = None

    def end(self, gather: Gather) -> Difference | None:
        """Compares the digests of all ranks; a collective call. Returns a description of a
        difference that was not returned before, and otherwise None.

        # Errors

        PeerError if a rank is lost.
        """
        if self._digests is None:
            return None
        mine, self._digests = self._digests.result(), None
        whole = json.dumps(sorted(mine.items())).encode()
        if len(set(gather(hashlib.sha256(whole).digest()[:8]))) <= 1:
            return None
        rows = [json.loads(row) for row in gather(json.dumps(mine).encode())]
        found = [(path, rank) for path, rank in differing(rows) if path not in self._said]
        self._said.update(path for path, _ in found)
        if not found:
            return None
        return Difference(found[0][0], described(self._step, rows, found))


def digests(entries: Mapping[str, Any]) -> dict[str, str]:
    """Returns a short string for each entry: a plain value itself, or the checksum of an array."""
    return {path: digest(value() if callable(value) else value) for path, value in entries.items()}


def digest(value: Any) -> str:
    """Returns a short string that differs if the values do."""
    if isinstance(value, np.ndarray):
        octets = np.ascontiguousarray(value).reshape(-1).view(np.uint8).data
        return f"{zlib.crc32(octets):08x}"
    text = repr(value)
    return text if len(text) <= 24 else f"{zlib.crc32(text.encode()):08x}"


def differing(rows: list[dict[str, str]]) -> Iterable[tuple[str, int]]:
    """Returns the entries that differ, in their order on rank 0, each with the first rank that has
    a different value."""
    for path in dict.fromkeys(path for row in rows for path in row):
        for rank, row in enumerate(rows):
            if row.get(path) != rows[0].get(path):
                yield path, rank
                break


def described(step: int, rows: list[dict[str, str]], found: list[tuple[str, int]]) -> str:
    """The differences, in one line."""
    path, rank = found[0]
    more = f", and {len(found) - 1} entries more" if len(found) > 1 else ""
    return (
        f"ranks differ after step {step} in {path}: rank {rank} has {rows[rank].get(path, 'none')}, "
        f"rank 0 has {rows[0].get(path, 'none')}{more}"
    )
