"""Blocks of a mini-batch: bipartite graphs, one per layer of the network."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import torch

from thinwire._core import GraphBatch
from thinwire.torch.graph.lazy import Later


class Block(tuple[Any, ...]):
    """Edges of one layer, from its sources to its destinations. The first sources are the
    destinations.

    A named tuple of `edge_index`, `e_id` and `size`.
    `dgl.create_block(tuple(block.edge_index), *block.size)` is DGL's block; bipartite layers of PyG
    take `(x, x[: block.size[1]])` and `block.edge_index`.
    """

    __slots__ = ()
    # PyG makes a named tuple of each named tuple when it moves a batch.
    _fields = ("edge_index", "e_id", "size")

    def __new__(
        cls, edge_index: torch.Tensor, e_id: torch.Tensor | Later, size: tuple[int, int]
    ) -> Block:
        """Creates a block."""
        return super().__new__(cls, (edge_index, e_id, size))

    @property
    def edge_index(self) -> torch.Tensor:
        """Sources and destinations of edges by their number in the batch, int64 [2, edges]."""
        return self[0]

    @property
    def e_id(self) -> torch.Tensor:
        """Numbers of the edges in the graph's edge list, int64 [edges]."""
        return self[1]

    @property
    def size(self) -> tuple[int, int]:
        """Numbers of sources and destinations."""
        return self[2]

    def __getitem__(self, place: Any) -> Any:
        """Returns one of the three, or a part of them."""
        found = super().__getitem__(place)
        if isinstance(found, Later):
            return found.get()
        return tuple(map(value_of, found)) if isinstance(place, slice) else found

    def __iter__(self) -> Iterator[Any]:
        """Yields edges, their numbers, and the size."""
        return map(value_of, super().__iter__())

    def __repr__(self) -> str:
        """Shows all three."""
        named = (f"{name}={value!r}" for name, value in zip(self._fields, self))
        return f"Block({', '.join(named)})"

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles and copies as a block of tensors."""
        return Block, tuple(self)


def value_of(value: Any) -> Any:
    """Returns the value of a `Later`, and anything else unchanged."""
    return value.get() if isinstance(value, Later) else value


class Edges(NamedTuple):
    """Edges of all hops, beginning with the seeds' hop."""

    index: torch.Tensor  # type: ignore[assignment]  # tuples have a method of that name
    counts: list[int]
    """Number of edges per hop."""
    sources: list[int]
    """Number of vertices of the batch up to each hop."""


def edges_of(batch: GraphBatch) -> Edges:
    """Returns the edges of a batch."""
    sources, counts = [hop[0] for hop in batch.hops], [hop[1] for hop in batch.hops]
    index = torch.empty(2, sum(counts), dtype=torch.int64)
    batch.write_edges(index[0].data_ptr(), index[1].data_ptr())
    return Edges(index, counts, sources)


def vertices_of(batch: GraphBatch) -> torch.Tensor:
    """Returns the vertices of a batch, int64."""
    vertices = torch.empty(batch.vertices, dtype=torch.int64)
    batch.write_vertices(vertices.data_ptr())
    return vertices


def positions_of(batch: GraphBatch) -> torch.Tensor:
    """Returns the positions of a batch's edges in the graph, int64."""
    positions = torch.empty(sum(hop[1] for hop in batch.hops), dtype=torch.int64)
    batch.write_positions(positions.data_ptr())
    return positions


def blocks_of(edges: Edges, e_id: Later, seeds: int) -> list[Block]:
    """Returns the blocks in the order of the network's layers: the block of the seeds is the last."""
    blocks, start, destinations = [], 0, seeds
    for count, sources in zip(edges.counts, edges.sources):
        part = slice(start, start + count)
        own = Later(partial(part_of, e_id, part))
        blocks.append(Block(edges.index[:, part], own, (sources, destinations)))
        start, destinations = start + count, sources
    return blocks[::-1]


def part_of(numbers: Later, part: slice) -> torch.Tensor:
    """Returns a slice of numbers."""
    found: torch.Tensor = numbers.get()[part]
    return found
