"""An optimizer that holds another one, and does something with its peers before each update.

It holds it rather than inheriting from it: MindSpore compiles `construct` of its optimizers even in
PyNative mode, with all that a subclass calls around it, and so would exchange twice per step.
"""

from __future__ import annotations

from typing import Any

import mindspore as ms
from mindspore import nn

import thinwire

from .broadcast import broadcast_parameters
from .meeting import group_or_default


class Holding(nn.Optimizer):
    """An optimizer that looks like the held one to MindSpore, and has its learning rates."""

    def __init__(self, optimizer: nn.Optimizer) -> None:
        nn.Cell.__init__(self, auto_prefix=False)
        self.parameters = optimizer.parameters
        self.optimizer = optimizer
        self.enable_tuple_broaden = True

    @property
    def learning_rate(self) -> Any:
        """The held optimizer's learning rate, for callbacks that print or change it."""
        return self.optimizer.learning_rate

    @property
    def global_step(self) -> ms.Parameter:
        """The held optimizer's count of updates."""
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
    """An optimizer of the ranks of a group, which all start from rank 0's parameters."""

    def __init__(self, optimizer: nn.Optimizer, group: thinwire.Group | None) -> None:
        super().__init__(optimizer)
        self.group = group_or_default(group)
        broadcast_parameters(optimizer.parameters, self.group)
