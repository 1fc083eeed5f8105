"""The optimizer of an elastic job: averages the gradients, and changes nothing in a void step."""

from __future__ import annotations

import contextlib
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
        trained = list(trainable_variables or self._trainable_variables)
        averages = self._averages(list(grads), trained)
        variables = [*self._trainable_variables, *self.variables]
        with after(averages):
            before = [keras.ops.copy(each) for each in variables]
            self._apply_averages(averages, trained)
            updated = [keras.ops.convert_to_tensor(each) for each in variables]
        for variable, value in zip(variables, self._chosen(updated, before)):
            variable.assign(value)

    def _chosen(self, updated: Sequence[Any], before: Sequence[Any]) -> list[Any]:
        """Returns the values after the update, or those before it if the step is void."""
        applies = self._exchange.applies
        return [keras.ops.where(applies, *pair) for pair in zip(updated, before)]


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


def after(averages: Sequence[Any]) -> contextlib.AbstractContextManager[Any]:
    """Returns a context whose operations TensorFlow runs only after it has the averages.

    `fit` on TensorFlow finds the end of a pass by running a step for which there is no batch. Without
    this context that step would still do what does not depend on gradients: count an iteration and
    decay weights.
    """
    if keras.backend.backend() != "tensorflow":
        return contextlib.nullcontext()
    import tensorflow as tf

    return tf.control_dependencies(averages)


def make_elastic(optimizer: keras.optimizers.Optimizer, exchange: Exchange) -> None:
    """Makes an optimizer average its gradients by `exchange`. It is saved under its original class."""
    parts = ElasticDistributed, ElasticScaling
    optimizer.__class__ = distributed_class(type(optimizer), *parts)
    vars(optimizer)["_exchange"] = exchange
