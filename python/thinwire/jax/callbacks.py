"""The calls in a program for a TPU, or for a GPU that the core cannot use: one call of Python for
each bucket, and one that waits for the averages.

Thinwire has no XLA handlers for these devices, so gradients and averages are copied through host
memory, and nothing is encoded on the device. As in `handlers`, calls name buckets by number, so XLA
may make them in any order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental import io_callback

import thinwire
from thinwire import interrupts
from thinwire._core import Synchronizer
from thinwire.gradients import Gradient, Gradients
from thinwire.jax.tree import Part


class OnHost(Gradients):
    """The gradients of an exchange as arrays in host memory."""

    def __init__(
        self,
        group: thinwire.Group,
        synchronizer: Synchronizer,
        parts: Sequence[Part],
        options: dict[str, Any],
    ) -> None:
        super().__init__(group=group, **options)
        self.synchronizer = synchronizer
        self.all = [
            Gradient(part.leaf.name, part.leaf.shape, part.leaf.dtype, "dense") for part in parts
        ]
        self.dense, self.buckets = list(range(len(parts))), synchronizer.buckets()
        interrupts.follow()

    def start(self, bucket: int, gradients: Sequence[jax.Array]) -> jax.Array:
        """Starts the exchange of a bucket, and returns its token."""

        def started(*arrays: Any) -> np.ndarray[Any, Any]:
            self.ready(bucket, *map(np.asarray, arrays))
            return np.zeros((), np.int32)

        token: jax.Array = io_callback(
            started, jax.ShapeDtypeStruct((), np.dtype(np.int32)), *gradients
        )
        return token

    def averages(
        self, tokens: Sequence[jax.Array], structs: Sequence[jax.ShapeDtypeStruct]
    ) -> list[jax.Array]:
        """Returns the averages, once the tokens show that all buckets were started."""
        # Of gradients that stand for tokens an element is enough.
        first = [token.reshape(-1)[0] for token in tokens]
        return list(io_callback(lambda *_: self.finish()[::-1], list(structs), *first))
