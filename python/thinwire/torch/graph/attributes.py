"""Attributes of a graph that are sliced for mini-batches: tensors with an entry per vertex or edge.

PyG's rules are used for data of any type. Entries lie along the last dimension of attributes named
`*index*` or `face`, and along the first dimension of all others. If a graph has equal numbers of
edges and vertices, attributes with `edge` in their name belong to edges.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import torch

from thinwire._core import InvalidError
from thinwire.torch.graph.lazy import Later, Lazy

OWN = ("edge_index", "x", "num_nodes")
"""Attributes that the loader makes itself."""


class Attributes(NamedTuple):
    """The attributes of vertices and of edges, by name with the dimension of their entries."""

    nodes: dict[str, int]
    edges: dict[str, int]

    @staticmethod
    def of(data: Any, vertices: int, edges: int) -> Attributes:
        """Finds the attributes in `data`."""
        found = Attributes({}, {})
        for name, value in entries(data).items():
            if name in OWN or not is_dense(value) or value.dim() == 0:
                continue
            dimension = -1 if "index" in name or name == "face" else 0
            fits = [count for count in (vertices, edges) if value.shape[dimension] == count]
            if fits:
                is_edge = "edge" in name if len(fits) == 2 else fits == [edges]
                (found.edges if is_edge else found.nodes)[name] = dimension
        return found

    def write(self, data: Any, batch: Lazy, n_id: Later, e_id: Later) -> None:
        """Adds the entries of its vertices and edges to a batch, to be looked up when they are read."""
        for names, numbers in ((self.nodes, n_id), (self.edges, e_id)):
            for name, dimension in names.items():
                values = getattr(data, name)
                seen = Seen(name, values, changes_of(values))
                batch[name] = Later(partial(selected, seen, dimension, numbers))


class Seen(NamedTuple):
    """An attribute in its state when a batch is drawn."""

    name: str
    values: torch.Tensor
    changes: int
    """Number of changes in place, as PyTorch counts them."""


def selected(seen: Seen, dimension: int, numbers: Later) -> torch.Tensor:
    """Returns the entries with these numbers along a dimension.

    # Errors

    InvalidError if the attribute was changed in place since the batch was drawn.
    """
    changes = changes_of(seen.values)
    if changes != seen.changes:
        raise InvalidError(
            f"{seen.name} was changed in place {changes - seen.changes} times after this batch was drawn, "
            f"expected 0 times (hint: read batch.{seen.name}, or call batch.clone(), before the change)"
        )
    return seen.values.index_select(dimension, numbers.get())


def changes_of(values: torch.Tensor) -> int:
    """Returns how often a tensor was changed in place; 0 for a tensor of inference mode."""
    return 0 if values.is_inference() else values._version


def entries(data: Any) -> Mapping[str, Any]:
    """The attributes of data by name."""
    found: Mapping[str, Any] = data.to_dict() if is_pyg(data) else vars(data)
    return found


def is_pyg(data: Any) -> bool:
    """Whether this is PyG's `Data`."""
    return hasattr(data, "is_node_attr")


def is_dense(value: Any) -> bool:
    """Whether this is a tensor that can be indexed along one dimension."""
    return torch.is_tensor(value) and value.layout == torch.strided
