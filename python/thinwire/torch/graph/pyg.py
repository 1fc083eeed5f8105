"""PyG's feature store and graph store over Thinwire's graphs and shared features.

    loader = NeighborLoader(thinwire.torch.graph.pyg.stores(graph, features), [15, 10], input_nodes=seeds)

PyG samples, and reads all rows of a batch together. `thinwire.torch.graph.Loader` samples and reads
ahead itself, and has a cache.
"""

from __future__ import annotations

from types import NoneType
from typing import Any

import torch

try:
    from torch_geometric.data import FeatureStore, GraphStore, TensorAttr
    from torch_geometric.data.graph_store import EdgeAttr, EdgeLayout
except ImportError as error:
    raise ImportError(
        f"thinwire.torch.graph.pyg needs PyG ({error}) (hint: pip install torch-geometric)"
    ) from None

from thinwire._core import InvalidError
from thinwire.arguments import instance
from thinwire.torch.graph.file import StoredGraph
from thinwire.torch.graph.rows import Rows, check_vertices, numbers_of
from thinwire.torch.graph.shared import SharedFeatures


def stores(
    graph: StoredGraph,
    features: SharedFeatures | None = None,
    *,
    node_type: str | None = None,
    edge_type: tuple[str, str, str] | None = None,
) -> tuple[Features, Topology]:
    """Returns the stores of a graph that PyG's loaders take in place of a `Data`.

    Vertices have `x`, from `features` or else from the graph's file, and `y` if the file has labels.
    Without types batches are `Data`; with types they are `HeteroData`.

    # Errors

    InvalidError for arguments of the wrong type, and features of another number of vertices.
    """
    instance("graph", graph, StoredGraph)
    instance("features", features, SharedFeatures, NoneType)
    instance("node_type", node_type, str, NoneType)
    instance("edge_type", edge_type, tuple, NoneType)
    if features is not None and len(features) != graph.num_nodes:
        raise InvalidError(f"features of {len(features)} vertices, expected {graph.num_nodes}")
    rows = graph.rows() if features is None else features.rows
    return Features(rows, graph.y, node_type), Topology(graph, edge_type)


class Features(FeatureStore):
    """Read-only rows `x` and labels `y` of vertices."""

    def __init__(
        self, rows: Rows, y: torch.Tensor | None = None, node_type: str | None = None
    ) -> None:
        """Creates the store of one type of vertices."""
        super().__init__()
        self._rows, self._y, self._type = rows, y, node_type

    def get_all_tensor_attrs(self) -> list[TensorAttr]:
        """Returns what vertices have."""
        names = ["x"] if self._y is None else ["x", "y"]
        return [TensorAttr(self._type, name) for name in names]

    def _get_tensor(self, attr: TensorAttr) -> torch.Tensor | None:
        if attr.group_name != self._type or attr.attr_name not in ("x", "y"):
            return None
        if attr.attr_name == "x":
            return self._rows.read(attr.index)
        if self._y is None:
            return None
        numbers = numbers_of(attr.index, len(self._y))
        check_vertices("index", numbers, len(self._y))
        return self._y[numbers]

    def _get_tensor_size(self, attr: TensorAttr) -> tuple[int, ...] | None:
        if attr.attr_name == "x" and self._rows.like is not None:
            return (self._rows.source.rows, *self._rows.like.shape[1:])
        return None if self._y is None else tuple(self._y.shape)

    def _put_tensor(self, tensor: Any, attr: TensorAttr) -> bool:
        return False

    def _remove_tensor(self, attr: TensorAttr) -> bool:
        return False


class Topology(GraphStore):
    """Read-only in-neighbours of all vertices, in compressed sparse columns."""

    def __init__(self, graph: StoredGraph, edge_type: tuple[str, str, str] | None = None) -> None:
        """Creates the store of one type of edges."""
        super().__init__()
        self._graph, self._type = graph, edge_type

    def get_all_edge_attrs(self) -> list[EdgeAttr]:
        """Returns the one type of edges."""
        size = (self._graph.num_nodes, self._graph.num_nodes)
        return [EdgeAttr(self._type, EdgeLayout.CSC, size=size)]

    def _get_edge_index(self, edge_attr: EdgeAttr) -> tuple[torch.Tensor, torch.Tensor] | None:
        if edge_attr.edge_type != self._type or edge_attr.layout != EdgeLayout.CSC:
            return None
        offsets, neighbors = self._graph.columns()
        return neighbors, offsets

    def _put_edge_index(self, edge_index: Any, edge_attr: EdgeAttr) -> bool:
        return False

    def _remove_edge_index(self, edge_attr: EdgeAttr) -> bool:
        return False
