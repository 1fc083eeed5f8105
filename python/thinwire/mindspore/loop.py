"""The exchange as a call between `value_and_grad` and the optimizer, for training loops in Python."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import mindspore as ms
import numpy as np

import thinwire
from thinwire import _core

from . import memory
from .parameters import describe


def exchange(
    parameters: Iterable[ms.Parameter],
    codec: str = "auto",
    group: thinwire.Group | None = None,
    seed: int = 0,
) -> Exchange:
    """A callable that takes the tuple of gradients of `parameters` and gives that of their averages.

    `group` is `thinwire.init()` unless given; `seed` is that of codecs that draw random numbers. A
    collective call: raises InvalidError on all ranks if their parameters differ.

        average = thinwire.mindspore.exchange(optimizer.parameters, codec="int8")
        with thinwire.mindspore.guard(average):
            loss, gradients = gradient_function(inputs, labels)
            optimizer(average(gradients))

    It is Python, for loops in PyNative and in Graph mode; inside `@ms.jit` use `reducer`.
    """
    return Exchange(parameters, codec, group, seed)


class Exchange:
    """What `exchange` makes."""

    def __init__(
        self,
        parameters: Iterable[ms.Parameter],
        codec: str = "auto",
        group: thinwire.Group | None = None,
        seed: int = 0,
    ) -> None:
        self.group = thinwire.init() if group is None else group
        parameters = list(parameters)
        self.synchronizer = _core.Synchronizer(
            self.group.core, describe(parameters), codec=codec, seed=seed
        )
        self.expected = [(parameter.shape, parameter.dtype) for parameter in parameters]
        self.names = [parameter.name for parameter in parameters]

    def __call__(self, gradients: Sequence[ms.Tensor]) -> tuple[ms.Tensor, ...]:
        """The averages of the gradients over all ranks, as new tensors; blocks until they are there.

        If a gradient is not finite on any rank, all averages are NaN on all ranks, and residuals stay
        as they were: a loss scaler skips the step everywhere. Raises InvalidError if a gradient has
        not its parameter's shape and dtype, and PeerError if a rank is lost.
        """
        self.check(gradients)
        sources = [memory.view(gradient) for gradient in gradients]
        targets = [np.empty_like(source) for source in sources]
        self.synchronizer.exchange(
            [memory.address(source) for source in sources],
            [memory.address(target) for target in targets],
        )
        return tuple(ms.Tensor.from_numpy(target) for target in targets)

    def check(self, gradients: Sequence[ms.Tensor]) -> None:
        """Raises InvalidError for gradients of other shapes and dtypes than their parameters'."""
        found = [(gradient.shape, gradient.dtype) for gradient in gradients]
        if found == self.expected:
            return
        if len(found) != len(self.expected):
            raise thinwire.InvalidError(
                f"{len(found)} gradients for {len(self.expected)} parameters; "
                "hint: give value_and_grad the same parameters"
            )
        for name, (shape, dtype), (wanted, wanted_dtype) in zip(self.names, found, self.expected):
            if (shape, dtype) != (wanted, wanted_dtype):
                raise thinwire.InvalidError(
                    f"the gradient of {name} is {dtype} {list(shape)}, "
                    f"the parameter {wanted_dtype} {list(wanted)}"
                )
