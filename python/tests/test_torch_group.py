"""How ranks of PyTorch find each other over Thinwire."""

import contextlib
import os
import re
import socket
import threading

import pytest

import launch

pytestmark = pytest.mark.needs("torch")


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
def test_ranks_of_one_machine_meet_on_loopback(host):
    from thinwire.torch.group import own_address

    assert own_address(host, 29500) == "127.0.0.1"


def test_others_reach_us_where_we_reach_them(monkeypatch):
    import thinwire
    from thinwire.torch import group

    class Probe:
        def __init__(self, *_):
            self.address = Probe.mine

        __enter__, __exit__ = lambda self: self, lambda *_: None
        connect, getsockname = lambda *_: None, lambda self: (self.address, 1)

    def resolve(host, port, **_):
        if host == "nowhere":
            raise socket.gaierror("unknown")
        return [(socket.AF_INET, socket.SOCK_DGRAM, 0, "", (host, port))]

    monkeypatch.setattr(group.socket, "socket", Probe)
    monkeypatch.setattr(group.socket, "getaddrinfo", resolve)
    Probe.mine = "10.0.0.7"
    assert group.own_address("10.0.0.1", 29500) == "10.0.0.7"
    Probe.mine = "fd00::7"
    assert group.own_address("fd00::1", 29500) == "fd00::7"
    Probe.mine = "127.0.0.1"
    assert group.own_address("node-3", 29500) == "node-3"
    with pytest.raises(thinwire.InvalidError, match="no route to nowhere"):
        group.own_address("nowhere", 29500)


def groups(folder):
    """Groups over a process group, over a part of it, over a file, and a group that is given."""
    import numpy
    import torch.distributed as dist

    import thinwire
    from thinwire.torch import group

    def total(connection):
        value = numpy.array([10.0 ** dist.get_rank()], dtype=numpy.float32)
        connection.group.all_reduce(value.ctypes.data, 1, "f32")
        return value[0].item()

    dist.init_process_group("gloo")
    parts = [dist.new_group([0, 2]), dist.new_group([1])]
    mine = parts[dist.get_rank() % 2]
    store = dist.FileStore(f"{folder}/store", 3)
    file = group.connect(store, dist.get_rank(), 3, "file", timeout_s=30)
    given = thinwire.Group(file.group)
    results = [total(group.of()), total(group.of(mine)), total(file), total(group.of(given))]
    dist.barrier()
    dist.destroy_process_group()
    return results


def test_a_group_has_the_ranks_of_its_process_group(ranks, tmp_path):
    first, second, third = ranks(3, groups, arguments=[str(tmp_path)])
    assert first == third == [111, 101, 111, 111]
    assert second == [111, 10, 111, 111]


def rendezvous(port):
    """Where ranks of a process group meet if they share `port`."""
    import torch.distributed as dist

    from thinwire.torch import group

    os.environ["THINWIRE_PORT"] = str(port)
    dist.init_process_group("gloo")
    store = group.of().group.store()
    dist.barrier()
    dist.destroy_process_group()
    return store


def test_the_rendezvous_is_behind_the_port_that_ranks_share(ranks):
    with launch.reserved_ports(1) as port:
        first, second = ranks(2, rendezvous, arguments=[port])
    assert first == second
    assert re.fullmatch(f"127.0.0.1:{port}#[0-9a-f]{{32}}", first)


def test_a_group_that_nobody_else_holds_still_says_why_it_ended():
    import gc

    import thinwire
    from thinwire.torch import group

    connection = group.of(thinwire.init(rank=0, world=1))
    gc.collect()
    assert connection.group in [each.core for each in thinwire.lifetime.open_groups]


def test_a_hook_says_what_it_is():
    import thinwire.torch

    hook, _ = thinwire.torch.hook("int8")
    assert repr(hook) == "thinwire.torch.Hook(codec='int8', not connected)"


def unheard():
    """Rank 0 cannot open a rendezvous: what each rank is told."""
    import torch.distributed as dist

    import thinwire
    from thinwire.torch import group

    dist.init_process_group("gloo")
    group.own_address = lambda *_: "0.0.0.0"
    try:
        group.of()
    except thinwire.Error as error:
        said = str(error)
    dist.barrier()
    dist.destroy_process_group()
    return said


def test_a_rendezvous_that_cannot_open_is_known_to_all(ranks):
    first, second = ranks(2, unheard)
    assert "0.0.0.0 is no address" in first
    assert second == f"rank 0 does not come: {first}"


def told(action):
    """The type and the text of what `action` raises; all ranks come back before any ends."""
    import torch.distributed as dist

    import thinwire

    try:
        action()
        said = "joined"
    except (thinwire.Error, ValueError) as error:
        said = f"{type(error).__name__}: {error}"
    dist.barrier()
    return said


def tokens(*given):
    """Forms a group where each rank has its token or none: what comes of it, and what was published.

    The ranks would wait for each other for as long as by default.
    """
    import os

    import torch.distributed as dist

    from thinwire.torch import group

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    if given[rank]:
        os.environ["THINWIRE_TOKEN"] = given[rank]
    store = dist.distributed_c10d._get_default_store()
    said = told(lambda: group.connect(store, rank, len(given), "tokens"))
    published = store.get("thinwire/tokens/meeting/1").decode()
    dist.barrier()
    dist.destroy_process_group()
    return said, published


def test_a_token_of_the_users_is_not_published(ranks):
    for said, published in ranks(2, tokens, arguments=["secret", "secret"]):
        assert said == "joined" and "secret" not in published and '"token": null' in published


def test_all_ranks_learn_of_a_rank_with_another_token():
    outcomes = launch.run(3, tokens, arguments=["one", "other", "one"])
    first, second, third = launch.results(outcomes)
    assert "another job token" in second[0]
    assert re.search("^[^ ]+ has another job token", outcomes[0].stderr, re.MULTILINE)
    for said, _ in (first, third):
        assert said.startswith("PeerError: rank 1 does not come: ") and "another job token" in said


@pytest.mark.parametrize(("given", "said"), [(("one", ""), "has"), (("", "other"), "has not")])
def test_all_ranks_learn_of_a_token_on_some_ranks_only(ranks, given, said):
    reason = f"rank 0 {said} THINWIRE_TOKEN, rank 1 "
    first, second = ranks(2, tokens, arguments=list(given))
    assert second[0].startswith(f"InvalidError: {reason}")
    assert first[0].startswith(f"PeerError: rank 1 does not come: {reason}")


class OtherVersion:
    """A relay to rank 0's rendezvous that makes both sides believe that the other is of version 77."""

    def __init__(self, address):
        host, port = address.rsplit(":", 1)
        self.target = host, int(port)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self.listener.getsockname()[1]}"
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            near, _ = self.listener.accept()
            far = socket.create_connection(self.target)
            for source, target in ((near, far), (far, near)):
                threading.Thread(target=self.copy, args=(source, target), daemon=True).start()

    def copy(self, source, target):
        start = b""
        while len(start) < 5:
            start += source.recv(5 - len(start)) or bytes(5)
        data = start[:4] + bytes([77])
        with contextlib.suppress(OSError):
            while data:
                target.sendall(data)
                data = source.recv(1 << 16)
            target.shutdown(socket.SHUT_WR)


def fails(way):
    """Forms a group that rank 1 cannot join: what each rank is told."""
    import torch.distributed as dist

    from thinwire.torch import group

    def relayed(*arguments):
        address, token = meeting(*arguments)
        return OtherVersion(address).address, token

    def raises(*_):
        raise ValueError("no such file: token.txt")

    dist.init_process_group("gloo")
    meeting = group.meeting
    if dist.get_rank() == 1:
        group.meeting = {"version": relayed, "exception": raises}[way]
    said = told(group.of)
    dist.destroy_process_group()
    return said


def test_all_ranks_learn_of_a_rank_of_another_version(ranks):
    first, second = ranks(2, fails, arguments=["version"])
    assert "speaks protocol version 77, this side speaks version" in second
    assert first.startswith("PeerError: rank 1 does not come: ")
    assert "speaks protocol version 77" in first


def test_all_ranks_learn_of_a_rank_that_raises_before_the_meeting(ranks):
    first, second = ranks(2, fails, arguments=["exception"])
    assert second == "ValueError: no such file: token.txt"
    assert first == f"PeerError: rank 1 does not come: {second}"


def chooses():
    """Attaches a hook whose function of names raises on rank 1: what each rank is told."""
    import torch.distributed as dist

    import thinwire.torch
    from torch_models import wrapped

    def codec(name):
        if dist.get_rank() == 1:
            raise ValueError(f"no codec for {name}")
        return "int8"

    dist.init_process_group("gloo")
    said = told(lambda: thinwire.torch.attach(wrapped("mlp"), codec))
    dist.destroy_process_group()
    return said


def test_all_ranks_learn_of_a_function_of_names_that_raises_on_one(ranks):
    first, second = ranks(2, chooses)
    assert second == "ValueError: no codec for 0.weight"
    assert first == f"InvalidError: rank 1 says: {second}"


def test_a_store_that_is_lost_while_ranks_meet_is_a_peer_error():
    import torch.distributed as dist

    from thinwire import PeerError
    from thinwire.torch import group

    for when in ("before", "during"):
        served = [dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)]
        port = served[0].port
        client = dist.TCPStore("127.0.0.1", port, wait_for_workers=False)
        if when == "before":
            served.clear()
        with pytest.raises(PeerError, match="PyTorch's store is lost: ") as caught:
            # Its server ends between two looks.
            group.connect(client, 1, 2, "a", 30, watch=served.clear)
        assert "\n" not in str(caught.value)
