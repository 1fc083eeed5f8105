"""Feature rows: their format and their location."""

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
from thinwire.arguments import UINT32_MAX, instance, shown, whole

VERTICES_MAX = UINT32_MAX - 1


class Rows(NamedTuple):
    """Feature rows, of any source of the core."""

    like: torch.Tensor | None
    """An empty tensor with the shape and dtype of rows, [0, ...]; None for a graph without features."""
    source: RowSource
    format: str | None = None
    """Format in memory and on the network. None means the dtype's own format; "int8" means a scale
    per row and a byte per value, which are converted to float32 when they are read."""
    server: RowServer | None = None
    """Server that sends this rank's rows to other ranks; kept alive as long as the rows."""

    @property
    def about(self) -> str:
        """Format and shape of a row, for messages."""
        if self.like is None:
            return "no features"
        return f"{self.format or self.like.dtype} {list(self.like.shape[1:])}"

    def of(self, batch: GraphBatch) -> torch.Tensor | None:
        """Returns the rows of a batch. If the format equals the dtype, the tensor uses the core's
        own memory and keeps it alive."""
        if self.like is None:
            return None
        address, count = batch.rows
        shape = (batch.vertices, *self.like.shape[1:])
        if count == 0:
            return self.like.new_empty(shape)
        if self.format is not None:
            return self._decoded((address, count), shape)
        memory: Any = (ctypes.c_byte * count).from_address(address)
        memory.batch = batch  # keeps it as long as the tensor's storage does
        return torch.frombuffer(memory, dtype=self.like.dtype).view(shape)

    def read(self, index: Any) -> torch.Tensor:
        """Returns the rows of an index in its order: None for all, a number, a slice, or many numbers.

        # Errors

        InvalidError for a vertex that does not exist; PeerError if a rank does not answer.
        """
        if self.like is None:
            raise InvalidError("the graph has no features")
        numbers = numbers_of(index, self.source.rows).to("cpu").contiguous()
        shape = (len(numbers), *self.like.shape[1:])
        raw = torch.empty(len(numbers), self.source.width, dtype=torch.uint8)
        self.source.read((numbers.data_ptr(), len(numbers)), raw.data_ptr())
        if self.format is not None:
            return self._decoded((raw.data_ptr(), raw.numel()), shape)
        return raw.view(self.like.dtype).view(shape)

    def _decoded(self, rows: tuple[int, int], shape: tuple[int, ...]) -> torch.Tensor:
        """Decodes rows, which are given by address and number of bytes, to float32."""
        assert self.format is not None
        out = torch.empty(shape, dtype=torch.float32)
        decode_rows(rows, math.prod(shape[1:]), self.format, (out.data_ptr(), shape[0]))
        return out


def rows_of_tensor(x: torch.Tensor, codec: str | None = None) -> Rows:
    """Returns the rows of a tensor [rows, ...], which must not change; with a codec a copy of them.

    # Errors

    InvalidError for another shape or codec, or a tensor that is not on the CPU.
    """
    x = checked_features(x).detach().contiguous()
    if codec is None:
        return Rows(x[:0], RowSource.of_memory(x.data_ptr(), len(x), row_bytes(x), x))
    if codec != "int8":
        raise InvalidError(
            f'codec {shown(codec)}, expected "int8", or None for the rows as they are in x'
        )
    x = x.float()
    return Rows(
        x[:0].clone(), encode_rows(x.data_ptr(), len(x), math.prod(x.shape[1:]), codec), codec
    )


def checked_features(x: torch.Tensor) -> torch.Tensor:
    """Returns the features of vertices.

    # Errors

    InvalidError for anything but a tensor [vertices, ...] on the CPU.
    """
    x = on_cpu("x", x)
    if x.dim() < 2 or row_bytes(x) == 0:
        raise InvalidError(f"x is {list(x.shape)}, expected [vertices, features]")
    return x


def count_vertices(data: Any) -> int:
    """Returns the number of vertices of a graph.

    # Errors

    InvalidError if it has neither `x` nor `num_nodes`, or they contradict each other.
    """
    x, count = getattr(data, "x", None), getattr(data, "num_nodes", None)
    if count is not None:
        count = whole("num_nodes", count, 0, VERTICES_MAX)
    if x is None:
        if count is None:
            raise InvalidError("the graph has neither x nor num_nodes, expected one of them")
        return count
    rows = len(checked_features(x))
    if count not in (None, rows):
        raise InvalidError(f"num_nodes {count}, expected {rows}, the number of rows of x")
    return rows


def rows_of_data(data: Any, vertices: int) -> Rows:
    """Returns the rows of a graph's `x`; for a graph without `x`, rows of one byte each."""
    x = getattr(data, "x", None)
    if x is not None:
        return rows_of_tensor(x)
    nothing = torch.zeros(vertices, 1, dtype=torch.uint8)
    return Rows(None, RowSource.of_memory(nothing.data_ptr(), vertices, 1, nothing))


def numbers_of(index: Any, count: int) -> torch.Tensor:
    """Returns the rows of an index, as PyG and GraphBolt write it: None for all, a number, a slice, or
    many numbers.

    # Errors

    InvalidError for anything else, masks and floats included.
    """
    if index is None:
        return torch.arange(count)
    expected = "expected whole numbers, a slice or None"
    try:
        numbers = torch.arange(count)[index] if isinstance(index, slice) else torch.as_tensor(index)
    except (TypeError, ValueError, RuntimeError):
        raise InvalidError(f"index is {shown(index)}, {expected}") from None
    if numbers.dtype == torch.bool:
        raise InvalidError(f"index of {numbers.dtype}, {expected}")
    return integers("index", numbers).view(-1)


def integers(name: str, tensor: torch.Tensor) -> torch.Tensor:
    """Returns whole numbers as int64.

    # Errors

    InvalidError for floating-point and complex numbers.
    """
    if tensor.is_floating_point() or tensor.is_complex():
        raise InvalidError(f"{name} of {tensor.dtype}, expected whole numbers")
    return tensor.to(torch.int64)


def check_vertices(name: str, numbers: torch.Tensor, vertices: int) -> None:
    """Refuses numbers that are not of 0..vertices."""
    if numbers.numel():
        least, most = (int(end) for end in torch.aminmax(numbers))
        if least < 0 or most >= vertices:
            wrong = least if least < 0 else most
            raise InvalidError(f"{name} has vertex {wrong}, expected 0..{vertices}")


def refuse(
    wrong: torch.Tensor, values: torch.Tensor, name: str, expected: str, place: str = "in row"
) -> None:
    """Refuses values if any of them is wrong; the message has the first wrong value and its row."""
    if wrong.any():
        row = int(wrong.int().argmax())
        found = values[row].item()
        raise InvalidError(f"{name} is {found} {place} {row}, expected {expected}")


def row_bytes(rows: torch.Tensor) -> int:
    """Returns the number of bytes of a row of [rows, ...]."""
    return math.prod(rows.shape[1:]) * rows.element_size()


def on_cpu(name: str, tensor: torch.Tensor) -> torch.Tensor:
    """Returns the tensor.

    # Errors

    InvalidError if it is not a tensor, is sparse, or is not in main memory.
    """
    if instance(name, tensor, torch.Tensor).layout != torch.strided:
        raise InvalidError(f"{name} is {tensor.layout}, expected torch.strided")
    if tensor.device.type != "cpu":
        hint = "hint: move batches, not the graph"
        raise InvalidError(f"{name} is on {tensor.device}, expected cpu ({hint})")
    return tensor
