"""The c10d backend "thinwire": every collective against what one process computes alone.

Each test starts its ranks once and lets them play many cases, because importing PyTorch takes longer
than all of them together. What a rank finds wrong it raises; what ranks must agree on they return.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import signal
import time
from typing import Any

import pytest

import launch

pytestmark = pytest.mark.needs("torch")

WORLDS = [2, 3, 4]
LENGTHS = [0, 1, 7, 20_011]
INTEGERS = ["uint8", "int8", "int16", "int32", "int64"]
FLOATS = ["float16", "bfloat16", "float32", "float64"]
ORDERED = ["SUM", "PRODUCT", "MIN", "MAX"]
BITWISE = ["BAND", "BOR", "BXOR"]
CASES = [
    *itertools.product(FLOATS, [*ORDERED, "AVG"]),
    *itertools.product(INTEGERS, [*ORDERED, "AVG", *BITWISE]),
    *itertools.product(["bool"], [*ORDERED, *BITWISE]),
    *itertools.product(["complex64"], ["SUM", "AVG"]),
]
# Less than the minute after which a rank gives up by itself.
LOST_WITHIN_S = 50.0


@pytest.mark.parametrize("world", WORLDS)
def test_reductions_equal_a_local_reference(world: int, ranks: Any) -> None:
    """all_reduce, reduce, reduce_scatter; all kinds, dtypes and lengths; the same bits on all ranks."""
    digests = ranks(world, reductions)
    assert len(set(digests)) == 1


def reductions() -> str:
    """Plays all cases; the digest of all results that every rank has."""
    dist = joined()
    digest = hashlib.sha256()
    for (dtype, kind), length in itertools.product(CASES, LENGTHS):
        digest.update(reduced(dist, dtype, kind, length))
    dist.destroy_process_group()
    return digest.hexdigest()


def reduced(dist: Any, dtype: str, kind: str, length: int) -> bytes:
    """Plays one case."""
    operation, rank, world = getattr(dist.ReduceOp, kind), dist.get_rank(), dist.get_world_size()
    expected = reference(dtype, kind, length, world)
    everywhere = values(dtype, length, rank)
    work = dist.all_reduce(everywhere, operation, async_op=length % 2 == 1)
    assert work is None or work.wait()
    close(everywhere, expected, f"all_reduce {kind} {dtype} {length}")

    root = length % world
    there = values(dtype, length, rank)
    dist.reduce(there, root, operation)
    if rank == root:
        close(there, expected, f"reduce {kind} {dtype} {length}")
    elif dtype != "complex64":
        assert (there == values(dtype, length, rank)).all(), "reduce changed a tensor elsewhere"

    if dtype != "complex64":
        scattered(dist, operation, dtype, length)
    return raw(everywhere)


def scattered(dist: Any, operation: Any, dtype: str, length: int) -> None:
    """reduce_scatter of `length` elements for each rank, in one tensor and in a list."""
    rank, world = dist.get_rank(), dist.get_world_size()
    kind = str(operation).rpartition(".")[2]
    expected = reference(dtype, kind, length * world, world)[rank * length : (rank + 1) * length]
    source = values(dtype, length * world, rank)
    target = source.new_empty(length)
    dist.reduce_scatter_tensor(target, source, operation)
    close(target, expected, f"reduce_scatter_tensor {kind} {dtype} {length}")
    sources = list(source.view(world, length))
    dist.reduce_scatter(target.zero_(), sources, operation)
    close(target, expected, f"reduce_scatter {kind} {dtype} {length}")
    assert raw(source) == raw(values(dtype, length * world, rank)), (
        "reduce_scatter changed its input"
    )


@pytest.mark.parametrize("world", WORLDS)
def test_moves_arrive_as_they_left(world: int, ranks: Any) -> None:
    """Collectives that only move bytes, for every dtype, also for tensors that are not contiguous."""
    ranks(world, moves)


def moves() -> None:
    """Plays every move."""
    dist = joined()
    names = [*FLOATS, *INTEGERS, "bool", "complex64", "float8_e4m3fn"]
    for dtype, length, strided in itertools.product(names, [1, 6, 1000], [False, True]):
        moved(dist, dtype, length, strided)
    dist.destroy_process_group()


def moved(dist: Any, dtype: str, length: int, strided: bool) -> None:
    """Plays every move with one kind of tensor."""
    import torch

    rank, world = dist.get_rank(), dist.get_world_size()
    mine = shaped(values(dtype, length, rank), strided)
    alls = [values(dtype, length, other) for other in range(world)]
    blank = [shaped(torch.zeros(length).to(mine.dtype), strided) for _ in range(world)]
    is_complex, root = mine.is_complex(), length % world

    outputs = [tensor.clone(memory_format=torch.preserve_format) for tensor in blank]
    dist.all_gather(outputs, mine)
    same(outputs, alls, "all_gather")

    together = torch.zeros(length * world).to(mine.dtype)
    dist.all_gather_into_tensor(together, mine)
    same(together.split(length), alls, "all_gather_into_tensor")

    outputs = [tensor.clone(memory_format=torch.preserve_format) for tensor in blank]
    dist.gather(mine, outputs if rank == root else None, dst=root)
    if rank == root:
        same(outputs, alls, "gather")

    everywhere = shaped(values(dtype, length, rank), strided)
    dist.broadcast(everywhere, root)
    same([everywhere], [alls[root]], "broadcast")

    everywhere = shaped(values(dtype, length, rank), strided)
    inputs = [shaped(values(dtype, length, 10 + other), strided) for other in range(world)]
    dist.scatter(everywhere, inputs if rank == root else None, src=root)
    same([everywhere], [values(dtype, length, 10 + rank)], "scatter")

    swapped(dist, dtype, length, strided)
    following, before = (rank + 1) % world, (rank - 1) % world
    received = shaped(values(dtype, length, 99), strided)
    works = [dist.isend(mine, following, tag=3), dist.irecv(received, before, tag=3)]
    assert all(work.wait() for work in works)
    assert is_complex or all(work.is_completed() and work.is_success() for work in works)
    same([received], [alls[before]], "isend and irecv")


def swapped(dist: Any, dtype: str, length: int, strided: bool) -> None:
    """all_to_all: rank a gives rank b a tensor of a size that depends on both."""
    import torch

    rank, world = dist.get_rank(), dist.get_world_size()

    def part(source: int, target: int) -> Any:
        return values(dtype, length * (source + 2 * target), 7 * source + target)

    inputs = [shaped(part(rank, other), strided) for other in range(world)]
    expected = [part(other, rank) for other in range(world)]
    outputs = [shaped(torch.zeros_like(tensor), strided) for tensor in expected]
    dist.all_to_all(outputs, inputs)
    same(outputs, expected, "all_to_all")

    sizes = [len(tensor) for tensor in inputs], [len(tensor) for tensor in expected]
    joint = shaped(torch.cat([part(rank, other) for other in range(world)]), strided)
    output = shaped(torch.zeros(sum(sizes[1])).to(joint.dtype), strided)
    dist.all_to_all_single(output, joint, sizes[1], sizes[0])
    same(output.split(sizes[1]), expected, "all_to_all_single")


def test_ranks_may_give_tensors_of_different_sizes(ranks: Any) -> None:
    """all_gather and reduce_scatter with a list whose tensors differ."""
    ranks(3, uneven)


def uneven() -> None:
    """Rank r has r + 1 elements."""
    import torch

    dist = joined()
    rank, world = dist.get_rank(), dist.get_world_size()
    outputs = [torch.zeros(other + 1) for other in range(world)]
    dist.all_gather(outputs, torch.full((rank + 1,), float(rank)))
    same(outputs, [torch.full((other + 1,), float(other)) for other in range(world)], "all_gather")
    target = torch.zeros(rank + 1)
    dist.reduce_scatter(target, [torch.ones(other + 1) for other in range(world)])
    same([target], [torch.full((rank + 1,), float(world))], "reduce_scatter")
    dist.destroy_process_group()


def test_a_gathered_tensor_may_lie_in_the_result(ranks: Any) -> None:
    """In its own place, as FSDP2's do, or in another rank's."""
    ranks(3, overlapping)


def overlapping() -> None:
    """Rank r gathers what lies in the r-th part of the result, or in the one after."""
    import torch

    dist = joined()
    rank, world = dist.get_rank(), dist.get_world_size()
    for place in (rank, (rank + 1) % world):
        result = torch.zeros(world * 5)
        mine = result[5 * place : 5 * place + 5].fill_(rank)
        dist.all_gather_into_tensor(result, mine)
        assert result.view(world, 5).tolist() == [[float(other)] * 5 for other in range(world)]
    dist.destroy_process_group()


def test_messages_find_whom_they_are_for(ranks: Any) -> None:
    """A rank's own ones, by tag and in order; from any rank where there is only one other."""
    ranks(2, addressed)


def addressed() -> None:
    """Three messages to itself, one to the other."""
    import torch

    from thinwire._core import InvalidError

    dist = joined()
    rank = dist.get_rank()
    early, late, strided = torch.zeros(2), torch.zeros(2), torch.zeros(2, 2)
    works = [dist.irecv(early, rank, tag=1), dist.irecv(late, rank, tag=1)]
    for tag, value in ((2, 7.0), (1, 5.0), (1, 6.0)):
        works.append(dist.isend(torch.full((2,), value), rank, tag=tag))
    works.append(dist.irecv(strided[:, 0], rank, tag=2))
    assert all(work.wait() for work in works)
    assert [early.tolist(), late.tolist(), strided[:, 0].tolist()] == [
        [5.0] * 2,
        [6.0] * 2,
        [7.0] * 2,
    ]
    dist.isend(torch.ones(3), rank)
    with pytest.raises(InvalidError, match="has 3 of torch.float32, expected 2 of torch.float32"):
        dist.irecv(torch.ones(2), rank).wait()

    other = torch.tensor([rank])
    work = dist.isend(other.clone(), 1 - rank, tag=9)
    assert dist.recv(other, tag=9) == 1 - rank and other.item() == 1 - rank and work.wait()
    dist.destroy_process_group()


def test_sums_may_be_scaled_and_sparse(ranks: Any) -> None:
    """A factor before the sum; entries that only some ranks have."""
    ranks(3, scaled)


def scaled() -> None:
    """Rank r has r entries, none in the first row."""
    import torch

    dist = joined()
    rank, world = dist.get_rank(), dist.get_world_size()
    for dtype, factor in itertools.product(
        (torch.float32, torch.float64), (0.5, torch.tensor(0.5))
    ):
        tensor = torch.full((4,), 2.0 * rank, dtype=dtype)
        dist.all_reduce(tensor, dist.ReduceOp.PREMUL_SUM(factor))
        assert tensor.tolist() == [float(sum(range(world)))] * 4
    for kind, divisor in ((dist.ReduceOp.SUM, 1), (dist.ReduceOp.AVG, world)):
        rows = torch.arange(1, 1 + rank).view(1, -1)
        tensor = torch.sparse_coo_tensor(rows, torch.ones(rank, 2), (9, 2))
        dist.all_reduce(tensor, kind)
        assert tensor.coalesce().indices().tolist() == [list(range(1, world))]
        counts = [world - row for row in range(1, world)]
        assert tensor.coalesce().values()[:, 0].tolist() == pytest.approx(
            [count / divisor for count in counts]
        )
    dist.destroy_process_group()


def test_collectives_run_in_the_order_of_their_calls(ranks: Any) -> None:
    """Those that the core does itself, and those that take a thread, some waited for and some not."""
    ranks(3, ordered)


def ordered() -> None:
    """Hands in a mix of 60 collectives and looks at all results afterwards."""
    import torch

    dist = joined()
    rank, world, works = dist.get_rank(), dist.get_world_size(), []
    for step in range(60):
        dtype = [torch.float32, torch.int64, torch.float64][step % 3]
        tensor = torch.full((1 + 997 * (step % 7),), rank + step, dtype=dtype)
        works.append((step, tensor, dist.all_reduce(tensor, async_op=True)))
        if step % 10 == 9:
            now = torch.tensor([step])
            dist.broadcast(now, step % world)
            dist.barrier()
    for step, tensor, work in works:
        assert work.wait() and work.result()[0] is tensor
        assert (tensor == sum(range(world)) + world * step).all(), step
    dist.destroy_process_group()


def test_works_complete_and_futures_chain(ranks: Any) -> None:
    """Polling ends, a future yields the tensors, and what is chained to it may wait for others."""
    ranks(2, chained)


def chained() -> None:
    """A work that is polled, one with a chain, one with a collective in its chain."""
    import torch

    dist = joined()
    work = dist.all_reduce(torch.ones(10), async_op=True)
    end = time.monotonic() + launch.PATIENCE_S
    while not work.is_completed() and time.monotonic() < end:
        time.sleep(0.001)
    assert work.is_completed() and work.is_success() and work.exception() is None

    future = dist.all_reduce(torch.ones(3), async_op=True).get_future()
    assert future.then(lambda done: done.value()[0] * 2).wait().tolist() == [4.0] * 3

    def again(done: Any) -> Any:
        return dist.all_reduce(done.value()[0], async_op=True).get_future().wait()[0]

    future = dist.all_reduce(torch.ones(3), async_op=True).get_future()
    assert future.then(again).wait().tolist() == [4.0] * 3
    dist.destroy_process_group()


def test_subgroups_are_groups(ranks: Any) -> None:
    """Overlapping groups, one of a single rank, ranks in another order, and again after a destroy."""
    ranks(4, grouped)


def grouped() -> None:
    """Sums within groups."""
    import torch

    for _ in range(2):
        dist = joined()
        rank = dist.get_rank()
        for members in ([0, 2], [1, 2, 3], [3], [2, 0, 1]):
            group = dist.new_group(members)
            if rank in members:
                tensor = torch.tensor([10.0**rank])
                dist.all_reduce(tensor, group=group)
                assert tensor.item() == sum(10.0**member for member in members)
                sender = torch.tensor([rank])
                dist.broadcast(sender, members[-1], group=group)
                assert sender.item() == members[-1]
        dist.barrier()
        dist.destroy_process_group()


def test_meaningless_calls_are_refused(ranks: Any) -> None:
    """Before anything is sent: the group continues."""
    ranks(3, refused)


def refused() -> None:
    """Calls with an error each, and what it says."""
    import torch

    import thinwire.torch
    from thinwire._core import InvalidError

    dist = joined()
    kinds = dist.ReduceOp
    calls = [
        (InvalidError, "BAND is not defined", lambda: dist.all_reduce(torch.ones(2), kinds.BAND)),
        (
            InvalidError,
            "AVG is not defined",
            lambda: dist.all_reduce(torch.ones(2).bool(), kinds.AVG),
        ),
        (ValueError, "on cpu and cuda", lambda: dist.all_reduce(torch.ones(2, device="meta"))),
        (ValueError, "dense tensors", lambda: dist.broadcast(torch.eye(2).to_sparse(), 0)),
        (NotImplementedError, "give src", lambda: dist.recv(torch.ones(2))),
        (
            InvalidError,
            "splits 4 rows of its input into",
            lambda: dist.all_to_all_single(torch.ones(4), torch.ones(4), [1, 1, 2], [1, 1, 1]),
        ),
        (
            InvalidError,
            "7 elements where 6 are expected",
            lambda: dist.group.WORLD.all_gather_single(torch.ones(7), torch.ones(2)),
        ),
        *[(InvalidError, "expected one dtype", call) for call in of_two_dtypes(torch, dist)],
    ]
    for kind, text, call in calls:
        with pytest.raises(kind, match=text):
            work = call()
            assert work is None or work.wait()
    tensor = torch.ones(2)
    dist.all_reduce(tensor)
    assert tensor.tolist() == [3.0, 3.0]
    assert isinstance(dist.group.WORLD, thinwire.torch.ProcessGroup)
    dist.destroy_process_group()


def of_two_dtypes(torch: Any, dist: Any) -> list[Any]:
    """Collectives whose outputs are narrower or wider than their inputs, large enough to overwrite."""
    few, many = 4096, 4096 * dist.get_world_size()
    half, double, group = torch.float16, torch.float64, dist.group.WORLD

    def parts(dtype: Any) -> list[Any]:
        return list(torch.zeros(many, dtype=dtype).chunk(dist.get_world_size()))

    return [
        lambda: dist.all_gather_into_tensor(torch.zeros(many, dtype=half), torch.ones(few)),
        lambda: dist.all_gather_into_tensor(torch.zeros(many, dtype=double), torch.ones(few)),
        lambda: dist.reduce_scatter_tensor(torch.zeros(few, dtype=half), torch.ones(many)),
        lambda: dist.reduce_scatter_tensor(torch.zeros(few, dtype=double), torch.ones(many)),
        lambda: group.allgather([parts(half)], [torch.ones(few)]),
        lambda: group.reduce_scatter([torch.zeros(few, dtype=half)], [parts(double)]),
        lambda: group.alltoall(parts(half), parts(double)),
        lambda: group.alltoall_base(torch.zeros(many, dtype=half), torch.ones(many), [], []),
        lambda: group.allgather_into_tensor_coalesced(
            [torch.zeros(many), torch.zeros(many, dtype=half)], [torch.ones(few)] * 2
        ),
    ]


def test_a_lost_rank_is_an_error_on_all_others() -> None:
    """At once, in whatever they wait, each in a group of its own, and for ever after."""
    outcomes = launch.run(3, survivor)
    assert outcomes[1].code == -signal.SIGKILL
    for rank in (0, 2):
        assert outcomes[rank].code == 0, launch.report(outcomes[rank])
        found = outcomes[rank].result
        assert len(found) == 6
        for way, (took, text) in found.items():
            assert took < LOST_WITHIN_S and "rank 1" in text, f"{way}: {text} after {took} s"


def survivor() -> dict[str, tuple[float, str]]:
    """Rank 1 dies while the others wait in several ways: how long until they knew, and what."""
    from concurrent.futures import ThreadPoolExecutor

    import torch

    from thinwire._core import PeerError
    from torch_models import past_a_barrier

    dist = joined()
    groups = [dist.new_group() for _ in range(5)]
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 3))
    ones, wide = torch.ones(5), torch.ones(5, dtype=torch.float64)
    loss = model(torch.ones(2, 3)).sum()
    ways = {
        "synchronous": lambda: dist.all_reduce(ones.clone(), group=groups[0]),
        "asynchronous": lambda: dist.all_reduce(
            ones.clone(), group=groups[1], async_op=True
        ).wait(),
        "synchronous, exact": lambda: dist.all_reduce(wide.clone(), group=groups[2]),
        "asynchronous, exact": lambda: dist.all_reduce(wide, group=groups[3], async_op=True).wait(),
        "message": lambda: dist.recv(ones, 1, group=groups[4]),
        "backward": loss.backward,
    }
    past_a_barrier()
    if dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)

    def told(way: Any) -> tuple[float, str]:
        started = time.monotonic()
        with pytest.raises(RuntimeError) as raised:
            way()
        return time.monotonic() - started, str(raised.value)

    with ThreadPoolExecutor(len(ways)) as threads:
        found = dict(zip(ways, threads.map(told, ways.values())))
    for group in [None, *groups]:
        with pytest.raises(PeerError):
            dist.barrier(group)
    return found


def test_a_rank_that_raises_is_an_error_on_all_others() -> None:
    """Its exception ends it; the others get one that names it."""
    outcomes = launch.run(2, raiser)
    assert outcomes[1].code == 1 and "no more data" in outcomes[1].stderr
    assert outcomes[0].code == 0, launch.report(outcomes[0])
    assert outcomes[0].result < LOST_WITHIN_S


def raiser() -> float:
    """Rank 1 raises while rank 0 waits for it."""
    import torch

    from thinwire._core import PeerError
    from torch_models import past_a_barrier

    dist = joined()
    past_a_barrier()
    if dist.get_rank() == 1:
        raise ValueError("no more data")
    started = time.monotonic()
    with pytest.raises(PeerError, match="rank 1"):
        dist.all_reduce(torch.ones(3))
    return time.monotonic() - started


def test_a_work_that_takes_too_long_ends_the_group(ranks: Any) -> None:
    """The rank that waits gets a timeout, the late one an error with the same reason."""
    ranks(2, late)


def late() -> None:
    """Rank 1 comes after rank 0 has given up."""
    from datetime import timedelta

    import torch

    from thinwire._core import PeerError

    dist = joined()
    store = dist.distributed_c10d._get_default_store()
    if dist.get_rank() == 0:
        work = dist.all_reduce(torch.ones(3), async_op=True)
        with pytest.raises(PeerError, match="all_reduce timed out after 0.3 s"):
            work.wait(timedelta(seconds=0.3))
        store.set("given up", "")
    else:
        store.wait(["given up"])
        with pytest.raises(PeerError, match="timed out"):
            dist.all_reduce(torch.ones(3))


# Process groups that live as long as the process.
LIVING: list[Any] = []


def test_a_hook_of_pytorch_trains_as_over_gloo(ranks: Any) -> None:
    """PowerSGD's, whose callbacks wait for collectives, and plain DDP: the same parameters."""
    for _, ours, theirs in itertools.chain.from_iterable(ranks(2, trained)):
        assert max(abs(a - b) for a, b in zip(ours, theirs, strict=True)) < 1e-6


def trained() -> list[tuple[str, list[float], list[float]]]:
    """Parameters after ten steps over thinwire and over gloo, with each hook."""
    import torch
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

    dist = joined()
    groups = {"thinwire": dist.group.WORLD, "gloo": dist.new_group(backend="gloo")}
    found = []
    for name in ("none", "bf16", "powersgd"):
        both = {}
        for backend, group in groups.items():
            torch.manual_seed(0)
            model = torch.nn.Sequential(torch.nn.Linear(20, 40), torch.nn.Linear(40, 20))
            model = torch.nn.parallel.DistributedDataParallel(model, process_group=group)
            if name == "bf16":
                model.register_comm_hook(group, default_hooks.bf16_compress_hook)
            if name == "powersgd":
                state = powerSGD_hook.PowerSGDState(group, 2, start_powerSGD_iter=2)
                model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
            torch.manual_seed(1 + dist.get_rank())
            for _ in range(10):
                optimizer.zero_grad()
                model(torch.randn(8, 20)).square().mean().backward()
                optimizer.step()
            both[backend] = torch.cat([p.detach().view(-1) for p in model.parameters()]).tolist()
        found.append((name, both["thinwire"], both["gloo"]))
    # The last reference to a group ends gloo's threads. If one of them holds it, it waits for itself.
    LIVING.extend(groups.values())
    dist.destroy_process_group()
    return found


def test_pytorch_parallelism_runs_on_it(ranks: Any) -> None:
    """DTensor, functional collectives, objects, FSDP2, sparse gradients, a distributed checkpoint."""
    ranks(4, parallel)


def parallel() -> None:
    """One check of each."""
    import torch

    dist = joined()
    for check in (
        *(tensors_are_distributed, values_may_be_lazy, functions_collect, objects_move),
        embeddings_are_sparse,
    ):
        check(torch, dist)
    shards_train_and_are_saved(torch, dist)
    dist.destroy_process_group()


def tensors_are_distributed(torch: Any, dist: Any) -> None:
    """DTensor on a mesh of two dimensions: shard, replicate, partial sums."""
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

    mesh = dist.init_device_mesh("cpu", (2, 2), mesh_dim_names=("a", "b"))
    full = torch.arange(64.0).view(8, 8)
    sharded = distribute_tensor(full, mesh, [Shard(0), Shard(1)])
    assert torch.equal(sharded.full_tensor(), full)
    moved = sharded.redistribute(placements=[Shard(1), Replicate()])
    assert torch.equal(moved.full_tensor(), full)
    partial = DTensor.from_local(full, mesh, [Partial(), Replicate()])
    assert torch.equal(
        partial.redistribute(placements=[Shard(0), Shard(1)]).full_tensor(), 2 * full
    )
    assert torch.equal((sharded @ sharded).full_tensor(), full @ full)


def values_may_be_lazy(torch: Any, dist: Any) -> None:
    """Tensors that are negated or conjugated only when they are read."""
    world = dist.get_world_size()
    gathered = torch.zeros(world * 4)
    dist.all_gather_into_tensor(gathered, torch._neg_view(torch.ones(4)))
    assert (gathered == -1).all()
    imaginary = torch.tensor([1 + 2j]).conj().imag
    dist.all_reduce(imaginary)
    assert imaginary.item() == -2 * world


def functions_collect(torch: Any, dist: Any) -> None:
    """The functional collectives, which compiled code uses."""
    import torch.distributed._functional_collectives as functional

    group, world = dist.group.WORLD, dist.get_world_size()
    ones = torch.ones(world * 2)
    assert (functional.all_reduce(ones, "sum", group) == world).all()
    assert (functional.reduce_scatter_tensor(ones, "avg", 0, group) == 1).all()
    assert len(functional.all_gather_tensor(ones, 0, group)) == world * world * 2
    many = functional.all_gather_into_tensor_coalesced([ones, 2 * ones], group)
    assert [int(tensor.sum()) for tensor in many] == [2 * world**2, 4 * world**2]
    many = functional.all_reduce_coalesced([ones, 2 * ones.double()], "sum", group)
    assert [int(tensor[0]) for tensor in many] == [world, 2 * world]
    compiled = torch.compile(
        lambda x: functional.all_reduce(x + 1, "sum", group), backend="aot_eager"
    )
    assert (compiled(ones) == 2 * world).all()


def objects_move(torch: Any, dist: Any) -> None:
    """Collectives of Python objects."""
    rank, world = dist.get_rank(), dist.get_world_size()
    found = [None] * world
    dist.all_gather_object(found, {"rank": rank, "text": "x" * rank * 1000})
    assert [one["rank"] for one in found] == list(range(world))
    sent = [f"from {rank}"]
    dist.broadcast_object_list(sent, src=world - 1)
    assert sent == [f"from {world - 1}"]


def embeddings_are_sparse(torch: Any, dist: Any) -> None:
    """DDP with an embedding whose gradients are sparse."""
    module = torch.nn.Embedding(50, 3, sparse=True)
    model = torch.nn.parallel.DistributedDataParallel(module)
    model(torch.tensor([dist.get_rank(), 49])).sum().backward()
    expected = torch.zeros(50, 3)
    expected[: dist.get_world_size()] = 1 / dist.get_world_size()
    expected[49] = 1
    assert torch.allclose(module.weight.grad.to_dense(), expected)


def shards_train_and_are_saved(torch: Any, dist: Any) -> None:
    """FSDP2 trains as one process does, and its checkpoint is loaded again."""
    import tempfile

    import torch.distributed.checkpoint as checkpoint
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(0)
    single = torch.nn.Sequential(torch.nn.Linear(10, 30), torch.nn.ReLU(), torch.nn.Linear(30, 5))
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(10, 30), torch.nn.ReLU(), torch.nn.Linear(30, 5))
    for layer in (model[0], model[2], model):
        fully_shard(layer)
    data = torch.randn(4 * dist.get_world_size(), 10, generator=torch.Generator().manual_seed(3))
    mine = data.view(dist.get_world_size(), 4, 10)[dist.get_rank()]
    for one, batch in ((single, data), (model, mine)):
        optimizer = torch.optim.SGD(one.parameters(), lr=0.1)
        for _ in range(5):
            optimizer.zero_grad()
            one(batch).square().mean().backward()
            optimizer.step()
    for ours, theirs in zip(model.parameters(), single.parameters(), strict=True):
        assert torch.allclose(ours.full_tensor(), theirs, atol=1e-6)
    folder = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(folder, src=0)
    checkpoint.save(model.state_dict(), checkpoint_id=folder[0])
    for parameter in model.parameters():
        parameter.data.zero_()
    state = model.state_dict()
    checkpoint.load(state, checkpoint_id=folder[0])
    model.load_state_dict(state)
    for ours, theirs in zip(model.parameters(), single.parameters(), strict=True):
        assert torch.allclose(ours.full_tensor(), theirs, atol=1e-6)


def test_tensors_on_a_gpu_go_through_the_host(ranks: Any) -> None:
    """Both ranks on one GPU: what is queued before is seen, what is queued after sees the result."""
    if not pytest.importorskip("torch").cuda.is_available():
        pytest.skip("no GPU here: staging through pinned memory is untested")
    ranks(2, staged)


def staged() -> None:
    """A chain of collectives on a GPU without waiting on the host."""
    import torch

    dist = joined()
    tensor = torch.ones(1 << 20, device="cuda")
    for _ in range(3):
        work = dist.all_reduce(tensor.mul_(2), async_op=True)
        work.wait()
        tensor.mul_(0.5)
    assert (tensor == 8).all()
    dist.destroy_process_group()


def joined() -> Any:
    """torch.distributed, initialised with this backend."""
    import torch
    import torch.distributed as dist

    import thinwire.torch  # noqa: F401

    torch.set_num_threads(1)
    dist.init_process_group("thinwire")
    return dist


def values(dtype: str, length: int, rank: int) -> Any:
    """What a rank has: small numbers, whose sums and products fit every dtype, different on each rank."""
    import torch

    numbers = (torch.arange(length) * (rank + 1) + rank) % 3 + 1
    if dtype == "bool":
        return numbers > 1
    if dtype == "complex64":
        return torch.complex(numbers.float(), -numbers.float())
    wide = numbers.double() / (4 if dtype in FLOATS and rank % 2 else 1)
    return wide.to(getattr(torch, dtype))


def reference(dtype: str, kind: str, length: int, world: int) -> Any:
    """The reduction of all ranks' values, in this process alone, in the widest type that there is."""
    import torch

    rows = torch.stack([values(dtype, length, rank) for rank in range(world)])
    if kind in BITWISE:
        name = {"BAND": "bitwise_and", "BOR": "bitwise_or", "BXOR": "bitwise_xor"}[kind]
        total = rows[0]
        for row in rows[1:]:
            total = getattr(torch, name)(total, row)
        return total
    wide = rows if rows.is_complex() else rows.double()
    result = {
        "SUM": lambda: wide.sum(0),
        "AVG": lambda: wide.sum(0) / world,
        "PRODUCT": lambda: wide.prod(0),
        "MIN": lambda: wide.amin(0),
        "MAX": lambda: wide.amax(0),
    }[kind]()
    if dtype == "bool":
        return result > 0
    return result.trunc() if kind == "AVG" and dtype in INTEGERS else result


def close(found: Any, expected: Any, what: str) -> None:
    """Exactly equal for integers, within the dtype's rounding of a few sums for floats."""
    import torch

    exact = not (found.is_floating_point() or found.is_complex())
    tolerance = 0.0 if exact else 4 * torch.finfo(found.dtype).eps
    wide = torch.complex128 if found.is_complex() else torch.float64
    limits = {"rtol": tolerance, "atol": tolerance, "msg": lambda text: f"{what}: {text}"}
    torch.testing.assert_close(found.to(wide), expected.to(wide), **limits)


def same(found: Any, expected: Any, what: str) -> None:
    """The same bits."""
    assert [raw(one) for one in found] == [raw(one) for one in expected], what


def raw(tensor: Any) -> bytes:
    """The bytes of a tensor."""
    import torch

    flat = tensor.detach().clone(memory_format=torch.contiguous_format).view(-1)
    return flat.view(torch.uint8).numpy().tobytes()


def shaped(tensor: Any, strided: bool) -> Any:
    """The same values, on request with a gap after each."""
    if not strided:
        return tensor
    wide = tensor.new_zeros(len(tensor), 2)
    wide[:, 0] = tensor
    return wide[:, 0]
