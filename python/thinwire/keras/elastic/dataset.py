"""Batches of an elastic job for `Model.fit`: every sample once in a pass, even if ranks join or leave.

`fit` cannot repeat a step, but it asks for a batch before each step. After a void step it gets that
step's samples again, divided among the ranks that remain. `fit` may already have fetched batches that were
divided among the previous ranks. These are stale: a step with one changes nothing and is not counted.
"""

from __future__ import annotations

import collections
import operator
from collections.abc import Iterator
from typing import Any, Protocol

import keras
import numpy as np

from thinwire._core import InvalidError
from thinwire.arguments import shown
from thinwire.elastic.cursor import CursorSource
from thinwire.elastic.deal import Deal, Place
from thinwire.elastic.stream import Stream, rows_of

try:
    from keras.src.trainers.data_adapters.data_adapter import DataAdapter
except ImportError:
    DataAdapter = object

HAS_ADAPTERS = DataAdapter is not object
"""Whether this version of Keras takes a data adapter as the data of `fit`."""


class Job(Protocol):
    """The part of a job that a dataset uses."""

    @property
    def place(self) -> Place:
        """This rank's place."""

    def count_interrupted(self) -> None:
        """Counts a step that was applied by a `fit` that was interrupted before it could count it."""


class Dataset(CursorSource, DataAdapter):
    """Batches for `Model.fit`, from the job's current position. Made by `Elastic.dataset`."""

    def __init__(self, job: Job, data: tuple[Any, ...], stream: Stream) -> None:
        """`data` is a tuple of inputs, labels and weights, as `fit` takes them: arrays, or trees of
        arrays, with a row for each sample."""
        super().__init__(stream)
        self._job = job
        self._data = data
        self._fetched: collections.deque[tuple[int, Deal]] = collections.deque()

    def take(self) -> Deal | None:
        """Returns the part of a batch that the current step computes; None if the batch is stale, as it
        was requested before the last `seek`.

        # Errors

        InvalidError if `fit` has other data.
        """
        if not self._fetched:
            raise InvalidError(
                "fit has other data than the job's, expected elastic.dataset(...), and one step for "
                "each of its batches"
            )
        turn, deal = self._fetched.popleft()
        if turn != self._cursor.turn:
            return None
        self._cursor.hand_out(deal)
        return deal

    def get_numpy_iterator(self) -> Iterator[Any]:
        """The batches that are left of the current pass."""
        # Keras fetches a batch to build a model, and drops it.
        self._fetched.clear()
        self._job.count_interrupted()
        self.seek()
        return self._batches(self.position.number)

    get_jax_iterator = get_numpy_iterator

    def get_torch_dataloader(self) -> Iterator[Any]:
        """The batches that are left of the current pass, as PyTorch's tensors."""
        import torch

        for batch in self.get_numpy_iterator():
            yield keras.tree.map_structure(torch.from_numpy, batch)

    def get_tf_dataset(self) -> Any:
        """The batches of a pass, which begins with each iteration."""
        import tensorflow as tf

        def spec(array: Any) -> Any:
            return tf.TensorSpec([None, *array.shape[1:]], array.dtype)

        signature = keras.tree.map_structure(spec, self._data)
        dataset = tf.data.Dataset.from_generator(
            self.get_numpy_iterator, output_signature=signature
        )
        options = tf.data.Options()
        options.experimental_optimization.inject_prefetch = False
        return dataset.with_options(options)

    @property
    def num_batches(self) -> None:
        """Unknown, because steps are void when ranks are lost."""
        return None

    @property
    def batch_size(self) -> int:
        """Samples of a step, over all ranks."""
        return self.stream.batch

    @property
    def has_partial_batch(self) -> bool:
        """Whether the last batch of a pass is smaller."""
        return self.partial_batch_size is not None

    @property
    def partial_batch_size(self) -> int | None:
        """Samples of a pass's last batch if it is smaller than the others."""
        rest = 0 if self.stream.drop_last else self.stream.samples % self.stream.batch
        return rest or None

    def _batches(self, number: int) -> Iterator[Any]:
        """Loads batches until all steps of a pass are made."""
        while True:
            turn, deal = self._cursor.turn, self._cursor.ask(self._job.place)
            if deal.batch.number > number:
                return
            self._fetched.append((turn, deal))
            rows = np.array(self.stream.samples_of(deal.batch.number, deal.computed))
            yield keras.tree.map_structure(operator.itemgetter(rows), self._data)


def arrays_of(data: Any) -> tuple[tuple[Any, ...], int]:
    """Returns inputs, labels and weights as arrays, and their number of rows.

    # Errors

    InvalidError for data that are no arrays with the same number of rows.
    """

    def array_of(leaf: Any) -> Any:
        if np.ndim(leaf) == 0 or isinstance(leaf, (str, bytes)) or not hasattr(leaf, "shape"):
            raise InvalidError(
                f"the data contain {shown(leaf)}, expected arrays with rows of samples"
            )
        # A numpy.memmap is kept, so rows are read from its file when a batch needs them.
        return leaf if isinstance(leaf, np.ndarray) else np.asarray(leaf)

    parts = data if isinstance(data, tuple) else (data,)
    if not 1 <= len(parts) <= 3:
        raise InvalidError(
            f"the data are a tuple of {len(parts)}, expected (inputs,), (inputs, labels) or "
            "(inputs, labels, weights)"
        )
    # TensorFlow takes a list for a tensor.
    arrays = keras.tree.map_structure(array_of, keras.tree.lists_to_tuples(parts))
    return arrays, rows_of(keras.tree.flatten(arrays))
