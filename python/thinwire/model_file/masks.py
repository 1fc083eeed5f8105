"""Masks of attention: which keys a query sees, once the mask is worked out."""

from __future__ import annotations

from typing import Any

import numpy as np

FAR = -1e4  # what stands for minus infinity in masks is at most this


def seen(mask: np.ndarray[Any, Any]) -> str | None:
    """What queries see by a mask: "all", "earlier" keys and their own, or none of these.

    A mask is true where a key is seen, or it is added to scores.
    """
    if mask.dtype == bool:
        shown = mask
    elif ((mask == 0) | (mask <= FAR)).all():
        shown = mask == 0
    else:
        return None
    if shown.all():
        return "all"
    if mask.ndim < 2 or mask.shape[-1] != mask.shape[-2]:
        return None
    earlier = np.tril(np.ones(mask.shape[-2:], bool))
    return "earlier" if (shown == earlier).all() else None


def added(mask: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """A mask as numbers that are added to scores, all of them finite."""
    lowest = np.finfo(np.float32).min / 4  # scores that are lower still stay finite
    if mask.dtype == bool:
        return np.where(mask, np.float32(0), np.float32(lowest))
    return np.maximum(mask.astype(np.float32), np.float32(lowest))


def lessened(value: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Known numbers without what repeats along a dimension."""
    for dim in range(value.ndim):
        first = value.take([0], dim)
        value = first if (value == first).all() else value
    return value
