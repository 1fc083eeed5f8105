"""Synchronous model averaging: ranks train on their own, each drawn towards the mean of all in each step.

From "CROSSBOW: Scaling Deep Learning with Small Batch Sizes on Multi-GPU Servers", section 3, in the
form that KungFu ships: without momentum of the mean.

    w <- (1 - alpha) w + alpha mean(w);    then the optimizer's update from this rank's gradients
"""

from __future__ import annotations

from mindspore import nn, ops

import thinwire
from thinwire import _core

from .cell import Reducer
from .optimizer import MovingOptimizer


class SynchronousAveraging(MovingOptimizer):
    """Draws the parameters by `alpha` towards their mean over all ranks, then lets `optimizer` update.

    alpha: from 0 to 1; group: that of the launcher's environment unless given. Parameters travel raw, as
    float32. A collective call.

        optimizer = thinwire.mindspore.SynchronousAveraging(nn.Momentum(parameters, 0.1, 0.9))
    """

    def __init__(
        self, optimizer: nn.Optimizer, alpha: float = 0.1, group: thinwire.Group | None = None
    ) -> None:
        if not 0.0 <= alpha <= 1.0:
            raise thinwire.InvalidError(f"alpha is {alpha}, not between 0 and 1")
        super().__init__(optimizer, group)
        self.alpha = alpha
        self.reducer = Reducer(self.in_float32(), "none", self.group)

    @property
    def synchronizer(self) -> _core.Synchronizer:
        """The synchronizer of the core."""
        return self.reducer.synchronizer

    def construct(self, gradients):
        """One update from the gradients of this rank, taken before the parameters move."""
        exact = self.exact(gradients)
        means = self.reducer(exact)
        drawn = ()
        for i in range(len(means)):
            drawn = drawn + (self.moved(i, exact[i] + self.alpha * (means[i] - exact[i])),)
        return self.optimizer(ops.depend(gradients, drawn))
