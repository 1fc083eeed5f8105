"""Batches of an elastic job for `Model.train`: every sample once in a pass, even if ranks join or leave.

`Model.train` cannot repeat a step, but it asks for a batch before each step. After a void step it gets
that step's samples again, divided among the ranks that remain. Batches that threads have prefetched
for the previous division of the data are dropped.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol

import mindspore as ms
import numpy as np

from thinwire._core import InvalidError
from thinwire.elastic.cursor import CursorSource
from thinwire.elastic.deal import Deal, Place
from thinwire.elastic.stream import Position, Stream

Batch = tuple[ms.Tensor, ...]


class Job(Protocol):
    """The part of a job that a dataset uses."""

    @property
    def place(self) -> Place:
        """This rank's place."""

    def settle(self) -> None:
        """Ends the previous step, and enters the next epoch if that is due."""

    def compute(self, deal: Deal) -> None:
        """Records the part of the batch that comes next."""

    def keep(self) -> None:
        """Makes `resume`, or the next batch, undo the changes that the program makes until then."""

    def resume(self) -> None:
        """Undoes the program's changes since `keep`, if it was called; later changes remain."""


class Dataset(CursorSource):
    """Batches for `Model.train` and `Model.fit`, from the job's current position. Made by
    `Elastic.dataset`.

    It has those methods of a `mindspore.dataset.Dataset` that a training calls. It is not a
    MindSpore pipeline: the source must do the work of a pipeline's operations.
    """

    def __init__(
        self,
        job: Job,
        source: Any,
        stream: Stream,
        collate: Callable[[Sequence[Any]], Any] | None = None,
        workers: int = 0,
    ) -> None:
        """`workers` threads prefetch batches; with 0, a batch is loaded when it is requested."""
        super().__init__(stream)
        self._job = job
        self._source = source
        self._collate = collate or collated
        self._last_pass: int | None = None
        self._workers = workers
        self._pool = ThreadPoolExecutor(workers, "thinwire-data") if workers else None
        self._loading: collections.deque[tuple[Deal, Future[Batch]]] = collections.deque()

    def seek(self, position: Position | None = None) -> None:
        """Goes back to the last optimizer step, or to another position, for this rank's current place.

        # Errors

        InvalidError if no batch begins there; nothing is changed in that case.
        """
        super().seek(position)
        for _, loading in self._loading:
            loading.cancel()
        self._loading.clear()

    def begin_pass(self, number: int) -> None:
        """Allows batches up to the end of a pass. The callback calls it before each pass."""
        self._last_pass = number
        self._job.settle()
        if self._cursor.number > number or self.position.begun:
            self._job.keep()  # what a program does around passes that are over, or have begun, is done
        else:
            self._job.resume()

    def get_dataset_size(self) -> int:
        """Steps in a pass."""
        return self._cursor.stream.steps

    def create_tuple_iterator(self, **_options: Any) -> Dataset:
        """Returns the dataset itself, whose iteration ends at the end of each pass."""
        return self

    def reset(self) -> None:
        """Does nothing: the next pass has a different order anyway."""

    def __iter__(self) -> Dataset:
        return self

    def __next__(self) -> Batch:
        """Returns the next batch of this pass, or the previous step's batch if that step was
        void."""
        if self._last_pass is None:
            raise InvalidError("the training has no elastic.callback() among its callbacks")
        if self.position.number <= self._last_pass:
            self._job.settle()
        if self._cursor.number > self._last_pass:
            raise StopIteration
        deal, batch = self._loaded()
        self._cursor.hand_out(deal)
        self._job.compute(deal)
        return batch

    def _loaded(self) -> tuple[Deal, Batch]:
        """Waits for the next batch, while threads load later ones."""
        if self._pool is None:
            deal = self._cursor.ask(self._job.place)
            return deal, self._load(deal)
        while len(self._loading) <= self._workers:
            deal = self._cursor.ask(self._job.place)
            self._loading.append((deal, self._pool.submit(self._load, deal)))
        deal, loading = self._loading.popleft()
        return deal, loading.result()

    def _load(self, deal: Deal) -> Batch:
        """Loads this rank's part of a batch."""
        samples = self._cursor.stream.samples_of(deal.batch.number, deal.computed)
        columns = self._collate([self._source[each] for each in samples])
        return tuple(ms.Tensor.from_numpy(np.ascontiguousarray(each)) for each in columns)


def collated(samples: Sequence[Any]) -> list[np.ndarray[Any, Any]]:
    """Returns the columns of samples. Each sample is a tuple with a value for each column, or a
    single value."""
    rows = [each if isinstance(each, (tuple, list)) else (each,) for each in samples]
    return [np.stack([np.asarray(value) for value in column]) for column in zip(*rows)]


def refuse_source(source: Any) -> None:
    """Refuses data whose samples cannot be read by number.

    # Errors

    InvalidError for a MindSpore pipeline, or an iterator.
    """
    if not hasattr(source, "__getitem__") or not hasattr(source, "__len__"):
        raise InvalidError(
            f"a {type(source).__name__} has no samples that can be read by number, expected a "
            "source with __getitem__ "
            "and __len__, as GeneratorDataset takes them"
        )
