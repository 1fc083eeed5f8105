"""Graph of the core from PyTorch edge lists."""

from __future__ import annotations

from typing import NamedTuple

import torch

from thinwire._core import Graph, InvalidError
from thinwire.torch.graph.rows import check_vertices, on_cpu


class Topology(NamedTuple):
    """Graph of the core, and the number that each of its edges has in the caller's edge list."""

    core: Graph
    edges: torch.Tensor | None
    """Edge numbers by the core's positions, int64 [E]; None if they are equal."""

    def original(self, positions: torch.Tensor) -> torch.Tensor:
        """Returns the caller's numbers of edges that are given by their positions."""
        return positions if self.edges is None else self.edges[positions]


def topology(edge_index: torch.Tensor, vertices: int) -> Topology:
    """Creates the graph of `edge_index`, int64 [2, E] with rows of sources and destinations.

    # Errors

    InvalidError for another shape, dtype or device, or an edge with a vertex that is not in
    0..vertices.
    """
    edge_index = on_cpu("edge_index", edge_index)
    if edge_index.dtype != torch.int64 or edge_index.dim() != 2 or edge_index.shape[0] != 2:
        raise InvalidError(
            f"edge_index is {edge_index.dtype} {list(edge_index.shape)}, expected torch.int64 [2, edges]"
        )
    check_vertices("edge_index", edge_index, vertices)
    sources, destinations = edge_index
    destinations, edges = torch.sort(destinations, stable=True)
    sources = sources[edges].contiguous()
    offsets = torch.zeros(vertices + 1, dtype=torch.int64)
    torch.cumsum(torch.bincount(destinations, minlength=vertices), 0, out=offsets[1:])
    core = Graph((offsets.data_ptr(), len(offsets)), (sources.data_ptr(), len(sources)))
    return Topology(core, edges)
