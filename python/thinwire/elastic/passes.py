"""Batches of an elastic job for a loop: every sample once in a pass, even if ranks join or leave in
between.

Only steps of the optimizer move the position in the data. A batch whose step was void is divided
again, over the ranks that remain.

    for number in loader.passes(10):
        for inputs, labels in loader:
            ...
"""

from __future__ import annotations

import abc
from collections.abc import Iterator
from typing import Any, Protocol

from thinwire._core import InvalidError
from thinwire.elastic.cursor import CursorSource
from thinwire.elastic.deal import Deal, Place
from thinwire.elastic.stream import Stream


class Job(Protocol):
    """The part of a job that a loader uses."""

    @property
    def place(self) -> Place:
        """This rank's place."""

    def settle(self) -> None:
        """Ends the previous step: enters the next epoch if that is due, and rolls loaders back
        after a void step."""

    def compute(self, deal: Deal) -> None:
        """Records the part of a batch that comes next."""

    def keep(self) -> None:
        """Makes `resume`, or the next batch, undo the changes that the program makes until then."""

    def resume(self) -> None:
        """Undoes the program's changes since `keep`, if it was called; later changes remain."""

    def meet(self) -> bool:
        """Waits for all ranks at the end of the training; returns whether all have arrived."""


class Passes(CursorSource, abc.ABC):
    """Batches for `for batch in loader`, one pass at a time, from the job's current position. A
    framework's subclass loads them.

    A pass that another rank has begun continues in the middle.
    """

    def __init__(self, job: Job, stream: Stream) -> None:
        """Starts at the beginning of the stream."""
        super().__init__(stream)
        self._job = job

    def __len__(self) -> int:
        """Steps in a pass."""
        return self.stream.steps

    def __iter__(self) -> Iterator[Any]:
        """The batches that are left of this pass."""
        self._job.settle()
        number = self._cursor.number
        while self._cursor.number <= number:
            deal, batch = self._next()
            self._cursor.hand_out(deal)
            self._job.compute(deal)
            yield batch
            if self.position.number > number:
                return  # what a program does after the pass is done before anybody takes over its state
            self._job.settle()

    def passes(self, total: int) -> Iterator[int]:
        """Yields the numbers of the passes below `total`, beginning with the job's current one: a
        rank that joins in pass 3 begins with 3. After the last pass all ranks wait for each other,
        and the job is over."""
        while True:
            self._job.settle()
            number = self._cursor.number
            if number >= total:
                if self._job.meet():
                    return
                continue
            if self.position.begun:
                self._job.keep()  # what a program does at the beginning of a pass was done in it before
            else:
                self._job.resume()
            yield number
            if self._cursor.number == number:
                raise InvalidError(f"pass {number} was not iterated to its end")

    @abc.abstractmethod
    def _next(self) -> tuple[Deal, Any]:
        """Returns this rank's part of the next batch, loaded."""
