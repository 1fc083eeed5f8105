"""Gradients of Keras's variables as a pytree, which `thinwire.jax` exchanges in compiled steps."""

from __future__ import annotations

import collections
from typing import Any

import jax

from thinwire import _core
from thinwire.gradients import Gradient, Gradients, dtype_of
from thinwire.jax.exchange import Exchange


class JaxGradients(Gradients):
    """Gradients that the operators of a JAX `Exchange` send."""

    _exchange: Exchange | None = None
    _counted: Any = None
    """The record of the last step that was counted."""

    def count(self) -> int:
        """Returns 1 if there was a new step since the last call, and otherwise 0. It does not count
        several steps."""
        record = None if self._exchange is None else self._exchange.record()
        if record is not None and not record["buckets"]:
            record = None  # before the first step
        found, self._counted = int(record != self._counted), record
        return found

    def averaged(self, given: list[Any]) -> list[Any]:
        """The averages of all dense gradients, in the order of the variables."""
        if self._exchange is None:
            return []
        names = [self.all[index].name for index in self.dense[::-1]]
        return list(self._exchange(collections.OrderedDict(zip(names, given))).values())

    def failure(self) -> _core.Error | None:
        """The reason why a step has failed, if one has."""
        return None if self._exchange is None else self._exchange.failure()

    def heard(self) -> None:
        """Notes that the program has received this failure, so that it is not reported again at exit."""
        if self._exchange is not None:
            self._exchange.heard()

    def _made(self, dense: list[Gradient], options: dict[str, Any]) -> _core.Synchronizer:
        # An exchange reverses the order of its tree.
        structs = [jax.ShapeDtypeStruct(each.shape, dtype_of(each.dtype)) for each in dense[::-1]]
        names = [each.name for each in dense[::-1]]
        self._exchange = Exchange(collections.OrderedDict(zip(names, structs)), self.group, options)
        return self._exchange.synchronizer
