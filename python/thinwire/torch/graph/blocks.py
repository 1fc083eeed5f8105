"""Blocks of a mini-batch: bipartite graphs, one per layer of the network."""

from __future__ import annotations

from typing import NamedTuple

import torch

from thinwire._core import GraphBatch


class Block(NamedTuple):
    """Edges of one layer, from its sources to its destinations, which are the first of its sources.

    `dgl.create_block(tuple(block.edge_index), *block.size)` is DGL's block; bipartite layers of PyG
    take `(x, x[: block.size[1]])` and `block.edge_index`.
    """

    edge_index: torch.Tensor
    """Sources and destinations of edges by their number in the batch, int64 [2, edges]."""
    e_id: torch.Tensor
    """Numbers of the edges in the graph's edge list, int64 [edges]."""
    size: tuple[int, int]
    """Numbers of sources and destinations."""


class Edges(NamedTuple):
    """Edges of all hops, that of the seeds first."""

    index: torch.Tensor
    positions: torch.Tensor
    counts: list[int]
    """Number of edges per hop."""
    sources: list[int]
    """Number of vertices of the batch up to each hop."""


def edges_of(batch: GraphBatch) -> Edges:
    """Returns the edges of a batch as tensors."""
    sources, counts = [hop[0] for hop in batch.hops], [hop[1] for hop in batch.hops]
    index = torch.empty(2, sum(counts), dtype=torch.int64)
    positions = torch.empty(sum(counts), dtype=torch.int64)
    batch.write_edges(index[0].data_ptr(), index[1].data_ptr(), positions.data_ptr())
    return Edges(index, positions, counts, sources)


def blocks_of(edges: Edges, e_id: torch.Tensor, seeds: int) -> list[Block]:
    """Returns the blocks in the order of the network's layers: that of the seeds is the last."""
    blocks, start, destinations = [], 0, seeds
    for count, sources in zip(edges.counts, edges.sources):
        part = slice(start, start + count)
        blocks.append(Block(edges.index[:, part], e_id[part], (sources, destinations)))
        start, destinations = start + count, sources
    return blocks[::-1]
