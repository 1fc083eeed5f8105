"""An embedding whose table servers have.

The rows of a batch, each once, are a small dense leaf of the graph, in which autograd sums the gradient.
"""

from __future__ import annotations

import functools

import numpy as np
import torch
from torch.nn import functional

from thinwire._core import InvalidError
from thinwire.server.table import ServedTable


class ServerEmbedding(torch.nn.Module):
    """Rows of a table that is on servers, in place of `nn.Embedding(rows, width, sparse=True)`.

    It has no parameters: a forward pass pulls the rows of its ids, and `ServerOptimizer.step` pushes their
    gradients. Making the optimizer gives it its servers.

    Args:
        rows: number of rows.
        width: values per row, which are f32.
        initial: first values of the rows: "normal:DEVIATION", "uniform:BOUND", "constant:VALUE" or "zeros",
            or "checkpoint" for those of the safetensors file that `ParameterServer(restore=…)` names. Its
            tensor has the name of this module in the model, or that with ".weight".
        optimizer: rule of this table, if it is not that of the `ParameterServer`.
        values: format in which rows and gradients travel: "f32" as they are, "f16" or "int8" rounded; by
            default that of the `ParameterServer`.
        cache: memory for rows that this worker keeps, in bytes or such as "64MB"; without it none are kept.
        staleness: number of this worker's own steps for which a row is kept, at most; with 0 until the next
            step. Its own gradients are in all rows at once; those of other workers may be missing for so
            many steps more than the consistency allows. A worker that makes no steps keeps its rows.
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
        self.rows, self.width = rows, width
        options = {"values": values, "cache": cache, "staleness": staleness}
        self.served = ServedTable(rows, width, initial=initial, optimizer=optimizer, **options)
        """The table, as this worker uses it."""

    @property
    def cache_stats(self) -> dict[str, int]:
        """Counts of the cache so far: `lookups`, `ids`, `hits`, `misses`, `stale` (misses of rows that were
        too old), `evictions` and `bytes_missed`; empty without a cache or before it has servers."""
        return self.served.cache_stats

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Returns the rows of `ids`, whole numbers of any shape, along a last dimension.

        # Errors

        InvalidError for an id that is no row; PeerError if no server answers.
        """
        rows, places = torch.unique(self._checked(ids), return_inverse=True)
        numbers = rows.cpu().numpy()
        leaf = torch.from_numpy(self.served.pull(numbers)).to(ids.device)
        if torch.is_grad_enabled():
            leaf.requires_grad_()
            leaf.register_post_accumulate_grad_hook(functools.partial(self._owe, numbers))
        return functional.embedding(places, leaf)

    def extra_repr(self) -> str:
        """The size, for people."""
        return f"{self.rows}, {self.width}"

    def _owe(self, rows: np.ndarray, leaf: torch.Tensor) -> None:
        """Keeps the gradient of a leaf until the next push."""
        self.served.owe(rows, leaf.grad.cpu().contiguous().numpy())
        leaf.grad = None

    def _checked(self, ids: torch.Tensor) -> torch.Tensor:
        if ids.dtype not in (torch.int64, torch.int32):
            name = self.served.name
            raise InvalidError(f"ids of '{name}' are {ids.dtype}, expected torch.int64")
        return ids.long()
