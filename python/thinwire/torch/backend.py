"""The c10d backend: `torch.distributed.init_process_group("thinwire")`.

    import thinwire.torch
    torch.distributed.init_process_group("thinwire")

Code that was written for gloo or NCCL runs on it: DDP, FSDP2, DTensor, distributed checkpoints. Every
process group, `new_group` included, has connections of its own; its ranks find each other through the
store that c10d gives. Collectives of one group run in the order in which they are called, messages
beside them. Exchanges are lossless; codecs come with DDP's hook and with `thinwire.torch.fsdp`.

One group serves CPU and CUDA tensors, so it shares a process group with no other backend: in
"cpu:thinwire,cuda:nccl" it serves both.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

from thinwire.torch import barrier
from thinwire.torch.collectives import Collectives
from thinwire.torch.group import Connection, connect
from thinwire.torch.messages import Messages
from thinwire.torch.work import seconds

NAME = "thinwire"
DEVICES = ["cpu", "cuda"]
TIMEOUT_S_MIN, TIMEOUT_S_MAX = 0.1, 86_400.0
"""What the core takes."""


class Named(c10d.Backend):
    """What c10d keeps per device: the group's name, and that it can do nothing special.

    A backend in Python could do the collectives, too, but c10d wraps the works of one so that
    `is_completed` is never true. What is not overridden here, c10d asks itself without end.
    """

    supports_splitting = supports_coalescing = supports_shrinking = False
    supports_reconfigure = supports_window = _supports_time_estimate = False
    options = c10d.Backend.Options(NAME)

    def getBackendName(self) -> str:
        """The name with which it is registered."""
        return NAME


class ProcessGroup(Collectives, Messages):
    """The ranks of a c10d process group over Thinwire; c10d calls it, users call `torch.distributed`."""

    def __init__(self, store: Any, rank: int, connection: Connection, timeout_s: float) -> None:
        """The ranks of `connection`; operations fail after `timeout_s` unless they say otherwise."""
        super().__init__(store, rank, connection, timeout_s)
        named = Named(rank, connection.group.world)
        for device in DEVICES:
            self._register_backend(torch.device(device), self.BackendType.CUSTOM, named)
        self._set_default_backend(self.BackendType.CUSTOM)
        self.store, self.barriers = store, 0

    def monitored_barrier(self, timeout: Any = None, wait_all_ranks: bool = False) -> None:
        """A barrier that says which ranks did not come; through the store, beside the collectives."""
        limit_s = self.timeout_s if timeout is None else timeout.total_seconds()
        self.barriers += 1
        shared = dist.PrefixStore(f"monitored/{self.barriers}", self.store)
        barrier.monitored(shared, self.rank(), self.size(), limit_s, wait_all_ranks)

    def getBackendName(self) -> str:
        """The name with which it is registered."""
        return NAME

    def set_timeout(self, timeout: timedelta) -> None:
        """How long operations from now on may take."""
        self.timeout_s = seconds(timeout)

    _set_default_timeout = set_timeout

    def _set_sequence_number_for_group(self) -> None:
        self.calls = 0

    def _get_sequence_number_for_group(self) -> int:
        return self.calls

    def shutdown(self) -> None:
        """Says goodbye to the other ranks; c10d calls it from `destroy_process_group`."""
        self.core.close()

    def abort(self, reason: str = "the process group was aborted") -> None:
        """Ends the group: the other ranks fail with `reason`."""
        self.core.abort(reason)

    def __repr__(self) -> str:
        """Its rank and size."""
        return f"<thinwire process group, rank {self.rank()} of {self.size()}>"


def create(opts: Any, _backend_options: Any = None) -> ProcessGroup:
    """What c10d calls for a new process group, on each of its ranks."""
    timeout_s = min(max(seconds(opts.timeout), TIMEOUT_S_MIN), TIMEOUT_S_MAX)
    connection = connect(opts.store, opts.group_rank, opts.group_size, opts.group_id, timeout_s)
    return ProcessGroup(opts.store, opts.group_rank, connection, timeout_s)


def register() -> None:
    """Makes the name "thinwire" known to c10d; again is harmless."""
    if NAME.upper() not in dist.Backend._plugins:
        dist.Backend.register_backend(NAME, create, extended_api=True, devices=DEVICES)


register()
