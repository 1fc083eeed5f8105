"""The optimizer of an elastic job: averages the gradients, and does nothing in a void step.

It works in PyNative and in Graph mode. In a graph, buckets that are ready are sent while backward
computes the others.
"""

from __future__ import annotations

import mindspore as ms
import numpy as np
from mindspore import nn, ops

from ..operator import python_operator
from ..optimizer import Holding
from ..signature import check_count
from .exchange import Exchange


class ElasticOptimizer(Holding):
    """An optimizer that updates from the averages of all ranks, or not at all."""

    def __init__(self, optimizer: nn.Optimizer, exchange: Exchange) -> None:
        """Create it after the first epoch of `exchange` has begun."""
        super().__init__(optimizer)
        parameters = list(optimizer.parameters)
        self.count = len(parameters)
        buckets = exchange.buckets()
        self.buckets = tuple(
            tuple(self.count - 1 - number for number in bucket) for bucket in buckets
        )
        self.ready = [ready_operator(exchange, bucket) for bucket in buckets]
        self.finish = finish_operator(exchange, len(buckets), parameters[::-1])

    def construct(self, gradients):
        """Makes one update from the averages of these gradients, unless the step is void."""
        check_count(len(gradients), self.count)
        begun = ()
        for i in range(len(self.buckets)):
            bucket = ()
            for index in self.buckets[i]:
                bucket = bucket + (gradients[index],)
            begun = begun + (self.ready[i](*bucket),)
        found = self.finish(*begun)
        applies = found[-1].reshape(()) > 0
        done = applies
        if applies:
            done = ops.depend(applies, self.optimizer(found[:-1][::-1]))
        return done


def ready_operator(exchange: Exchange, bucket: list[int]) -> ops.Custom:
    """Makes the operator that takes a bucket's gradients and returns a token at once."""
    token = np.zeros(1, np.int32)

    def ready(*gradients):
        exchange.give(bucket, gradients)
        return token

    return python_operator(ready, len(bucket), (1,), ms.int32)


def finish_operator(exchange: Exchange, buckets: int, parameters: list[ms.Parameter]) -> ops.Custom:
    """Makes the operator that takes the tokens of all buckets, and returns the averages and whether they
    may be applied."""

    def finish(*_tokens):
        return exchange.finish()

    shapes = (*(tuple(each.shape) for each in parameters), (1,))
    dtypes = (*(each.dtype for each in parameters), ms.int32)
    return python_operator(finish, buckets, shapes, dtypes)
