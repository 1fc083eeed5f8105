"""The optimizer of an elastic job: averages the gradients, and changes nothing in a void step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras

from ..optimizer import Distributed, ScalingDistributed, distributed_class
from .exchange import Exchange


class ElasticDistributed(Distributed):
    """The methods that `Elastic` adds to the class of an optimizer."""

    _exchange: Exchange  # type: ignore[assignment]
    _trainable_variables: list[Any]
    variables: Any

    def apply(self, grads: Any, trainable_variables: Any = None) -> Any:
        """Updates variables by the averages of gradients over all ranks, unless the step is void."""
        variables = [*self._trainable_variables, *self.variables]
        before = [keras.ops.copy(each) for each in variables]
        super().apply(grads, trainable_variables)
        after = [keras.ops.convert_to_tensor(each) for each in variables]
        for variable, value in zip(variables, self._chosen(after, before)):
            variable.assign(value)

    def _chosen(self, after: Sequence[Any], before: Sequence[Any]) -> list[Any]:
        """Returns the values after the update, or those before it if the step is void."""
        applies = self._exchange.applies
        return [keras.ops.where(applies, *pair) for pair in zip(after, before)]


class ElasticScaling(ScalingDistributed):
    """The further methods that `Elastic` adds to the class of a `LossScaleOptimizer`, whose
    `stateless_apply` does not call `apply`."""

    _chosen: Any

    def stateless_apply(
        self, optimizer_variables: Any, grads: Any, trainable_variables: Any
    ) -> Any:
        """Returns updated values, or the given ones if the step is void; for JAX."""
        found = super().stateless_apply(optimizer_variables, grads, trainable_variables)
        given = trainable_variables, optimizer_variables
        return tuple(self._chosen(*pair) for pair in zip(found, given))


def make_elastic(optimizer: keras.optimizers.Optimizer, exchange: Exchange) -> None:
    """Makes an optimizer average its gradients by `exchange`. It is saved under its original class."""
    parts = ElasticDistributed, ElasticScaling
    optimizer.__class__ = distributed_class(type(optimizer), *parts)
    vars(optimizer)["_exchange"] = exchange
