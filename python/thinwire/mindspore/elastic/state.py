"""The state of a network and its optimizer, as arrays in an order that is the same on all ranks.

A MindSpore optimizer keeps everything in parameters: the network's trained parameters, moments,
learning rate, and the count of steps. These are equal on all ranks. Parameters that only the
network has, such as running statistics, differ between ranks.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import nn

from .. import memory


class State:
    """Parameters that are `alike` on all ranks, parameters that are each rank's `own`, and a third
    group: the few other parameters that a program may change, such as a learning rate. A void step
    must not change the third group."""

    def __init__(self, network: nn.Cell, optimizer: nn.Optimizer) -> None:
        """Allocates the memory of every parameter."""
        alike = {id(each): each for each in (*optimizer.parameters, *optimizer.get_parameters())}
        self.alike = list(alike.values())
        self.own = [each for each in network.get_parameters() if id(each) not in alike]
        weights = {id(each) for each in optimizer.parameters}
        scalars = [each for each in self.alike if each.size == 1 and id(each) not in weights]
        self.changing = [*self.own, *scalars]
        for parameter in (*self.alike, *self.own):
            if parameter.has_init:
                parameter.init_data()


def arrays(parameters: Iterable[ms.Parameter]) -> list[np.ndarray[Any, Any]]:
    """Values of parameters, in their own memory."""
    return [memory.view(each) for each in parameters]


def store(parameters: Sequence[ms.Parameter], values: Sequence[np.ndarray[Any, Any]]) -> None:
    """Writes the bytes of values to parameters."""
    for parameter, value in zip(parameters, values):
        array = memory.view(parameter)
        array[...] = value.view(array.dtype).reshape(array.shape)
        memory.store(parameter, array)
