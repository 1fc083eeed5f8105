"""Rotary positions: pairs of features are rotated by the token's position. They are recognised as a
pattern of several nodes."""

from __future__ import annotations

from typing import Any

import torch

from thinwire.model_file.graph import Graph
from thinwire.torch.export.walk import Walk

NEAR = 1e-3  # absolute error that a cosine or sine may have
WHOLE = 1e-4  # relative error that a base may have against the whole number that was meant
USUAL = 1e4  # the base where there is but one pair, which turns alike with any


def turned(walk: Walk, straight: int, across: int) -> int | None:
    """Replaces the sum of two products, x · cosines + (exchanged halves of x) · sines, by one
    operator.

    Only positions that are counted from 0, with a single base, are recognised. All other tables,
    such as those of stretched positions, remain constants.
    """
    graph = walk.graph
    one, other = _factors(graph, straight), _factors(graph, across)
    if one is None or other is None or _exchanged(graph, other[0]) != one[0]:
        return None
    x, shape = one[0], graph.shape(one[0])
    if len(shape) != 4:
        return None
    cosines, sines = (_table(known, shape[-2:]) for _, known in (one, other))
    base = None if cosines is None or sines is None else _base(cosines, sines)
    if base is None:
        return None
    batch, heads, tokens, size = shape
    x = graph.transpose(f"{walk.name}.turned", x, [0, 2, 1, 3])
    x = graph.reshape(f"{walk.name}.flat", x, [batch, tokens, heads * size])
    operator = {"rotary": {"head_size": size, "base": base, "back": False}}
    y = graph.one(f"{walk.name}.rotary", operator, [x], graph.shape(x))
    y = graph.reshape(f"{walk.name}.heads", y, [batch, tokens, heads, size])
    return graph.transpose(f"{walk.name}.back", y, [0, 2, 1, 3])


def _factors(graph: Graph, product: int) -> tuple[int, dict[str, Any]] | None:
    """Returns a tensor and the known numbers by which it is multiplied."""
    node = graph.made_by(product, "arithmetic")
    if node is None or node["operator"]["arithmetic"] != "multiply":
        return None
    known = graph.made_by(node["inputs"][1], "constant")
    return None if known is None else (node["inputs"][0], known["operator"]["constant"])


def _exchanged(graph: Graph, x: int) -> int | None:
    """Returns the tensor whose negated upper half of features, followed by its lower half, is
    `x`."""
    packed = graph.made_by(x, "pack")
    if packed is None or len(packed["inputs"]) != 2:
        return None
    negative = graph.made_by(packed["inputs"][0], "scale")
    if negative is None or negative["operator"]["scale"] != -1.0:
        return None
    upper = _half(graph, negative["inputs"][0], 1)
    return upper if upper == _half(graph, packed["inputs"][1], 0) else None


def _half(graph: Graph, x: int, at: int) -> int | None:
    """Returns the tensor whose lower (0) or upper (1) half of features is `x`."""
    node = graph.made_by(x, "unpack")
    if node is None:
        return None
    last = len(graph.shape(x)) - 1
    halves = {"dim": last, "pieces": 1, "sections": [graph.shape(x)[last]] * 2}
    found = node["operator"]["unpack"] == halves and node["outputs"][at] == x
    return node["inputs"][0] if found else None


def _table(known: dict[str, Any], shape: list[int]) -> torch.Tensor | None:
    """Returns known numbers as one row per token, if they are the same for all sequences and
    heads."""
    shape_of_known: list[int] = known["shape"]
    *leading, rows, columns = [1, 1, *shape_of_known]
    if max(leading) > 1:
        return None
    return torch.tensor(known["values"], dtype=torch.float64).view(rows, columns).expand(*shape)


def _base(cosines: torch.Tensor, sines: torch.Tensor) -> float | None:
    """Returns the base of the tables if positions are counted from 0 and both halves are rotated by
    the same angles."""
    tokens, half = cosines.shape[0], cosines.shape[1] // 2
    base = USUAL
    if half > 1 and tokens > 1:
        # The slowest pair has not yet turned far on the second token.
        angle = float(torch.atan2(sines[1, half - 1], cosines[1, half - 1]))
        base = angle ** (half / (1 - half)) if angle > 0 else USUAL
        base = float(round(base)) if abs(round(base) - base) < WHOLE * base else base
    slowness = base ** (torch.arange(half, dtype=torch.float64) / half)
    angles = (torch.arange(tokens)[:, None] / slowness).repeat(1, 2)
    near = ((cosines - angles.cos()).abs() < NEAR) & ((sines - angles.sin()).abs() < NEAR)
    return base if bool(near.all()) else None
