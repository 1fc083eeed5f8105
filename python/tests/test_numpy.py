"""Groups on NumPy arrays: what they compute, what they refuse, and how they end."""

import os
import signal
import socket
import subprocess
import threading
import time
from pathlib import Path

import numpy
import pytest

import launch
import thinwire


def collectives():
    """Every collective in one job, on several dtypes; what each gave, as lists."""
    group = thinwire.init()
    rank, world = group.rank, group.world
    wrong = []

    def expect(name, found, expected):
        if not numpy.allclose(found, expected):
            wrong.append(f"{name}: {found} instead of {expected}")

    for dtype in ["float32", "float16", "float64", "int8", "int64", "complex64"]:
        array = (numpy.arange(12).reshape(6, 2) + rank).astype(dtype)
        base = numpy.arange(12).reshape(6, 2)
        total = world * base + world * (world - 1) // 2
        expect(f"all_reduce {dtype}", group.all_reduce(array.copy()), total.astype(dtype))
        pieces = numpy.repeat(array, world, axis=0)
        part = numpy.repeat(total, world, axis=0)[rank * 6 : rank * 6 + 6]
        expect(f"reduce_scatter {dtype}", group.reduce_scatter(pieces), part.astype(dtype))
        gathered = numpy.concatenate([base + other for other in range(world)]).astype(dtype)
        expect(f"all_gather {dtype}", group.all_gather(array), gathered)
        last = (base + world - 1).astype(dtype)
        expect(f"broadcast {dtype}", group.broadcast(array.copy(), root=world - 1), last)
    mean = group.all_reduce(numpy.full(5, rank, numpy.float32), average=True)
    expect("average", mean, (world - 1) / 2)
    for codec in ["f16", "bf16", "int8:stochastic"]:
        values = numpy.linspace(-1, 1, 3001, dtype=numpy.float32)
        total = group.all_reduce(values.copy(), codec=codec)
        if numpy.abs(total - world * values).max() > 0.04 * world:
            wrong.append(f"{codec}: {total}")
    expect("empty", group.all_reduce(numpy.empty(0, numpy.float32)), [])
    expect("scalar", group.all_gather(numpy.array(rank)), numpy.arange(world))
    other = group.split("other")
    expect("split", other.all_reduce(numpy.ones(3, numpy.float32)), world)
    group.barrier()
    return wrong


@pytest.mark.parametrize("world", [1, 2, 3])
def test_collectives_give_what_numpy_would(ranks, world):
    assert ranks(world, collectives) == [[]] * world


def mistakes():
    """What each mistake says; the group must work afterwards."""
    group = thinwire.init()
    floats = numpy.zeros(4, numpy.float32)
    frozen = numpy.zeros(4, numpy.float32)
    frozen.flags.writeable = False
    calls = {
        "list": lambda: group.all_reduce([1.0]),
        "strided": lambda: group.all_reduce(numpy.zeros((4, 4), numpy.float32)[:, 1]),
        "frozen": lambda: group.all_reduce(frozen),
        "objects": lambda: group.all_reduce(numpy.array([object()])),
        "codec": lambda: group.all_reduce(floats, codec="zip"),
        "feedback": lambda: group.all_reduce(floats, codec="topk:0.01"),
        "matrix": lambda: group.all_reduce(floats, codec="powersgd:4"),
        "integers": lambda: group.all_reduce(numpy.zeros(4, int), codec="f16"),
        "parts": lambda: group.reduce_scatter(numpy.zeros(5, numpy.float32)),
        "root": lambda: group.broadcast(floats, root=7),
        "dtype": lambda: group.core.all_reduce(floats.ctypes.data, 4, "f8"),
        "null": lambda: group.core.all_reduce(0, 4, "f32"),
        "below": lambda: group.broadcast(floats, root=-1),
        "dates": lambda: group.all_reduce(numpy.array(["2020-01-01"], "datetime64[D]")),
        "records": lambda: group.all_reduce(numpy.zeros(2, [("a", "f4")])),
        "order": lambda: group.all_reduce(numpy.ones(2, numpy.dtype(numpy.int32).newbyteorder())),
        "booleans": lambda: group.all_reduce(numpy.array([True]), average=True),
    }
    said = {}
    for name, call in calls.items():
        try:
            call()
            said[name] = "nothing"
        except thinwire.InvalidError as error:
            said[name] = str(error)
    return said, group.all_reduce(floats + 1).tolist()


def test_mistakes_are_named_and_the_group_lives_on(ranks):
    for said, after in ranks(2, mistakes):
        assert after == [2.0] * 4
        expected = {
            "list": "a list, expected a NumPy array",
            "strided": "not contiguous",
            "frozen": "read-only",
            "objects": "expected numbers",
            "codec": "zip",
            "feedback": "needs error feedback",
            "matrix": "needs the gradients of a model",
            "integers": "expected float32 or float16",
            "parts": "does not divide into 2 parts",
            "root": "root is rank 7, expected one of 2 ranks",
            "dtype": "f8",
            "null": "address 0",
            "below": "root is rank -1, expected one of 2 ranks",
            "dates": "array of datetime64[D], expected numbers",
            "records": "expected numbers",
            "order": "expected this machine's byte order",
            "booleans": "average of booleans",
        }
        for name, text in expected.items():
            assert text in said[name], (name, said[name])
            assert "\n" not in said[name]


def integers():
    """Averages of integers whose sums do not fit, and sums that wrap."""
    group = thinwire.init()
    large, rank = numpy.iinfo(numpy.int64).max, group.rank

    def mean(value, dtype):
        return int(group.all_reduce(numpy.array([value], dtype), average=True)[0])

    means = [
        *(mean(large - rank, numpy.int64), mean(-large + rank, numpy.int64)),
        *(mean(2**64 - 1, numpy.uint64), mean(200 + rank, numpy.uint8)),
        *(mean(-3 * rank, numpy.int32), mean(3 * rank, numpy.int16)),
    ]
    return means, int(group.all_reduce(numpy.array([200], numpy.uint8))[0])


def test_averages_of_integers_are_exact_and_rounded_towards_zero(ranks):
    large = numpy.iinfo(numpy.int64).max
    for means, wrapped in ranks(2, integers):
        assert means == [large - 1, -(large - 1), 2**64 - 1, 200, -1, 1]
        assert wrapped == 400 % 256


def descriptors():
    """How many file descriptors are open after many splits and exchanges that were dropped."""
    from thinwire import _core

    group = thinwire.init()

    def opened(count, most=0):
        for number in range(count):
            group.split(f"split {number}").barrier()
            _core.Synchronizer(group.core, [("a", [8, 8], "f32", 0)])
            _core.Scatter(group.core, "int8")
        group.barrier()
        # The store's host closes its end when it hears of it.
        for _ in range(1000):
            if (found := len(os.listdir("/proc/self/fd"))) <= most:
                break
            time.sleep(0.01 if most else 0.0003)
        return found

    few = opened(2)
    return few, opened(12, few + 3)


def test_what_is_dropped_keeps_no_connection(ranks):
    for few, many in ranks(2, descriptors):
        assert many <= few + 3


def splits():
    """What is left of a group and its splits after one split ended, and after the group did."""
    group = thinwire.init()
    first, second, third = (group.split(name) for name in "abc")
    within = second.split("within")

    def alive(member):
        try:
            member.barrier()
        except thinwire.Error as error:
            return str(error)
        return "alive"

    first.close()
    second.abort("x" * 5000 + "\nand more")
    found = [alive(member) for member in (group, third, first, second, within)]
    group.close()
    return [*found, alive(third)]


def test_a_split_ends_alone_and_with_its_parent(ranks):
    for rank, (group, third, first, second, within, after) in enumerate(ranks(2, splits)):
        assert group == third == "alive", rank
        assert "closed" in first and "closed" in after
        assert "xxx" in second and "xxx" in within
        assert "\n" not in second and len(second) < 1000


def planned():
    """The line of `auto` after a step that was planned after, and after one that was not."""
    import json

    from thinwire import _core

    group, array = thinwire.init(), numpy.ones(4096, numpy.float32)
    sync = _core.Synchronizer(group.core, [("a", [64, 64], "f32", 0)], codec="auto")
    lines = []
    for _ in range(3):
        sync.begin()
        sync.ready(0, array.ctypes.data, array.size)
        assert sync.finish()
        planning = json.loads(sync.record()).get("planning", {})
        lines.append([json.loads(sync.plan()).get("line"), planning.get("line")])
    return lines


def test_the_line_of_auto_outlasts_the_step_that_it_was_written_in(ranks):
    first, second = ranks(2, planned)
    assert all(plan == record and plan.startswith("auto: ") for plan, record in first)
    assert second == [[None, None]] * 3


def misused():
    """What the core says to calls out of order and to models that cannot be."""
    from thinwire import _core

    core, array = thinwire.init().core, numpy.ones(4, numpy.float32)

    def made(*shapes, names="abcdef", **options):
        described = [(name, shape, "f32", 0) for name, shape in zip(names, shapes)]
        return _core.Synchronizer(core, described, **options)

    one = made([4])
    calls = {
        "write": lambda: one.write(0, array.ctypes.data, 4),
        "none": lambda: made(),
        "twins": lambda: made([4], [4], names="aa"),
        "overflow": lambda: made([2**40, 2**40]),
        "huge": lambda: made([2**45]),
        "seed": lambda: made([4], seed=-1),
        "bytes": lambda: made([4], bucket_bytes=-1),
        "connections": lambda: thinwire.init(rank=0, world=1, connections=70000),
        "address": lambda: core.all_gather(array.ctypes.data, array.ctypes.data, 2**63),
        "elements": lambda: core.all_reduce(array.ctypes.data, 2**62, "f32"),
        "codec": lambda: _core.check("zip"),
        "ratio": lambda: _core.check("topk"),
        "algorithm": lambda: _core.check("int8", "pigeon"),
        "combination": lambda: _core.check("int8", "ring"),
        "budget": lambda: _core.check("auto", error_budget=float("inf")),
        "plan": lambda: one.load("{nope", {}),
        "partitions": lambda: one.load(
            one.plan().replace('"partitions":1', '"partitions":1000000000'), {}
        ),
        "stranger": lambda: one.load(one.plan(), {"residual.z": ([1], bytes(4))}),
        "length": lambda: one.load(one.plan(), {"residual.a": ([3], bytes(12))}),
        "shape": lambda: one.load(one.plan(), {"residual.a": ([4], bytes(12))}),
        "bytes of it": lambda: one.load(one.plan(), {"residual.a": ([4], bytes(13))}),
        "nan": lambda: one.load(one.plan(), {"residual.a": ([4], (array * numpy.nan).tobytes())}),
        "step": lambda: one.load(one.plan(), {"step": ([2], (array[:2] / 2).tobytes())}),
    }
    said = {}
    for name, call in calls.items():
        try:
            call()
        except thinwire.InvalidError as error:
            said[name] = str(error)
    one.begin()
    one.ready(0, array.ctypes.data, 4)
    assert one.finish()
    one.write(0, array.ctypes.data, 4)
    return said, array.tolist()


def test_the_core_refuses_what_cannot_be_and_goes_on(ranks):
    ((said, after),) = ranks(1, misused)
    assert after == [1.0] * 4
    expected = {
        "write": "expected finish before write",
        "none": "no parameters, expected at least one",
        "twins": "two parameters are called 'a'",
        "overflow": "expected at most",
        "huge": "expected at most",
        "seed": "seed is -1, expected 0..=18446744073709551615",
        "bytes": "bucket_bytes is -1, expected 0..=",
        "connections": "connections is 70000, expected 1..=64",
        "address": "expected at most 9223372036854775807",
        "elements": "expected at most 9223372036854775807",
        "codec": "powersgd:LOW_RANK[:alternate], or auto",
        "ratio": "topk ratio nothing",
        "algorithm": "pigeon",
        "combination": "travels by two-shot, not by ring",
        "budget": "expected a finite number",
        "plan": "cannot read the plan in the state",
        "partitions": "has 1000000000 partitions, expected 1..=65536",
        "stranger": "the state is of another model: it has 'residual.z'",
        "length": "residual.a has 3 elements, expected 4",
        "shape": "expected those of its shape [4]",
        "bytes of it": "13 bytes, expected a multiple of 4",
        "nan": "residual.a in the state holds NaN, expected finite numbers",
        "step": "the step in the state is [0.5, 0.5]",
    }
    for name, text in expected.items():
        assert text in said.get(name, "nothing"), (name, said.get(name))
    assert "auto" not in said["ratio"]


def test_names_are_those_under_which_users_know_them():
    group = thinwire.init(rank=0, world=1)
    assert repr(group) == "thinwire.Group(rank 0 of 1)"
    for error in (thinwire.Error, thinwire.InvalidError, thinwire.PeerError):
        assert error.__module__ == "thinwire" and getattr(thinwire, error.__name__) is error


def wait_for_ever(interrupted):
    group = thinwire.init(timeout_s=600)
    if group.rank == 0:
        threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGINT)).start()
    try:
        if group.rank == 0:
            group.barrier()
        else:
            while not Path(interrupted).exists():
                time.sleep(0.01)
            group.all_reduce(numpy.ones(3, numpy.float32))
    except KeyboardInterrupt:
        Path(interrupted).touch()
        return "interrupted"
    except thinwire.PeerError as error:
        return str(error)


def test_an_interrupt_ends_the_wait_and_tells_the_others(ranks, tmp_path):
    first, second = ranks(2, wait_for_ever, arguments=[str(tmp_path / "interrupted")])
    assert first == "interrupted"
    assert "rank 0 reports: interrupted by a signal" in second


def raise_on_one():
    group = thinwire.init()
    try:
        group.barrier()  # which the others may still be in when rank 1 is out
        if group.rank == 1:
            raise ValueError("the data are gone")
        group.barrier()
    except thinwire.PeerError as error:
        return str(error)


def test_an_exception_on_one_rank_reaches_the_others(ranks):
    outcomes = launch.run(3, raise_on_one)
    for rank in (0, 2):
        assert "rank 1 raised ValueError: the data are gone" in outcomes[rank].result
    assert outcomes[1].code == 1


def die():
    group = thinwire.init()
    try:
        group.barrier()  # which the others may still be in when rank 0 is out
        if group.rank == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        group.all_reduce(numpy.ones(1 << 20, numpy.float32))
    except thinwire.PeerError as error:
        said = str(error)
    try:
        group.barrier()
    except thinwire.PeerError as error:
        return said, str(error)


def test_a_killed_rank_is_named_at_once_and_ever_after():
    killed, *others = launch.run(3, die)
    assert killed.code == -signal.SIGKILL
    for outcome in others:
        first, later = outcome.result
        assert "rank 0" in first and "rank 0" in later
        assert "timed out" not in first


def fork():
    group = thinwire.init()
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            group.all_reduce(numpy.ones(3, numpy.float32))
        except thinwire.InvalidError as error:
            os.write(write, str(error).encode())
        del group
        os._exit(0)
    os.waitpid(child, 0)
    said = os.read(read, 1000).decode()
    return said, group.all_reduce(numpy.ones(3, numpy.float32)).tolist()


def test_a_fork_has_no_part_in_the_group(ranks):
    for said, after in ranks(2, fork):
        assert "is used in its fork" in said
        assert after == [2.0] * 3


def calls(group):
    """Pairs of calls, of which one rank makes the second and the others the first."""
    floats, doubles = numpy.ones(6, numpy.float32), numpy.ones(6, numpy.float64)

    def reduced(array, **options):
        return lambda: group.all_reduce(array.copy(), **options)

    def scattered(array, **options):
        return lambda: group.reduce_scatter(array, **options)

    def spread(array, root=0):
        return lambda: group.broadcast(array.copy(), root)

    return {
        "length": (reduced(floats), reduced(numpy.ones(7, numpy.float32))),
        "nothing": (reduced(floats), reduced(floats[:0])),
        "average": (reduced(floats), reduced(floats, average=True)),
        "codec": (reduced(floats, codec="f16"), reduced(floats, codec="bf16")),
        "rounding": (reduced(floats), reduced(floats, codec="int8:stochastic")),
        "shape": (reduced(floats), reduced(floats.reshape(2, 3))),
        "dtype": (reduced(floats), reduced(floats.astype(numpy.float16))),
        "exact dtype": (reduced(doubles), reduced(doubles.astype(numpy.int64))),
        "exact average": (reduced(doubles), reduced(doubles, average=True)),
        "operation": (scattered(floats), reduced(floats)),
        "exact operation": (scattered(doubles), reduced(doubles)),
        "scatter's average": (scattered(floats), scattered(floats, average=True)),
        "gather": (lambda: group.all_gather(floats), lambda: group.all_gather(doubles[:3])),
        "broadcast": (spread(floats), spread(floats.view(numpy.int32))),
        "root": (spread(floats), group.barrier),
        "barrier": (group.barrier, reduced(doubles)),
    }


def calls_differ():
    """What each rank hears in each case, and whether in the call itself."""
    group = thinwire.init()
    said = {}
    for name in calls(group):
        part = group.split(name)
        usual, other = calls(part)[name]
        for attempt in ("now", "later"):
            try:
                (other if group.rank == 1 else usual)() if attempt == "now" else part.barrier()
            except thinwire.PeerError as error:
                said[name] = attempt, str(error)
                break
    return said, group.all_reduce(numpy.ones(2)).tolist()


@pytest.mark.parametrize("world", [2, 3])
def test_ranks_that_make_different_calls_hear_it_all(ranks, world):
    for said, after in ranks(world, calls_differ):
        assert after == [world] * 2
        assert said.keys() == calls(thinwire.init(rank=0, world=1)).keys()
        for name, (attempt, text) in said.items():
            assert "calls differ" in text and "\n" not in text, (name, text)
            # Who broadcasts, or sums nothing, waits for nobody.
            assert attempt == "now" or name in ("broadcast", "root", "nothing"), name
        assert "of float32[6] by int8:stochastic" in said["rounding"][1] or (
            "is at all_reduce of float32[6], " in said["rounding"][1]
        )


def worlds_differ():
    try:
        thinwire.init(
            rank=int(os.environ["RANK"]),
            world=2 + int(os.environ["RANK"]),
            coordinator=f"127.0.0.1:{os.environ['MASTER_PORT']}",
        )
    except thinwire.PeerError as error:
        return str(error)


def test_worlds_that_differ_are_named_on_all_ranks(ranks):
    for said in ranks(2, worlds_differ):
        assert "rank 1" in said and "world 3" in said and "world 2" in said


def nobody_comes():
    try:
        thinwire.init(
            rank=0, world=2, coordinator=f"127.0.0.1:{os.environ['MASTER_PORT']}", timeout_s=1
        )
    except thinwire.PeerError as error:
        return str(error)


def test_a_rank_that_does_not_come_is_named(ranks):
    (said,) = ranks(1, nobody_comes)
    assert "rank 1" in said


def joins_twice() -> str:
    """The error of a second `init` with other arguments, and the group of the first."""
    import thinwire

    group = thinwire.init(link="1gbit")
    with pytest.raises(thinwire.InvalidError) as caught:
        thinwire.init(link="100mbit")
    assert thinwire.init() is group
    group.barrier()
    return str(caught.value)


def test_a_process_joins_once(ranks):
    for rank, said in enumerate(ranks(2, joins_twice)):
        assert said.startswith(f"this process has joined already, as rank {rank} of 2 (hint: ")


def test_a_heartbeat_timeout_beyond_the_timeout_is_refused(monkeypatch):
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    thinwire.init(timeout_s=60, heartbeat_timeout_s=60).close()
    for given in (90, 0.5, -1):
        with pytest.raises(thinwire.InvalidError, match=f"{given}") as refused:
            thinwire.init(timeout_s=60, heartbeat_timeout_s=given)
        assert "60" in str(refused.value)
    monkeypatch.setenv("THINWIRE_HEARTBEAT_TIMEOUT_S", "90")
    with pytest.raises(thinwire.InvalidError, match="THINWIRE_HEARTBEAT_TIMEOUT_S is 90 s"):
        thinwire.init(timeout_s=60)


def behind(port, timeout_s=60.0):
    """A sum over ranks that share `port`, and over a split of them; or why there is none."""
    try:
        group = thinwire.init(port=port, timeout_s=timeout_s)
    except thinwire.Error as error:
        return str(error)
    ones = [each.all_reduce(numpy.ones(1, numpy.float32)) for each in (group, group.split("other"))]
    return [each.item() for each in ones]


def test_ranks_of_a_host_are_reached_behind_one_port(ranks):
    with launch.reserved_ports(1) as port:
        for argument, env in ((port, {}), (None, {"THINWIRE_PORT": str(port)})):
            assert ranks(2, behind, arguments=[argument], env=env) == [[2.0, 2.0]] * 2
            with socket.create_server(("127.0.0.1", port)):
                # Rank 1 says the same, unless it comes when rank 0 has ended.
                first, second = ranks(2, behind, arguments=[argument, 10.0], env=env)
                assert f"port {port} of 127.0.0.1 is in use by another program" in first
                assert str(port) in second or "cannot reach the coordinator" in second
    for wrong in (0, 65_536, "http", True):
        with pytest.raises(thinwire.InvalidError, match="port"):
            thinwire.init(port=wrong)


def paused(pause_s):
    """Rank 1 stops for so long; a helper of its own lets it continue."""
    group = thinwire.init(timeout_s=60, heartbeat_timeout_s=float(os.environ["PATIENCE_S"]))
    group.barrier()
    if group.rank == 1:
        subprocess.Popen(["sh", "-c", f"sleep {pause_s}; kill -CONT {os.getpid()}"])
        os.kill(os.getpid(), signal.SIGSTOP)
    try:
        group.barrier()
    except thinwire.PeerError as error:
        return str(error)


def test_a_silent_rank_is_waited_for_as_long_as_said(ranks):
    assert ranks(2, paused, arguments=[2], env={"PATIENCE_S": "60"}) == [None, None]
    said, _ = ranks(2, paused, arguments=[8], env={"PATIENCE_S": "4"})
    assert "lost rank 1: silent for" in said


def test_a_process_that_nobody_launched_is_a_world_of_one(monkeypatch):
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    with_none = thinwire.init()
    assert (with_none.rank, with_none.world) == (0, 1)
    with pytest.raises(thinwire.InvalidError, match="world"):
        thinwire.init(rank=1)
    with pytest.raises(thinwire.InvalidError, match="expected auto, always or never"):
        thinwire.init(encryption="maybe")


@pytest.mark.parametrize(("token", "said"), [("", "no token"), ("short", "token of 5 bytes")])
def test_beyond_one_machine_an_empty_or_short_token_is_refused(monkeypatch, token, said):
    monkeypatch.delenv("THINWIRE_TOKEN", raising=False)
    expected = f"{said} for a job that meets at 192.0.2.1:9"
    with pytest.raises(thinwire.InvalidError, match=expected):
        thinwire.init(rank=1, world=2, coordinator="192.0.2.1:9", token=token)
    with pytest.raises(thinwire.InvalidError, match=expected):
        thinwire.Store("192.0.2.1", 9, token)
