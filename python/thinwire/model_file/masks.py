"""Masks of attention: the keys that a query sees, found from the mask's values."""

from __future__ import annotations

from typing import Any

import numpy as np

FAR = -1e4  # what stands for minus infinity in masks is at most this


def seen(mask: np.ndarray[Any, Any]) -> str | None:
    """Returns which keys a query sees under a mask: "all", "earlier" (up to the query's own
    position), or None for anything else.

    A boolean mask is true where a key is seen; any other mask is added to scores.
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
    """Returns a mask as finite numbers that are added to scores."""
    lowest = np.finfo(np.float32).min / 4  # scores that are lower still stay finite
    if mask.dtype == bool:
        return np.where(mask, np.float32(0), np.float32(lowest))
    return np.maximum(mask.astype(np.float32), np.float32(lowest))


def lessened(value: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Returns constants whose repetitions along a dimension are removed."""
    for dim in range(value.ndim):
        first = value.take([0], dim)
        value = first if (value == first).all() else value
    return value
