"""Batches of an elastic job: every sample once in a pass, even if ranks join or leave in between.

Only `optimizer.step` moves the position in the data. A batch whose step was void is divided again,
over the ranks that remain. With gradient accumulation, all batches since the last step are
repeated.

Workers prefetch batches for the rank and world size that this process has when it requests a batch.
Each batch records the division for which it was loaded. When rank or world size change, the loader
drops batches of the earlier division as they arrive, and workers skip requests of that division
that they have not begun.
"""

from __future__ import annotations

import ctypes
import dataclasses
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, default_collate

from thinwire._core import InvalidError
from thinwire.elastic.deal import Deal
from thinwire.elastic.passes import Job, Passes
from thinwire.elastic.stream import Position, Stream

PR_SET_PDEATHSIG = 1
"""The option of Linux's prctl that sets the signal which a process gets when its parent dies."""

OURS = ("batch_size", "sampler", "batch_sampler")
"""Arguments of a DataLoader that an elastic loader sets itself, since the job divides batches."""


@dataclasses.dataclass(frozen=True)
class Request:
    """A request to a worker. It is stale if the loader has moved to another `turn` since."""

    turn: int
    deal: Deal
    samples: Sequence[int]


class Loader(Passes):
    """Batches for `for inputs, labels in loader`, one pass at a time, from the job's current position.

    A pass that another rank has begun continues in the middle. Made by `Elastic.loader`.
    """

    def __init__(
        self,
        job: Job,
        data: Dataset[Any],
        stream: Stream,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        **options: Any,
    ) -> None:
        """`options` are those of a DataLoader; `collate`, an older name of `collate_fn`, also works.

        # Errors

        InvalidError for a dataset that is not map-style, or an option that chooses samples.
        """
        refuse(data, options)
        super().__init__(job, stream)
        self._turn = torch.zeros((), dtype=torch.int64).share_memory_()
        collate = options.pop("collate", None) if collate_fn is None else collate_fn
        dealt = Dealt(data, collate or default_collate, self._turn)
        options["worker_init_fn"] = Orphan(options.get("worker_init_fn"))
        options["collate_fn"] = unchanged
        self._loader = DataLoader(dealt, batch_size=None, sampler=Requests(self), **options)
        self._arrivals: Iterator[tuple[int, Deal, Any]] | None = None

    def seek(self, position: Position | None = None) -> None:
        """Goes back to the last optimizer step, or to another position, for this rank's current place.

        # Errors

        InvalidError if no batch begins there; nothing is changed in that case.
        """
        super().seek(position)
        self._turn.fill_(self._cursor.turn)

    def request(self) -> Request:
        """The next request for a worker."""
        deal = self._cursor.ask(self._job.place)
        samples = self.stream.samples_of(deal.batch.number, deal.computed)
        return Request(self._cursor.turn, deal, samples)

    def _next(self) -> tuple[Deal, Any]:
        """The next batch that is not stale."""
        if self._arrivals is None:
            # A DataLoader draws a seed for its workers, which others drew at another time.
            with torch.random.fork_rng(devices=[]):
                self._arrivals = iter(self._loader)
        while True:
            turn, deal, batch = next(self._arrivals)
            if turn == self._cursor.turn:
                return deal, batch


class Requests:
    """The sampler of the DataLoader: endless requests, as far ahead as the DataLoader asks."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def __iter__(self) -> Iterator[Request]:
        """Yields requests without end, so workers begin the next pass while the training still uses
        this one."""
        while True:
            yield self._loader.request()


class Dealt(Dataset[Any]):
    """The data as workers read it, by request instead of index. `data` is the user's dataset."""

    def __init__(
        self, data: Dataset[Any], collate: Callable[[list[Any]], Any], turn: torch.Tensor
    ) -> None:
        self.data = data
        self._collate = collate
        self._turn = turn

    def __getitem__(self, request: Request) -> tuple[int, Deal, Any]:
        """Returns the batch of a request, or None in its place if the request is stale by now."""
        if request.turn != int(self._turn):
            return request.turn, request.deal, None
        fetch = getattr(self.data, "__getitems__", None)
        samples = fetch(request.samples) if fetch else [self.data[each] for each in request.samples]
        return request.turn, request.deal, self._collate(samples)


@dataclasses.dataclass(frozen=True)
class Orphan:
    """Initialisation of a worker: it makes the worker end together with its parent, keeps signals
    to the parent's process group from the worker, and calls the user's `first`.

    A forked worker has copies of the parent's connections. If the parent is killed, the other ranks
    cannot notice this while the worker lives, and by itself the worker would notice it only after
    seconds. When torchrun ends, it sends SIGTERM to the whole process group. A rank that then
    leaves the job still needs its workers.
    """

    first: Callable[[int], None] | None

    def __call__(self, worker: int) -> None:
        """Initialises worker number `worker`."""
        if sys.platform == "linux":
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            os.setpgid(0, 0)
        if self.first is not None:
            self.first(worker)


def unchanged(batch: Any) -> Any:
    """Returns a batch unchanged, because the process or thread that loads it also collates it."""
    return batch


def refuse(data: Any, options: dict[str, Any]) -> None:
    """Refuses data that is not map-style, and options that choose samples.

    # Errors

    InvalidError that names the type of the data, or the option.
    """
    if isinstance(data, IterableDataset) or not hasattr(data, "__getitem__"):
        raise InvalidError(
            f"a {type(data).__name__} has no samples that can be read by number, expected a "
            "map-style dataset "
            "(hint: one with __getitem__ and __len__)"
        )
    for name in OURS:
        if name in options:
            raise InvalidError(
                f"{name} is not an option here: the job divides batches among its ranks"
            )
    # Batches in the order of their arrival would not be in that of the job's steps.
    if not options.get("in_order", True):
        raise InvalidError("in_order is False, expected True: batches come in the order of the job")
