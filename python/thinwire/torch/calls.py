"""The start of a process group's operations; each becomes a `Work` that c10d waits for."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch._C import _distributed_c10d as c10d

from thinwire._core import Group, InvalidError
from thinwire.torch.arguments import listed
from thinwire.torch.group import Connection
from thinwire.torch.mailbox import Mailbox
from thinwire.torch.staging import Staging
from thinwire.torch.work import Callbacks, Queue, Together, Work, seconds

Begin = Callable[..., None]
Place = tuple[int, int]
"""A rank and the number of ranks."""


class Calls(c10d.ProcessGroup):
    """A process group that can begin operations; its subclasses define which."""

    def __init__(self, store: Any, place: Place, connection: Connection | None, timeout_s: float):
        """`place` is the rank and the number of ranks. Operations that have no timeout of their own
        fail after `timeout_s`.

        Without a connection, operations are refused until `take`.
        """
        try:
            super().__init__(store, *place)
        except TypeError as error:
            # Older releases make such an object only in C++.
            raise InvalidError(
                f"PyTorch {torch.__version__} cannot make a process group with a store in Python, "
                'expected 2.15 or later (hint: backend="gloo" with thinwire.torch.hook works with '
                "earlier versions)"
            ) from error
        self.timeout_s, self.callbacks = timeout_s, Callbacks()
        self.take(place, connection, timeout_s)

    def take(self, place: Place, connection: Connection | None, connected_s: float) -> None:
        """Continues with `connection`, whose own timeout is `connected_s`; drops the state of the
        previous connection."""
        self.place, self.connection, self.connected_s = place, connection, connected_s
        self.queue, self.mailbox = Queue(), Mailbox()
        self.coalesced: list[Work] | None = None
        self.calls = 0

    @property
    def core(self) -> Group:
        """The connection to the ranks. An operation keeps the connection with which it was called,
        even if it begins later.

        # Errors

        InvalidError while there is no connection.
        """
        if self.connection is None:
            raise InvalidError(
                "the process group has no connections (hint: torch.distributed._reconfigure makes "
                "them)"
            )
        return self.connection.group

    def getRank(self) -> int:
        """This process's index; c10d's own `rank` would stay the initial one."""
        return self.place[0]

    def getSize(self) -> int:
        """Number of ranks."""
        return self.place[1]

    rank, size = getRank, getSize

    def run(
        self, name: str, begin: Begin, stage: Staging, result: Any, opts: Any, single: bool = False
    ) -> Work:
        """Begins a collective once the earlier ones are done.

        A collective that is a `single` call of the core, without copies, is passed to the core,
        which also keeps the order. All others run in a thread, or in the caller's thread if it
        waits anyway.
        """
        limit_s = seconds(opts.timeout) or self.timeout_s
        work = Work(name, list(result), stage, limit_s, self)
        stage.depart()
        self.calls += 1
        if self.coalesced is not None:
            self.coalesced.append(work)
        waits = not getattr(opts, "asyncOp", True) and limit_s >= self.connected_s
        start = functools.partial(begin, done=work.finish) if single else None
        if waits or start is None or stage.copied or not self.queue.begin(start):
            self.queue.submit(functools.partial(perform, begin, work), here=waits)
        return work

    def post(self, name: str, message: Begin, stage: Staging, tensors: Any, peer: int) -> Work:
        """Begins a message, concurrently with the collectives."""
        work = Work(name, listed(tensors), stage, self.timeout_s, self, peer)
        stage.depart()
        stage.arrive()
        if self.coalesced is not None:
            self.coalesced.append(work)
        message(done=work.finish)
        return work

    def start_coalescing(self, _device: Any = None) -> None:
        """Collects the `Work`s of all calls from here to `end_coalescing`."""
        self.coalesced = []

    def end_coalescing(self, _device: Any = None) -> Work:
        """Returns a single `Work` for all `Work`s since `start_coalescing`."""
        works, self.coalesced = self.coalesced or [], None
        return Together(works, self)

    _start_coalescing = start_coalescing  # type: ignore[assignment]
    _end_coalescing = end_coalescing  # type: ignore[assignment]


def perform(begin: Begin, work: Work) -> None:
    """Runs a collective and finishes its work."""
    try:
        work.staging.arrive()
        begin()
    except BaseException as error:
        work.finish(error)
    else:
        work.finish()
