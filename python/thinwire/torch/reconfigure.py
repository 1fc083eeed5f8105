"""The rendezvous of ranks that changes the members of a process group, by c10d's interface for
fault tolerance.

    work = torch.distributed._reconfigure(uuid, handles)  # on every rank of `handles`, with a fresh uuid

Each rank opens a PyTorch store on a free port, whose address is in the rank's handle. All ranks of
a list of handles meet, under the uuid, at the store of the first handle. So ranks of the earlier
group need not be alive. The caller decides which ranks are in the list, and distributes it to them.

Law: a rendezvous has the same outcome for all its ranks: success, or the first reason for failure.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import hashlib
import re
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import TypeVar

import torch.distributed as dist

from thinwire._core import InvalidError, PeerError
from thinwire.torch.group import Connection, connect, first_line
from thinwire.torch.pauses import Pauses

T = TypeVar("T")
FORM = re.compile(r"thinwire:([0-9a-f]{16})@(.+):(\d{1,5})")
COMPLETE = "complete"
GRACE_S = 3.0
"""Seconds by which a rendezvous may exceed its time limit if a store does not answer."""


class Door:
    """The store that this rank opens for others, and the handle with its address."""

    def __init__(self, host: str) -> None:
        """Opens the store on a free port; others reach this machine as `host`."""
        try:
            self.store = dist.TCPStore(host, 0, is_master=True, wait_for_workers=False)
        except RuntimeError as error:
            raise InvalidError(f"cannot open a store on {host}: {first_line(error)}") from error
        self.handle = f"thinwire:{secrets.token_hex(8)}@{host}:{self.store.port}"


@dataclasses.dataclass(frozen=True)
class Meeting:
    """One rendezvous: the handles of all its ranks in rank order, and its time limit."""

    uuid: int
    handles: tuple[str, ...]
    rank: int
    limit_s: float

    @property
    def world(self) -> int:
        """Number of ranks that meet."""
        return len(self.handles)

    def hold(self, door: Door, timeout_s: float) -> tuple[dist.Store, Connection]:
        """Meets the others, and returns a store for these ranks only, and connections between them.

        `timeout_s` is the timeout of the connections; it must not be less than the rendezvous's
        time limit.

        # Errors

        PeerError, shortly after the timeout at the latest, if a rank does not arrive or has
        different handles; InvalidError if there was an earlier meeting with this uuid.
        """
        deadline = time.monotonic() + self.limit_s
        try:
            return within(self.limit_s + GRACE_S, lambda: self._hold(door, timeout_s, deadline))
        except concurrent.futures.TimeoutError as error:
            raise PeerError(
                f"the store of rank 0 of {self.world} has stopped answering: {self.handles[0]}"
            ) from error

    def _hold(self, door: Door, timeout_s: float, deadline: float) -> tuple[dist.Store, Connection]:
        key, host, port = address(self.handles[0])
        store = door.store if self.rank == 0 else self._reach(host, port, deadline)
        shared = dist.PrefixStore(f"{key}/{self.uuid}", store)

        def look() -> None:
            if time.monotonic() > deadline:
                raise PeerError(f"{self.world} ranks did not connect within {self.limit_s:g} s")

        try:
            self._gather(shared, deadline)
            connection = connect(shared, self.rank, self.world, "group", timeout_s, watch=look)
        except dist.DistError as error:
            raise PeerError(
                f"the store of rank 0 of {self.world} is lost: {first_line(error)}"
            ) from error
        return shared, connection

    def _reach(self, host: str, port: int, deadline: float) -> dist.Store:
        """The store of the first rank.

        A PyTorch client that cannot connect prints its stack, so this function tries a plain
        connection first.
        """
        pauses = Pauses(deadline)
        while True:
            try:
                socket.create_connection((host, port), max(pauses.left_s, 0.001)).close()
                limit = timedelta(seconds=max(pauses.left_s, 0.001))
                return dist.TCPStore(host, port, wait_for_workers=False, timeout=limit)
            except (OSError, dist.DistError) as error:
                if not pauses.make():
                    raise PeerError(
                        f"no store of rank 0 of {self.world} at {host}:{port} within "
                        f"{self.limit_s:g} s: {first_line(error)} "
                        "(hint: has the process of the first handle ended?)"
                    ) from error

    def _gather(self, shared: dist.Store, deadline: float) -> None:
        """Returns when all ranks are here."""
        listed = hashlib.sha256("\n".join(self.handles).encode()).hexdigest()
        if shared.compare_set("handles", "", listed).decode() != listed:
            self._end(shared, f"rank {self.rank} has other handles for uuid {self.uuid}")
        shared.set(f"rank{self.rank}", "")
        arrived = shared.add("arrived", 1)
        if arrived > self.world:
            raise used(self.uuid)
        if arrived == self.world:
            return self._end(shared, COMPLETE)
        pauses = Pauses(deadline)
        while not shared.check(["outcome"]):
            if not pauses.make():
                return self._end(shared, self._missing(shared))
        self._end(shared, COMPLETE)

    def _end(self, shared: dist.Store, outcome: str) -> None:
        """Decides the outcome, unless another rank has decided it: PeerError if some ranks have not
        come."""
        decided = shared.compare_set("outcome", "", outcome).decode()
        if decided != COMPLETE:
            raise PeerError(decided)

    def _missing(self, shared: dist.Store) -> str:
        """The ranks that have not come."""
        ranks = range(self.world)
        missing = [str(rank) for rank in ranks if not shared.check([f"rank{rank}"])]
        names = f"{'ranks' if len(missing) > 1 else 'rank'} {', '.join(missing)} of {self.world}"
        return (
            f"the meeting of uuid {self.uuid} timed out after {self.limit_s:g} s: {names} did not come "
            "(hint: every rank of the handles gives the same uuid)"
        )


def ordered(handles: Iterable[str]) -> tuple[str, ...]:
    """Returns the handles in rank order: the order of a list or, for a set, an order that is the
    same on all ranks.

    # Errors

    InvalidError if there is no handle, if a handle appears twice, or if an entry is not a handle.
    """
    given = tuple(sorted(handles)) if isinstance(handles, (set, frozenset)) else tuple(handles)
    if not given:
        raise InvalidError("no handles, expected one of every rank")
    for place, handle in enumerate(given):
        address(handle)
        if (first := given.index(handle)) != place:
            raise InvalidError(f"ranks {first} and {place} have the same handle, {handle}")
    return given


def address(handle: str) -> tuple[str, str, int]:
    """Returns the name of a rank, and the host and port of its store."""
    match = FORM.fullmatch(handle)
    if match is None:
        raise InvalidError(
            f"'{handle}' is not a handle (hint: torch.distributed._get_reconfigure_handle makes them)"
        )
    return match[1], match[2], int(match[3])


def used(uuid: int) -> InvalidError:
    """Returns the error for a uuid that was used before."""
    return InvalidError(f"uuid {uuid} was already used, expected a fresh one for every meeting")


def within(limit_s: float, task: Callable[[], T]) -> T:
    """Runs `task` in a thread and returns its result. Without a time limit, a store whose process
    is stopped could block the caller forever.

    # Errors

    The errors of `task`, and TimeoutError of concurrent.futures.
    """
    outcome: concurrent.futures.Future[T] = concurrent.futures.Future()

    def run() -> None:
        try:
            outcome.set_result(task())
        except BaseException as error:
            outcome.set_exception(error)

    # A daemon: the program may end although the store never answers.
    threading.Thread(target=run, name="thinwire-reconfigure", daemon=True).start()
    return outcome.result(limit_s)
