"""Steps of a worker, each of which pushes the gradients of all its tables at once."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from thinwire.server.job import Gradient, ParameterServer, Table
from thinwire.server.table import ServedTable

TELL_EVERY_S = 1.0
"""Seconds between the figures that `thinwire top` shows."""


class Stepper:
    """Tables whose gradients a worker pushes in every step. Creating a stepper joins the job."""

    def __init__(
        self,
        server: ParameterServer,
        embeddings: Mapping[str, ServedTable],
        others: Sequence[Table],
        facts: list[tuple[str, str]],
        weight: float | None,
    ) -> None:
        """Joins the job with the tables of `embeddings`, by name, followed by `others`. `weight` is the
        factor of this worker's gradients, by default 1 / the number of workers that push.

        # Errors

        InvalidError if the process belongs to no job, or its tables or facts differ from the job's.
        """
        tables = [each.table(name) for name, each in embeddings.items()]
        server.join([*tables, *others], [*facts, ("mode", "server")])
        for number, (name, each) in enumerate(embeddings.items()):
            each.attach(server, name, number)
        self.server, self._weight = server, weight
        self._embeddings = list(embeddings.values())
        self._told = (0, time.monotonic())
        self.steps = 0
        """Number of steps that this worker has made."""

    @property
    def weight(self) -> float:
        """Factor of this worker's gradients in the next step."""
        return 1 / self.server.pushing if self._weight is None else self._weight

    def step(self, others: Sequence[Gradient] = ()) -> None:
        """Begins a push of all gradients since the last step and of `others`."""
        weight = self.weight
        owed = [gradient for each in self._embeddings for gradient in each.owed(weight)]
        self.server.push([*owed, *others])
        self.steps += 1
        self._tell()

    def _tell(self) -> None:
        """Reports the figures of the last steps to the coordinator, if it is time."""
        (steps, since), now_s = self._told, time.monotonic()
        if now_s - since > TELL_EVERY_S:
            self._told = (self.steps, now_s)
            self.server.tell(self.steps, (now_s - since) / (self.steps - steps))

    def forget(self) -> None:
        """Drops the gradients since the last step."""
        for each in self._embeddings:
            each.forget()
