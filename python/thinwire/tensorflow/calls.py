"""Calls from TensorFlow's graphs into Python, whose errors have one line."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar, cast

import numpy
import tensorflow as tf

from thinwire import _core

Called = TypeVar("Called", bound=Callable[..., Any])
Values = Any
"""A tensor, `tf.IndexedSlices`, or None."""


def traced(function: Called) -> Called:
    """Decorates functions that may be called inside `tf.function`: AutoGraph does not transform
    them or their errors.

    Otherwise AutoGraph would raise Thinwire's errors as a StagingError, surrounded by source text.
    """

    @functools.wraps(function)
    def called(*given: Any, **named: Any) -> Any:
        try:
            return function(*given, **named)
        except _core.Error as error:
            error.ag_pass_through = True  # type: ignore[attr-defined]
            raise

    return cast(Called, tf.autograph.experimental.do_not_convert(called))


def call(function: Callable[..., Any], inputs: list[tf.Tensor], dtypes: Any) -> Any:
    """Calls a function of arrays: at once in eager mode, otherwise in every run of the graph, in
    program order.

    # Errors

    InvalidError in a function with `jit_compile=True`.
    """
    refuse_xla()
    if not tf.executing_eagerly():
        return tf.numpy_function(function, inputs, dtypes, stateful=True)
    # TensorFlow would copy each tensor here, and cannot for a scalar of bfloat16.
    found = function(*(numpy.asarray(each.numpy()) for each in inputs))
    if not isinstance(dtypes, list):
        return tf.convert_to_tensor(found, dtypes)
    return [tf.convert_to_tensor(each, dtype) for each, dtype in zip(found, dtypes)]


def without_derivative(
    what: str, function: Callable[[list[Values]], list[Values]], values: Sequence[Values]
) -> list[Values]:
    """Returns `function(values)`, through which no gradient can be taken.

    Taking a gradient raises InvalidError; in a graph, at the time of tracing. TensorFlow itself
    would return None, without an error, for a gradient that passes through a call of Python.
    """
    found: list[Values] = []

    def refuse(*_: Any) -> Any:
        error = _core.InvalidError(
            f"derivative of {what}, expected none (hint: take the gradients first, then exchange them; or "
            "tf.stop_gradient(result) where a loss does not need it)"
        )
        error.ag_pass_through = True  # type: ignore[attr-defined]
        raise error

    @tf.custom_gradient
    def called(*tensors: tf.Tensor) -> Any:
        found[:] = function(refilled(values, tensors))
        return tensors_of(found), refuse

    return refilled(found, called(*tensors_of(values)))


def tensors_of(values: Sequence[Values]) -> list[tf.Tensor]:
    """Returns the tensors of values, two for each `tf.IndexedSlices`."""
    parts = (
        [each.values, each.indices] if isinstance(each, tf.IndexedSlices) else [each]
        for each in values
        if each is not None
    )
    return [tensor for each in parts for tensor in each]


def refilled(values: Sequence[Values], tensors: Sequence[tf.Tensor]) -> list[Values]:
    """Returns values like these, with other tensors in place of those that `tensors_of` returns."""
    left: Iterator[tf.Tensor] = iter(tensors)

    def filled(value: Values) -> Values:
        if isinstance(value, tf.IndexedSlices):
            return tf.IndexedSlices(next(left), next(left), value.dense_shape)
        return None if value is None else next(left)

    return [filled(each) for each in values]


def refuse_xla() -> None:
    """Refuses a function that XLA compiles, because its graph cannot call Python."""
    graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
    while graph is not None:
        context = graph._get_control_flow_context()
        while context is not None:
            if context.IsXLAContext():
                raise _core.InvalidError(
                    "jit_compile=True, expected False: XLA cannot compile an exchange for TensorFlow "
                    "(hint: tf.function(jit_compile=False), or model.compile(..., jit_compile=False))"
                )
            context = context.outer_context
        graph = getattr(graph, "outer_graph", None)
