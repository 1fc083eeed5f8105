"""The averager of an elastic job, called by Keras's compiled step while it runs.

On JAX a step cannot be made again once it has failed, because its program has consumed the old state.
So in a void step the call returns normally, with a flag that says whether the optimizer may apply the
averages.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import numpy as np

from thinwire._core import InvalidError
from thinwire.elastic import exchange
from thinwire.gradients import DTYPES, dtype_of

from ..exchange import array_of, described, tensor_of

NO_CALLBACK = "fit has no callback of the job, expected callbacks=[elastic.callback()]"


class Outcome(enum.Enum):
    """End of a step: applied by the optimizer, void, or left out because its batch was dealt before
    the ranks changed."""

    APPLIED = enum.auto()
    VOID = enum.auto()
    STALE = enum.auto()


class Exchange(exchange.Exchange):
    """Averages the gradients of variables; `options` are a Synchronizer's.

    It stands in for the exchange of a distributed optimizer, whose `apply` calls it.
    """

    def __init__(
        self, variables: Sequence[Any], options: Mapping[str, Any], wants_end: Callable[[], bool]
    ) -> None:
        """`wants_end` says whether this rank wants the epoch to end."""
        self._variables = list(variables)
        self._dtypes = [keras.backend.standardize_dtype(each.dtype) for each in self._variables]
        parameters = [
            (f"{each.name}.{number}", list(each.shape), dtype_name(each.path, dtype), 0)
            for number, (each, dtype) in enumerate(zip(self._variables, self._dtypes))
        ]
        super().__init__(parameters[::-1], options, wants_end)
        self.begins: Callable[[], bool] = lambda: True
        """Takes the batch of the step, and returns false if it is stale. May raise an error."""
        self.applies: Any = None
        """Whether the optimizer may apply the averages of the last call: a tensor, which may be traced."""
        self._outcome: Outcome | None = None
        self._error: BaseException | None = None
        self._closed: str | None = NO_CALLBACK

    def open(self) -> None:
        """Permits steps, and forgets a step that an interrupted training has left."""
        self._outcome = self._error = self._closed = None

    def take_applied(self) -> bool:
        """Returns whether the last step was applied and `end` was not called, because the training was
        interrupted before that; forgets the step if so."""
        is_applied = self._outcome is Outcome.APPLIED
        self._outcome = None if is_applied else self._outcome
        return is_applied

    def close(self, reason: str) -> None:
        """Refuses further steps for a reason."""
        self._closed = reason

    def __call__(self, found: list[Any], variables: Sequence[Any]) -> list[Any]:
        """Returns the averages of gradients over all ranks, and sets `applies`.

        # Errors

        InvalidError outside of the job's training, for variables other than those of the job, and for
        gradients that are missing or of another shape or dtype.
        """
        if self._closed:
            raise InvalidError(self._closed)
        same = len(variables) == len(self._variables) == len(found)
        if not same or any(one is not other for one, other in zip(variables, self._variables)):
            raise InvalidError(
                f"{len(found)} gradients of {len(variables)} variables, expected the "
                f"{len(self._variables)} of the job (hint: set `trainable` before Elastic is created)"
            )
        for variable, gradient in zip(variables, found):
            if described(variable, gradient).kind == "none":
                raise InvalidError(
                    f"{variable.path} has no gradient, expected one in each step of an elastic job "
                    "(hint: trainable=False for variables that the loss does not depend on)"
                )
        *averages, self.applies = CALLS[keras.backend.backend()](self, found)
        return averages

    def step(self, *gradients: Any) -> list[np.ndarray[Any, Any]]:
        """Makes the exchange of one step; returns the averages, and whether they may be applied.

        A framework calls it from any thread. It keeps an error for `end`.

        # Errors

        InvalidError if `end` was not called after the previous step.
        """
        if self._outcome is not None:
            raise InvalidError(
                "a step begins before the one before it has ended, expected callbacks=[elastic.callback()] "
                "and one optimizer.apply in each step"
            )
        averages = [
            np.zeros(each.shape, dtype_of(dtype))
            for each, dtype in zip(self._variables, self._dtypes)
        ]
        try:
            self._outcome = self._ended(gradients, averages) if self.begins() else Outcome.STALE
        except Exception as error:
            self._outcome, self._error = Outcome.VOID, error
        return [*averages, np.array(self._outcome is Outcome.APPLIED)]

    def end(self) -> Outcome:
        """Returns the outcome of the step that has ended.

        # Errors

        InvalidError if the step has made no exchange; and the error of the exchange.
        """
        outcome, self._outcome = self._outcome, None
        error, self._error = self._error, None
        if error is not None:
            raise error
        if outcome is None:
            raise InvalidError(
                "a step has ended without an exchange, expected one in each step (hint: does "
                "train_step call optimizer.apply?)"
            )
        return outcome

    def _ended(self, gradients: Sequence[Any], averages: Sequence[np.ndarray[Any, Any]]) -> Outcome:
        """Writes the averages, unless the step is void."""
        if not self.attempt(lambda: self.average_into(gradients[::-1], averages[::-1])):
            return Outcome.VOID
        self.complete()
        return Outcome.APPLIED

    def exchange_plan(self) -> dict[str, Any]:
        """Codec, algorithm and partitions of each exchange, as in PyTorch."""
        return json.loads(self.sync.plan())

    def record(self) -> dict[str, Any]:
        """The breakdown of the last step's time, as in PyTorch."""
        return json.loads(self.sync.record())

    @property
    def gradients(self) -> Any:
        """Refused: callbacks that need a fixed group do not work in an elastic job."""
        raise InvalidError(
            "the optimizer belongs to an elastic job, expected one of thinwire.keras.distributed (hint: "
            "leave out Broadcast, MetricAverage, Residuals and guard)"
        )


def dtype_name(name: str, dtype: str) -> str:
    """Returns the core's name of a dtype.

    # Errors

    InvalidError for a dtype whose gradients are not exchanged.
    """
    if dtype not in DTYPES:
        raise InvalidError(f"{name} is {dtype}, expected {', '.join(DTYPES)}")
    return DTYPES[dtype]


def on_tensorflow(exchange: Exchange, found: list[Any]) -> list[Any]:
    """Calls the exchange in eager mode, or in each run of a graph."""
    import tensorflow as tf

    from thinwire.tensorflow.calls import call

    dense = [tf.convert_to_tensor(each) for each in found]
    results = call(exchange.step, dense, [*(each.dtype for each in dense), tf.bool])
    for result, each in zip(results, [*dense, tf.constant(True)]):
        result.set_shape(each.shape)
    return list(results)


def on_jax(exchange: Exchange, found: list[Any]) -> list[Any]:
    """Calls the exchange in each run of a program."""
    import jax
    from jax.experimental import io_callback

    structs = [jax.ShapeDtypeStruct(each.shape, each.dtype) for each in found]
    flag = jax.ShapeDtypeStruct((), np.dtype(bool))
    return list(io_callback(exchange.step, [*structs, flag], *found))


def on_torch(exchange: Exchange, found: list[Any]) -> list[Any]:
    """Calls the exchange between backward and the update."""
    import torch

    *averages, applies = exchange.step(*map(array_of, found))
    return [*(tensor_of(*pair) for pair in zip(averages, found)), torch.from_numpy(applies)]


CALLS: dict[str, Callable[[Exchange, list[Any]], list[Any]]] = {
    "tensorflow": on_tensorflow,
    "jax": on_jax,
    "torch": on_torch,
}
