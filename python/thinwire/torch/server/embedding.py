"""An embedding whose table servers have.

The rows of a batch, each once, are a small dense leaf of the graph, in which autograd sums the gradient.
"""

from __future__ import annotations

import functools
import re

import torch
from torch.nn import functional

from thinwire._core import InvalidError
from thinwire.torch.server.job import Gradient, ParameterServer, Table


class ServerEmbedding(torch.nn.Module):
    """Rows of a table that is on servers, in place of `nn.Embedding(rows, width, sparse=True)`.

    It has no parameters: a forward pass pulls the rows of its ids, and `ServerOptimizer.step` pushes their
    gradients. Making the optimizer gives it its servers.

    Args:
        rows: number of rows.
        width: values per row, which are f32.
        initial: first values of the rows: "normal:DEVIATION", "uniform:BOUND", "constant:VALUE" or "zeros".
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
        if staleness < 0:
            raise InvalidError(f"staleness {staleness}, expected 0 or more steps")
        self.values, self.staleness = values, staleness
        self.cache_bytes = None if cache is None else bytes_of(cache)
        self.rows, self.width = rows, width
        self.initial, self.optimizer = initial, optimizer
        self._server: ParameterServer | None = None
        self._name, self._number = "", 0
        self._owed: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def table(self, name: str) -> Table:
        """Returns the table, under a name of its own."""
        return Table(name, self.rows, self.width, self.initial, self.optimizer, self.values)

    def attach(self, server: ParameterServer, name: str, number: int) -> None:
        """Takes the servers that have the table."""
        self._server, self._name, self._number = server, name, number
        if self.cache_bytes is not None:
            server.cache(number, self.cache_bytes, self.staleness)

    @property
    def cache_stats(self) -> dict[str, int]:
        """Counts of the cache so far: `lookups`, `ids`, `hits`, `misses`, `stale` (misses of rows that were
        too old), `evictions` and `bytes_missed`; empty without a cache or before it has servers."""
        if self._server is None or self.cache_bytes is None:
            return {}
        return self._server.hits(self._number)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Returns the rows of `ids`, whole numbers of any shape, along a last dimension.

        # Errors

        InvalidError for an id that is no row; PeerError if no server answers.
        """
        if self._server is None:
            raise InvalidError(
                "an embedding has no servers (hint: make a thinwire.torch.ServerOptimizer before the first "
                "forward pass)"
            )
        rows, places = torch.unique(self._checked(ids), return_inverse=True)
        rows = rows.cpu()
        if rows.numel() and rows[0] < 0:
            raise InvalidError(f"row {rows[0]} of table '{self._name}', expected 0 or more")
        values = self._server.pull([(self._number, rows)])
        leaf = values.view(-1, self.width).to(ids.device)
        if torch.is_grad_enabled():
            leaf.requires_grad_()
            leaf.register_post_accumulate_grad_hook(functools.partial(self._owe, rows))
        return functional.embedding(places, leaf)

    def owed(self, weight: float) -> list[Gradient]:
        """Returns the gradients since the last call, each multiplied by `weight`."""
        owed = [
            (self._number, rows, leaf.grad.mul(weight).cpu().contiguous())
            for rows, leaf in self._owed.values()
            if leaf.grad is not None
        ]
        self._owed.clear()
        return owed

    def forget(self) -> None:
        """Drops the gradients since the last push."""
        for _, leaf in self._owed.values():
            leaf.grad = None
        self._owed.clear()

    def extra_repr(self) -> str:
        """The size, for people."""
        return f"{self.rows}, {self.width}"

    def _owe(self, rows: torch.Tensor, leaf: torch.Tensor) -> None:
        """Keeps a leaf, which has a gradient now, until the next push."""
        self._owed[id(leaf)] = (rows, leaf)

    def _checked(self, ids: torch.Tensor) -> torch.Tensor:
        if ids.dtype not in (torch.int64, torch.int32):
            raise InvalidError(f"ids of '{self._name}' are {ids.dtype}, expected torch.int64")
        return ids.long()


def bytes_of(size: int | str) -> int:
    """Returns a size in bytes, which may be such as "64MB" or "1.5GiB".

    # Errors

    InvalidError if it is none.
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?) ?([kMGT]?)(i?)B?", str(size))
    if found is None or (found[3] and not found[2]):
        raise InvalidError(f'cache "{size}", expected bytes, or such as "64MB" or "1.5GiB"')
    return int(float(found[1]) * (1024 if found[3] else 1000) ** " kMGT".index(found[2] or " "))
