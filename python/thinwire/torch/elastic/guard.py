"""The guard of an optimizer in an elastic job: it counts each step of the optimizer, unless the
step is void or a scaler skips it."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

import torch


def guard(
    optimizer: torch.optim.Optimizer, may: Callable[[], bool], stepped: Callable[[], None]
) -> None:
    """Makes `optimizer.step` do nothing unless `may` returns true. After a step that was made,
    calls `stepped`.

    Keeps the attribute by which schedulers recognise a `step` that one of them has wrapped.
    """
    inner = optimizer.step

    @functools.wraps(inner)
    def step(self: torch.optim.Optimizer, *args: Any, **options: Any) -> Any:
        if not may():
            self.zero_grad()
            return None
        result = inner(*args, **options)
        if not skips(self):
            stepped()
        return result

    optimizer.step = types.MethodType(step, optimizer)  # type: ignore[method-assign]


def skips(optimizer: torch.optim.Optimizer) -> bool:
    """Whether a fused optimizer has skipped this step. A GradScaler calls the `step` of such an
    optimizer even after an overflow."""
    found: torch.Tensor | None = getattr(optimizer, "found_inf", None)
    return found is not None and bool(found > 0)
