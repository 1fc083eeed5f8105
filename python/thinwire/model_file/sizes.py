"""Sizes that grow with the batch."""

from __future__ import annotations

from typing import Any

LINE = 60


def merged(once: Any, twice: Any, batch: int) -> Any:
    """Merges the graphs for a batch and for a batch twice as large into one graph.

    Raises ValueError, which names the first node that differs.
    """
    pairs = zip(once["nodes"], twice["nodes"], strict=False)
    for at, (one, other) in enumerate(pairs):
        kinds = [next(iter(node["operator"])) for node in (one, other)]
        if one["name"] != other["name"] or kinds[0] != kinds[1]:
            raise ValueError(
                f"node {at} is '{one['name']}' ({kinds[0]}) for a batch of {batch} and "
                f"'{other['name']}' ({kinds[1]}) for {2 * batch}, expected the same (hint: the "
                "module must not depend on the size of the batch)"
            )
    counts = [len(graph["nodes"]) for graph in (once, twice)]
    if counts[0] != counts[1]:
        more = max(once, twice, key=lambda graph: len(graph["nodes"]))["nodes"][min(counts)]
        sizes = (batch, 2 * batch)[:: 1 if counts[0] > counts[1] else -1]
        raise ValueError(
            f"node {min(counts)} '{more['name']}' exists for a batch of {sizes[0]} but not for "
            f"{sizes[1]} (hint: the module must not depend on the size of the batch)"
        )
    nodes = []
    for at, (one, other) in enumerate(zip(once["nodes"], twice["nodes"], strict=True)):
        try:
            nodes.append(merge(one, other, batch))
        except ValueError as error:
            raise ValueError(f"node {at} '{one['name']}': {error}") from None
    tensors = merge(once["tensors"], twice["tensors"], batch)
    return {"tensors": tensors, "nodes": nodes, "output": once["output"]}


def merge(once: Any, twice: Any, batch: int) -> Any:
    """Merges the values for a batch and for a batch twice as large into one value."""
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
        "which is not a multiple of the batch"
    )
