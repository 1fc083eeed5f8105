"""The exchange as a function of gradients, in `tf.function` and in eager mode.

A graph calls Python once for each bucket and once for the averages. TensorFlow runs these calls in
program order: the last layers first, as soon as backward has their gradients.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from thinwire import deprecated
from thinwire._core import InvalidError
from thinwire.arguments import shown
from thinwire.gradients import Gradient, Gradients, Kind
from thinwire.group import Group

from .calls import Values, call, refuse_xla, traced, without_derivative


@traced
def exchange(
    variables: Any,
    codec: str = "auto",
    group: Group | None = None,
    *,
    sparse_as_dense: bool = False,
    **options: Any,
) -> Exchange:
    """A callable that takes the gradients of `variables`, in the structure of `variables`, and
    returns their averages.

        average = thinwire.tensorflow.exchange(model.trainable_variables, codec="int8")

        @tf.function
        def step(inputs, labels):
            with tf.GradientTape() as tape:
                loss = ...
            gradients = average(tape.gradient(loss, variables))

    Its first call, or the first trace of a function with one, is a collective call. Each call is a
    whole step: all ranks make the same number of calls, in the same order. If a gradient of any
    rank is not finite, all averages are NaN on all ranks.

    Args:
        variables: a list, dict or other structure of variables of TensorFlow or Keras, float32, float16 or
            bfloat16.
        codec, options: as in `thinwire.torch.hook`, which describes them: `bucket_bytes`, `seed`,
            `algorithm`, `error_budget`, `feedback`, `momentum_correction`, `warmup_steps`, `unchecked`.
        group: by default that of the launcher's environment.
        sparse_as_dense: whether `tf.IndexedSlices`, which embeddings have as gradients, are made dense.
            Otherwise every rank gathers the rows of all ranks, uncompressed.
    """
    return Exchange(variables, codec, group, sparse_as_dense, **options)


class Exchange:
    """The callable that `exchange` returns."""

    def __init__(
        self,
        variables: Any,
        codec: str = "auto",
        group: Group | None = None,
        sparse_as_dense: bool = False,
        **options: Any,
    ) -> None:
        self.gradients = Gradients(codec, group, **options)
        listed = list(variables) if isinstance(variables, Iterator) else variables
        self._take(listed, sparse_as_dense)

    @classmethod
    def of(cls, gradients: Gradients, variables: Any, sparse_as_dense: bool) -> Exchange:
        """Returns the exchange of variables that uses existing `Gradients`."""
        made = cls.__new__(cls)
        made.gradients = gradients
        made._take(variables, sparse_as_dense)
        return made

    def _take(self, variables: Any, sparse_as_dense: bool) -> None:
        self.sparse_as_dense = sparse_as_dense
        self.variables = tf.nest.map_structure(described, variables)
        self._read = tf.nest.flatten(variables)
        """The variables themselves; kept until ranks have compared their values."""

    @traced
    def __call__(self, gradients: Any) -> Any:
        """The averages over all ranks; None where all ranks have None.

        # Errors

        InvalidError if the gradients differ from the variables in number, shape or dtype, and if a
        tape takes a gradient through this call. PeerError if a rank is lost; in a graph, TensorFlow
        raises it as an error of its own: see `guard`.
        """
        refuse_xla()
        found: list[Values] = []

        def describe() -> list[Gradient]:
            found[:] = self._flat(gradients)
            pairs = zip(tf.nest.flatten(self.variables), found)
            return [described_gradient(*pair) for pair in pairs]

        self.gradients.meet(describe, lambda: [value_of(each) for each in self._read])
        self._read = []
        averages = without_derivative("an exchange of gradients", self._averaged, found)
        return tf.nest.pack_sequence_as(gradients, averages)

    def _averaged(self, found: list[Values]) -> list[Values]:
        """The averages of gradients that were described."""
        if not self.gradients.exchanges:
            return found
        averages: list[Values] = [None] * len(found)
        tokens = self._sent(found)
        for index, each in enumerate(self.gradients.all):
            if each.kind == "sparse":
                averages[index] = self._gathered(index, found[index])
        for index, average in zip(self.gradients.dense[::-1], self._averages(tokens)):
            average.set_shape(self.gradients.all[index].shape)
            averages[index] = average
        return averages

    def exchange_plan(self) -> dict[str, Any]:
        """Codec, algorithm and partitions of each exchange, as in PyTorch; empty before the first step."""
        return self.gradients.exchange_plan()

    plan = deprecated.method("plan", exchange_plan)

    def record(self) -> dict[str, Any]:
        """The breakdown of the last step's time, as in PyTorch; empty before the first step."""
        return self.gradients.record()

    def _flat(self, gradients: Any) -> list[Values]:
        """The gradients in the order of the variables.

        # Errors

        InvalidError if the structure differs from the variables'.
        """
        if structure(gradients) != structure(self.variables):
            found, expected = (len(tf.nest.flatten(each)) for each in (gradients, self.variables))
            raise InvalidError(
                f"{found} gradients for {expected} variables, expected the structure of the "
                "variables"
            )
        return [self._made_dense(each) for each in tf.nest.flatten(gradients)]

    def _made_dense(self, gradient: Values) -> Values:
        is_sparse = isinstance(gradient, tf.IndexedSlices)
        return tf.convert_to_tensor(gradient) if is_sparse and self.sparse_as_dense else gradient

    def _sent(self, found: Sequence[Values]) -> list[tf.Tensor]:
        """Sends the buckets, and returns a token for each."""
        tokens = []
        for number, places in enumerate(self.gradients.buckets):
            bucket = [self._dense(self.gradients.dense[place], found) for place in places]
            ready = functools.partial(taken, self.gradients, number)
            tokens.append(call(ready, bucket, tf.bool))
        return tokens

    def _dense(self, index: int, found: Sequence[Values]) -> tf.Tensor:
        """Returns a dense gradient; zeros if this rank does not have it."""
        if found[index] is None:
            each = self.gradients.all[index]
            return tf.zeros(each.shape, each.dtype)
        return tf.convert_to_tensor(found[index])

    def _averages(self, tokens: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """The averages of all dense gradients, in the order of the variables."""
        dtypes = [
            tf.as_dtype(self.gradients.all[index].dtype) for index in self.gradients.dense[::-1]
        ]
        if not dtypes:
            return []
        return call(lambda *_: self.gradients.finish(), list(tokens), dtypes)

    def _gathered(self, index: int, gradient: tf.IndexedSlices | None) -> tf.IndexedSlices:
        """Returns the rows of all ranks, divided by the number of ranks."""
        each = self.gradients.all[index]
        dtype = tf.as_dtype(each.dtype)
        if gradient is None:
            values, rows = tf.zeros((0, *each.shape[1:]), dtype), tf.zeros(0, tf.int64)
        else:
            values, rows = gradient.values, tf.cast(gradient.indices, tf.int64)
        gather = functools.partial(self.gradients.gather, index)
        values, rows = call(gather, [values, rows], [dtype, tf.int64])
        values.set_shape((None, *each.shape[1:]))
        rows.set_shape((None,))
        values = values / tf.cast(self.gradients.group.world, dtype)
        return tf.IndexedSlices(values, rows, tf.constant(each.shape, tf.int64))


def taken(gradients: Gradients, bucket: int, *arrays: Any) -> Any:
    """Takes a bucket, and returns a token for the graph."""
    gradients.ready(bucket, *arrays)
    return True


def described(variable: Any) -> Gradient:
    """Returns the properties of a TensorFlow or Keras variable, or of a tensor, that its gradient
    will have.

    # Errors

    InvalidError for an unknown shape, and for anything but a variable.
    """
    if not hasattr(variable, "shape") or not hasattr(variable, "dtype"):
        raise InvalidError(f"variables contain {shown(variable)}, expected only variables")
    name = getattr(variable, "path", None) or getattr(variable, "name", None) or "tensor"
    shape = tf.TensorShape(variable.shape)
    if not shape.is_fully_defined():
        raise InvalidError(f"{name} has shape {shape}, expected a shape without unknown dimensions")
    dtype = tf.as_dtype(variable.dtype).name
    return Gradient(name.removesuffix(":0"), tuple(shape.as_list()), dtype, "none")


def value_of(variable: Any) -> Any:
    """Returns the values of a variable, also while a function is traced; None if they cannot be
    read."""
    if not hasattr(variable, "assign"):
        return None
    try:
        with tf.init_scope():
            return variable.numpy()
    except Exception:  # of TensorFlow or Keras: one that the function itself makes has none yet
        return None


def structure(values: Any) -> Any:
    """Returns the structure of nested values without their leaves. Lists and tuples count as
    equal."""
    if isinstance(values, Mapping):
        return {key: structure(value) for key, value in values.items()}
    return list(map(structure, values)) if isinstance(values, (list, tuple)) else None


def described_gradient(variable: Gradient, gradient: Values) -> Gradient:
    """The properties of a gradient that are known before it is computed.

    # Errors

    InvalidError for a shape or dtype that differs from the variable's.
    """
    if gradient is None:
        return variable
    kind: Kind = "sparse" if isinstance(gradient, tf.IndexedSlices) else "dense"
    name, shape, dtype = variable.name, variable.shape, variable.dtype
    found = tf.as_dtype(gradient.dtype).name
    # The shape of sparse gradients is often unknown while a function is traced.
    fits = kind == "sparse" or tf.TensorShape(gradient.shape).is_compatible_with(shape)
    if found != dtype or not fits:
        given = gradient.shape if gradient.shape.rank is None else gradient.shape.as_list()
        raise InvalidError(
            f"the gradient of {name} is {found} {given}, but its variable is {dtype} {list(shape)}"
        )
    return dataclasses.replace(variable, kind=kind)
