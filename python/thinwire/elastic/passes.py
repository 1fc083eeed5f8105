"""Batches of an elastic job for a loop: every sample once in a pass, even if ranks join or leave in
between.

The position in the data moves with steps of the optimizer alone. A batch whose step was void is
divided again over the ranks present then.

    for number in loader.passes(10):
        for inputs, labels in loader:
            ...
"""

from __future__ import annotations

import abc
from collections.abc import Iterator
from typing import Any, Protocol

from thinwire._core import InvalidError
from thinwire.elastic.cursor import Cursor
from thinwire.elastic.deal import Deal, Place
from thinwire.elastic.stream import Position, Stream


class Job(Protocol):
    """The part of a job that a loader uses."""

    @property
    def place(self) -> Place:
        """This rank's place."""

    def settle(self) -> None:
        """Ends the previous step: does what is due between steps, and rolls loaders back after a
        void step."""

    def compute(self, deal: Deal) -> None:
        """Says which part of a batch comes next."""

    def keep(self) -> None:
        """Undoes the changes that the program makes up to `resume`, or up to the next batch."""

    def resume(self) -> None:
        """Keeps the program's changes from here on."""

    def meet(self) -> bool:
        """Waits for all ranks at the end; returns whether all have arrived."""


class Passes(abc.ABC):
    """Batches for `for batch in loader`, one pass at a time, from the job's current position.
    Loading is left to a framework.

    A pass that another rank has begun continues in the middle.
    """

    def __init__(self, job: Job, stream: Stream) -> None:
        """Starts at the beginning of the stream."""
        self.stream = stream
        self._job = job
        self._cursor = Cursor(stream)

    @property
    def position(self) -> Position:
        """The position up to which optimizer steps have been made."""
        return self._cursor.position

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
        """Numbers of the passes up to `total`, from the job's current one: a rank that joins in
        pass 3 begins with 3. After the last one all ranks wait for each other, and the job is over."""
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

    def commit(self) -> None:
        """Moves the position past all batches handed out, after an optimizer step with them."""
        self._cursor.commit()

    def seek(self, position: Position | None = None) -> None:
        """Goes back to the last optimizer step, or to another position, for this rank's current place.

        # Errors

        InvalidError if no batch begins there; nothing is changed in that case.
        """
        self._cursor.seek(position)

    @abc.abstractmethod
    def _next(self) -> tuple[Deal, Any]:
        """This rank's part of the next batch, loaded."""
