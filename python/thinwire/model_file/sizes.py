"""Sizes that grow with the batch."""

from __future__ import annotations

from typing import Any

LINE = 60


def merge(once: Any, twice: Any, batch: int) -> Any:
    """One value of those for a batch and for one twice as large."""
    if isinstance(once, dict) and isinstance(twice, dict) and once.keys() == twice.keys():
        return {key: merge(once[key], twice[key], batch) for key in once}
    if isinstance(once, list) and isinstance(twice, list) and len(once) == len(twice):
        return [merge(a, b, batch) for a, b in zip(once, twice, strict=True)]
    if type(once) is type(twice) and once == twice:
        return once
    if type(once) is int and twice == 2 * once and once % batch == 0:
        return {"batch": once // batch}
    if isinstance(once, list) and isinstance(twice, list):
        once, twice = f"{len(once)} values", f"{len(twice)} values"
    raise ValueError(
        f"{str(once)[:LINE]} for a batch of {batch} and {str(twice)[:LINE]} for {2 * batch}, "
        "which is no multiple of the batch"
    )
