"""Dense parameters of a model, which servers train; every worker has a full copy.

PyTorch sets the initial values, which only workers know. So servers store the change of each
parameter since the beginning, which starts at zero. A rule that uses the value itself, such as
weight decay, would use the change instead; such rules are refused.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch

from thinwire._core import InvalidError
from thinwire.server.job import Gradient, ParameterServer, Rows, Table
from thinwire.torch.layout import plain

WIDTH_MAX = 1024
"""Largest number of values per row, so that a large parameter is spread over all servers."""
LOOK_AT_VALUES = ("adamw", "ftrl")


class Dense:
    """Dense parameters that servers update. Their tables follow those of the embeddings."""

    def __init__(self, named: dict[str, torch.nn.Parameter], optimizer: str, first: int) -> None:
        """Checks the parameters, which are given by their names in the model. `first` is the number
        of the first parameter's table."""
        if named and optimizer.partition(":")[0] in LOOK_AT_VALUES:
            rule = optimizer.partition(":")[0]
            raise InvalidError(
                f"{rule} cannot be used for dense parameters: servers store only their change (hint: adam, "
                "adagrad, momentum or sgd)"
            )
        for name, each in named.items():
            if each.dtype != torch.float32:
                raise InvalidError(f"{name} is {each.dtype}, expected torch.float32")
        self.tables = [
            Table(name, *sizes(each), "zeros", optimizer) for name, each in named.items()
        ]
        self._parameters = list(named.values())
        self._began = [each.detach().clone() for each in self._parameters]
        self._rows: list[Rows] = [
            (first + place, np.arange(table.rows, dtype=np.int64))
            for place, table in enumerate(self.tables)
        ]

    def digest(self) -> str:
        """Returns a hash of the initial values."""
        digest = hashlib.sha256()
        for each in self._began:
            digest.update(each.cpu().contiguous().numpy().tobytes())
        return digest.hexdigest()[:16]

    @property
    def parameters(self) -> list[torch.nn.Parameter]:
        """The parameters."""
        return list(self._parameters)

    def owed(self, weight: float) -> list[Gradient]:
        """Returns the gradients multiplied by `weight`, skipping parameters without one and frozen ones."""
        return [
            (number, rows, padded(each.grad, table, weight))
            for (number, rows), table, each in zip(self._rows, self.tables, self._parameters)
            if each.grad is not None and each.requires_grad
        ]

    @torch.no_grad()
    def pull(self, server: ParameterServer) -> None:
        """Sets the parameters to the servers' values."""
        if not self._rows:
            return
        pulled = torch.from_numpy(server.pull(self._rows))
        parts = pulled.split([table.rows * table.width for table in self.tables])
        for each, began, part in zip(self._parameters, self._began, parts):
            change = part[: each.numel()].view_as(each).to(each.device)
            each.copy_(began + change)

    def forget(self) -> None:
        """Drops the gradients."""
        for each in self._parameters:
            each.grad = None


def named(
    model: torch.nn.Module, parameters: Iterable[torch.nn.Parameter]
) -> dict[str, torch.nn.Parameter]:
    """Returns the `parameters` that require a gradient, by their plain names in the model.

    # Errors

    InvalidError if one does not belong to the model.
    """
    all_named = plain(model.named_parameters())
    wanted = {id(each): each for each in parameters}
    found = {name: each for name, each in all_named.items() if id(each) in wanted}
    strangers = wanted.keys() - {id(each) for each in found.values()}
    for stranger in strangers:
        shape = list(wanted[stranger].shape)
        raise InvalidError(
            f"a parameter of shape {shape} does not belong to {type(model).__name__}"
        )
    return {name: each for name, each in found.items() if each.requires_grad}


def sizes(parameter: torch.Tensor) -> tuple[int, int]:
    """Returns the number of rows and the width of a parameter's table. The last row may be
    padded."""
    width = max(1, min(WIDTH_MAX, parameter.numel()))
    return max(1, -(-parameter.numel() // width)), width


def padded(gradient: torch.Tensor, table: Table, weight: float) -> np.ndarray[Any, Any]:
    """Returns a gradient, multiplied by `weight`, as the rows of its table, padded with zeros."""
    values = torch.zeros(table.rows * table.width)
    values[: gradient.numel()] = gradient.to_dense().mul(weight).flatten()
    return values.numpy()
