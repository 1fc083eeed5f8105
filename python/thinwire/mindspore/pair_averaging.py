"""Pair averaging: in each step every rank averages its parameters with one other rank's, then updates.

After "Asynchronous Decentralized Parallel Stochastic Gradient Descent" (AD-PSGD), made deterministic:
pairs are drawn from a seed that all ranks share, and both of a pair end with the same bits. A step
costs one message of the size of the model, whatever the number of ranks.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import nn, ops

import thinwire
from thinwire import _core

from . import memory
from .operator import python_operator
from .optimizer import MovingOptimizer


class PairAveraging(MovingOptimizer):
    """Averages the parameters with a random partner's, then lets `optimizer` update from own gradients.

    group: that of the launcher's environment unless given; seed: the same on all ranks. A collective call.

        optimizer = thinwire.mindspore.PairAveraging(nn.Momentum(parameters, 0.1, 0.9))
    """

    def __init__(
        self, optimizer: nn.Optimizer, group: thinwire.Group | None = None, seed: int = 1
    ) -> None:
        super().__init__(optimizer, group)
        self.swap = Swap(optimizer.parameters, self.group, seed)
        self.operator = swap_operator(self.swap, optimizer.parameters)

    @property
    def synchronizer(self) -> Swap:
        """What `guard` tells of a failure."""
        return self.swap

    def construct(self, gradients):
        """One update from the gradients of this rank, taken before the parameters move."""
        exact = self.exact(gradients)
        theirs = self.operator(*exact)
        averaged = ()
        for i in range(len(theirs)):
            averaged = averaged + (self.moved(i, (exact[i] + theirs[i]) * 0.5),)
        return self.optimizer(ops.depend(gradients, averaged))


class Swap:
    """Gives the partner of each step these parameters, and takes its own."""

    def __init__(
        self, parameters: Sequence[ms.Parameter], group: thinwire.Group, seed: int
    ) -> None:
        self.core = group.core.split("pair averaging")
        self.seed, self.step = seed, 0
        self.error: thinwire.Error | None = None
        self.mine = np.empty(sum(4 * each.size for each in parameters), np.uint8)
        self.theirs = np.empty_like(self.mine)

    def __call__(self, *arrays: np.ndarray[Any, Any]) -> tuple[np.ndarray[Any, Any], ...]:
        """The partner's parameters, views of one buffer that the next step overwrites."""
        other = _core.partner(self.core.rank, self.core.world, self.seed, self.step)
        self.step += 1
        if other is None:
            return arrays
        np.concatenate([flat(array) for array in arrays], out=self.mine)
        self.trade(other)
        ends = np.cumsum([array.nbytes for array in arrays])
        parts = np.split(self.theirs, ends[:-1])
        return tuple(
            part.view(array.dtype).reshape(array.shape) for part, array in zip(parts, arrays)
        )

    def trade(self, other: int) -> None:
        """Sends and receives at once; raises PeerError if the partner is lost."""
        sent = Sent()
        size = self.mine.nbytes
        try:
            self.core.send(memory.address(self.mine), size, other, done=sent)
            self.core.recv(memory.address(self.theirs), size, other)
            sent.wait()
        except thinwire.Error as error:
            self.error = error
            raise

    def failure(self) -> thinwire.Error | None:
        """Why a swap has failed, if one has."""
        return self.error

    def abort(self, reason: str) -> None:
        """Makes the other ranks fail with `reason`."""
        self.core.abort(reason)


class Sent:
    """Called when a message has left, or cannot."""

    def __init__(self) -> None:
        self.event = threading.Event()
        self.error: BaseException | None = None

    def __call__(self, error: BaseException | None) -> None:
        """Takes the news."""
        self.error = error
        self.event.set()

    def wait(self) -> None:
        """Waits for it, and raises why it cannot."""
        self.event.wait()
        if self.error is not None:
            raise self.error


def flat(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The bytes of an array."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def swap_operator(swap: Swap, parameters: Sequence[ms.Parameter]) -> ops.Custom:
    """The swap as one operator of a graph: N parameters in float32 in, the partner's N out.

    Raises InvalidError where MindSpore does not run on the CPU.
    """
    shapes = tuple(tuple(parameter.shape) for parameter in parameters)
    dtypes = (ms.float32,) * len(parameters)
    return python_operator(swap, len(parameters), shapes, dtypes)
