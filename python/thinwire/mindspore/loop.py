"""The exchange as a call between `value_and_grad` and the optimizer, for training loops in Python."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

import mindspore as ms
import numpy as np

import thinwire
from thinwire import _core, arguments
from thinwire.meeting import group_or_default

from . import memory
from .finite import NonFinite, refuse
from .parameters import bucket_bytes, describe
from .signature import Signature, check_count


def exchange(
    parameters: Iterable[ms.Parameter],
    codec: str = "auto",
    group: thinwire.Group | None = None,
    seed: int = 1,
    non_finite: NonFinite = "raise",
    momentum_correction: float | None = None,
    warmup_steps: int | None = 0,
    unchecked: bool = False,
) -> Exchange:
    """A callable that takes the tuple of gradients of `parameters` and returns the tuple of their averages.

    The arguments are those of `reducer`. A collective call: raises InvalidError on all ranks if their
    parameters differ.

        average = thinwire.mindspore.exchange(optimizer.parameters, codec="int8")
        with thinwire.mindspore.guard(average):
            loss, gradients = gradient_function(inputs, labels)
            optimizer(average(gradients))

    It is called from Python, in PyNative and in Graph mode; inside `@ms.jit` use `reducer`.
    """
    return Exchange(
        parameters, codec, group, seed, non_finite, momentum_correction, warmup_steps, unchecked
    )


class Exchange:
    """What `exchange` makes."""

    def __init__(
        self,
        parameters: Iterable[ms.Parameter],
        codec: str = "auto",
        group: thinwire.Group | None = None,
        seed: int = 1,
        non_finite: NonFinite = "raise",
        momentum_correction: float | None = None,
        warmup_steps: int | None = 0,
        unchecked: bool = False,
    ) -> None:
        options: Any = {
            "codec": codec,
            "seed": seed,
            "momentum_correction": momentum_correction,
            "warmup_steps": warmup_steps,
            "unchecked": unchecked,
        }
        arguments.options(**options)
        parameters = list(parameters)
        described = describe(parameters)
        self.signature = Signature(parameters)
        self.non_finite = non_finite
        self.group = group_or_default(group)
        self.synchronizer = _core.Synchronizer(
            self.group.core, described, bucket_bytes=bucket_bytes(parameters), **options
        )

    def exchange_plan(self) -> dict[str, Any]:
        """The plan of each bucket: codec, algorithm, partitions.

        On rank 0 `line` says what `auto` has chosen and why.
        """
        return json.loads(self.synchronizer.plan())

    def __call__(self, gradients: Sequence[ms.Tensor]) -> tuple[ms.Tensor, ...]:
        """The averages of the gradients over all ranks, as new tensors; blocks until they are there.

        Raises InvalidError if a gradient has not its parameter's shape and dtype, PeerError if a rank
        is lost.
        """
        check_count(len(gradients), len(self.signature.names))
        self.signature.check_tensors(gradients)
        self.signature.check_shapes([gradient.shape for gradient in gradients])
        self.signature.check_dtypes([gradient.dtype for gradient in gradients])
        # The synchronizer has the parameters in reverse.
        sources = [memory.view(gradient) for gradient in reversed(gradients)]
        targets = [np.empty_like(source) for source in sources]
        averaged = self.synchronizer.exchange(
            [memory.address(source) for source in sources],
            [memory.address(target) for target in targets],
        )
        if not averaged and self.non_finite == "raise":
            refuse(self.synchronizer.fault())
        return tuple(ms.Tensor.from_numpy(target) for target in reversed(targets))
