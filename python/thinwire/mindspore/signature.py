"""The required form of gradients: the shapes and dtypes of their parameters.

The core copies exactly the parameters' number of bytes, so other gradients must not reach it.
"""

from __future__ import annotations

from collections.abc import Sequence

import mindspore as ms
from mindspore import ops

import thinwire


class Signature:
    """Names, shapes and dtypes of parameters, and the check of gradients against them."""

    def __init__(self, parameters: Sequence[ms.Parameter]) -> None:
        self.names = [parameter.name for parameter in parameters]
        self.shapes = tuple(tuple(parameter.shape) for parameter in parameters)
        self.dtypes = tuple(parameter.dtype for parameter in parameters)

    def check_tensors(self, found: Sequence[object]) -> None:
        """Raises InvalidError for anything but tensors, such as the rows and values of a sparse
        gradient."""
        for name, gradient in zip(self.names, found):
            if not isinstance(gradient, ms.Tensor):
                raise thinwire.InvalidError(
                    f"the gradient of {name} is a {type(gradient).__name__}, expected a dense tensor "
                    "(hint: sparse=False in its nn.EmbeddingLookup)"
                )

    def check_shapes(self, found: Sequence[Sequence[int]]) -> None:
        """Raises InvalidError unless these are the parameters' shapes."""
        for name, shape, expected in zip(self.names, found, self.shapes):
            if tuple(shape) != expected:
                raise thinwire.InvalidError(
                    f"the gradient of {name} has shape {list(shape)}, its parameter {list(expected)}"
                )

    def check_dtypes(self, found: Sequence[ms.Type]) -> None:
        """Raises InvalidError unless these are the parameters' dtypes."""
        for name, dtype, expected in zip(self.names, found, self.dtypes):
            if dtype != expected:
                raise thinwire.InvalidError(
                    f"the gradient of {name} is {dtype}, its parameter {expected}"
                )


@ops.constexpr
def check_count(found: int, expected: int) -> None:
    """Raises InvalidError for more or fewer gradients than parameters; in a graph, at compile time."""
    if found != expected:
        raise thinwire.InvalidError(
            f"{found} gradients for {expected} parameters "
            "(hint: give value_and_grad the optimizer's parameters)"
        )
