"""Mini-batch of data that is not a PyG object."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from thinwire.torch.graph.blocks import Block
from thinwire.torch.graph.lazy import Lazy


class Batch:
    """Mini-batch with the attributes, and the most used methods, of PyG's `Data`."""

    __slots__ = ("_attributes",)

    def __init__(self, **attributes: Any) -> None:
        """Creates a batch with these attributes."""
        object.__setattr__(self, "_attributes", Lazy(attributes))

    @property
    def __dict__(self) -> Lazy:  # type: ignore[override]
        """The attributes by name, as `vars` returns them."""
        return self._attributes

    def __getattr__(self, name: str) -> Any:
        """Returns an attribute."""
        if name in Batch.__slots__ or name not in self._attributes:
            raise AttributeError(f"a batch has no attribute {name}")
        return self._attributes[name]

    def __setattr__(self, name: str, value: Any) -> None:
        """Sets an attribute."""
        self._attributes[name] = value

    def __delattr__(self, name: str) -> None:
        """Removes an attribute."""
        if name not in self._attributes:
            raise AttributeError(f"a batch has no attribute {name}")
        del self._attributes[name]

    def __repr__(self) -> str:
        """Shows all attributes."""
        return f"Batch({', '.join(f'{name}={value!r}' for name, value in vars(self).items())})"

    def __copy__(self) -> Batch:
        """Returns a copy with separate attributes, without computing any of them."""
        copied = Batch()
        object.__setattr__(copied, "_attributes", self._attributes.copy())
        return copied

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles, and copies deeply, the values of the attributes."""
        return restored, (dict(self._attributes),)

    def keys(self) -> list[str]:
        """Returns the names of all attributes."""
        return list(self._attributes)

    def apply(self, function: Callable[[torch.Tensor], torch.Tensor]) -> Batch:
        """Returns a batch with `function` applied to all tensors, those of blocks included."""
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


def attributes_of(batch: Any) -> Lazy:
    """Returns the attributes of a batch, in which a `Later` may stand for a value."""
    if isinstance(batch, Batch):
        of_batch: Any = vars(batch)  # Batch makes it a Lazy
        return of_batch
    found = Lazy(batch._store._mapping)
    batch._store._mapping = found
    return found


def restored(attributes: dict[str, Any]) -> Batch:
    """Returns the batch that was pickled."""
    return Batch(**attributes)


def applied(value: Any, function: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Applies a function to a tensor or to the tensors of blocks; returns anything else unchanged."""
    if torch.is_tensor(value):
        return function(value)
    if isinstance(value, list) and value and isinstance(value[0], Block):
        return [Block(function(each.edge_index), function(each.e_id), each.size) for each in value]
    return value
