"""The process group of one rank over which DDP runs in an elastic job.

DDP keeps its group as long as it exists, so the group must not have other ranks, which may leave.
The hook sends the gradients. For one other purpose DDP uses its group: to learn which parameters
any rank has used (`find_unused_parameters`). This request is passed on to the job; otherwise, ranks
would update different parameters.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from thinwire._core import Group
from thinwire.torch.backend import ProcessGroup
from thinwire.torch.group import TIMEOUT_S, Connection

NOBODY = "127.0.0.1:0"


class Single(ProcessGroup):
    """A group of one rank, for CPU and CUDA tensors; it is not registered with c10d, whose default
    group remains the user's."""

    def __init__(self, add_used: Callable[[torch.Tensor], None]) -> None:
        """`add_used` adds up over all ranks of the job how often each parameter was used, in place."""
        # Its own address, which nobody asks: that of the job may be one of etcd.
        connection = Connection(Group.join(rank=0, world=1, coordinator=NOBODY))
        super().__init__(dist.HashStore(), (0, 1), connection, TIMEOUT_S)
        self._add_used = add_used
        self._work: Used | None = None

    def allreduce(  # type: ignore[override]
        self, tensors: Any, opts: Any = None, timeout: Any = None
    ) -> dist.Work:
        """Sums which parameters were used; DDP calls it in a step with `find_unused_parameters`."""
        (used,) = tensors
        self._work = Used(used, self._add_used)
        return self._work


class Used(dist.Work):
    """The sum of used parameters, computed when DDP waits for it at the end of backward: by then
    all ranks have exchanged their gradients."""

    def __init__(self, used: torch.Tensor, add_used: Callable[[torch.Tensor], None]) -> None:
        super().__init__()
        self._used = used
        self._add_used = add_used

    def wait(self, timeout: Any = None) -> bool:
        """Computes the sum."""
        self._add_used(self._used)
        return True
