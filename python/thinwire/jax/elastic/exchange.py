"""The averager of an elastic job: a pytree of gradients, averaged over the ranks of an epoch.

It is called between compiled programs. Inside them, a program would have to be recompiled in each
epoch, because the ranks, and with them the synchronizer, change.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from thinwire.elastic import exchange
from thinwire.jax.broadcast import like
from thinwire.jax.tree import Tree


class Exchange(exchange.Exchange):
    """Averages gradients of the parameters in `tree`; `options` are a Synchronizer's."""

    def __init__(
        self, tree: Tree, options: Mapping[str, Any], wants_end: Callable[[], bool]
    ) -> None:
        """`wants_end` says whether this rank wants the epoch to end."""
        super().__init__(tree.core(), options, wants_end)
        self._tree = tree

    def leaves(self, gradients: Any) -> list[Any]:
        """The leaves of a pytree of gradients.

        # Errors

        InvalidError unless the leaves have the shapes and dtypes of the parameters.
        """
        return self._tree.flat(gradients)

    def average(self, leaves: Sequence[Any]) -> list[Any]:
        """Returns a list with the pytree of averages of these gradients; an empty list in a void
        step."""
        found: list[Any] = []
        if self.attempt(lambda: found.append(self._averaged(leaves))):
            self.complete()
            return [jax.tree_util.tree_unflatten(self._tree.structure, found[0])]
        return []

    def _averaged(self, leaves: Sequence[Any]) -> list[Any]:
        """The averages of all leaves; NaN if a gradient of some rank was not finite."""
        parts = self._tree.parts
        # New memory in each step: JAX may use that of an array of NumPy as its own.
        found = [np.empty(part.leaf.shape, jnp.dtype(part.leaf.dtype)) for part in parts]
        self.average_into((leaves[part.at] for part in parts), found)
        averages = list(leaves)
        for part, average in zip(parts, found):
            averages[part.at] = like(leaves[part.at], average)
        return averages
