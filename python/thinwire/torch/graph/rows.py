"""Feature rows: what a row is, and where rows are."""

from __future__ import annotations

import ctypes
import math
from typing import Any, NamedTuple

import torch

from thinwire._core import (
    GraphBatch,
    InvalidError,
    RowServer,
    RowSource,
    decode_rows,
    encode_rows,
)


class Rows(NamedTuple):
    """Feature rows, of any source of the core."""

    like: torch.Tensor | None
    """An empty tensor with the shape and dtype of rows, [0, ...]; None for a graph without features."""
    source: RowSource
    format: str | None = None
    """Format in memory and on the network: None for that of the dtype, "int8" for a scale per row and a
    byte per value, which become float32 when they are read."""
    server: RowServer | None = None
    """Server that answers other ranks for the rows of this one; kept as long as the rows are."""

    @property
    def about(self) -> str:
        """Format and shape of a row, for messages."""
        if self.like is None:
            return "no features"
        return f"{self.format or self.like.dtype} {list(self.like.shape[1:])}"

    def of(self, batch: GraphBatch) -> torch.Tensor | None:
        """Returns the rows of a batch: in the core's own memory, which the tensor keeps, if their format
        is that of the dtype."""
        if self.like is None:
            return None
        address, count = batch.rows
        shape = (batch.vertices, *self.like.shape[1:])
        if count == 0:
            return self.like.new_empty(shape)
        if self.format is not None:
            return self._decoded((address, count), shape)
        memory = (ctypes.c_byte * count).from_address(address)
        memory.batch = batch  # keeps it as long as the tensor's storage does
        return torch.frombuffer(memory, dtype=self.like.dtype).view(shape)

    def read(self, numbers: torch.Tensor) -> torch.Tensor:
        """Returns the rows of vertices, whole numbers [rows], in their order.

        # Errors

        InvalidError for a vertex that does not exist; PeerError if a rank does not answer.
        """
        if self.like is None:
            raise InvalidError("the graph has no features")
        numbers = numbers.to("cpu", torch.int64).contiguous().view(-1)
        shape = (len(numbers), *self.like.shape[1:])
        raw = torch.empty(len(numbers), self.source.width, dtype=torch.uint8)
        self.source.read((numbers.data_ptr(), len(numbers)), raw.data_ptr())
        if self.format is not None:
            return self._decoded((raw.data_ptr(), raw.numel()), shape)
        return raw.view(self.like.dtype).view(shape)

    def _decoded(self, rows: tuple[int, int], shape: tuple[int, ...]) -> torch.Tensor:
        """Returns the float32 of encoded rows, at an address and of some bytes."""
        out = torch.empty(shape, dtype=torch.float32)
        decode_rows(rows, math.prod(shape[1:]), self.format, out.data_ptr())
        return out


def rows_of_tensor(x: torch.Tensor, format: str | None = None) -> Rows:
    """Returns the rows of a tensor [rows, ...], which may not change; in a format a copy of them.

    # Errors

    InvalidError for another shape or format, or a tensor that is not on the CPU.
    """
    x = on_cpu("x", x.detach()).contiguous()
    if x.dim() < 2 or row_bytes(x) == 0:
        raise InvalidError(f"x is {list(x.shape)}, expected [vertices, features]")
    if format is None:
        return Rows(x[:0], RowSource.of_memory(x.data_ptr(), len(x), row_bytes(x), x))
    if format != "int8":
        raise InvalidError(f'format "{format}", expected "int8", or None for that of x')
    x = x.float()
    return Rows(
        x[:0].clone(), encode_rows(x.data_ptr(), len(x), math.prod(x.shape[1:]), format), format
    )


def rows_of_data(data: Any, vertices: int) -> Rows:
    """Returns the rows of a graph's `x`; those of a graph without it are one byte each."""
    x = getattr(data, "x", None)
    if x is not None:
        return rows_of_tensor(x)
    nothing = torch.zeros(vertices, 1, dtype=torch.uint8)
    return Rows(None, RowSource.of_memory(nothing.data_ptr(), vertices, 1, nothing))


def numbers_of(index: Any, count: int) -> torch.Tensor:
    """Returns the rows of an index, as PyG and GraphBolt write it: None for all, a number, a slice, or
    many numbers.

    # Errors

    InvalidError for a mask or fractions.
    """
    if index is None:
        return torch.arange(count)
    if isinstance(index, slice):
        return torch.arange(count)[index]
    numbers = torch.as_tensor(index)
    if numbers.dtype == torch.bool or numbers.is_floating_point():
        raise InvalidError(f"index of {numbers.dtype}, expected whole numbers, a slice or None")
    return numbers.view(-1)


def row_bytes(rows: torch.Tensor) -> int:
    """Returns the number of bytes of a row of [rows, ...]."""
    return math.prod(rows.shape[1:]) * rows.element_size()


def on_cpu(name: str, tensor: torch.Tensor) -> torch.Tensor:
    """Returns the tensor.

    # Errors

    InvalidError if it is not in the machine's memory.
    """
    if tensor.device.type != "cpu":
        hint = "hint: move batches, not the graph"
        raise InvalidError(f"{name} is on {tensor.device}, expected cpu ({hint})")
    return tensor
