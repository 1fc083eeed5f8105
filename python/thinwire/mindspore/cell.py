"""The exchange as a cell, for graphs: in place of `TrainOneStepCell.grad_reducer`, or inside `@ms.jit`.

In a graph with backward, buckets that are ready are sent while backward computes the others.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import mindspore as ms
from mindspore import nn, ops

import thinwire
from thinwire import _core, arguments
from thinwire.meeting import group_or_default

from .finite import NonFinite, finite_operator
from .operator import finish_operator, key_tensor, ready_operator, require_cpu
from .parameters import bucket_bytes, describe
from .signature import check_count


def reducer(
    parameters: Iterable[ms.Parameter],
    codec: str = "auto",
    group: thinwire.Group | None = None,
    seed: int = 1,
    non_finite: NonFinite = "raise",
    momentum_correction: float | None = None,
    warmup_steps: int | None = 0,
    unchecked: bool = False,
) -> Reducer:
    """A cell that takes the tuple of gradients of `parameters` and returns the tuple of their averages.

    group: by default that of the launcher's environment; seed: for codecs that draw random numbers;
    non_finite: the effect of a NaN or an infinity in a gradient of any rank, see `NonFinite`;
    momentum_correction, warmup_steps, unchecked: as in `GradExchange`. A collective call: raises
    InvalidError on all ranks if their parameters differ.

        step = nn.TrainOneStepCell(network_with_loss, optimizer)
        step.grad_reducer = thinwire.mindspore.reducer(optimizer.parameters)
        with thinwire.mindspore.guard(step.grad_reducer):
            loss = step(inputs, labels)

    Several reducers in one graph, or several calls of one reducer, must be ordered by `ops.depend`,
    because each call waits for all ranks.
    """
    return Reducer(
        parameters, codec, group, seed, non_finite, momentum_correction, warmup_steps, unchecked
    )


class Reducer(nn.Cell):
    """The cell that `reducer` creates; it may be called in PyNative mode, in Graph mode and inside
    `@ms.jit`."""

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
        super().__init__(auto_prefix=False)
        options: Any = {
            "codec": codec,
            "seed": seed,
            "momentum_correction": momentum_correction,
            "warmup_steps": warmup_steps,
            "unchecked": unchecked,
        }
        arguments.options(**options)
        require_cpu()
        parameters = list(parameters)
        described = describe(parameters)
        self.group = group_or_default(group)
        self.synchronizer = _core.Synchronizer(
            self.group.core, described, bucket_bytes=bucket_bytes(parameters), **options
        )
        # A world of one exchanges nothing without momentum, and leaves a NaN where it is.
        self.exchanges = self.group.world > 1 or momentum_correction is not None
        self.refuses = non_finite == "raise" and self.exchanges
        self.count = len(parameters)
        self.buckets = tuple(
            tuple(self.count - 1 - index for index in bucket)
            for bucket in self.synchronizer.buckets()
        )
        self.ready = [
            ready_operator([parameters[index] for index in bucket]) for bucket in self.buckets
        ]
        self.finish = finish_operator(parameters[::-1])
        self.keys = [key_tensor(self.synchronizer, index) for index in range(len(self.buckets))]
        self.finite = finite_operator()
        # Without it a call from Python in Graph mode takes the gradients for constants, and compiles
        # the graph anew for each step.
        self.enable_tuple_broaden = True

    def exchange_plan(self) -> dict[str, Any]:
        """The plan of each bucket: codec, algorithm, partitions.

        On rank 0 `line` says what `auto` has chosen and why.
        """
        return json.loads(self.synchronizer.plan())

    def construct(self, gradients):
        """The averages of a tuple of gradients, in the order and with the dtypes of the parameters."""
        check_count(len(gradients), self.count)
        begun = ()
        for i in range(len(self.buckets)):
            bucket = ()
            for index in self.buckets[i]:
                bucket = bucket + (gradients[index],)
            begun = begun + (self.ready[i](*bucket, self.keys[i]),)
        if not self.exchanges:
            return ops.depend(gradients, begun)
        averages = self.finish(*begun, self.keys[0])[::-1]
        if self.refuses:
            sample = averages[0].reshape((-1,))[:1].astype(ms.float32)
            averages = ops.depend(averages, self.finite(sample))
        return averages
