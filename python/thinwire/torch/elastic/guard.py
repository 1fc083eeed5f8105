"""The guard of an optimizer in an elastic job: its step is counted unless it is void or skipped by
a scaler."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

import torch


def guard(
    optimizer: torch.optim.Optimizer, may: Callable[[], bool], stepped: Callable[[], None]
) -> None:
    """Makes `optimizer.step` do nothing unless `may` returns true, and calls `stepped` after it.

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
    """Whether a fused optimizer has skipped this step: a GradScaler calls it after an overflow, too."""
    found: torch.Tensor | None = getattr(optimizer, "found_inf", None)
    return found is not None and bool(found > 0)
