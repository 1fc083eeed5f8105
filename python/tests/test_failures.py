"""Failures of a rank while the others make further connections, and of a rank that has forks."""

import pytest

import launch

# Less than the timeouts below, after which a rank gives up by itself.
LIMIT_S = 50.0


def joined():
    """The group of all ranks, whose own timeouts come long after the limit."""
    import thinwire

    return thinwire.init(timeout_s=300, heartbeat_timeout_s=200)


def end(way):
    """Ends this rank."""
    import os
    import signal
    import sys
    import time

    if way == "raises":
        raise ValueError("bad first batch")
    if way == "exits":
        sys.exit(0)
    if way == "is killed with a fork" and os.fork() == 0:
        time.sleep(200)
    os.kill(os.getpid(), signal.SIGKILL)


def connections(group, kind):
    """Makes further connections of a kind."""
    import thinwire
    from thinwire import _core

    if kind == "split":
        thinwire.Group.split(group, "second")
    elif kind == "scatter":
        _core.Scatter(group.core, "int8")
    elif kind == "epoch":
        _core.Epoch.of(group.core)
    elif kind == "collective":
        group.barrier()
    else:
        _core.Synchronizer(group.core, [("weight", [3], "f32", 0)])


def failure(action):
    """The type and the text of the exception that `action` raises, and after how many seconds."""
    import time

    start = time.monotonic()
    try:
        action()
    except Exception as error:
        return [type(error).__name__, str(error), time.monotonic() - start]
    return ["nothing", "", time.monotonic() - start]


def other_ends(rank, way, kind):
    """One rank ends once all others have joined, while they make connections; what they hear."""
    import numpy

    group, word = joined(), numpy.zeros(1)
    if group.rank == rank:
        for other in {0, 1, 2} - {rank}:
            group.core.recv(word.ctypes.data, word.nbytes, other)
        end(way)
    group.core.send(word.ctypes.data, word.nbytes, rank)
    return failure(lambda: connections(group, kind))


@pytest.mark.parametrize(
    ("rank", "way", "kind", "said"),
    [
        (2, "raises", "synchronizer", "rank 2 raised ValueError: bad first batch"),
        (2, "is killed", "split", "lost rank 2: "),
        (2, "exits", "scatter", "lost rank 2: it left before this was done"),
        # Rank 0 hosts the store at which the others wait.
        (0, "raises", "epoch", "rank 0 raised ValueError: bad first batch"),
        (0, "is killed", "synchronizer", "lost rank 0: "),
        (0, "exits", "split", "lost rank 0: it left before this was done"),
        (1, "is killed with a fork", "collective", "lost rank 1: "),
    ],
)
def test_who_waits_for_connections_learns_that_a_rank_has_ended(rank, way, kind, said):
    outcomes = launch.run(3, other_ends, arguments=[rank, way, kind])
    for outcome in outcomes[:rank] + outcomes[rank + 1 :]:
        assert outcome.code == 0, launch.report(outcome)
        error, text, waited_s = outcome.result
        assert error == "PeerError" and said in text and "\n" not in text, text
        assert waited_s <= LIMIT_S, text


def remains():
    """Joins again while only a split of the group is there; what it hears."""
    import thinwire

    part = thinwire.init().split("part")
    heard = failure(thinwire.init)
    part.barrier()
    return heard


def test_a_rank_that_joins_again_hears_what_its_group_lives_on_in(ranks):
    for rank, (error, text, _) in enumerate(ranks(2, remains)):
        assert error == "InvalidError"
        assert f"this process has joined already, as rank {rank} of 2 at " in text
        assert "or a split, a hook or a synchronizer made of it" in text


def files_after_a_fork():
    """Whether a fork has kept files of its own, and lost the sockets of its group alone."""
    import operator
    import os
    import socket

    from thinwire import _core

    group = joined()
    theirs, _ = socket.socketpair()
    read, write = os.pipe()

    def inodes(numbers):
        found = (os.path.join("/proc/self/fd", str(number)) for number in numbers)
        return [os.stat(path).st_ino if os.path.exists(path) else None for path in found]

    listed = dict(_core.sockets())
    opened = [number for number, inode in zip(listed, inodes(listed)) if inode == listed[number]]
    numbers = [*opened, theirs.fileno()]
    before = inodes(numbers)
    if os.fork() == 0:
        *lost, kept = map(operator.eq, before, inodes(numbers))
        os.write(write, b"right" if lost and kept and not any(lost) else b"wrong")
        os._exit(0)
    os.close(write)
    said = os.read(read, 100).decode()
    group.barrier()
    return said


def test_a_fork_lets_go_of_the_sockets_of_groups_alone(ranks):
    assert ranks(2, files_after_a_fork) == ["right", "right"]


def leaves_many():
    """Rank 1 leaves a group with many splits; when and what rank 0 hears of it in the last one."""
    group = joined()
    # Until the end of the process, which is what ends them.
    leaves_many.splits = splits = [group.split(str(number)) for number in range(12)]
    splits[-1].barrier()
    return failure(splits[-1].barrier) if group.rank == 0 else None


def test_a_rank_leaves_all_its_groups_at_once(ranks):
    error, text, waited_s = ranks(2, leaves_many)[0]
    assert error == "PeerError" and "lost rank 1: it left before this was done" in text
    assert waited_s <= 15.0, "two seconds for each group in turn are 26"


def at_another_call(kind):
    """Rank 0 gathers something while the others make connections; what each hears."""
    from thinwire import agreement

    group = joined()
    if group.rank == 0:
        return failure(lambda: agreement.gathered("", group.core))
    return failure(lambda: connections(group, kind))


@pytest.mark.parametrize("kind", ["synchronizer", "split", "scatter", "epoch"])
def test_connections_that_one_rank_does_not_make_are_named_at_once(ranks, kind):
    for error, text, waited_s in ranks(3, at_another_call, arguments=[kind]):
        assert error == "PeerError" and "calls differ: " in text and "\n" not in text, text
        assert waited_s <= LIMIT_S, text
