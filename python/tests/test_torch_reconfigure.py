"""c10d's interface for fault tolerance over "thinwire": a process group continues among other ranks.

Processes are members, numbered by the launcher for good; ranks are theirs in one meeting. They tell each
other their handles through a file, so no store of PyTorch's outlives a member that is killed.
"""

from __future__ import annotations

import os
import signal
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import launch

pytestmark = pytest.mark.needs("torch")

MEETING_S = 60.0
LOST_WITHIN_S = 50.0
"""Less than the time after which a meeting or a call ends by itself, on a machine that is busy too."""


class Member:
    """One process, and the board on which all of them write."""

    def __init__(self, folder: str, enable: bool = True) -> None:
        """Makes the default group: without ranks if `enable`, else with all members."""
        import torch.distributed as dist

        import thinwire.torch  # noqa: F401

        self.number, self.members = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self.board = dist.FileStore(f"{folder}/board", -1)
        store = dist.HashStore() if enable else dist.FileStore(f"{folder}/store", -1)
        dist.init_process_group(
            "thinwire",
            store=store,
            rank=self.number,
            world_size=self.members,
            enable_reconfigure=enable,
            timeout=timedelta(seconds=MEETING_S),
        )
        self.board.set(f"handle {self.number}", dist._get_reconfigure_handle())

    def handles(self, *members: int) -> list[str]:
        """The handles of these members, or of all."""
        chosen = members or range(self.members)
        return [self.board.get(f"handle {member}").decode() for member in chosen]

    def meet(self, uuid: int, handles: Any, timeout_s: float = MEETING_S) -> tuple[int, int]:
        """Reconfigures the group: rank and world."""
        import torch.distributed as dist

        work = dist._reconfigure(uuid, handles, timeout=timedelta(seconds=timeout_s))
        assert work.wait() and work.is_completed() and work.is_success()
        return dist.get_rank(), dist.get_world_size()

    def past(self, place: str, *members: int) -> None:
        """Returns when these members, or all, have come to the place."""
        self.board.set(f"{place} {self.number}", "")
        self.board.wait([f"{place} {member}" for member in members or range(self.members)])

    def refused(self, uuid: int, handles: Any, timeout_s: float = MEETING_S) -> tuple[str, float]:
        """Fails to reconfigure: the error as "kind: text", and after how many seconds."""
        start = time.monotonic()
        with pytest.raises(RuntimeError) as raised:
            self.meet(uuid, handles, timeout_s)
        return f"{raised.type.__name__}: {raised.value}", time.monotonic() - start


def total(number: int) -> list[float]:
    """The sums of this number over all ranks: native, and by gathering."""
    import torch
    import torch.distributed as dist

    tensors = [
        torch.full((5,), float(number), dtype=dtype) for dtype in (torch.float32, torch.float64)
    ]
    for tensor in tensors:
        dist.all_reduce(tensor)
        assert len(set(tensor.tolist())) == 1
    return [tensor[0].item() for tensor in tensors]


@pytest.mark.parametrize(("victim", "enable"), [(0, True), (2, True), (0, False)])
def test_survivors_of_a_kill_go_on(victim: int, enable: bool, tmp_path: Path) -> None:
    """Whoever dies, also the rank at whose store all had met, and in groups that began in the usual way."""
    outcomes = launch.run(4, survive, arguments=[str(tmp_path), victim, enable])
    left = [member for member in range(4) if member != victim]
    assert outcomes[victim].code == -signal.SIGKILL
    for rank, member in enumerate(left):
        assert outcomes[member].code == 0, "".join(map(launch.report, outcomes))
        waited_s, text, place, sums = outcomes[member].result
        assert waited_s < LOST_WITHIN_S and "\n" not in text
        assert place == [rank, 3] and sums == [sum(left)] * 2


def survive(folder: str, victim: int, enable: bool) -> list[Any]:
    """One member dies while the others wait for its part of a sum; they meet again and add up."""
    import torch
    import torch.distributed as dist

    from thinwire._core import PeerError

    member = Member(folder, enable)
    if enable:
        assert member.meet(1, member.handles()) == (member.number, 4)
    assert total(member.number) == [6, 6]
    handles = member.handles()
    member.past("sums")
    if member.number == victim:
        os.kill(os.getpid(), signal.SIGKILL)
    start = time.monotonic()
    with pytest.raises(PeerError) as raised:
        dist.all_reduce(torch.ones(1 << 20))
    waited_s = time.monotonic() - start
    place = member.meet(2, handles[:victim] + handles[victim + 1 :])
    sums = total(member.number)
    member.past("end", *(other for other in range(4) if other != victim))
    return [waited_s, str(raised.value), place, sums]


def test_ranks_are_in_the_order_of_the_handles(ranks: Any, tmp_path: Path) -> None:
    """Also those of a process that comes later; a set is in one order for all."""
    by_set, *others = zip(*ranks(3, grow, arguments=[str(tmp_path)]))
    assert sorted(by_set) == [0, 1, 2]
    assert others == [(1, 2, 0), (0, 0, 1)]


def grow(folder: str) -> list[int]:
    """Two members, then all three in another order, then in that of a set, then each alone."""
    import torch
    import torch.distributed as dist

    member = Member(folder)
    assert dist._supports_reconfigure()
    if member.number < 2:
        assert member.meet(1, member.handles(0, 1)) == (member.number, 2)
        assert total(member.number) == [1, 1]

    order = [2, 0, 1]
    rank, world = member.meet(2, member.handles(*order))
    assert world == 3 and order[rank] == member.number and total(member.number) == [3, 3]
    gathered = [torch.empty(1) for _ in order]
    dist.all_gather(gathered, torch.tensor([float(member.number)]))
    assert [int(each) for each in gathered] == order
    told = torch.tensor([float(member.number)])
    dist.broadcast(told, src=0)
    assert told.item() == order[0]
    exchange(dist.get_backend_impl(None, torch.device("cpu")), rank, order)
    dist.monitored_barrier(timeout=timedelta(seconds=MEETING_S))

    by_set, _ = member.meet(3, set(member.handles()))
    assert total(member.number) == [3, 3]
    couple = [1, 2] if member.number else [0]
    last, world = member.meet(4 + len(couple), member.handles(*couple))
    assert world == len(couple) and total(member.number) == [sum(couple)] * 2
    member.past("end")
    return [by_set, rank, last]


def exchange(backend: Any, rank: int, order: list[int]) -> None:
    """Every rank sends its number to the next, through the backend of a device."""
    import torch

    assert (backend.rank(), backend.size()) == (rank, 3) and backend.supports_reconfigure
    got = torch.empty(1)
    works = [
        backend.send([torch.tensor([float(order[rank])])], (rank + 1) % 3, 7),
        backend.recv([got], (rank - 1) % 3, 7),
    ]
    assert all(work.wait() for work in works)
    assert got.item() == order[rank - 1]


def test_calls_under_way_fail_when_the_group_goes_on(ranks: Any, tmp_path: Path) -> None:
    """So do those that wait behind them: none of them reaches the new ranks."""
    ranks(2, interrupted, arguments=[str(tmp_path)])


def interrupted(folder: str) -> None:
    """Member 0 leaves two sums alone; both members abort the group after the next meeting."""
    import torch
    import torch.distributed as dist

    from thinwire._core import Error, PeerError

    member = Member(folder)
    with pytest.raises(Error, match="no connections.*_reconfigure"):
        dist.all_reduce(torch.ones(1))
    member.meet(1, member.handles())
    if member.number == 0:
        wide = torch.full((5,), 7.0, dtype=torch.float64)
        works = [
            dist.all_reduce(torch.ones(1 << 20), async_op=True),
            dist.all_reduce(wide, async_op=True),
            dist.broadcast(wide, 0, async_op=True),
        ]
    member.meet(2, member.handles())
    if member.number == 0:
        for work in works:
            start = time.monotonic()
            with pytest.raises(Error):
                work.wait()
            assert time.monotonic() - start < LOST_WITHIN_S
    assert total(1 + member.number) == [3, 3]

    member.past("abort")
    dist.get_backend_impl(None, torch.device("cpu")).abort()
    with pytest.raises(PeerError):
        dist.barrier()
    member.meet(3, member.handles())
    assert total(1 + member.number) == [3, 3]
    member.past("end")


def test_meetings_that_fail_say_why_in_a_line(tmp_path: Path) -> None:
    """Within their timeout, and the same members meet again afterwards."""
    outcomes = launch.run(3, misled, arguments=[str(tmp_path)])
    assert outcomes[2].code == -signal.SIGKILL
    for member in (0, 1):
        assert outcomes[member].code == 0, launch.report(outcomes[member])
        for found, said in outcomes[member].result:
            assert said in found and "\n" not in found
        assert "frame #" not in outcomes[member].stderr, "a stack of PyTorch's is no line"


def misled(folder: str) -> list[tuple[str, str]]:
    """Members 0 and 1 are told wrong things, also of member 2, which dies; what is said, and expected."""
    member = Member(folder)
    mine, first, second, third = member.handles(member.number, 0, 1, 2)
    if member.number == 2:
        member.past("known", 0, 1)
        os.kill(os.getpid(), signal.SIGKILL)
    found: list[tuple[str, str]] = []

    def refused(uuid: int, handles: Any, said: str, limit_s: float = MEETING_S) -> None:
        text, took_s = member.refused(uuid, handles, limit_s)
        assert took_s < LOST_WITHIN_S, text
        found.append((text, said))

    refused(1, [], "InvalidError: no handles")
    refused(1, [mine, "gloo:0:1"], "InvalidError: 'gloo:0:1' is not a handle")
    refused(1, [mine, mine], "InvalidError: ranks 0 and 1 have the same handle")
    refused(1, [third], f"InvalidError: this rank's handle, {mine}, is not among the 1 given")
    member.meet(1, [first, second])
    refused(1, [first, second], "InvalidError: uuid 1 was already used, expected a fresh one")
    assert total(1) == [2, 2], "an invalid call has changed the group"

    uuid, other = 2 + member.number, f"rank {1 - member.number} of 2 did not come"
    said = f"PeerError: the meeting of uuid {uuid} timed out after 1 s: {other}"
    refused(uuid, [first, second], said, 1.0)
    lists = [[first, second, third], [first, second]]
    refused(4, lists[member.number], " has other handles for uuid 4")

    member.past("known", 0, 1)
    while answers(third):
        time.sleep(0.01)
    member.past("both", 0, 1)
    refused(5, [first, second, third], "timed out after 3 s: rank 2 of 3 did not come", 3.0)
    refused(6, [third, first, second], "PeerError: no store of rank 0 of 3 at 127.0.0.1:", 1.0)
    assert member.meet(7, [first, second]) == (member.number, 2)
    assert total(1) == [2, 2]
    member.past("end", 0, 1)
    return found


def answers(handle: str) -> bool:
    """Whether the store of a handle still takes connections."""
    import socket

    host, port = handle.rpartition("@")[2].rsplit(":", 1)
    try:
        socket.create_connection((host, int(port)), 1.0).close()
    except OSError:
        return False
    return True


def test_a_stopped_process_holds_up_nobody(tmp_path: Path) -> None:
    """PyTorch's clients wait for ever for the store of one; a meeting ends all the same."""
    outcomes = launch.run(2, held_up, arguments=[str(tmp_path)])
    assert outcomes[0].code == 0, launch.report(outcomes[0])
    text, took_s = outcomes[0].result
    assert text.startswith("PeerError: the store of rank 0 of 2 has stopped answering: thinwire:")
    assert took_s < LOST_WITHIN_S
    assert outcomes[1].code == -signal.SIGKILL


def held_up(folder: str) -> tuple[str, float] | None:
    """Member 0 wants to meet at the store of member 1, which is stopped, and kills it in the end."""
    member = Member(folder)
    first, second = member.handles()
    if member.number == 1:
        member.board.set("process", str(os.getpid()))
        os.kill(os.getpid(), signal.SIGSTOP)
        time.sleep(10 * launch.PATIENCE_S)
    process = int(member.board.get("process"))
    while " T " not in Path(f"/proc/{process}/stat").read_text():
        time.sleep(0.01)
    try:
        refused = member.refused(1, [second, first], 1.0)
        assert member.meet(2, [first]) == (0, 1)
    finally:
        os.kill(process, signal.SIGKILL)
    return refused
