"""Synchronous training as an optimizer: the update is made from the average of all ranks' gradients.

KungFu's SynchronousSGD for MindSpore sums gradients; this one averages them, so that a learning
rate keeps its meaning.
"""

from __future__ import annotations

from mindspore import nn

import thinwire
from thinwire import _core, arguments

from .cell import Reducer
from .optimizer import HoldingOptimizer


class SynchronousSGD(HoldingOptimizer):
    """Averages gradients over all ranks, then lets `optimizer` make an update from the averages.

    codec: as in `thinwire.torch.hook`; group: by default that of the launcher's environment. A
    collective call.

        optimizer = thinwire.mindspore.SynchronousSGD(nn.Momentum(parameters, 0.1, 0.9), codec="int8")
    """

    def __init__(
        self,
        optimizer: nn.Optimizer,
        codec: str = "auto",
        group: thinwire.Group | None = None,
        seed: int = 1,
    ) -> None:
        arguments.options(codec=codec, seed=seed)
        super().__init__(optimizer, group)
        self.reducer = Reducer(optimizer.parameters, codec, self.group, seed)

    @property
    def synchronizer(self) -> _core.Synchronizer:
        """The synchronizer of the core."""
        return self.reducer.synchronizer

    def construct(self, gradients):
        """Makes one update; takes the gradients of this rank."""
        return self.optimizer(self.reducer(gradients))
