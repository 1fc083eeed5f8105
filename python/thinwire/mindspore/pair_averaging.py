"""Pair averaging as an optimizer: every rank averages its parameters with those of other ranks,
without waiting for any.

The method of "Asynchronous Decentralized Parallel Stochastic Gradient Descent" (AD-PSGD). A round
costs one message of the size of the model, whatever the number of ranks.
"""

from __future__ import annotations

from mindspore import nn

import thinwire

from .averaging import AveragingOptimizer


class PairAveraging(AveragingOptimizer):
    """Moves the parameters by the core's mode "pair", then lets `optimizer` update from this rank's
    own gradients.

    group: by default that of the launcher's environment; seed: the same on all ranks. A collective call.

        optimizer = thinwire.mindspore.PairAveraging(nn.Momentum(parameters, 0.1, 0.9))
    """

    def __init__(
        self, optimizer: nn.Optimizer, group: thinwire.Group | None = None, seed: int = 1
    ) -> None:
        super().__init__(optimizer, group, "pair", seed)
