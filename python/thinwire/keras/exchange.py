"""The exchange of an optimizer's gradients, on each backend of Keras.

Buckets are sent in reverse order of the variables. A compiled step of TensorFlow or JAX has a call
for each bucket and one for the averages. On PyTorch the optimizer is called after backward, so the
exchange does not overlap with it.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import keras
import numpy

from thinwire import deprecated
from thinwire._core import InvalidError
from thinwire.arguments import shown
from thinwire.gradients import Gradient, Gradients
from thinwire.group import Group


class Exchange:
    """Averages gradients over all ranks; the subclass of a backend converts its tensors."""

    def __init__(
        self, codec: str, group: Group | None, sparse_as_dense: bool, **options: Any
    ) -> None:
        self.gradients = self.shared(codec, group, **options)
        self.sparse_as_dense = sparse_as_dense
        self._variables: list[Any] = []

    def __call__(self, found: list[Any], variables: Sequence[Any]) -> list[Any]:
        """The averages over all ranks; None where all ranks have None."""
        self._expect(variables)
        if len(found) != len(self._variables):
            raise InvalidError(
                f"{len(found)} gradients for {len(self._variables)} variables, expected one for each"
            )
        return self.average(found)

    def shared(self, *given: Any, **options: Any) -> Gradients:
        """The part of the exchange that all frameworks share."""
        return Gradients(*given, **options)

    def average(self, found: list[Any]) -> list[Any]:
        """The averages of gradients that belong to the variables."""

        def describe() -> list[Gradient]:
            return [described(*pair) for pair in zip(self._variables, found)]

        self.gradients.meet(describe, lambda: [value_of(each) for each in self._variables])
        if not self.gradients.exchanges:
            return found
        indices = self.gradients.dense[::-1]
        given = [
            self.zeros(self.gradients.all[i]) if found[i] is None else found[i] for i in indices
        ]
        averages: list[Any] = [None] * len(found)
        for index, average in zip(indices, self.averaged(given)):
            averages[index] = average
        return averages

    def averaged(self, given: list[Any]) -> list[Any]:
        """The averages of the dense gradients, in the order of the variables."""
        raise NotImplementedError

    def zeros(self, gradient: Gradient) -> Any:
        """The replacement for a gradient that this rank does not have."""
        return keras.ops.zeros(gradient.shape, gradient.dtype)

    def exchange_plan(self) -> dict[str, Any]:
        """Codec, algorithm and partitions of each exchange, as in PyTorch; empty before the first step."""
        return self.gradients.exchange_plan()

    plan = deprecated.method("plan", exchange_plan)

    def record(self) -> dict[str, Any]:
        """The breakdown of the last step's time, as in PyTorch; empty before the first step."""
        return self.gradients.record()

    def _expect(self, variables: Sequence[Any]) -> None:
        """Refuses variables that differ from those of the first step."""
        if not self._variables:
            self._variables = list(variables)
        same = len(variables) == len(self._variables)
        if not same or any(one is not other for one, other in zip(variables, self._variables)):
            raise InvalidError(
                f"gradients of {len(variables)} variables, expected the {len(self._variables)} of the "
                "first step (hint: variables that are added later need an optimizer of their own)"
            )


class OnTensorFlow(Exchange):
    """Exchanges through `thinwire.tensorflow`, which gathers `IndexedSlices`."""

    @functools.cached_property
    def _graph(self) -> Any:
        from thinwire.tensorflow.exchange import Exchange as Graph

        return Graph.of(self.gradients, self._variables, self.sparse_as_dense)

    def average(self, found: list[Any]) -> list[Any]:
        """The averages of tensors and `IndexedSlices`."""
        return self._graph(found)


class OnJax(Exchange):
    """Exchanges through `thinwire.jax`, whose operators need no Python in a step."""

    def shared(self, *given: Any, **options: Any) -> Gradients:
        """The gradients that the operators exchange."""
        from .jax_gradients import JaxGradients

        return JaxGradients(*given, **options)

    def averaged(self, given: list[Any]) -> list[Any]:
        """The averages of JAX's arrays, traced or not."""
        gradients: Any = self.gradients
        averages: list[Any] = gradients.averaged(given)
        return averages


class OnTorch(Exchange):
    """Exchanges by a call between backward and the update."""

    def averaged(self, given: list[Any]) -> list[Any]:
        """The averages of PyTorch's tensors."""
        averages = self.gradients.step([array_of(each) for each in given])
        return [tensor_of(*pair) for pair in zip(averages, given)]


BACKENDS = {"tensorflow": OnTensorFlow, "jax": OnJax, "torch": OnTorch}


def exchange_for(
    codec: str, group: Group | None, sparse_as_dense: bool, **options: Any
) -> Exchange:
    """The exchange on the backend of Keras.

    # Errors

    InvalidError for an unsupported backend, and for invalid options.
    """
    return BACKENDS[expected_backend()](codec, group, sparse_as_dense, **options)


def expected_backend() -> str:
    """Returns the backend of Keras.

    # Errors

    InvalidError for an unsupported one.
    """
    backend = keras.backend.backend()
    if backend not in BACKENDS:
        raise InvalidError(f"Keras's backend is {backend}, expected {', '.join(BACKENDS)}")
    return backend


def value_of(variable: Any) -> Any:
    """Returns the values of a variable; None if they cannot be read, as in `fit` on JAX, which has
    the values itself."""
    try:
        return keras.ops.convert_to_numpy(variable)
    except Exception:  # of the backend
        return None


def described(variable: Any, gradient: Any) -> Gradient:
    """The properties of a Keras variable's gradient that are known before it is computed.

    # Errors

    InvalidError for a shape or dtype that differs from the variable's.
    """
    name, shape = variable.path, tuple(variable.shape)
    dtype = keras.backend.standardize_dtype(variable.dtype)
    if gradient is None:
        return Gradient(name, shape, dtype, "none")
    if not hasattr(gradient, "shape") or not hasattr(gradient, "dtype"):
        raise InvalidError(f"the gradient of {name} is {shown(gradient)}, expected a tensor")
    found = keras.backend.standardize_dtype(gradient.dtype)
    if found != dtype or tuple(gradient.shape) != shape:
        raise InvalidError(
            f"the gradient of {name} is {found} {list(gradient.shape)}, but its variable is "
            f"{dtype} {list(shape)}"
        )
    return Gradient(name, shape, dtype, "dense")


def array_of(tensor: Any) -> Any:
    """A PyTorch tensor as an array, which shares its memory if the tensor is in host memory."""
    import torch

    host = tensor.detach().cpu().contiguous()
    if host.dtype != torch.bfloat16:
        return host.numpy()
    import ml_dtypes

    return host.view(torch.int16).numpy().view(ml_dtypes.bfloat16)


def tensor_of(array: Any, like: Any) -> Any:
    """Returns a PyTorch tensor with the values of an array, on the device of another tensor."""
    import torch

    if like.dtype == torch.bfloat16:
        return torch.from_numpy(array.view(numpy.int16)).view(torch.bfloat16).to(like.device)
    return torch.from_numpy(array).to(like.device)
