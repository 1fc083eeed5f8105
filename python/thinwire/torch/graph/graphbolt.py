"""GraphBolt's feature store and sampling graph over Thinwire's graphs and shared features.

    features = thinwire.torch.graph.graphbolt.feature_store(shared)
    pipe = sampler.sample_neighbor(graph, fan_outs).fetch_feature(features, node_feature_keys=["feat"])

GraphBolt samples, and reads all rows of a batch together. `thinwire.torch.graph.Loader` samples and
reads ahead itself, and has a cache.
"""

from __future__ import annotations

from types import NoneType
from typing import Any

import torch

try:
    from dgl import graphbolt
except (ImportError, FileNotFoundError) as error:  # the latter with another PyTorch
    raise ImportError(
        f"thinwire.torch.graph.graphbolt needs DGL ({error}) "
        "(hint: pip install dgl==2.1.0 torch==2.2.1 torchdata==0.7.1 'numpy<2' scipy pandas pydantic "
        "pyyaml)"
    ) from None

from thinwire._core import InvalidError
from thinwire.arguments import instance
from thinwire.torch.graph.file import StoredGraph
from thinwire.torch.graph.rows import Rows, rows_of_tensor
from thinwire.torch.graph.shared import SharedFeatures

Source = SharedFeatures | StoredGraph | Rows | torch.Tensor


def feature_store(
    source: Source, name: str = "feat", *, node_type: str | None = None
) -> graphbolt.BasicFeatureStore:
    """Returns the store of one feature of vertices, whose rows are those of `source`.

    `fetch_feature` finds it as `node_feature_keys=[name]`, or `{node_type: [name]}`.

    # Errors

    InvalidError as for `Feature`.
    """
    return graphbolt.BasicFeatureStore({("node", node_type, name): Feature(source)})


def sampling_graph(graph: StoredGraph) -> graphbolt.FusedCSCSamplingGraph:
    """Returns a copy of the topology from which GraphBolt samples, of one type of vertices and edges.

    Edges have "edge_weight" if the graph has weights, for `prob_name`.
    """
    instance("graph", graph, StoredGraph)
    weights = None if graph.edge_weight is None else {"edge_weight": graph.edge_weight}
    return graphbolt.fused_csc_sampling_graph(*graph.columns(), edge_attributes=weights)


class Feature(graphbolt.Feature):
    """Read-only rows of vertices."""

    def __init__(self, source: Source) -> None:
        """Creates the feature over shared features, a graph's file, some of its rows, or a tensor
        [rows, ...] on the CPU, which must not change.

        # Errors

        InvalidError if there are no features, or a tensor has another shape.
        """
        super().__init__()
        self._rows = rows_of(source)

    def read(self, ids: torch.Tensor | None = None) -> torch.Tensor:
        """Returns the rows of `ids`, on their device; all rows for None.

        # Errors

        InvalidError for a vertex that does not exist; PeerError if a rank does not answer.
        """
        read = self._rows.read(instance("ids", ids, torch.Tensor, NoneType))
        return read if ids is None else read.to(ids.device)

    def size(self) -> torch.Size:
        """Returns the shape of a row."""
        assert self._rows.like is not None  # rows without features are refused at first
        return self._rows.like.shape[1:]

    def update(self, value: Any, ids: Any = None) -> None:
        """Raises an error: rows are those of a file or of a rank's tensor, and read-only.

        # Errors

        InvalidError always.
        """
        rows = self._rows.source.rows if ids is None else len(ids)
        raise InvalidError(
            f"update of {rows} rows of a feature that cannot be changed "
            "(hint: gb.TorchBasedFeature for features that change)"
        )


def rows_of(source: Source) -> Rows:
    """Returns the rows of a source of features."""
    if isinstance(source, torch.Tensor):
        return rows_of_tensor(source)
    if isinstance(source, StoredGraph):
        return source.rows()
    if isinstance(source, SharedFeatures):
        return source.rows
    return instance("source", source, SharedFeatures, StoredGraph, Rows, torch.Tensor)
