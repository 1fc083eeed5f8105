"""Rank 0's decision at the end of a pass: whether the training stops, and the next learning rate.

Callbacks such as EarlyStopping and ReduceLROnPlateau count in memory, by the metrics of their own
rank, and a rank that joins has counted nothing. If each rank followed its own callbacks, ranks would
wait for others that have stopped, or train with different learning rates.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable
from typing import Any

import keras


@dataclasses.dataclass(frozen=True)
class Decision:
    """The decision after a number of passes."""

    passes: int = 0
    stops: bool = False
    learning_rate: float | None = None
    """None if there is none that can be set, as under a schedule."""
    epochs: int | None = None
    """The argument of `fit`; None before it is called. The same on all ranks."""

    def encoded(self) -> bytes:
        """The decision as JSON."""
        return json.dumps(dataclasses.astuple(self)).encode()


def newest(encoded: Iterable[bytes]) -> Decision:
    """Returns the decision after the most passes; if several ranks have one after that pass, the lowest
    rank's. If a rank is lost during the exchange of a decision, some ranks may have it and others not.
    """
    return max((Decision(*json.loads(each)) for each in encoded), key=lambda each: each.passes)


def learning_rate_of(optimizer: Any) -> float | None:
    """Returns the learning rate of an optimizer; None if it follows a schedule, and for a
    `MultiOptimizer`, which has one for each of its optimizers."""
    rate = getattr(optimizer, "learning_rate", None)
    return float(keras.ops.convert_to_numpy(rate)) if isinstance(rate, keras.Variable) else None
