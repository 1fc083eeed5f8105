"""Collectives on tensors, in eager mode and in `tf.function`, and the same variables on all ranks.

All ranks make the same calls in the same order; in a graph they are made in every run, in program order.
A tape raises InvalidError if it takes a gradient through a collective.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy
import tensorflow as tf

from thinwire import arguments, gradients
from thinwire._core import InvalidError
from thinwire.agreement import agree
from thinwire.group import Group
from thinwire.meeting import group_or_default

from .calls import call, traced, without_derivative


@traced
def all_reduce(
    tensor: Any, codec: str = "none", average: bool = False, group: Group | None = None
) -> tf.Tensor:
    """The sum (or average) of a tensor over all ranks, with the same bits on all of them.

    codec: "none", or for float32, float16 and bfloat16 also "f16", "bf16" or a stochastic one, such
    as "int8:stochastic". Other numbers are summed exactly.
    """
    arguments.text("codec", codec)
    met, given = group_or_default(group), numbers(tensor)

    def summed(array: numpy.ndarray[Any, Any]) -> numpy.ndarray[Any, Any]:
        total = numpy.array(array, order="C")
        dtype = gradients.DTYPES.get(given.dtype.name)
        if dtype is None:
            return met.all_reduce(total, codec, average)
        words = f"all_reduce of {given.dtype.name}{list(total.shape)} by {codec}{', averaged' * average}"
        met.core.all_reduce(total.ctypes.data, total.size, dtype, codec, average, call=words)
        return total

    return made("all_reduce", summed, given, given.shape)


@traced
def all_gather(tensor: Any, group: Group | None = None) -> tf.Tensor:
    """Returns the tensors of all ranks, concatenated along the first dimension, whose length may
    differ between ranks."""
    met, given = group_or_default(group), numbers(tensor)
    rows = tf.reshape(given, [1]) if given.shape.rank == 0 else given

    def stacked(array: numpy.ndarray[Any, Any]) -> numpy.ndarray[Any, Any]:
        return gradients.gathered(met, array, "tensors")

    shape = None if rows.shape.rank is None else (None, *rows.shape[1:])
    return made("all_gather", stacked, rows, shape)


@traced
def broadcast(tensor: Any, root: int = 0, group: Group | None = None) -> tf.Tensor:
    """Returns the tensor of rank `root` on all ranks."""
    met, given = group_or_default(group), numbers(tensor)
    arguments.whole("root", root, 0, met.world - 1)

    def copied(array: numpy.ndarray[Any, Any]) -> numpy.ndarray[Any, Any]:
        return met.broadcast(numpy.array(array, order="C"), root)

    return made("broadcast", copied, given, given.shape)


@traced
def broadcast_variables(
    variables: Iterable[Any], root: int = 0, group: Group | None = None
) -> None:
    """Copies the values of rank `root`'s variables to all ranks; a collective call, in eager mode.

    Variables may be TensorFlow's or Keras's, those of a model and those of an optimizer. Raises
    InvalidError on all ranks, before anything has changed, if their number, shapes or dtypes differ
    between ranks.
    """
    if not tf.executing_eagerly():
        raise InvalidError(
            "broadcast_variables was called in a tf.function, expected a call before the first step"
        )
    met, listed = group_or_default(group), list(variables)
    arguments.whole("root", root, 0, met.world - 1)
    arrays = [numpy.array(numbers(each), order="C") for each in listed]
    agree(
        [f"variable {i} of {each.dtype} {list(each.shape)}" for i, each in enumerate(arrays)],
        met.core,
    )
    for variable, array in zip(listed, arrays):
        variable.assign(met.broadcast(array, root))


def numbers(tensor: Any) -> tf.Tensor:
    """The argument as a dense tensor of numbers.

    # Errors

    InvalidError for anything else.
    """
    if isinstance(tensor, tf.IndexedSlices):
        raise InvalidError(
            "IndexedSlices, expected a tensor (hint: tf.convert_to_tensor makes a tensor of them)"
        )
    try:
        found = tf.convert_to_tensor(tensor)
    except (TypeError, ValueError):
        raise InvalidError(f"{arguments.shown(tensor)}, expected a tensor") from None
    kind = found.dtype
    if not (kind.is_floating or kind.is_integer or kind.is_complex or kind.is_bool):
        raise InvalidError(f"a tensor of {found.dtype.name}, expected numbers")
    return found


def made(what: str, function: Callable[..., Any], tensor: tf.Tensor, shape: Any) -> tf.Tensor:
    """Returns the result of a collective, with the tensor's dtype and the known part of the
    shape."""

    def results(values: list[tf.Tensor]) -> list[tf.Tensor]:
        result = call(function, values, tensor.dtype)
        if shape is not None:
            result.set_shape(shape)
        return [result]

    return without_derivative(what, results, [tensor])[0]
