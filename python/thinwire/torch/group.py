"""The group behind a process group of PyTorch: the same ranks, over Thinwire's own connections.

Rank 0 opens a rendezvous on a free port and publishes its address through the store that PyTorch's
ranks already share, so no address is configured twice. Without THINWIRE_TOKEN it makes a token for
this rendezvous and publishes that, too. A token that the user has set is not published, because the
store is not encrypted; each rank reads it from its environment. A rank that cannot join publishes
the reason. All others look for such a reason while they wait, and fail with it within seconds.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import secrets
import socket
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

import thinwire
from thinwire import arguments
from thinwire._core import Error, Group, InvalidError, PeerError, Store
from thinwire.arguments import Seconds
from thinwire.errors import InvalidTypeError
from thinwire.torch.pauses import Pauses

TIMEOUT_S = 1800.0
"""Default time for which ranks wait for each other, in seconds; the same as PyTorch's."""

LINGER_S = 2.0
"""Seconds for which a failed rank 0 remains, so that others can read the reason: PyTorch's store
may end with it."""


@dataclasses.dataclass(frozen=True)
class Connection:
    """A group, with the objects that have the same lifetime: the rendezvous, on the rank that hosts
    it, and the guard. At the end of the process, the guard closes the group, or tells the other
    ranks why this rank could not continue."""

    group: Group
    store: Store | None = None
    guard: thinwire.Group | None = None

    def __reduce__(self) -> Any:
        """Refuses copies: connections belong to a process."""
        raise InvalidError(
            "connections to other ranks cannot be copied or pickled "
            "(hint: copy or save the model, and the state_dict() of what exchanges it)"
        )


class Lost:
    """Stands for the group of a hook that was copied, since groups cannot be copied."""


def of(
    group: Any = None, timeout_s: Seconds | None = None, heartbeat_timeout_s: Seconds | None = None
) -> Connection:
    """Returns the group meant by `group`: a Thinwire group, a process group of PyTorch, or None for
    PyTorch's default process group.

    For a process group this is a collective call that makes a new group over the same ranks. The
    new group's timeout is `timeout_s`, by default TIMEOUT_S seconds.

    # Errors

    InvalidError for timeouts that the core would refuse, for timeouts with a group that already has
    its own, and for anything but a group.
    """
    if isinstance(group, Lost):
        raise InvalidError(
            "the hook is a copy, which has no group, expected a new hook "
            "(hint: thinwire.torch.attach(model))"
        )
    timeout_s, heartbeat_timeout_s = check(group, timeout_s, heartbeat_timeout_s)
    made = existing(group)
    if made is not None:
        return made
    if not (dist.is_available() and dist.is_initialized()):
        raise InvalidError(
            "torch.distributed has no process group "
            "(hint: call torch.distributed.init_process_group first, or give group=thinwire.init())"
        )
    process_group: Any = dist.group.WORLD if group is None else group
    store = dist.distributed_c10d._get_default_store()
    rank, world = dist.get_rank(process_group), dist.get_world_size(process_group)
    name = process_group.group_name
    limit_s = TIMEOUT_S if timeout_s is None else timeout_s
    watch = watch_of(process_group, limit_s)
    return connect(store, rank, world, name, limit_s, heartbeat_timeout_s, watch=watch)


def watch_of(process_group: dist.ProcessGroup, timeout_s: float) -> Callable[[], None]:
    """Returns a function that raises PeerError once a rank of a process group is gone; a collective call.

    gloo notices the loss of a rank only in an operation, so this function starts a barrier, which
    ends when all ranks have arrived. PyTorch's store does not notice the loss if torchrun hosts the
    store.
    """
    gloo: Any = getattr(dist, "ProcessGroupGloo", ())
    has = has_cpu(process_group)
    found: Any = process_group._get_backend(torch.device("cpu")) if has else None
    if not isinstance(found, gloo):
        return lambda: None
    options = dist.BarrierOptions()
    options.timeout = timedelta(seconds=timeout_s)
    barrier = found.barrier(options)

    def look() -> None:
        try:
            if barrier.is_completed():
                barrier.wait()
        except RuntimeError as error:
            reason = first_line(error).rpartition("] ")[2]
            raise PeerError(f"a rank of the process group is gone: {reason}") from error

    return look


def has_cpu(process_group: dist.ProcessGroup) -> bool:
    """Whether a process group has a backend for tensors on the CPU."""
    return torch.device("cpu") in process_group._device_types


def check(
    group: Any, timeout_s: Any = None, heartbeat_timeout_s: Any = None
) -> tuple[float | None, float | None]:
    """Refuses what `of` refuses, before this rank connects to others. Returns both timeouts in
    seconds, None for one that is not given."""
    waited_s = TIMEOUT_S if timeout_s is None else timeout_s
    waited_s, silent_s = arguments.timeouts(waited_s, heartbeat_timeout_s)
    found_s = None if timeout_s is None else waited_s, silent_s
    if existing(group) is not None:
        for name, value in zip(("timeout_s", "heartbeat_timeout_s"), found_s):
            if value is not None:
                raise InvalidError(
                    f"{name} is {value:g}, but the group already has a {name} (hint: "
                    f"thinwire.init({name}={value:g}), or the timeout of the process group)"
                )
    elif dist.is_available() and group == dist.GroupMember.NON_GROUP_MEMBER:
        raise InvalidError("this rank is not in the process group, expected one of its ranks")
    elif group is not None and not (dist.is_available() and isinstance(group, dist.ProcessGroup)):
        raise InvalidTypeError(
            f"group is {arguments.shown(group)}, expected a thinwire.Group or a process group of "
            "PyTorch"
        )
    return found_s


def existing(group: Any) -> Connection | None:
    """The connection of a Thinwire group; None for any other group."""
    if isinstance(group, Connection):
        return group
    if isinstance(group, Group):
        return Connection(group)
    if isinstance(group, thinwire.Group):
        return Connection(group.core, guard=group)
    core = getattr(group, "core", None)
    return Connection(core) if isinstance(core, Group) else None


def connect(
    store: dist.Store,
    rank: int,
    world: int,
    name: str,
    timeout_s: float = TIMEOUT_S,
    heartbeat_timeout_s: float | None = None,
    *,
    watch: Callable[[], None] = lambda: None,
) -> Connection:
    """Connects all ranks that call this with the same `store` and `name`; a collective call.

    The n-th call of a rank is connected with the n-th calls of the others; the store counts the
    calls. `watch` is called about once a second; an exception that it raises ends the wait.
    """
    if world == 1:
        alone = Group.join(
            rank=0, world=1, timeout_s=timeout_s, heartbeat_timeout_s=heartbeat_timeout_s
        )
        return Connection(alone)
    shared = dist.PrefixStore(f"thinwire/{name}", store)
    with store_used():
        key = f"meeting/{shared.add(f'calls/{rank}', 1)}"
    reasons = Reasons(shared, f"{key}/failed", rank)

    def look() -> None:
        reasons.look()
        watch()

    try:
        rendezvous = host(shared, key, store) if rank == 0 else None
        address, token = meeting(shared, key, rank, timeout_s, look)
        options: dict[str, Any] = {
            "timeout_s": timeout_s,
            "launched": True,
            "heartbeat_timeout_s": heartbeat_timeout_s,
        }
        group = Group.join(rank, world, address, token, **options, watch=look)
    except BaseException as error:
        reasons.tell(error)
        raise
    return Connection(group, rendezvous, thinwire.Group(group))


@dataclasses.dataclass(frozen=True)
class Reasons:
    """The reason why a rendezvous fails. The first rank that cannot join publishes it in PyTorch's
    store."""

    shared: dist.Store
    key: str
    rank: int

    def look(self) -> None:
        """Raises PeerError if a rank has published a reason, or if PyTorch's store is lost."""
        with store_used():
            said = self._said()
        if said:
            raise PeerError(said)

    def tell(self, error: BaseException) -> None:
        """Publishes why this rank cannot join, unless another rank has published a reason before.

        # Errors

        PeerError with the other rank's reason, if this rank's own error is a PeerError.
        """
        said = ""
        with contextlib.suppress(RuntimeError):  # where the store is lost, the others know as much
            said = self._said()
            if not said:
                kind = "" if isinstance(error, Error) else f"{type(error).__name__}: "
                reason = f"rank {self.rank} does not come: {kind}{first_line(error)}"
                self.shared.set(self.key, reason)
        if self.rank == 0:
            time.sleep(LINGER_S)
        if isinstance(error, PeerError) and said not in ("", str(error)):
            raise PeerError(said) from error

    def _said(self) -> str:
        return self.shared.get(self.key).decode() if self.shared.check([self.key]) else ""


@contextlib.contextmanager
def store_used() -> Iterator[None]:
    """Raises PeerError if a call of PyTorch's store fails, because the rank that hosts it is gone."""
    try:
        yield
    except Error:
        raise
    except RuntimeError as error:
        raise PeerError(f"PyTorch's store is lost: {first_line(error)}") from error


def host(shared: dist.Store, key: str, store: dist.Store) -> Store:
    """Opens the rendezvous and publishes its address, or the reason why it cannot be opened."""
    made = None if own_token() else secrets.token_hex(16)
    try:
        rendezvous = Store(own_address(*master(store)), 0, made or own_token())
    except Exception as error:
        with contextlib.suppress(RuntimeError):
            shared.set(key, json.dumps({"error": f"rank 0 does not come: {first_line(error)}"}))
        raise
    with store_used():
        shared.set(key, json.dumps({"address": rendezvous.address, "token": made}))
    return rendezvous


def meeting(
    shared: dist.Store,
    key: str,
    rank: int,
    timeout_s: float,
    look: Callable[[], None] = lambda: None,
) -> tuple[str, str]:
    """Returns the address of rank 0's rendezvous, and the token: this rank's own, or the published
    one.

    # Errors

    InvalidError if only one of rank 0 and this rank has a token set by the user;
    PeerError if rank 0 publishes nothing; also the errors of `look`.
    """
    pauses = Pauses(time.monotonic() + timeout_s)
    with store_used():
        while not shared.check([key]):
            look()
            if not pauses.make():
                raise PeerError(
                    f"rank 0 published no rendezvous in PyTorch's store in {timeout_s:g} s"
                )
        published = json.loads(shared.get(key))
    if "error" in published:
        raise PeerError(published["error"])
    if bool(own_token()) == bool(published["token"]):
        here, there = ("has", "has not") if own_token() else ("has not", "has")
        raise InvalidError(
            f"rank 0 {there} THINWIRE_TOKEN, rank {rank} {here} "
            "(hint: the same on every rank, or on none)"
        )
    return published["address"], published["token"] or own_token()


def own_token() -> str:
    """The secret set by the user, empty if there is none."""
    return os.environ.get("THINWIRE_TOKEN", "")


def first_line(error: BaseException) -> str:
    """The first line of an error's message, without the stack that torch appends."""
    return str(error).partition("\n")[0]


def master(store: dist.Store) -> tuple[str, int]:
    """Returns the host and port of PyTorch's rendezvous; loopback if that is a file or in
    memory."""
    while isinstance(store, dist.PrefixStore):
        store = store.underlying_store
    if isinstance(store, dist.TCPStore):
        return store.host, store.port
    return os.environ.get("MASTER_ADDR", "127.0.0.1"), int(os.environ.get("MASTER_PORT", 1))


def own_address(host: str, port: int) -> str:
    """Returns the address of this machine for other machines: the local address from which this
    machine reaches `host`.

    If only this machine resolves `host` to loopback, as with a machine's own name in Debian's
    /etc/hosts, the name itself is returned, because other machines resolve it correctly.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)
        family, kind, protocol, _, address = found[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(address)
            mine: str = probe.getsockname()[0]
    except OSError as error:
        raise InvalidError(f"no route to {host}, where PyTorch's ranks meet: {error}") from error
    return host if is_loopback(mine) and not is_loopback(host) else mine


def is_loopback(host: str) -> bool:
    """Whether this name or address means loopback on every machine."""
    return host in ("localhost", "::1") or host.startswith("127.")
