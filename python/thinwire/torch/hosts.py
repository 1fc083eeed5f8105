"""The hosts of a training: the ranks that have a fast path to each other, and a process group of theirs.

Under `within=` the ranks of a host sum gradients by that process group, each a part of them. A rank then
exchanges its part with its peers, the ranks that have the same place on the other hosts.

Two ranks are on one host if the kernel was booted once for both (its boot id), they share a network
namespace, and torchrun has started them on one node (GROUP_RANK, where it is set). So containers and pods
with a network of their own count as hosts; where they have a fast path to each other, `within` is a process
group.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
import socket
import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from thinwire._core import Group, InvalidError, PeerError
from thinwire.agreement import together
from thinwire.arguments import shown
from thinwire.torch import exchange
from thinwire.torch import group as groups

HOST = "host"
LOOK_S = 0.5
"""The time that a rank waits for others of its host before it looks for ranks that are lost, in seconds."""
POLL_S = 2e-4
"""The time between two looks at a collective that is under way, in seconds."""
LOSS_S = 5.0
"""The time within which connections to a lost rank tell that it is lost, in seconds."""


@dataclasses.dataclass(frozen=True)
class Host:
    """The host of this rank; ranks are numbered as in `connection`, which has all of the training."""

    connection: groups.Connection
    ranks: list[int]
    """The ranks of this host. A rank's place among them is the number of its part."""
    peers: list[int]
    """The ranks with this rank's place, one of each host."""
    process_group: dist.ProcessGroup
    """The ranks of this host, for nobody else's collectives."""

    @property
    def group(self) -> Group:
        """All ranks."""
        return self.connection.group

    @property
    def place(self) -> int:
        """This rank's place on its host."""
        return self.ranks.index(self.group.rank)

    def wait(self, work: Any) -> None:
        """Waits for a collective of the host on tensors in host memory.

        # Errors

        PeerError if any rank of the training is lost or has ended the group meanwhile.
        """
        while not self._completed(work, LOOK_S):
            try:
                self.look()
            except PeerError:
                # A rank that has done its last step leaves; what it has sent may not be read here yet.
                if not self._completed(work, 2 * LOOK_S):
                    raise
        try:
            work.wait()
        except RuntimeError as error:
            raise self.loss(error) from error

    def _completed(self, work: Any, within_s: float) -> bool:
        """Whether a collective is over within some seconds."""
        deadline = time.monotonic() + within_s
        # A callback of its future would be called by a thread of gloo's, also while Python ends.
        while not work.is_completed():
            if time.monotonic() > deadline:
                return False
            time.sleep(POLL_S)
        return True

    def look(self) -> None:
        """Raises PeerError if a rank of the training is lost or has ended the group."""
        self.group.expect(list(range(self.group.world)))

    def loss(self, error: RuntimeError) -> Exception:
        """What to raise where a collective of the host has failed: the loss of a rank, once it is known."""
        deadline = time.monotonic() + LOSS_S
        while time.monotonic() < deadline:
            try:
                self.look()
            except PeerError as lost:
                return lost
            time.sleep(LOOK_S / 10)
        return PeerError(f"the ranks of this host cannot exchange: {groups.first_line(error)}")


def part_of(host: Host) -> torch.Tensor:
    """Which part of the gradients a rank has, and of how many, for its state."""
    return torch.tensor([float(host.place), float(len(host.ranks))])


def check(within: Any, group: Any = None, algorithm: Any = None) -> None:
    """Refuses a `within` that is neither None, "host" nor a process group of this rank's.

    # Errors

    InvalidError, which says what was given; and for a `group` of Thinwire's own, beside which hosts have no
    process groups, or an `algorithm` that sums within units itself.
    """
    if within is None:
        return
    is_group = dist.is_available() and isinstance(within, dist.ProcessGroup)
    if dist.is_available() and within == dist.GroupMember.NON_GROUP_MEMBER:
        raise InvalidError("this rank is not in the process group within, expected its host's")
    if within != HOST and not is_group and not isinstance(within, groups.Lost):
        raise InvalidError(
            f'within is {shown(within)}, expected None, "{HOST}" or the process group of this host\'s ranks'
        )
    if isinstance(algorithm, str) and algorithm.startswith("hierarchical"):
        raise InvalidError(
            f"algorithm {shown(algorithm)} with within, expected one between hosts (hint: leave one of "
            "them out: both sum on a host first)"
        )
    if group is not None and not isinstance(group, (dist.ProcessGroup, groups.Lost)):
        raise InvalidError(
            f"within with a group that is a {type(group).__name__}, expected a process group of PyTorch "
            "(hint: leave group out)"
        )


def find(
    within: Any, connection: groups.Connection, process_group: Any, timeout_s: float | None
) -> Host | None:
    """The host of this rank, among the ranks of `connection`, which are those of `process_group`.

    None where each host has one rank, and without `within`. A collective call.

    # Errors

    InvalidError on all ranks, if hosts have unequal numbers of ranks, or process groups that were given are
    no partition of the ranks.
    """
    group = connection.group
    if within is None or group.world == 1:
        return None
    if isinstance(within, groups.Lost):
        groups.of(within)  # says that copies have no groups
    process_group = dist.group.WORLD if process_group is None else process_group
    rows = together(group, lambda: described(within, process_group))
    rows = exchange.gathered(group, rows, f"the hosts of ranks, by {kind(within)}")
    hosts = by_name(rows) if within == HOST else by_members(rows)
    check_partition(hosts)
    mine = hosts[group.rank]
    if len(mine) == 1:
        return None
    place = mine.index(group.rank)
    members = [dist.get_global_rank(process_group, rank) for rank in mine]
    backend = dist.get_backend_config(process_group if within == HOST else within)
    made: Any = dist.new_group(
        members,
        timeout=timedelta(seconds=groups.TIMEOUT_S if timeout_s is None else timeout_s),
        backend=backend,
        use_local_synchronization=True,
    )
    first = [ranks[0] for ranks in hosts]
    peers = [hosts[rank][place] for rank in sorted(set(first))]
    return Host(connection, mine, peers, made)


def kind(within: Any) -> str:
    """What `within` is, in words."""
    return HOST if within == HOST else "process group"


def name() -> str:
    """What only the ranks of this host have in common."""
    with contextlib.suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        namespace = Path("/proc/self/ns/net").stat()
        where = f"{boot} {namespace.st_dev} {namespace.st_ino}"
        return f"{where} {os.environ.get('GROUP_RANK', '')}"
    return f"{socket.gethostname()} {os.environ.get('GROUP_RANK', '')}"


def described(within: Any, process_group: dist.ProcessGroup) -> torch.Tensor:
    """What this rank tells of its host: a hash of its name, or which ranks are members of its group."""
    if within == HOST:
        return torch.frombuffer(
            bytearray(hashlib.sha256(name().encode()).digest()), dtype=torch.uint8
        )
    size = dist.get_world_size(process_group)
    every = [dist.get_global_rank(process_group, rank) for rank in range(size)]
    members = dist.get_process_group_ranks(within)
    strange = sorted(set(members) - set(every))
    if strange:
        raise InvalidError(
            f"within has rank {strange[0]}, which is not among the {len(every)} ranks of the model"
        )
    return torch.tensor([rank in members for rank in every], dtype=torch.uint8)


def by_name(rows: torch.Tensor) -> list[list[int]]:
    """For each rank the ranks that have the same row."""
    names = [bytes(row.tolist()) for row in rows]
    return [[rank for rank, theirs in enumerate(names) if theirs == mine] for mine in names]


def by_members(rows: torch.Tensor) -> list[list[int]]:
    """For each rank the members of its group."""
    return [row.nonzero().flatten().tolist() for row in rows]


def check_partition(hosts: Sequence[Sequence[int]]) -> None:
    """Refuses hosts of unequal numbers of ranks, and ranks that are on several of them.

    `hosts` has for each rank the ranks of its host.
    """
    for rank, mine in enumerate(hosts):
        for other in mine:
            if hosts[other] != mine:
                raise InvalidError(
                    f"within is no partition: the group of rank {rank} has ranks {listed(mine)}, that of "
                    f"rank {other} has {listed(hosts[other])} (hint: every rank gives the group of its own "
                    "host)"
                )
    for rank, mine in enumerate(hosts):
        if len(mine) != len(hosts[0]):
            raise InvalidError(
                f"the host of rank 0 has {len(hosts[0])} rank{'s' * (len(hosts[0]) > 1)}, that of rank "
                f"{rank} has {len(mine)}, expected as many on each (hint: leave within out)"
            )


def listed(ranks: Sequence[int]) -> str:
    """Ranks in a message."""
    return ", ".join(map(str, ranks[:8])) + " …" * (len(ranks) > 8)
