"""Feature rows: what a row is, and where rows are."""

from __future__ import annotations

import ctypes
import math
from typing import Any, NamedTuple

import torch

from thinwire._core import GraphBatch, InvalidError, RowSource


class Rows(NamedTuple):
    """Feature rows, of any source of the core."""

    like: torch.Tensor | None
    """An empty tensor with the shape and dtype of rows, [0, ...]; None for a graph without features."""
    source: RowSource

    def of(self, batch: GraphBatch) -> torch.Tensor | None:
        """Returns the rows of a batch in the core's own memory, which the tensor keeps."""
        if self.like is None:
            return None
        address, count = batch.rows
        shape = (batch.vertices, *self.like.shape[1:])
        if count == 0:
            return self.like.new_empty(shape)
        memory = (ctypes.c_byte * count).from_address(address)
        memory.batch = batch  # keeps it as long as the tensor's storage does
        return torch.frombuffer(memory, dtype=self.like.dtype).view(shape)


def rows_of_tensor(x: torch.Tensor) -> Rows:
    """Returns the rows of a tensor [rows, ...], which may not change.

    # Errors

    InvalidError for another shape, or a tensor that is not on the CPU.
    """
    x = on_cpu("x", x.detach()).contiguous()
    if x.dim() < 2 or row_bytes(x) == 0:
        raise InvalidError(f"x is {list(x.shape)}, expected [vertices, features]")
    return Rows(x[:0], RowSource.of_memory(x.data_ptr(), len(x), row_bytes(x), x))


def rows_of_data(data: Any, vertices: int) -> Rows:
    """Returns the rows of a graph's `x`; those of a graph without it are one byte each."""
    x = getattr(data, "x", None)
    if x is not None:
        return rows_of_tensor(x)
    nothing = torch.zeros(vertices, 1, dtype=torch.uint8)
    return Rows(None, RowSource.of_memory(nothing.data_ptr(), vertices, 1, nothing))


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
