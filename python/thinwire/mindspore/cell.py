"""The exchange as a cell, for graphs: in place of `TrainOneStepCell.grad_reducer`, or inside `@ms.jit`."""

from __future__ import annotations

from collections.abc import Iterable

import mindspore as ms
from mindspore import nn

import thinwire
from thinwire import _core

from .operator import exchange_operator, key_tensor
from .parameters import describe


def reducer(
    parameters: Iterable[ms.Parameter],
    codec: str = "auto",
    group: thinwire.Group | None = None,
    seed: int = 0,
) -> Reducer:
    """A cell that takes the tuple of gradients of `parameters` and gives that of their averages.

    `group` is `thinwire.init()` unless given; `seed` is that of codecs that draw random numbers. A
    collective call: raises InvalidError on all ranks if their parameters differ.

        step = nn.TrainOneStepCell(network_with_loss, optimizer)
        step.grad_reducer = thinwire.mindspore.reducer(optimizer.parameters)
        with thinwire.mindspore.guard(step.grad_reducer):
            loss = step(inputs, labels)

    Several of them in one graph must be ordered by `ops.depend`: each blocks until its peers have come.
    """
    return Reducer(parameters, codec, group, seed)


class Reducer(nn.Cell):
    """What `reducer` makes; it may be called in PyNative mode, in Graph mode and inside `@ms.jit`."""

    def __init__(
        self,
        parameters: Iterable[ms.Parameter],
        codec: str = "auto",
        group: thinwire.Group | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(auto_prefix=False)
        group = thinwire.init() if group is None else group
        parameters = list(parameters)
        self.group = group
        self.synchronizer = _core.Synchronizer(
            group.core, describe(parameters), codec=codec, seed=seed
        )
        self.operator = exchange_operator(parameters)
        self.key = key_tensor(self.synchronizer)
        # Without it a call from Python in Graph mode takes the gradients for constants, and compiles
        # the graph anew for each step.
        self.enable_tuple_broaden = True

    def construct(self, gradients):
        """The averages of a tuple of gradients, in the order and of the dtypes of the parameters."""
        return self.operator(*gradients, self.key)
