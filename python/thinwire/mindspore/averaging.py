"""Modes of the core as optimizers: before each update the core changes the parameters, also inside
of graphs.

A step of the core takes place before the optimizer's update, so the parameters that it exchanges
include the previous update.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import nn, ops

import thinwire
from thinwire import _core
from thinwire.rounds import addresses

from .operator import python_operator
from .optimizer import MovingOptimizer


class AveragingOptimizer(MovingOptimizer):
    """Lets the core change the parameters according to a mode, then lets `optimizer` update them
    from this rank's own gradients."""

    def __init__(
        self, optimizer: nn.Optimizer, group: thinwire.Group | None, mode: str, seed: int = 0
    ) -> None:
        super().__init__(optimizer, group)
        self.steps = Steps(optimizer.parameters, self.group, mode, seed)
        shapes = tuple(tuple(each.shape) for each in optimizer.parameters)
        dtypes = (ms.float32,) * len(shapes)
        self.operator = python_operator(self.steps, len(shapes), shapes, dtypes)

    @property
    def synchronizer(self) -> Steps:
        """The failure that `guard` reports."""
        return self.steps

    def construct(self, gradients):
        """Makes one update from this rank's gradients, which were computed before the core changes
        the parameters."""
        before = self.exact(gradients)
        given = self.operator(*before)
        moved = ()
        for i in range(len(given)):
            if self.rest_numbers[i] < 0:
                moved = moved + (ops.assign(self.parameters[i], given[i]),)
        updated = self.optimizer(ops.depend(gradients, (given, moved)))
        after = self.exact(updated)
        moved = ()
        for i in range(len(given)):
            if self.rest_numbers[i] >= 0:
                moved = moved + (self.moved(i, given[i] + (after[i] - before[i])),)
        return ops.depend(updated, moved)


class Steps:
    """Steps of the core on copies of the parameters. Takes N float32 arrays, and returns the N
    changed ones."""

    def __init__(
        self, parameters: Sequence[ms.Parameter], group: thinwire.Group, mode: str, seed: int
    ) -> None:
        self.error: thinwire.Error | None = None
        found = {each.name: each.astype(ms.float32).asnumpy() for each in parameters}
        self.arrays = {name: np.array(each, np.float32) for name, each in found.items()}
        described = [(name, list(each.shape), "f32", 0) for name, each in self.arrays.items()]
        self.core = _core.Averager(
            group.core, described, addresses(self.arrays), mode, codec="none", seed=seed
        )

    def __call__(self, *arrays: np.ndarray[Any, Any]) -> tuple[np.ndarray[Any, Any], ...]:
        """Returns the changed parameters, which the next step overwrites; raises PeerError if a
        peer is lost."""
        for mine, array in zip(self.arrays.values(), arrays):
            mine[...] = array
        try:
            self.core.step(addresses(self.arrays))
        except thinwire.Error as error:
            self.error = error
            raise
        return tuple(self.arrays.values())

    def failure(self) -> thinwire.Error | None:
        """The reason why a step has failed, if one has."""
        return self.error

    def abort(self, reason: str) -> None:
        """Makes the other ranks fail with `reason`."""
        self.core.abort(reason)
