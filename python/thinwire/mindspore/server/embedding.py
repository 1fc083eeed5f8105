"""An embedding whose table servers have, as a cell for PyNative and Graph mode.

Two operators in Python are the edge of the graph: forward pulls the rows of its ids, and backward keeps
their gradients for the next push. MindSpore runs backward only for parameters, so the cell has one of a
single number, the anchor, whose gradient is always 0.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import nn, ops

import thinwire
from thinwire.server.table import ServedTable

from ..operator import python_operator


class ServerEmbedding(nn.Cell):
    """Rows of a table that is on servers, in place of `nn.Embedding(rows, width)`.

    A forward pass pulls the rows of its ids, and a step of `ServerOptimizer` pushes their gradients. Making
    the optimizer gives it its servers. `initial` is as in `thinwire.torch.ServerEmbedding`, as are
    `optimizer`, `values`, `cache` and `staleness`.
    """

    def __init__(
        self,
        rows: int,
        width: int,
        *,
        initial: str = "normal:1",
        optimizer: str | None = None,
        values: str | None = None,
        cache: int | str | None = None,
        staleness: int = 0,
    ) -> None:
        """Has no servers yet."""
        super().__init__()
        options = {"values": values, "cache": cache, "staleness": staleness}
        self.served = ServedTable(rows, width, initial=initial, optimizer=optimizer, **options)
        self.anchor = ms.Parameter(ms.Tensor(np.zeros(1, np.float32)), name="anchor")
        self.lookup = Lookup(self.served)

    @property
    def cache_stats(self) -> dict[str, int]:
        """Counts of the cache so far, as in `thinwire.torch.ServerEmbedding`."""
        return self.served.cache_stats

    def construct(self, ids):
        """The rows of `ids`, int32 or int64 of any shape, along a last dimension."""
        return self.lookup(ids, self.anchor)


class Lookup(nn.Cell):
    """Pulls rows in forward and keeps their gradients in backward."""

    def __init__(self, served: ServedTable) -> None:
        super().__init__()
        width = served.width
        self.rows = Rows(served)
        self.pull = python_operator(
            self.rows.pull, 2, lambda ids, _: (*ids, width), lambda *_: ms.float32
        )
        self.owe = python_operator(self.rows.owe, 2, lambda *_: (1,), lambda *_: ms.float32)

    def construct(self, ids, anchor):
        """The rows of `ids`."""
        return self.pull(ids, anchor)

    def bprop(self, ids, anchor, out, dout):
        """No gradient of ids, and 0 of the anchor, once the rows' gradients are kept."""
        return ops.zeros_like(ids), self.owe(ids, dout)


class Rows:
    """What the operators do: the rows of a batch, and the errors that MindSpore would bury."""

    def __init__(self, served: ServedTable) -> None:
        self.served = served
        self.is_read = False
        """Whether rows were pulled since the last step."""
        self.error: thinwire.Error | None = None
        """Why an operator has failed."""

    def pull(self, ids: np.ndarray, _anchor: np.ndarray) -> np.ndarray:
        """Returns the rows of `ids`; each is pulled once."""
        return self._noted(self._pull, ids)

    def owe(self, ids: np.ndarray, gradient: np.ndarray) -> np.ndarray:
        """Keeps the gradients of rows, and returns the anchor's."""
        values = np.array(gradient, np.float32).reshape(-1, self.served.width)
        self.served.owe(ids.astype(np.int64).reshape(-1), values)
        return np.zeros(1, np.float32)

    def stepped(self) -> None:
        """Checks that the rows that were pulled have got gradients before they are pushed."""
        if self.is_read and not self.served.is_owing:
            raise thinwire.InvalidError(
                f"table '{self.served.name}' has no gradient in this step (hint: the other optimizer has "
                "all of network.trainable_params(), and makes its update before)"
            )
        self.is_read = False

    def _pull(self, ids: np.ndarray) -> np.ndarray:
        if ids.dtype not in (np.int32, np.int64):
            name = self.served.name
            raise thinwire.InvalidError(f"ids of '{name}' are {ids.dtype}, expected int32 or int64")
        rows, places = np.unique(ids.astype(np.int64).reshape(-1), return_inverse=True)
        values = self.served.pull(rows)
        self.is_read = True
        return values[places.reshape(-1)].reshape(*ids.shape, self.served.width)

    def _noted(self, function: Callable[..., Any], *arrays: np.ndarray) -> Any:
        try:
            return function(*arrays)
        except thinwire.Error as error:
            self.error = error
            raise
