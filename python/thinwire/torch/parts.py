"""Parts of gradients. Each rank of a host has one part, which it exchanges with its peers on other
hosts.

Law: a rank's part of a parameter depends only on the rank's place on its host and on the
parameter's shape, not on DDP's buckets, so that residuals remain valid when the buckets change.
All parts of a parameter have equal length, because all ranks must describe the same shapes to the
core. The last parts are padded with zeros.

A bucket is packed into rows, one for each rank of the host. On the host, each rank gets the mean of
its own row over all ranks, in the bucket's dtype. After the exchange between hosts, all ranks of
the host gather all rows and copy them back to the bucket.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import operator
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from thinwire.torch.device import Device
from thinwire.torch.hosts import Host
from thinwire.torch.layout import real_shape
from thinwire.torch.staging import returns, side_stream

UNEVEN_ROWS = 16
"""If parts have at least this number of rows, the dimension need not be a multiple of the number of
parts: a part may then have one row more than it needs."""


def part_shape(parameter: torch.Tensor, ranks: int) -> list[int]:
    """Returns the shape of a part of a parameter's gradient, which is divided into `ranks` parts.

    A matrix is cut between rows. So each part remains a matrix; the core would not compress
    vectors.
    """
    shape = real_shape(parameter)
    elements = math.prod(shape)
    if sum(size > 1 for size in shape) < 2:
        return [-(-elements // ranks)]
    for place in range(1, len(shape)):
        rows, row = math.prod(shape[:place]), shape[place:]
        is_even = rows % ranks == 0 or rows >= UNEVEN_ROWS * ranks
        if is_even and rows > ranks and math.prod(row) > 1:
            return [-(-rows // ranks), *row]
    return [2, -(-elements // (2 * ranks))]


@dataclasses.dataclass(frozen=True)
class Span:
    """The position of a parameter in a bucket, and the position of its parts in the rows."""

    start: int
    elements: int
    column: int
    width: int

    def pack(self, bucket: torch.Tensor, rows: torch.Tensor) -> None:
        """Copies the parameter's gradient into the rows, and pads it with zeros."""
        whole, rest = self.whole, self.rest
        source = bucket[self.start : self.start + self.elements]
        columns = rows[:, self.column : self.column + self.width]
        columns[:whole].copy_(source[: whole * self.width].view(whole, self.width))
        if whole < len(rows):
            columns[whole:].zero_()
            columns[whole, :rest].copy_(source[whole * self.width :])

    def unpack(self, rows: torch.Tensor, bucket: torch.Tensor) -> None:
        """Copies the rows into the parameter's gradient."""
        whole, rest = self.whole, self.rest
        target = bucket[self.start : self.start + self.elements]
        columns = rows[:, self.column : self.column + self.width]
        target[: whole * self.width].view(whole, self.width).copy_(columns[:whole])
        if rest:
            target[whole * self.width :].copy_(columns[whole, :rest])

    @property
    def whole(self) -> int:
        """The number of rows that the gradient fills."""
        return self.elements // max(self.width, 1)

    @property
    def rest(self) -> int:
        """The number of elements in the row after the full ones."""
        return self.elements - self.whole * self.width


def spans(parameters: Sequence[torch.Tensor], ranks: int) -> list[Span]:
    """The spans of a bucket's parameters, which are consecutive."""
    found, start, column = [], 0, 0
    for parameter in parameters:
        elements, width = math.prod(real_shape(parameter)), math.prod(part_shape(parameter, ranks))
        found.append(Span(start, elements, column, width))
        start, column = start + elements, column + width
    return found


def average(rows: torch.Tensor, target: torch.Tensor) -> None:
    """Writes the mean of some rows, computed in f32, to `target`."""
    if target.dtype is torch.float32:
        torch.mean(rows, 0, out=target)
        return
    # Nine times as fast as the mean of short dtypes.
    total = rows[0].float()
    for row in rows[1:]:
        total.add_(row)
    target.copy_(total.div_(len(rows)))


class Parts:
    """The parts of a hook's buckets. Their memory is kept between steps."""

    def __init__(self, host: Host) -> None:
        """Creates the parts of this rank of `host`; memory is allocated for the first buckets."""
        self.host = host
        self._rooms: dict[int, Room] = {}

    def of(self, index: int, parameters: Sequence[torch.Tensor], device: Device | None) -> Part:
        """Returns this rank's part of bucket `index` in a new step. The core takes it on `device`
        or in host memory."""
        room = self._rooms.get(index)
        if room is None or not room.is_of(parameters):
            if index == 0:  # DDP has made its buckets anew
                self._rooms.clear()
            room = self._rooms[index] = Room(parameters, len(self.host.ranks))
        return Part(self.host, room, device)


class Room:
    """The memory of one bucket's rows: the rows that this rank sends and later gathers, and the
    rows that it receives."""

    def __init__(self, parameters: Sequence[torch.Tensor], ranks: int) -> None:
        """Creates it for a bucket of these parameters; memory is allocated for the first bucket."""
        self.spans = spans(parameters, ranks)
        self.sent = self.received = self.own = torch.empty(0)
        self._parameters, self._ranks = list(parameters), ranks

    def is_of(self, parameters: Sequence[torch.Tensor]) -> bool:
        """Whether this memory is for a bucket of these parameters, in this order."""
        same = len(parameters) == len(self._parameters)
        return same and all(map(operator.is_, parameters, self._parameters))

    def fit(self, bucket: torch.Tensor) -> None:
        """Allocates rows in the dtype and on the device of a bucket."""
        width = self.spans[-1].column + self.spans[-1].width
        if (
            self.own.dtype != bucket.dtype
            or self.own.device != bucket.device
            or not self.own.numel()
        ):
            self.sent = bucket.new_empty(0 if self.is_bucket else self._ranks * width)
            # NCCL sums what it receives at once.
            self.received = bucket.new_empty(0 if bucket.is_cuda else self._ranks * width)
            self.own = bucket.new_empty(width)
        if self.is_bucket:
            self.sent = bucket

    @property
    def is_bucket(self) -> bool:
        """Whether the bucket already has the form of its rows, so that nothing is packed: true for
        a single parameter."""
        first = self.spans[0]
        return len(self.spans) == 1 and first.elements == self._ranks * first.width

    def rows(self, flat: torch.Tensor) -> torch.Tensor:
        """Flat memory as rows."""
        return flat.view(self._ranks, -1)


class Part:
    """One bucket of a step during its exchange on the host. It has the interface of `Staging`. It
    stages this rank's row, which it computes from the other ranks' values and later sends back to
    them."""

    def __init__(self, host: Host, room: Room, device: Device | None) -> None:
        """Nothing sent yet."""
        self.devices: set[torch.device] = set()
        """Not empty once the exchange on the host has begun, because `arrive` then blocks."""
        self._host, self._room, self._device = host, room, device
        self._bucket = self._values = torch.empty(0)
        self._work: Any = None

    def update(self, bucket: torch.Tensor) -> torch.Tensor:
        """Sends the rows of a bucket, and returns the memory in which its own row will be.

        This memory has the bucket's dtype on the host and f32 on a device, and receives the row's average.
        """
        room = self._room
        self._bucket = bucket.detach()
        room.fit(self._bucket)
        self.devices.add(bucket.device)
        with torch.no_grad():
            for span in () if room.is_bucket else room.spans:
                span.pack(self._bucket, room.rows(room.sent))
        self._work = self._begin(self._scatter)
        self._values = self._memory()
        return self._values

    def depart(self) -> None:
        """Does nothing: the rows are on their way."""

    def arrive(self) -> None:
        """Waits until the mean of this rank's row has arrived. On a device, it only makes the
        core's work wait."""
        room = self._room
        if not room.own.is_cuda:
            self._host.wait(self._work)
            average(room.rows(room.received), room.own)
            return
        with torch.no_grad(), torch.cuda.stream(side_stream(room.own.device, "parts")):
            self._work.wait()
            if self._values is not room.own:
                self._values.copy_(room.own, non_blocking=True)
            if self._device is not None:
                self._device.room(self._values)
            else:
                torch.cuda.current_stream(room.own.device).synchronize()

    def deliver(self) -> None:
        """Begins to gather the averages of all rows."""
        room = self._room
        with self.stream(room.own.device), torch.no_grad():
            if self._values is not room.own:
                room.own.copy_(self._values, non_blocking=True)
            self._work = self._begin(self._gather)

    def follow(self) -> None:
        """Waits until the bucket has the averages. On a device, it only makes the current stream
        wait."""
        room = self._room
        if room.own.is_cuda:
            self._work.wait()
        else:
            self._host.wait(self._work)
        with torch.no_grad():
            for span in () if room.is_bucket else room.spans:
                span.unpack(room.rows(room.sent), self._bucket)

    def stream(self, device: torch.device) -> contextlib.AbstractContextManager[Any]:
        """Makes the stream that has the averages the current one."""
        if self._device is not None:
            return self._device.stream()
        return (
            torch.cuda.stream(returns(device))
            if device.type == "cuda"
            else contextlib.nullcontext()
        )

    def _memory(self) -> torch.Tensor:
        """The memory that the core works on."""
        own = self._room.own
        if self._device is not None and own.dtype is not torch.float32:
            return torch.empty_like(own, dtype=torch.float32)
        if self._device is None and own.is_cuda:
            return torch.empty(own.shape, dtype=own.dtype, pin_memory=True)
        return own

    def _begin(self, collective: Any) -> Any:
        """Begins a collective of the host; ranks begin theirs in the order of buckets."""
        try:
            return collective()
        except RuntimeError as error:
            raise self._host.loss(error) from error

    def _scatter(self) -> Any:
        room, group = self._room, self._host.process_group
        if room.own.is_cuda:
            average = dist.ReduceOp.AVG
            return dist.reduce_scatter_tensor(room.own, room.sent, average, group, async_op=True)
        # gloo's reduce-scatter takes twice as long, and sums f16 and bf16 in their own dtype.
        return dist.all_to_all_single(room.received, room.sent, group=group, async_op=True)

    def _gather(self) -> Any:
        room, group = self._room, self._host.process_group
        return dist.all_gather_into_tensor(room.sent, room.own, group, async_op=True)
