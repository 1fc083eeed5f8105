"""Groups of ranks, and collectives on NumPy arrays.

Every rank of a group makes the same calls in the same order with arrays of the same shape and
dtype; if a rank makes a different call, all ranks fail with a PeerError, in that call or in their next
one. A rank to which nothing was sent fails only at the timeout. Arrays are passed as pointers, nothing is
copied; the GIL is released while a call waits, and Ctrl-C ends it. float32 and float16 are summed
natively, with codecs; all other numbers are summed exactly, by gathering and adding them here.
"""

from __future__ import annotations

import os
import sys
import weakref
from typing import Any

import numpy

from thinwire import _core, arguments
from thinwire.arguments import Seconds
from thinwire.lifetime import ended, open_groups

NATIVE = {numpy.dtype("float32"): "f32", numpy.dtype("float16"): "f16"}
NUMBERS = "biufc"
"""The kinds of dtype that can be summed: booleans, integers, floating-point and complex numbers."""

# Groups by the rank, world and coordinator given to `init`; all None for the launcher's environment.
_joined: dict[tuple[int | None, int | None, str | None], weakref.ref[Group]] = {}


def init(
    rank: int | None = None,
    world: int | None = None,
    coordinator: str | None = None,
    token: str | None = None,
    *,
    encryption: str = "auto",
    connections: int | None = None,
    link: str | None = None,
    timeout_s: Seconds = 60.0,
    launched: bool = False,
    heartbeat_timeout_s: Seconds | None = None,
    port: int | None = None,
) -> Group:
    """Joins the job that this process belongs to, and returns the group of all its ranks.

    If `rank`, `world` and `coordinator` (host:port of rank 0) are not given, they come from the
    environment of `thinwire run`, torchrun, mpirun, srun or msrun. A process that nobody launched is a
    world of one. A launcher's ranks meet only once: while their group exists, a call without any
    argument returns that group, and any other call is refused. For several groups use `Group.split` or
    other coordinators.

    `token` is the job's secret (else THINWIRE_TOKEN), needed when ranks are on several hosts.
    Traffic between hosts is encrypted unless `encryption` is "never". `connections` is the number of TCP
    connections to each peer, by default 1, but up to 16 to peers on other hosts whose round trip takes
    more than 6.7 ms. `link` emulates a bandwidth, such as "100mbit". A wait fails if no awaited data
    arrives for `timeout_s` seconds. A rank that is silent for `heartbeat_timeout_s` seconds counts as
    lost: at least 1, at most `timeout_s`, by default THINWIRE_HEARTBEAT_TIMEOUT_S or 10. All ranks of a
    host share the TCP port `port`, by default THINWIRE_PORT; without either, each rank listens on its
    own free port. With `launched` another process hosts the rendezvous, for instance a
    `thinwire.Store`.

    Raises InvalidError if rank, world or coordinator are incomplete or contradict each other, or if
    this process has joined already; PeerError if a rank does not appear or has a different world.
    msrun also starts a scheduler process from the same script, which Thinwire does not need: there
    `init` ends the process successfully.
    """
    for name, each in (("rank", rank), ("world", world), ("port", port)):
        arguments.integer_or_none(name, each)
    for name, text in (("coordinator", coordinator), ("token", token), ("link", link)):
        arguments.text_or_none(name, text)
    arguments.text("encryption", encryption)
    arguments.integer_or_none("connections", connections)
    arguments.flag("launched", launched)
    timeout_s, heartbeat_timeout_s = arguments.timeouts(timeout_s, heartbeat_timeout_s)
    meeting = rank, world, coordinator, token, encryption, connections, link, timeout_s, launched
    given = *meeting, heartbeat_timeout_s
    usual = (None, None, None, None, "auto", None, None, 60.0, False, None)
    plain = port is None and given == usual
    group = living(given[:3])
    if group is not None and plain:
        return group
    if group is not None and group.world > 1:
        raise _core.InvalidError(
            f"this process has joined already, as rank {group.rank} of {group.world} (hint: use "
            "that group, or its split(name): a rank joins once)"
        )
    try:
        group = Group(_core.Group.join(*given, port=port))
    except _core.NoRankError as error:
        print(f"thinwire: {error}: nothing to do here", file=sys.stderr)
        raise SystemExit(0) from None
    _joined[given[:3]] = weakref.ref(group)
    return group


def living(place: tuple[int | None, int | None, str | None]) -> Group | None:
    """The group joined with these arguments, unless it is closed or belongs to the parent process."""
    reference = _joined.get(place)
    group = None if reference is None else reference()
    return None if group is None or ended(group) else group


class Group:
    """Ranks that work together; `core` is the group on plain addresses that bindings use."""

    def __init__(self, core: _core.Group):
        self.core = core
        self.process = os.getpid()
        open_groups.add(self)

    @property
    def rank(self) -> int:
        """This process's index, from 0."""
        return self.core.rank

    @property
    def world(self) -> int:
        """Number of ranks."""
        return self.core.world

    @property
    def local_rank(self) -> int:
        """This process's index among the ranks of its host."""
        return self.core.local_rank

    @property
    def local_world(self) -> int:
        """Number of ranks on this host."""
        return self.core.local_world

    def __repr__(self) -> str:
        """The group's rank and size."""
        return f"thinwire.Group(rank {self.rank} of {self.world})"

    def split(self, name: str) -> Group:
        """Returns a group of the same ranks over separate connections; all ranks call it.

        It ends with this group, or earlier by its own `abort` or `close`.
        """
        return Group(self.core.split(name))

    def all_reduce(
        self, array: numpy.ndarray[Any, Any], codec: str = "none", average: bool = False
    ) -> numpy.ndarray[Any, Any]:
        """Replaces `array` by its sum (or average) over all ranks, in place, and returns it.

        All ranks end with the same bits. `codec` is "none", "f16", "bf16" or a stochastic one, such
        as "int8:stochastic"; codecs that need error feedback are for a model's gradients only. Sums
        of integers wrap as NumPy's do; averages of integers are exact, and rounded towards zero.
        There is no average of booleans, whose sum is "or".
        """
        check(array, writable=True)
        check_sum(array, average)
        native = NATIVE.get(array.dtype)
        if native:
            call = described("all_reduce", array, codec, average)
            self.core.all_reduce(array.ctypes.data, array.size, native, codec, average, call=call)
        else:
            check_raw(array, codec)
            call = described("all_reduce", array, codec, average)
            array[...] = merged(self._gathered(array, call), average)
        return array

    def reduce_scatter(
        self, array: numpy.ndarray[Any, Any], codec: str = "none", average: bool = False
    ) -> numpy.ndarray[Any, Any]:
        """Returns this rank's part of the sum (or average) of `array` over all ranks.

        The parts are equal pieces of the first dimension, which must divide by the world's size.
        """
        check(array)
        check_sum(array, average)
        if array.ndim == 0 or array.shape[0] % self.world:
            raise _core.InvalidError(
                f"array of shape {array.shape} does not divide into {self.world} parts"
            )
        part = numpy.empty((array.shape[0] // self.world, *array.shape[1:]), array.dtype)
        call = described("reduce_scatter", array, codec, average)
        native = NATIVE.get(array.dtype)
        if native:
            copy = array.copy()
            addresses = copy.ctypes.data, part.ctypes.data
            self.core.reduce_scatter(*addresses, part.size, native, codec, average, call=call)
            return part
        check_raw(array, codec)
        total = merged(self._gathered(array, call), average)
        part[...] = total[self.rank * part.shape[0] :][: part.shape[0]]
        return part

    def all_gather(self, array: numpy.ndarray[Any, Any]) -> numpy.ndarray[Any, Any]:
        """Returns the arrays of all ranks, concatenated along the first dimension."""
        check(array)
        rows = array.reshape(1) if array.ndim == 0 else array
        stacked = self._gathered(rows, described("all_gather", rows))
        return stacked.reshape(self.world * rows.shape[0], *rows.shape[1:])

    def broadcast(self, array: numpy.ndarray[Any, Any], root: int = 0) -> numpy.ndarray[Any, Any]:
        """Replaces `array`, in place, by the array of rank `root`, and returns it."""
        check(array, writable=True)
        call = f"{described('broadcast', array)} from rank {root}"
        self.core.broadcast(array.ctypes.data, array.nbytes, root, call=call)
        return array

    def barrier(self) -> None:
        """Returns when every rank has called it."""
        self.core.barrier()

    def abort(self, reason: str) -> None:
        """Ends the group, its splits and everything made from them: every rank fails with `reason`.

        A reason of more than one line is cut.
        """
        self.core.abort(reason)

    def close(self) -> None:
        """Tells the other ranks that this rank leaves; called automatically when the process ends."""
        open_groups.discard(self)
        self.core.close()

    def _gathered(self, array: numpy.ndarray[Any, Any], call: str) -> numpy.ndarray[Any, Any]:
        """Returns the arrays of all ranks, stacked in rank order, for a call with this description."""
        stacked = numpy.empty((self.world, *array.shape), array.dtype)
        addresses = array.ctypes.data, stacked.ctypes.data
        self.core.all_gather(*addresses, array.nbytes, call=call)
        return stacked


def check(array: numpy.ndarray[Any, Any], writable: bool = False) -> None:
    """Refuses anything but a contiguous block of memory."""
    if not isinstance(array, numpy.ndarray):
        raise _core.InvalidError(f"a {type(array).__name__}, expected a NumPy array")
    if array.dtype.hasobject:
        raise _core.InvalidError(f"array of {array.dtype}, expected numbers")
    if not array.flags.c_contiguous:
        raise _core.InvalidError(
            f"array of strides {array.strides} is not contiguous (hint: numpy.ascontiguousarray)"
        )
    if writable and not array.flags.writeable:
        raise _core.InvalidError("array is read-only, but the result is written into it")


def check_sum(array: numpy.ndarray[Any, Any], average: bool) -> None:
    """Refuses arrays that cannot be summed or averaged, before anything is sent."""
    if array.dtype.kind not in NUMBERS:
        raise _core.InvalidError(f"array of {array.dtype}, expected numbers")
    if not array.dtype.isnative:
        raise _core.InvalidError(
            f"array of {array.dtype.str}, expected this machine's byte order "
            f"{array.dtype.newbyteorder('=').str} (hint: "
            "array.astype(array.dtype.newbyteorder('=')))"
        )
    if average and array.dtype.kind == "b":
        raise _core.InvalidError(
            "average of booleans, expected numbers (hint: array.astype(float))"
        )


def check_raw(array: numpy.ndarray[Any, Any], codec: str) -> None:
    """Refuses a codec for dtypes that no codec supports."""
    if codec != "none":
        raise _core.InvalidError(f"codec {codec} on {array.dtype}, expected float32 or float16")


def described(
    operation: str, array: numpy.ndarray[Any, Any], codec: str = "none", average: bool = False
) -> str:
    """Returns a description of the call, which must be the same on all ranks."""
    words = f"{operation} of {array.dtype}{list(array.shape)}"
    return words + f" by {codec}" * (codec != "none") + ", averaged" * average


def merged(rows: numpy.ndarray[Any, Any], average: bool) -> numpy.ndarray[Any, Any]:
    """Returns the sum or average over the first dimension, which is the ranks."""
    if average and rows.dtype.kind in "iu":
        return integer_mean(rows)
    total = rows.sum(axis=0, dtype=rows.dtype)
    found: numpy.ndarray[Any, Any] = total / len(rows) if average else total
    return found


def integer_mean(rows: numpy.ndarray[Any, Any]) -> numpy.ndarray[Any, Any]:
    """Returns the exact mean over the first dimension, rounded towards zero.

    Quotients and remainders are summed separately, because the sum of 64-bit integers may overflow.
    """
    wide = rows.astype(numpy.int64 if rows.dtype.kind == "i" else numpy.uint64)
    ranks = wide.dtype.type(len(rows))
    quotients, remainders = numpy.divmod(wide, ranks)
    carry, rest = numpy.divmod(remainders.sum(axis=0), ranks)
    floor = quotients.sum(axis=0) + carry
    found: numpy.ndarray[Any, Any] = floor + ((floor < 0) & (rest > 0))
    return found
