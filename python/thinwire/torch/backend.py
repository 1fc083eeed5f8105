"""The c10d backend: `torch.distributed.init_process_group("thinwire")`.

    import thinwire.torch
    torch.distributed.init_process_group("thinwire")

Code written for gloo or NCCL runs on it: DDP, FSDP2, DTensor, distributed checkpoints. Every
process group, including those of `new_group`, has separate connections, and its ranks find each
other through c10d's store. Collectives of one group run in the order in which they are called;
messages run concurrently with them. All exchanges are lossless. For codecs, use DDP's hook or
`thinwire.torch.fsdp`.

A group can continue with other ranks by `reconfigure`, a method of c10d's interface for fault
tolerance.

One group serves CPU and CUDA tensors, so it shares a process group with no other backend: in
"cpu:thinwire,cuda:nccl" it serves both.
"""

from __future__ import annotations

import functools
import weakref
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

from thinwire._core import InvalidError
from thinwire.arguments import shown
from thinwire.torch import barrier
from thinwire.torch.calls import Place
from thinwire.torch.collectives import Collectives
from thinwire.torch.group import Connection, connect, master, own_address
from thinwire.torch.messages import Messages
from thinwire.torch.reconfigure import Door, Meeting, ordered, used
from thinwire.torch.work import Work, done, seconds

NAME = "thinwire"
DEVICES = ["cpu", "cuda"]
TIMEOUT_S_MIN, TIMEOUT_S_MAX = 0.1, 86_400.0
"""Limits on a timeout of the core, in seconds."""


class Named(c10d.Backend):
    """The object that c10d keeps per device: the group's name, its capabilities, and a reference to
    the group.

    A backend in Python could also run the collectives. But c10d would wrap its `Work` objects in
    such a way that `is_completed` is never true. For methods that are not overridden here, c10d
    recurses forever.
    """

    supports_splitting = supports_coalescing = supports_shrinking = False
    supports_window = _supports_time_estimate = False
    supports_reconfigure = True

    def __init__(self, group: ProcessGroup) -> None:
        """The backend of `group`, which owns it."""
        super().__init__(*group.place)
        self.group = weakref.proxy(group)

    @functools.cached_property
    def options(self) -> c10d.Backend.Options:
        """The backend's options, which contain only its name."""
        return c10d.Backend.Options(NAME)

    def getBackendName(self) -> str:
        """The name under which the backend is registered."""
        return NAME

    def rank(self) -> int:
        """The group's rank; all methods below also forward to the group."""
        found: int = self.group.rank()
        return found

    def size(self) -> int:
        """Number of ranks."""
        found: int = self.group.size()
        return found

    def send(self, tensors: Any, to: int, tag: int = 0) -> Work:
        """Sends a tensor to a rank."""
        found: Work = self.group.send(tensors, to, tag)
        return found

    def recv(self, tensors: Any, source: int, tag: int = 0) -> Work:
        """Receives from a rank into a tensor."""
        found: Work = self.group.recv(tensors, source, tag)
        return found

    def set_timeout(self, timeout: timedelta) -> None:
        """The timeout of later operations."""
        self.group.set_timeout(timeout)

    def abort(self) -> None:
        """Ends the group until it is reconfigured."""
        self.group.abort()

    def get_reconfigure_handle(self) -> str:
        """The address at which the ranks of a list meet if this rank is the first in the list."""
        found: str = self.group.get_reconfigure_handle()
        return found

    def reconfigure(self, opts: c10d.ReconfigureOptions) -> Work:
        """Continues among other ranks."""
        found: Work = self.group.reconfigure(opts)
        return found


class ProcessGroup(Collectives, Messages):
    """The ranks of a c10d process group over Thinwire; c10d calls it, users call `torch.distributed`."""

    supports_reconfigure = True

    def __init__(
        self, store: Any, place: Place, connection: Connection | None, timeout_s: float
    ) -> None:
        """The ranks of `connection`, or none until `reconfigure`; `timeout_s` is the timeout of
        operations."""
        super().__init__(store, place, connection, timeout_s)
        self.named = Named(self)
        for device in DEVICES:
            self._register_backend(torch.device(device), self.BackendType.CUSTOM, self.named)
        self._set_default_backend(self.BackendType.CUSTOM)
        self.store, self.barriers = store, 0
        self.door: Door | None = None
        self.uuids: set[int] = set()

    def get_reconfigure_handle(self) -> str:
        """The address at which the ranks of a list meet if this rank is the first in the list; it does
        not change while the group exists."""
        if self.door is None:
            self.door = Door(own_address(*master(self.store)))
        return self.door.handle

    def reconfigure(self, opts: c10d.ReconfigureOptions) -> Work:
        """Continues among the ranks of the handles, in their order; returns when all are connected.

        Earlier operations that are still under way fail. After an error the group has no
        connections, but its handle remains valid.

        # Errors

        InvalidError, with nothing changed, if `handles` lacks this rank's handle or `uuid` was used
        before; PeerError within the timeout if a rank does not arrive.
        """
        handles, mine = ordered(opts.handles), self.get_reconfigure_handle()
        if mine not in handles:
            raise InvalidError(f"this rank's handle, {mine}, is not among the {len(handles)} given")
        if opts.uuid in self.uuids:
            raise used(opts.uuid)
        self.uuids.add(opts.uuid)
        limit_s = allowed(seconds(opts.timeout) or self.timeout_s)
        connected_s = max(allowed(self.timeout_s), limit_s)
        meeting = Meeting(opts.uuid, handles, handles.index(mine), limit_s)
        self.shutdown()
        self.take(self.place, None, self.timeout_s)
        assert self.door is not None  # its handle was among those given
        self.store, connection = meeting.hold(self.door, connected_s)
        self.barriers = 0
        self.take((meeting.rank, meeting.world), connection, connected_s)
        return done("reconfigure", self)

    def monitored_barrier(self, timeout: Any = None, wait_all_ranks: bool = False) -> None:
        """Runs a barrier whose error names the ranks that did not arrive. It goes through the
        store, independently of the collectives."""
        limit_s = self.timeout_s if timeout is None else timeout.total_seconds()
        self.barriers += 1
        shared = dist.PrefixStore(f"monitored/{self.barriers}", self.store)
        barrier.monitored(shared, self.rank(), self.size(), limit_s, wait_all_ranks)

    def getBackendName(self) -> str:
        """The name under which the backend is registered."""
        return NAME

    def set_timeout(self, timeout: timedelta) -> None:
        """The timeout of later operations."""
        self.timeout_s = seconds(timeout)

    _set_default_timeout = set_timeout

    def _set_sequence_number_for_group(self) -> None:
        self.calls = 0

    def _get_sequence_number_for_group(self) -> int:
        return self.calls

    def shutdown(self) -> None:
        """Tells the other ranks that this rank leaves; c10d calls it from `destroy_process_group`."""
        if self.connection is not None:
            self.core.close()

    def abort(self, reason: str = "the process group was aborted") -> None:
        """Ends the group, until it is reconfigured: the other ranks fail with `reason`."""
        if self.connection is not None:
            self.core.abort(reason)

    def __repr__(self) -> str:
        """Its rank and size."""
        return f"<thinwire process group, rank {self.rank()} of {self.size()}>"


def create(opts: Any, backend_options: Any = None) -> ProcessGroup:
    """The function that c10d calls for a new process group, on each of its ranks.

    # Errors

    InvalidError if PyTorch does not support backends in Python, and for any `pg_options`.
    """
    if backend_options is not None:
        raise InvalidError(
            f"pg_options is {shown(backend_options)}, expected None: the backend thinwire has no "
            "options (hint: timeout= is an argument of init_process_group itself)"
        )
    if not hasattr(c10d.Backend, "Options"):
        raise InvalidError(
            f"PyTorch {torch.__version__} cannot use the backend thinwire, expected 2.15 or later "
            "(hint: use thinwire.torch.hook over gloo)"
        )
    timeout_s = allowed(seconds(opts.timeout))
    place = opts.group_rank, opts.group_size
    connection = None
    if not opts.enable_reconfigure:
        watch = functools.partial(expect, [*opts.global_ranks_in_group])
        connection = connect(opts.store, *place, opts.group_id, timeout_s, watch=watch)
    return ProcessGroup(opts.store, place, connection, timeout_s)


def expect(ranks: list[int]) -> None:
    """Raises PeerError if one of these ranks, which are about to meet, has left the default group."""
    world = dist.group.WORLD if dist.is_initialized() else None
    connection = getattr(world, "connection", None)
    if connection is not None:
        connection.group.expect(ranks)


def allowed(timeout_s: float) -> float:
    """Returns the nearest timeout that the core accepts."""
    return min(max(timeout_s, TIMEOUT_S_MIN), TIMEOUT_S_MAX)


def register() -> None:
    """Registers the name "thinwire" with c10d; repeated calls are harmless."""
    if NAME.upper() not in dist.Backend._plugins:
        dist.Backend.register_backend(NAME, create, extended_api=True, devices=DEVICES)


register()
