"""An embedding whose table servers have.

The rows of a batch, each once, are a small dense leaf of the graph, in which autograd sums the gradient.
"""

from __future__ import annotations

import functools

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
    """

    def __init__(
        self, rows: int, width: int, *, initial: str = "normal:1", optimizer: str | None = None
    ) -> None:
        """Has no servers yet."""
        super().__init__()
        self.rows, self.width = rows, width
        self.initial, self.optimizer = initial, optimizer
        self._server: ParameterServer | None = None
        self._name, self._number = "", 0
        self._owed: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def table(self, name: str) -> Table:
        """Returns the table, under a name of its own."""
        return Table(name, self.rows, self.width, self.initial, self.optimizer)

    def attach(self, server: ParameterServer, name: str, number: int) -> None:
        """Takes the servers that have the table."""
        self._server, self._name, self._number = server, name, number

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
