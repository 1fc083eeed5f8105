"""A Keras optimizer that averages gradients over all ranks before its update.

One override works for all backends: TensorFlow's `apply_gradients`, JAX's `stateless_apply` and
PyTorch's trainer all call `apply`. `LossScaleOptimizer`, which has a `stateless_apply` of its own,
must be inside of the wrapper: if it were outside, a rank that skips a step because of a NaN would
make no exchange, and the ranks' steps would no longer match.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import keras

from thinwire import arguments
from thinwire._core import InvalidError
from thinwire.gradients import Gradients
from thinwire.group import Group

from .exchange import Exchange, exchange_for

ORDER = "thinwire.keras.distributed(keras.optimizers.LossScaleOptimizer(optimizer))"


def distributed(
    optimizer: keras.optimizers.Optimizer,
    codec: str = "auto",
    group: Group | None = None,
    *,
    sparse_as_dense: bool = False,
    **options: Any,
) -> keras.optimizers.Optimizer:
    """Makes an optimizer average gradients over all ranks before each update, and returns it.

    It changes the class of `optimizer` in place, and keeps its state. The optimizer is saved under its
    original class, so a saved model loads without Thinwire. `optimizer.exchange` has `exchange_plan()`
    and `record()`. The first step is a collective call. Clipping, weight decay and accumulation come
    after the exchange, as in one process.

        model.compile(thinwire.keras.distributed(keras.optimizers.Adam(1e-3), codec="int8"), loss)

    Args:
        optimizer: a Keras 3 optimizer, or its name. Pass a `LossScaleOptimizer` itself, not its inner one.
        codec, options: as in `thinwire.torch.hook`, which describes them: `bucket_bytes`, `seed`,
            `algorithm`, `error_budget`, `feedback`, `momentum_correction`, `warmup_steps`, `unchecked`.
        group: by default that of the launcher's environment.
        sparse_as_dense: whether the gradients of embeddings, which TensorFlow represents by rows,
            are made dense. Otherwise every rank gathers the rows of all ranks, uncompressed.

    # Errors

    InvalidError for an optimizer that is distributed already, and for unknown options. The first
    step raises it on all ranks if variables or options differ between ranks. A step raises
    PeerError if a rank is lost: see `guard`.
    """
    if isinstance(optimizer, str):
        optimizer = keras.optimizers.get(optimizer)
    arguments.instance("optimizer", optimizer, keras.optimizers.Optimizer)
    if isinstance(optimizer, Distributed):
        raise InvalidError(
            f"{optimizer.name} is distributed already, expected an optimizer of Keras: wrap it once"
        )
    if isinstance(getattr(optimizer, "inner_optimizer", None), Distributed):
        raise InvalidError(
            f"the inner optimizer of {optimizer.name} is distributed, expected: {ORDER}"
        )
    made = exchange_for(codec, group, sparse_as_dense, **options)
    optimizer.__class__ = distributed_class(type(optimizer), Distributed, ScalingDistributed)
    vars(optimizer)["_exchange"] = made
    return optimizer


def distributed_class(kind: type, base: type, of_scaling: type) -> type:
    """The class of a distributed optimizer with the methods of `base`, and for a `LossScaleOptimizer`
    also those of `of_scaling`. Keras saves it under the name of `kind`."""
    bases = (of_scaling,) if issubclass(kind, keras.optimizers.LossScaleOptimizer) else ()
    names = {name: getattr(kind, name) for name in ("__module__", "__qualname__", "__doc__")}
    return type(kind.__name__, (*bases, base, kind), {**names, "_undistributed": kind})


class Distributed:
    """The methods that `distributed` adds to the class of an optimizer."""

    _exchange: Exchange
    _undistributed: Any

    @property
    def exchange(self) -> Exchange:
        """The exchange of gradients: `exchange_plan()` and `record()`."""
        return self._exchange

    @property
    def gradients(self) -> Gradients:
        """The part of the exchange that all frameworks share."""
        return self._exchange.gradients

    def __setattr__(self, name: str, value: Any) -> None:
        """Refuses a `LossScaleOptimizer` around this optimizer, which is recognised by the
        attribute that it would set here."""
        around = sys._getframe(1).f_locals.get("self") if name == "loss_scale_factor" else None
        if around is not self and isinstance(around, keras.optimizers.LossScaleOptimizer):
            raise InvalidError(
                "LossScaleOptimizer, which compile adds under mixed_float16, wraps a distributed "
                f"optimizer, expected the reverse (hint: {ORDER})"
            )
        super().__setattr__(name, value)

    @classmethod
    def from_config(cls, *given: Any, **named: Any) -> Any:
        """Returns an optimizer that is not distributed."""
        return cls._undistributed.from_config(*given, **named)

    def apply(self, grads: Any, trainable_variables: Any = None) -> Any:
        """Updates variables by the averages of gradients over all ranks."""
        grads = list(grads)
        if not grads:
            return super().apply(grads, trainable_variables)
        listed = None if trainable_variables is None else list(trainable_variables)
        if listed is None and not self.built:
            return super().apply(grads)  # which says what is missing
        variables = self._trainable_variables if listed is None else listed
        return self._apply_averages(self._averages(grads, variables), listed)

    def _apply_averages(self, averages: list[Any], trainable_variables: list[Any] | None) -> Any:
        """Updates variables as the optimizer does in one process."""
        return super().apply(averages, trainable_variables)

    def _averages(self, grads: list[Any], variables: Sequence[Any]) -> list[Any]:
        return self._exchange(grads, variables)


class ScalingDistributed:
    """The further methods that `distributed` adds to a `LossScaleOptimizer`.

    Gradients are unscaled before they are sent. So residuals do not depend on the scale, which
    changes.
    """

    def stateless_apply(
        self, optimizer_variables: Any, grads: Any, trainable_variables: Any
    ) -> Any:
        """Returns updated values, by the averages of gradients over all ranks; for JAX."""
        if self.built:
            places = [id(each) for each in self.variables]
            scale = optimizer_variables[places.index(id(self.dynamic_scale))]
            grads = self._unscaled(list(grads), self._trainable_variables, scale)
        return super().stateless_apply(optimizer_variables, grads, trainable_variables)

    def _averages(self, grads: list[Any], variables: Sequence[Any]) -> list[Any]:
        if not self.built:
            self.build(variables)
        return self._unscaled(grads, variables, self.dynamic_scale)

    def _unscaled(self, grads: list[Any], variables: Sequence[Any], scale: Any) -> list[Any]:
        """Returns the averages of gradients, which are divided by `scale`, a power of two, before
        they are sent."""
        averages = self._exchange(divided(grads, scale), variables)
        return divided(averages, keras.ops.divide(1.0, scale))


def divided(grads: list[Any], divisor: Any) -> list[Any]:
    """Divides gradients, including sparse ones, by a number. Results have the gradients' own dtype,
    although the scale is float32."""
    return [
        None if each is None else keras.ops.cast(keras.ops.divide(each, divisor), each.dtype)
        for each in grads
    ]
