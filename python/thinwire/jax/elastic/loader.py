"""Batches of an elastic job as arrays, and their parts in pieces of one shape.

The number of rows in a rank's part of a batch changes whenever a rank joins or leaves, and JAX
compiles a program for each shape. So parts are computed in pieces of equal size; the last piece is
padded with rows of weight 0.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from thinwire._core import InvalidError
from thinwire.arguments import shown
from thinwire.elastic.deal import Deal
from thinwire.elastic.passes import Job, Passes
from thinwire.elastic.stream import Stream
from thinwire.elastic.stream import rows_of as rows_of_arrays


class Loader(Passes):
    """Batches for `for inputs, labels in loader`, one pass at a time, from the job's current position.

    A pass that another rank has begun continues in the middle. Made by `Elastic.loader`.
    """

    def __init__(self, job: Job, data: Any, stream: Stream) -> None:
        """`data` is a pytree of arrays with a row for each sample."""
        super().__init__(job, stream)
        self._data = data

    def _next(self) -> tuple[Deal, Any]:
        deal = self._cursor.ask(self._job.place)
        samples = self.stream.samples_of(deal.batch.number, deal.computed)
        return deal, taken(self._data, np.array(samples))


def host(data: Any) -> Any:
    """Returns a pytree of arrays in host memory.

    # Errors

    InvalidError for leaves without rows.
    """

    def array_of(leaf: Any) -> Any:
        if not hasattr(leaf, "shape") or not hasattr(leaf, "dtype") or len(leaf.shape) == 0:
            raise InvalidError(f"the data have {shown(leaf)}, expected arrays with rows of samples")
        # A file in memory (numpy.memmap) stays one.
        return leaf if isinstance(leaf, np.ndarray) else np.asarray(leaf)

    return jax.tree_util.tree_map(array_of, data)


def rows_of(data: Any) -> int:
    """Returns the number of rows of a pytree of arrays.

    # Errors

    InvalidError if there are no arrays, or their numbers of rows differ.
    """
    return rows_of_arrays(jax.tree_util.tree_leaves(data))


def pieces(data: Any, rows: int) -> Iterator[tuple[Any, np.ndarray[Any, Any]]]:
    """Divides a part into pieces of `rows` rows, each with the weights of its rows. All weights
    together add up to 1.

    Rows that pad the last piece are copies of the last row, so that every function can compute with them.
    """
    total = rows_of(data)
    for start in range(0, total, rows):
        places = np.minimum(np.arange(start, start + rows), total - 1)
        weights = np.where(np.arange(start, start + rows) < total, 1 / total, 0).astype(np.float32)
        yield taken(data, places), weights


def taken(data: Any, places: np.ndarray[Any, Any]) -> Any:
    """Some rows of a pytree of arrays."""
    return jax.tree_util.tree_map(lambda array: array[places], data)
