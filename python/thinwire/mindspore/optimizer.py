"""An optimizer that wraps another one, and communicates with its peers before each update.

It wraps the optimizer instead of inheriting from it. MindSpore compiles `construct` of its optimizers
even in PyNative mode, together with everything that a subclass calls around it, so a subclass would
exchange twice per step.
"""

from __future__ import annotations

from typing import Any

import mindspore as ms
import numpy as np
from mindspore import nn, ops

import thinwire
from thinwire.meeting import group_or_default

from .broadcast import broadcast_parameters


class Holding(nn.Optimizer):
    """An optimizer that MindSpore treats like the one that it wraps, with the same learning
    rates."""

    def __init__(self, optimizer: nn.Optimizer) -> None:
        nn.Cell.__init__(self, auto_prefix=False)
        self.parameters = optimizer.parameters
        self.optimizer = optimizer
        self.enable_tuple_broaden = True

    @property
    def learning_rate(self) -> Any:
        """The wrapped optimizer's learning rate, for callbacks that print or change it."""
        return self.optimizer.learning_rate

    @property
    def global_step(self) -> ms.Parameter:
        """The wrapped optimizer's count of updates."""
        return self.optimizer.global_step

    @property
    def dynamic_lr(self) -> bool:
        """Whether the learning rate depends on the step."""
        return self.optimizer.dynamic_lr

    def get_lr(self) -> Any:
        """The learning rate of the next update."""
        return self.optimizer.get_lr()

    def get_lr_parameter(self, param: Any) -> Any:
        """The learning rate of a parameter."""
        return self.optimizer.get_lr_parameter(param)


class HoldingOptimizer(Holding):
    """An optimizer whose ranks form a group and start from rank 0's parameters."""

    def __init__(self, optimizer: nn.Optimizer, group: thinwire.Group | None) -> None:
        super().__init__(optimizer)
        self.group = group_or_default(group)
        broadcast_parameters(optimizer.parameters, self.group)


class MovingOptimizer(HoldingOptimizer):
    """An optimizer that averages the parameters themselves before each update, as if they were f32.

    The error of rounding a parameter to float16 or bfloat16 is kept and added the next time:
    otherwise, changes smaller than the dtype's resolution would always be lost. Such a parameter is
    assigned after the update, which is added to its average: most of MindSpore's optimizers compute
    in float32 on the CPU, and in the first run of a graph they read a float16 parameter as it was
    before an assignment of the same graph.
    """

    def __init__(self, optimizer: nn.Optimizer, group: thinwire.Group | None) -> None:
        super().__init__(optimizer, group)
        halves = [each for each in optimizer.parameters if each.dtype != ms.float32]
        self.rests = ms.ParameterTuple([rest_of(each) for each in halves])
        numbers = {id(each): number for number, each in enumerate(halves)}
        self.rest_numbers = [numbers.get(id(each), -1) for each in optimizer.parameters]

    def exact(self, gradients):
        """Returns the parameters plus their rounding errors, as float32, once `gradients`, or the result
        of an update, are computed."""
        parameters = ops.depend(self.parameters, gradients)
        found = ()
        for i in range(len(parameters)):
            value = parameters[i].astype(ms.float32)
            if self.rest_numbers[i] >= 0:
                value = value + self.rests[self.rest_numbers[i]]
            found = found + (value,)
        return found

    def moved(self, i, exact):
        """Sets parameter `i` to a rounded float32 value, and keeps the error of rounding it."""
        parameter = self.parameters[i]
        rounded = exact.astype(parameter.dtype)
        error = exact - rounded.astype(ms.float32)
        # What is not finite has no rest: it would stay, also where the program replaces the parameter.
        error = ops.select(ops.isfinite(error), error, ops.zeros_like(error))
        rest = ops.assign(self.rests[self.rest_numbers[i]], error)
        return ops.assign(parameter, ops.depend(rounded, rest))


def rest_of(parameter: ms.Parameter) -> ms.Parameter:
    """Returns the rounding error of a parameter, which is zero at first."""
    zeros = ms.Tensor(np.zeros(parameter.shape, np.float32))
    return ms.Parameter(zeros, name=f"{parameter.name}.rest", requires_grad=False)
