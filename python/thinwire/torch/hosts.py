"""The hosts of a training: sets of ranks with a fast path to each other, each with its own process group.

Under `within=` the ranks of a host average gradients over that process group, and each rank gets a part of
the averages. It then exchanges its part with its peers, the ranks at the same place on the other hosts.

Two ranks are on one host if they have the same boot id of the kernel, the same network namespace and, where
torchrun has set it, the same node (GROUP_RANK). So a container or pod with its own network counts
as a host. If several containers have a fast path to each other, pass their process group as `within`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
import socket
import time
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from thinwire._core import Group, InvalidError, PeerError
from thinwire.agreement import agree, together
from thinwire.arguments import shown
from thinwire.torch import exchange
from thinwire.torch import group as groups

HOST = "host"
LOOK_S = 0.5
"""The time for which a rank waits for others of its host before it checks whether a rank is lost,
in seconds."""
POLL_S = 2e-4
"""The time between two checks of a collective that is under way, in seconds."""
LOSS_S = 5.0
"""The time within which the loss of a rank shows at the connections to it, in seconds."""
_newest = 0
"""The number of the newest process group of a host that this process has made."""


@dataclasses.dataclass(frozen=True)
class Host:
    """The host of this rank. Ranks are numbered as in `connection`, which connects all ranks."""

    connection: groups.Connection
    ranks: list[int]
    """The ranks of this host. A rank's place among them is the number of its part."""
    peers: list[int]
    """The ranks with the same place on their hosts as this rank, one on each host."""
    process_group: dist.ProcessGroup
    """The process group of this host's ranks. A hook makes a separate process group; with FSDP2,
    its own process group is used."""

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

        PeerError if a rank of any host is lost or ends the group while waiting.
        """
        while not self._completed(work, LOOK_S):
            try:
                self.look()
            except PeerError:
                # A rank leaves after its last step, perhaps before what it has sent is read here.
                if not self._completed(work, 2 * LOOK_S):
                    raise
        try:
            work.wait()
        except RuntimeError as error:
            raise self.loss(error) from error

    def _completed(self, work: Any, within_s: float) -> bool:
        """Whether a collective is over within some seconds."""
        deadline = time.monotonic() + within_s
        # Polls, because a callback of its future would run on a thread of gloo, even while Python ends.
        while not work.is_completed():
            if time.monotonic() > deadline:
                return False
            time.sleep(POLL_S)
        return True

    def look(self) -> None:
        """Raises PeerError if a rank of the training is lost or has ended the group."""
        look(self.group)

    def loss(self, error: RuntimeError) -> Exception:
        """Returns the error of a failed collective of the host: the loss of a rank, or else a
        PeerError that quotes `error`."""
        return loss(self.group, error)


def look(group: Group) -> None:
    """Raises PeerError if a rank of the training is lost or has ended the group."""
    group.expect(list(range(group.world)))


def loss(group: Group, error: RuntimeError) -> Exception:
    """Returns the error of a failed call of PyTorch on a host: the loss of a rank, or else a
    PeerError that quotes `error`."""
    # The call may fail before the connections show which rank is lost.
    deadline = time.monotonic() + LOSS_S
    while time.monotonic() < deadline:
        try:
            look(group)
        except PeerError as lost:
            return lost
        time.sleep(LOOK_S / 10)
    return PeerError(f"the ranks of this host cannot exchange: {groups.first_line(error)}")


def part_of(host: Host) -> torch.Tensor:
    """Returns, for a rank's state, the number of its part of the gradients and the number of
    parts."""
    return torch.tensor([float(host.place), float(len(host.ranks))])


def check(within: Any, group: Any = None, algorithm: Any = None) -> None:
    """Checks that `within` is None, "host" or a process group that this rank is in.

    # Errors

    InvalidError for anything else, for a `thinwire.Group` as `group`, since hosts need PyTorch
    process groups, and for an `algorithm` that itself sums within units.
    """
    if within is None:
        return
    is_group = dist.is_available() and isinstance(within, dist.ProcessGroup)
    # What torch's new_group returns on ranks that are not in the group.
    if dist.is_available() and within == dist.GroupMember.NON_GROUP_MEMBER:
        raise InvalidError(
            "this rank is not in the process group of within=, expected the group of its own host"
        )
    # A copied hook has lost its group; `find` says so when it is used.
    if within != HOST and not is_group and not isinstance(within, groups.Lost):
        raise InvalidError(
            f'within is {shown(within)}, expected None, "{HOST}" or the process group of this '
            f"host's ranks"
        )
    if isinstance(algorithm, str) and algorithm.startswith("hierarchical"):
        raise InvalidError(
            f"algorithm {shown(algorithm)} cannot be used with within, expected a flat one between "
            "hosts (hint: leave one of the two out, since both sum on a host first)"
        )
    if group is not None and not isinstance(group, (dist.ProcessGroup, groups.Lost)):
        raise InvalidError(
            f"group is a {type(group).__name__}, expected a process group of PyTorch with within "
            "(hint: leave group out)"
        )


def find(
    within: Any, connection: groups.Connection, process_group: Any, timeout_s: float | None
) -> Host | None:
    """Finds the host of this rank, among the ranks of `connection`, which are those of `process_group`.

    Returns None if each host has one rank, or without `within`. A collective call.

    # Errors

    InvalidError on all ranks if they pass different kinds of `within`, if hosts have unequal numbers of
    ranks, or if the process groups given as `within` do not partition the ranks.
    """
    group = connection.group
    if isinstance(within, groups.Lost):
        groups.of(within)  # raises the error of a copy, which has no group
    agree([f"within {kind(within)}"], group)
    if within is None or group.world == 1:
        return None
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
    limit = timedelta(seconds=groups.TIMEOUT_S if timeout_s is None else timeout_s)
    options: dict[str, Any] = {
        "timeout": limit,
        "backend": backend,
        "use_local_synchronization": True,
    }
    made: Any
    with counted_apart(group, mine):
        try:
            made = dist.new_group(members, **options)
        except RuntimeError as error:
            raise loss(group, error) from error
    first = [ranks[0] for ranks in hosts]
    peers = [hosts[rank][place] for rank in sorted(set(first))]
    return Host(connection, mine, peers, made)


@contextlib.contextmanager
def counted_apart(group: Group, mine: Sequence[int]) -> Iterator[None]:
    """Makes a process group of the ranks `mine` that PyTorch does not count; a collective call.

    PyTorch names the next process group of all ranks by the number of groups that each has made.
    Ranks outside the model do not make this group, so their next group would have a different name,
    and they would wait forever.
    """
    global _newest
    numbers = exchange.gathered(group, torch.tensor([_newest]), "the process groups of hosts")
    _newest = int(numbers[list(mine)].max()) + 1
    world = dist.distributed_c10d._world
    count = world.group_count
    world.group_count = -_newest  # part of the name; PyTorch's own numbers are not negative
    try:
        yield
    finally:
        world.group_count = count


def kind(within: Any) -> str:
    """Names the kind of `within` in a message."""
    return "none" if within is None else HOST if within == HOST else "process group"


def name() -> str:
    """Returns a name that only the ranks of this host share."""
    with contextlib.suppress(OSError):  # /proc may be missing, as on macOS
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        namespace = Path("/proc/self/ns/net").stat()
        where = f"{boot} {namespace.st_dev} {namespace.st_ino}"
        return f"{where} {os.environ.get('GROUP_RANK', '')}"
    return f"{socket.gethostname()} {os.environ.get('GROUP_RANK', '')}"


def described(within: Any, process_group: dist.ProcessGroup) -> torch.Tensor:
    """Returns the identity of this rank's host: a hash of the host's name, or the members of its
    process group."""
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
    """Returns for each rank the ranks whose rows equal its own."""
    names = [bytes(row.tolist()) for row in rows]
    return [[rank for rank, theirs in enumerate(names) if theirs == mine] for mine in names]


def by_members(rows: torch.Tensor) -> list[list[int]]:
    """Returns for each rank the members of its group."""
    return [row.nonzero().flatten().tolist() for row in rows]


def check_partition(hosts: Sequence[Sequence[int]]) -> None:
    """Refuses hosts with unequal numbers of ranks, and ranks that are on several hosts.

    `hosts` has for each rank the ranks of its host.
    """
    for rank, mine in enumerate(hosts):
        for other in mine:
            if hosts[other] != mine:
                raise InvalidError(
                    f"within does not partition the ranks: the group of rank {rank} has ranks "
                    f"{listed(mine)}, that of rank {other} has {listed(hosts[other])} (hint: pass "
                    "on every rank the group of its own host)"
                )
    for rank, mine in enumerate(hosts):
        if len(mine) != len(hosts[0]):
            raise InvalidError(
                f"the host of rank 0 has {len(hosts[0])} rank{'s' * (len(hosts[0]) > 1)}, that of "
                f"rank {rank} has {len(mine)}, expected equal numbers (hint: start the same number "
                "on each, or leave within out)"
            )


def listed(ranks: Sequence[int]) -> str:
    """Lists ranks in a message, at most the first eight."""
    return ", ".join(map(str, ranks[:8])) + " …" * (len(ranks) > 8)
