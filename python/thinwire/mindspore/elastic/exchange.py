"""The averager of an elastic job, called by operators of a graph while it runs.

A graph cannot be run again after one of its operators has failed. So in a void step operators
return normally, and the last one returns the averages and whether the optimizer may apply them.
"""

from __future__ import annotations

import enum
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import mindspore as ms
import numpy as np

from thinwire.elastic import exchange

from .. import memory
from ..parameters import bucket_bytes, describe


class Outcome(enum.Enum):
    """End of a step: applied by the optimizer, void, or refused for a gradient that is not finite."""

    APPLIED = enum.auto()
    VOID = enum.auto()
    NOT_FINITE = enum.auto()


class Exchange(exchange.Exchange):
    """Averages the gradients of an optimizer's parameters; `options` are a Synchronizer's."""

    def __init__(
        self,
        parameters: Sequence[ms.Parameter],
        options: Mapping[str, Any],
        wants_end: Callable[[], bool],
    ) -> None:
        """`wants_end` says whether this rank wants the epoch to end."""
        self.before_update: Callable[[], None] = lambda: None
        """Called in each step before parameters change."""
        options = {"bucket_bytes": bucket_bytes(parameters), **options}
        super().__init__(describe(parameters), options, wants_end)
        self._averages = [np.zeros_like(memory.view(each)) for each in reversed(parameters)]
        self._ended = threading.Event()
        self._outcome = Outcome.VOID

    def buckets(self) -> list[list[int]]:
        """Returns the parameters of each bucket. Parameters are numbered from 0, beginning with the
        optimizer's last one. Call it after an epoch has begun."""
        return [bucket for bucket in self.sync.buckets() if bucket != [len(self._averages)]]

    def prepare(self) -> None:
        """Begins a step, before its graph runs."""
        self._ended.clear()
        self.attempt(self.begin)

    def give(self, numbers: Sequence[int], gradients: Sequence[np.ndarray[Any, Any]]) -> None:
        """Takes the gradients of some parameters, from any thread."""

        def give() -> None:
            for number, gradient in zip(numbers, gradients):
                self.sync.ready(number, memory.address(gradient), gradient.size)

        self.attempt(give)

    def finish(self) -> tuple[np.ndarray[Any, Any], ...]:
        """Waits for all averages, and returns them with a number that is above zero if they may be
        applied."""
        self._outcome = Outcome.VOID
        averaged = []
        if self.attempt(lambda: averaged.append(self._finish())):
            self.complete()
            self._outcome = Outcome.APPLIED if averaged[0] else Outcome.NOT_FINITE
        self.before_update()
        self._ended.set()
        applies = np.array([self._outcome is Outcome.APPLIED], np.int32)
        return (*self._averages, applies)

    def outcome(self) -> Outcome:
        """Waits for the end of the step, and returns its outcome."""
        self._ended.wait()
        return self._outcome

    def _finish(self) -> bool:
        """Writes the averages; returns false if a gradient of some rank was not finite."""
        averaged = self.sync.finish()
        places = [
            (number, memory.address(each), each.size) for number, each in enumerate(self._averages)
        ]
        for place in (*places, self.flag):
            self.sync.write(*place)
        return averaged
