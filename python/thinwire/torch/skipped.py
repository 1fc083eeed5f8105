"""A warning about a skipped step in a program without a GradScaler.

All gradients of a skipped step (under FSDP2, all gradients of a module) are NaN. An optimizer that
applies them makes all weights NaN.
"""

from __future__ import annotations

import gc
import warnings

import torch

HINT = (
    "an optimizer that applies these makes all weights NaN (hint: use torch.amp.GradScaler, clip "
    'gradients, or choose codec="none", or "bf16" in place of "f16")'
)


def warn(fault: str, effect: str = "the step is skipped and all gradients are NaN") -> None:
    """Warns about gradients that became NaN for the reason `fault`."""
    if not is_scaled():
        warnings.warn(f"{fault}: {effect}; {HINT}", RuntimeWarning, stacklevel=2)


def is_scaled() -> bool:
    """Whether the program has a GradScaler, which skips such steps."""
    scalers = [each for each in gc.get_objects() if issubclass(type(each), torch.amp.GradScaler)]
    return any(scaler.is_enabled() for scaler in scalers)
