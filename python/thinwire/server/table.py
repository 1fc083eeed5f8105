"""Table of an embedding, whose rows are on servers."""

from __future__ import annotations

import re
from types import NoneType
from typing import Any

import numpy as np

from thinwire._core import InvalidError
from thinwire.arguments import INT64_MAX, UINT32_MAX, instance, shown, whole
from thinwire.server.job import Gradient, ParameterServer, Table

ROWS_AT_ONCE = 65_536
"""Number of rows per request when all rows are pulled."""


class ServedTable:
    """Rows of an embedding on servers. A forward pass pulls rows; a step pushes their gradients.

    The arguments are those of `ServerEmbedding`.
    """

    def __init__(
        self,
        rows: int,
        width: int,
        *,
        initial: str,
        optimizer: str | None,
        codec: str | None,
        cache: int | str | None,
        staleness: int,
    ) -> None:
        """Checks the arguments. The table has no servers yet."""
        self.rows, self.width = whole("rows", rows, 1), whole("width", width, 1, UINT32_MAX)
        instance("initial", initial, str)
        instance("optimizer", optimizer, str, NoneType)
        instance("codec", codec, str, NoneType)
        self.cache_bytes = None if cache is None else bytes_of(cache)
        self._initial, self.optimizer, self._codec = initial, optimizer, codec
        self._staleness = whole("staleness", staleness)
        self._server: ParameterServer | None = None
        self.name, self._number = "", 0
        self._owed: list[tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]] = []

    def table(self, name: str) -> Table:
        """Returns the definition of the table under this name."""
        return Table(name, self.rows, self.width, self._initial, self.optimizer, self._codec)

    def attach(self, server: ParameterServer, name: str, number: int) -> None:
        """Sets the servers of the table, and its name and number in the job."""
        self._server, self.name, self._number = server, name, number
        if self.cache_bytes is not None:
            server.cache(number, self.cache_bytes, self._staleness)

    def __getstate__(self) -> dict[str, Any]:
        """Returns the attributes for a copy.

        # Errors

        InvalidError after `attach`: a copy would train the same rows, or miss changes by other
        workers.
        """
        if self._server is not None:
            raise InvalidError(
                f"table '{self.name}' is on servers, so its module cannot be copied or pickled (hint: "
                "full_state_dict or full_parameters of the ServerOptimizer returns all rows)"
            )
        return vars(self)

    @property
    def cache_stats(self) -> dict[str, int]:
        """Counters of the cache; empty without a cache or before `attach`."""
        if self._server is None or self.cache_bytes is None:
            return {}
        return self._server.hits(self._number)

    def pull(self, rows: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Returns the values of ascending rows as an array [len(rows), width].

        # Errors

        InvalidError before `attach` or for a row that the table does not have; PeerError if no server
        answers.
        """
        if self._server is None:
            raise InvalidError(
                "an embedding has no servers (hint: make a ServerOptimizer before the first forward pass)"
            )
        if rows.size and rows[0] < 0:
            raise InvalidError(f"row {rows[0]} of table '{self.name}', expected 0 or more")
        return self._server.pull([(self._number, rows)]).reshape(-1, self.width)

    def pull_all(self) -> np.ndarray[Any, Any]:
        """Returns the values of all rows as an array [rows, width]. They contain all pushes of this worker.

        # Errors

        As `pull`.
        """
        whole = np.empty((self.rows, self.width), np.float32)
        for start in range(0, self.rows, ROWS_AT_ONCE):
            end = min(start + ROWS_AT_ONCE, self.rows)
            whole[start:end] = self.pull(np.arange(start, end, dtype=np.int64))
        return whole

    def owe(self, rows: np.ndarray[Any, Any], gradient: np.ndarray[Any, Any]) -> None:
        """Stores gradients of rows, [len(rows), width], until the next push, which sums all
        gradients of the same row."""
        self._owed.append((rows, gradient))

    def owed(self, weight: float) -> list[Gradient]:
        """Returns and removes the gradients since the last call, multiplied by `weight`."""
        factor = np.float32(weight)
        owed = [(self._number, rows, gradient * factor) for rows, gradient in self._owed]
        self._owed.clear()
        return owed

    @property
    def is_owing(self) -> bool:
        """Whether there are gradients for the next push."""
        return bool(self._owed)

    def forget(self) -> None:
        """Drops the gradients since the last push."""
        self._owed.clear()


def bytes_of(size: int | str) -> int:
    """Returns a size in bytes, given as a number or a string such as "64MB" or "1.5GiB".

    # Errors

    InvalidError if it is not a size, a plain number with a fraction, or 2**63 bytes or more.
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?) ?([kKMGT]?)(i?)B?", str(size))
    if found is not None and not (found[3] and not found[2]):
        unit = (1024 if found[3] else 1000) ** " kMGT".index(found[2].replace("K", "k") or " ")
        found_bytes = float(found[1]) * unit
        if found_bytes < INT64_MAX and (unit > 1 or found_bytes.is_integer()):
            return int(found_bytes)
    raise InvalidError(f'cache {shown(size)}, expected bytes, or text such as "64MB" or "1.5GiB"')
