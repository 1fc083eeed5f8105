"""The data of a job as a stream of batches: pass after pass, each in an order drawn from the seed.

All ranks know the whole stream, so a joining rank needs only a `Position` in it.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from thinwire._core import InvalidError


@dataclasses.dataclass(frozen=True, order=True)
class Position:
    """A position in the stream: the pass, counted from 0; the number of rows of the pass that are
    done; and whether a batch of the pass was handed out. If it was, the program has done its work
    at the beginning of the pass."""

    number: int = 0
    offset: int = 0
    begun: bool = False


@dataclasses.dataclass(frozen=True)
class Batch:
    """Rows `start` to `end` of pass `number`, which all ranks together compute in one step."""

    number: int
    start: int
    end: int

    @property
    def length(self) -> int:
        """Number of rows."""
        return self.end - self.start


@dataclasses.dataclass(frozen=True)
class Stream:
    """Batches of `batch` samples out of `samples`.

    The last batch of a pass has the remaining samples, unless `drop_last` drops them.

    # Errors

    InvalidError if there is no batch in a pass.
    """

    samples: int
    batch: int
    seed: int = 1
    shuffle: bool = True
    drop_last: bool = False

    def __post_init__(self) -> None:
        if self.batch < 1:
            raise InvalidError(f"a batch of {self.batch} samples, expected at least 1")
        if self.samples < (self.batch if self.drop_last else 1):
            raise InvalidError(
                f"{self.samples} samples in batches of {self.batch}, expected at least "
                f"{self.batch if self.drop_last else 1} in a pass"
            )

    @property
    def steps(self) -> int:
        """Batches in a pass."""
        whole, rest = divmod(self.samples, self.batch)
        return whole + (rest > 0 and not self.drop_last)

    def at(self, position: Position) -> Batch:
        """Returns the batch that begins at a position."""
        end = min(position.offset + self.batch, self.samples)
        return Batch(position.number, position.offset, end)

    def after(self, batch: Batch) -> Position:
        """Returns the position at which the next batch begins, in the same pass or the next."""
        left = self.samples - batch.end
        if left == 0 or (self.drop_last and left < self.batch):
            return Position(batch.number + 1, 0)
        return Position(batch.number, batch.end, begun=True)

    def check(self, position: Position) -> None:
        """Refuses a position at which no batch begins.

        # Errors

        InvalidError for such a position, which may come from the state of a training with other data.
        """
        found = self.at(position)
        if (
            (position.number, position.offset) < (0, 0)
            or found.length < 1
            or (self.drop_last and found.length < self.batch)
        ):
            raise InvalidError(
                f"no batch begins at row {position.offset} of pass {position.number}, "
                f"with {self.samples} samples in batches of {self.batch}"
            )

    def check_alike(self, other: Sequence[Any]) -> None:
        """Refuses this stream if it differs from the job's, whose values are `other`.

        # Errors

        InvalidError that names the first difference.
        """
        for field, theirs in zip(dataclasses.fields(self), other):
            mine = getattr(self, field.name)
            if mine != theirs:
                raise InvalidError(f"{field.name} of the data is {mine}, the job's is {theirs}")

    def samples_of(self, number: int, rows: range) -> list[int]:
        """Returns the indices, in the data, of some rows of a pass."""
        if not self.shuffle:
            return list(rows)
        found: list[int] = permutation(self.samples, self.seed, number)[
            rows.start : rows.stop
        ].tolist()
        return found


def rows_of(arrays: Iterable[Any]) -> int:
    """Returns the number of rows that all arrays have.

    # Errors

    InvalidError if there are no arrays, or their numbers of rows differ.
    """
    counts = {each.shape[0] for each in arrays}
    if len(counts) != 1:
        raise InvalidError(
            f"the data have {sorted(counts)} rows, expected the same number of rows in each array"
        )
    return int(counts.pop())


@functools.lru_cache(maxsize=4)  # a pass, the next one, and those of a second stream
def permutation(samples: int, seed: int, number: int) -> np.ndarray[Any, Any]:
    """Returns the order of one pass.

    It sorts random words. NumPy guarantees that a bit generator returns the same words in all
    versions, but not that its shuffle makes the same order from them.
    """
    generator = np.random.Philox(key=np.array([seed % (1 << 64), number], np.uint64))
    return np.argsort(generator.random_raw(samples), kind="stable")
