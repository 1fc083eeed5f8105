"""Embedding whose table is on servers.

The unique rows of a batch are a small dense leaf of the graph, in which autograd sums the gradients.
"""

from __future__ import annotations

import functools

import numpy as np
import torch
from torch.nn import functional

from thinwire._core import InvalidError
from thinwire.arguments import shown
from thinwire.server.table import ServedTable


class ServerEmbedding(torch.nn.Module):
    """Embedding whose table is on servers, in place of `nn.Embedding(rows, width, sparse=True)`.

    The module has no parameters. A forward pass pulls the rows of its ids, and `ServerOptimizer.step`
    pushes their gradients. Create the optimizer before the first forward pass: it connects the module to
    the servers.

    Args:
        rows: number of rows.
        width: f32 values per row.
        initial: initial values of the rows: "normal:DEVIATION", "uniform:BOUND", "constant:VALUE", "zeros",
            or "checkpoint" for those in the safetensors file of `ParameterServer(restore=…)`. The name of
            the tensor is that of this module in the model, with or without ".weight".
        optimizer: rule of this table; by default that of the `ParameterServer`.
        values: format in which rows and gradients are sent: "f32" (unchanged), "f16" or "int8"; by default
            that of the `ParameterServer`.
        cache: memory for cached rows, in bytes or as text such as "64MB"; by default no row is cached.
        staleness: number of this worker's own steps for which a cached row is used; 0 means until the next
            step. Cached rows contain all gradients of this worker. Those of other workers may be missing
            for `staleness` steps, in addition to what the consistency allows. A worker that makes no steps
            never sees its cached rows change.
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
        """Checks the arguments. The module has no servers yet."""
        super().__init__()
        self.rows, self.width = rows, width
        options = {"values": values, "cache": cache, "staleness": staleness}
        self.served = ServedTable(rows, width, initial=initial, optimizer=optimizer, **options)
        """The table on servers."""

    @property
    def cache_stats(self) -> dict[str, int]:
        """Counters of the cache: `lookups`, `ids`, `hits`, `misses`, `stale` (misses of cached rows that
        are too old), `evictions` and `bytes_missed`. Empty without a cache or servers."""
        return self.served.cache_stats

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Returns the rows of `ids`, integers of any shape, as a tensor [*ids.shape, width].

        # Errors

        InvalidError if an id is no row of the table; PeerError if no server answers.
        """
        rows, places = torch.unique(self._checked(ids), return_inverse=True)
        numbers = rows.cpu().numpy()
        leaf = torch.from_numpy(self.served.pull(numbers)).to(ids.device)
        if torch.is_grad_enabled():
            leaf.requires_grad_()
            leaf.register_post_accumulate_grad_hook(functools.partial(self._owe, numbers))
        return functional.embedding(places, leaf)

    def extra_repr(self) -> str:
        """Returns rows and width for the module's `repr`."""
        return f"{self.rows}, {self.width}"

    def _owe(self, rows: np.ndarray, leaf: torch.Tensor) -> None:
        """Stores the gradient of a leaf until the next push."""
        self.served.owe(rows, leaf.grad.cpu().contiguous().numpy())
        leaf.grad = None

    def _checked(self, ids: torch.Tensor) -> torch.Tensor:
        if not isinstance(ids, torch.Tensor) or ids.dtype not in (torch.int64, torch.int32):
            found = ids.dtype if isinstance(ids, torch.Tensor) else shown(ids)
            raise InvalidError(f"ids of '{self.served.name}' are {found}, expected torch.int64")
        return ids.long()
