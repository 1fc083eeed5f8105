"""Calls from TensorFlow's graphs into Python, and errors that come out of them in one line."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

import numpy
import tensorflow as tf

from thinwire import _core

Called = TypeVar("Called", bound=Callable[..., Any])


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


def refuse_xla() -> None:
    """Refuses a function that XLA compiles, whose graph cannot call Python."""
    graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
    while graph is not None:
        context = graph._get_control_flow_context()
        while context is not None:
            if context.IsXLAContext():
                raise _core.InvalidError(
                    "jit_compile=True, expected False: XLA compiles no exchange for TensorFlow (hint: "
                    "tf.function(jit_compile=False), or model.compile(..., jit_compile=False))"
                )
            context = context.outer_context
        graph = getattr(graph, "outer_graph", None)
