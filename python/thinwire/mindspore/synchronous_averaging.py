"""Synchronous model averaging: ranks train on their own, and each step moves every rank towards the
mean of all.

The method is that of "CROSSBOW: Scaling Deep Learning with Small Batch Sizes on Multi-GPU Servers",
section 3, as implemented in KungFu: the mean has no momentum.

    w <- (1 - alpha) w + alpha mean(w);    then the optimizer's update from this rank's gradients
"""

from __future__ import annotations

from mindspore import nn

import thinwire

from .averaging import AveragingOptimizer


class SynchronousAveraging(AveragingOptimizer):
    """Moves the parameters by a fraction `alpha` towards their mean over all ranks, then lets
    `optimizer` update.

    alpha: above 0 and at most 1; group: by default that of the launcher's environment. Parameters
    are sent uncompressed, as float32, by the core's mode "sma". A collective call.

        optimizer = thinwire.mindspore.SynchronousAveraging(nn.Momentum(parameters, 0.1, 0.9))
    """

    def __init__(
        self, optimizer: nn.Optimizer, alpha: float = 0.1, group: thinwire.Group | None = None
    ) -> None:
        if not 0.0 < alpha <= 1.0:
            raise thinwire.InvalidError(
                f"alpha is {alpha}, expected a number above 0 and at most 1"
            )
        super().__init__(optimizer, group, f"sma:{alpha}")
