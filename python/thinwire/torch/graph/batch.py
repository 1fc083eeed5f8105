"""Mini-batch of data that is no object of PyG."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch

from thinwire.torch.graph.blocks import Block


class Batch(SimpleNamespace):
    """Mini-batch with the attributes, and the most used methods, of PyG's `Data`."""

    def keys(self) -> list[str]:
        """Returns the names of all attributes."""
        return list(vars(self))

    def apply(self, function: Callable[[torch.Tensor], torch.Tensor]) -> Batch:
        """Returns a batch with `function` of all tensors, those of blocks included."""
        return Batch(**{name: applied(value, function) for name, value in vars(self).items()})

    def to(self, device: Any, non_blocking: bool = False) -> Batch:
        """Returns the batch on a device."""
        return self.apply(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def cpu(self) -> Batch:
        """Returns the batch in main memory."""
        return self.to("cpu")

    def cuda(self, device: Any = None, non_blocking: bool = False) -> Batch:
        """Returns the batch on a CUDA device, by default the current one."""
        return self.apply(lambda tensor: tensor.cuda(device, non_blocking=non_blocking))

    def pin_memory(self) -> Batch:
        """Returns a copy in pinned memory."""
        return self.apply(torch.Tensor.pin_memory)

    def clone(self) -> Batch:
        """Returns a copy."""
        return self.apply(torch.Tensor.clone)


def applied(value: Any, function: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Returns a function of a tensor or of the tensors of blocks; anything else as it is."""
    if torch.is_tensor(value):
        return function(value)
    if isinstance(value, list) and value and isinstance(value[0], Block):
        return [Block(function(each.edge_index), function(each.e_id), each.size) for each in value]
    return value
