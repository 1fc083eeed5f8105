"""Embedding whose table is on servers, as a cell for PyNative and Graph mode.

Two Python operators connect the graph to the servers: forward pulls the rows of its ids, and backward
stores their gradients for the next push. MindSpore runs an operator's backward only if it depends
on a parameter. So the cell has a parameter of one number, the anchor, whose gradient is always 0.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import nn, ops

import thinwire
from thinwire.deprecated import renamed
from thinwire.server.table import ServedTable

from ..operator import python_operator


class ServerEmbedding(nn.Cell):
    """Embedding whose table is on servers, in place of `nn.Embedding(rows, width)`.

    A forward pass pulls the rows of its ids, and a step of `ServerOptimizer` pushes their gradients. Create
    the optimizer before the first forward pass: it connects the cell to the servers. The arguments are
    those of `thinwire.torch.ServerEmbedding`.
    """

    @renamed(values="codec")
    def __init__(
        self,
        rows: int,
        width: int,
        *,
        initial: str = "normal:1",
        optimizer: str | None = None,
        codec: str | None = None,
        cache: int | str | None = None,
        staleness: int = 0,
    ) -> None:
        """Checks the arguments. The cell has no servers yet."""
        super().__init__()
        options: dict[str, Any] = {"codec": codec, "cache": cache, "staleness": staleness}
        self.served = ServedTable(rows, width, initial=initial, optimizer=optimizer, **options)
        self.anchor = ms.Parameter(ms.Tensor(np.zeros(1, np.float32)), name="anchor")
        self.lookup = Lookup(self.served)

    @property
    def cache_stats(self) -> dict[str, int]:
        """Counters of the cache, as in `thinwire.torch.ServerEmbedding`."""
        return self.served.cache_stats

    def construct(self, ids):
        """Returns the rows of `ids`, int32 or int64 of any shape, as a tensor [*ids.shape, width]."""
        return self.lookup(ids, self.anchor)


class Lookup(nn.Cell):
    """Operator that pulls rows in forward and stores their gradients in backward."""

    def __init__(self, served: ServedTable) -> None:
        super().__init__()
        width = served.width
        self.rows = Rows(served)
        self.pull = python_operator(
            self.rows.pull, 2, lambda ids, _: (*ids, width), lambda *_: ms.float32
        )
        self.owe = python_operator(self.rows.owe, 2, lambda *_: (1,), lambda *_: ms.float32)

    def construct(self, ids, anchor):
        """Returns the rows of `ids`."""
        return self.pull(ids, anchor)

    def bprop(self, ids, anchor, out, dout):
        """Stores the gradients of the rows. Returns zeros for `ids` and the anchor."""
        return ops.zeros_like(ids), self.owe(ids, dout)


class Rows:
    """Implementation of the operators. It keeps their errors, because MindSpore would hide them."""

    def __init__(self, served: ServedTable) -> None:
        self.served = served
        self.is_read = False
        """Whether rows were pulled since the last step."""
        self.error: thinwire.Error | None = None
        """Error of an operator, if one has failed."""

    def pull(
        self, ids: np.ndarray[Any, Any], _anchor: np.ndarray[Any, Any]
    ) -> np.ndarray[Any, Any]:
        """Returns the rows of `ids`, pulling each row once."""
        return self._noted(self._pull, ids)

    def owe(
        self, ids: np.ndarray[Any, Any], gradient: np.ndarray[Any, Any]
    ) -> np.ndarray[Any, Any]:
        """Stores the gradients of rows. Returns the anchor's gradient."""
        values = np.array(gradient, np.float32).reshape(-1, self.served.width)
        self.served.owe(ids.astype(np.int64).reshape(-1), values)
        return np.zeros(1, np.float32)

    def stepped(self) -> None:
        """Checks that there are gradients if rows were pulled in this step."""
        if self.is_read and not self.served.is_owing:
            raise thinwire.InvalidError(
                f"table '{self.served.name}' has no gradient in this step (hint: give the other "
                "optimizer all of network.trainable_params(), and call it before this one)"
            )
        self.is_read = False

    def _pull(self, ids: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        if ids.dtype not in (np.int32, np.int64):
            name = self.served.name
            raise thinwire.InvalidError(f"ids of '{name}' are {ids.dtype}, expected int32 or int64")
        rows, places = np.unique(ids.astype(np.int64).reshape(-1), return_inverse=True)
        values = self.served.pull(rows)
        self.is_read = True
        return values[places.reshape(-1)].reshape(*ids.shape, self.served.width)

    def _noted(self, function: Callable[..., Any], *arrays: np.ndarray[Any, Any]) -> Any:
        try:
            return function(*arrays)
        except thinwire.Error as error:
            self.error = error
            raise
