"""Masks of attention: which keys a query sees, once the mask is worked out."""

from __future__ import annotations

import torch

FAR = -1e4  # what stands for minus infinity in masks is at most this


def seen(mask: torch.Tensor) -> str | None:
    """What queries see by a mask: "all", "earlier" keys and their own, or none of these.

    A mask is true where a key is seen, or it is added to scores.
    """
    if mask.dtype is torch.bool:
        shown = mask
    elif bool(((mask == 0) | (mask <= FAR)).all()):
        shown = mask == 0
    else:
        return None
    if bool(shown.all()):
        return "all"
    if mask.ndim < 2 or mask.shape[-1] != mask.shape[-2]:
        return None
    earlier = torch.ones(mask.shape[-2:], dtype=torch.bool).tril()
    return "earlier" if bool((shown == earlier).all()) else None


def added(mask: torch.Tensor) -> torch.Tensor:
    """A mask as numbers that are added to scores, all of them finite."""
    lowest = torch.finfo(torch.float32).min / 4  # scores that are lower still stay finite
    if mask.dtype is torch.bool:
        return torch.zeros(mask.shape).masked_fill(~mask, lowest)
    return mask.float().clamp(min=lowest)
