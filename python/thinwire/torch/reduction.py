"""Reductions of PyTorch tensors. The core computes some of them during the exchange; this package
computes all others.

The core sums f32, f16 and bf16. All other reductions of c10d are exact: every rank's part of
the tensor comes to one rank, which reduces them in the order of the ranks, in the tensor's own dtype,
so that all ranks end with the same bits.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch._C._distributed_c10d import ReduceOp

from thinwire._core import InvalidError

NATIVE = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16"}
SUMS = (ReduceOp.SUM, ReduceOp.AVG)
BITWISE = {
    ReduceOp.BAND: torch.Tensor.bitwise_and_,
    ReduceOp.BOR: torch.Tensor.bitwise_or_,
    ReduceOp.BXOR: torch.Tensor.bitwise_xor_,
}
MERGES: dict[Any, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    ReduceOp.SUM: torch.Tensor.add_,
    ReduceOp.AVG: torch.Tensor.add_,
    ReduceOp.PRODUCT: torch.Tensor.mul_,
    ReduceOp.MIN: lambda total, part: torch.minimum(total, part, out=total),
    ReduceOp.MAX: lambda total, part: torch.maximum(total, part, out=total),
    **BITWISE,
}


@dataclasses.dataclass(frozen=True)
class Reduction:
    """The operation on the ranks' values. `kind` is c10d's name of it; `factor` multiplies each
    value before a sum."""

    kind: Any
    factor: Any = None

    @staticmethod
    def of(operation: Any) -> Reduction:
        """The reduction that c10d's `operation` means: a ReduceOp, or one of its kinds."""
        kind = getattr(operation, "op", operation)
        if kind == ReduceOp.PREMUL_SUM:
            return Reduction(ReduceOp.SUM, operation.factor)
        return Reduction(kind)

    def check(self, tensor: torch.Tensor) -> None:
        """Refuses meaningless reductions, before anything is sent.

        # Errors

        InvalidError for minima and maxima of complex numbers, bit operations on floating-point
        numbers, an average of booleans, and unknown kinds.
        """
        kind, dtype, name = self.kind, tensor.dtype, self.name
        if kind not in MERGES:
            raise InvalidError(f"thinwire cannot reduce with {name} (hint: sum and scale instead)")
        meaningless = (
            (dtype.is_complex and kind in (ReduceOp.MIN, ReduceOp.MAX))
            or (kind in BITWISE and (dtype.is_floating_point or dtype.is_complex))
            or (kind == ReduceOp.AVG and dtype == torch.bool)
        )
        if meaningless:
            raise InvalidError(f"{name} is not defined for {dtype}")

    def native(self, tensor: torch.Tensor) -> str | None:
        """Returns the core's name of the dtype if the core computes this reduction, and otherwise
        None."""
        return NATIVE.get(tensor.dtype) if self.kind in SUMS else None

    @property
    def average(self) -> bool:
        """Whether the sum is divided by the number of ranks."""
        return bool(self.kind == ReduceOp.AVG)

    def words(self, operation: str, tensor: torch.Tensor) -> str:
        """A description of the call, which must be the same on all ranks."""
        return f"{operation} by {self.name} of {tensor.numel()} {tensor.dtype}"

    @property
    def name(self) -> str:
        """The name in c10d, such as "MAX"."""
        return str(self.kind).rpartition(".")[2]

    def scale(self, tensor: torch.Tensor) -> None:
        """Multiplies by the factor, if there is one, in place."""
        if self.factor is not None:
            factor = self.factor
            tensor.mul_(factor.to(tensor.device) if isinstance(factor, torch.Tensor) else factor)

    def merge(self, rows: torch.Tensor) -> torch.Tensor:
        """Reduces the first dimension, which is the ranks, in rank order."""
        dtype = rows.dtype
        wide = rows.float() if dtype.is_floating_point and dtype.itemsize == 1 else rows
        total = wide[0].clone()
        for part in wide[1:]:
            MERGES[self.kind](total, part)
        if self.average:
            fractions = dtype.is_floating_point or dtype.is_complex
            total.div_(len(rows), rounding_mode=None if fractions else "trunc")
        return total.to(dtype)
