"""Loader of mini-batches that PyG's models take."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Sequence
from types import NoneType, SimpleNamespace
from typing import Any

import torch
import torch.distributed

from thinwire._core import GraphBatch, GraphLoader, InvalidError
from thinwire.arguments import UINT32_MAX, flag, instance, shown, whole, wholes
from thinwire.server.table import bytes_of
from thinwire.torch.graph.blocks import blocks_of, edges_of
from thinwire.torch.graph.file import StoredGraph, checked_bounds, weights_of
from thinwire.torch.graph.rows import (
    Rows,
    check_vertices,
    count_vertices,
    integers,
    on_cpu,
    rows_of_data,
)
from thinwire.torch.graph.shared import SharedFeatures
from thinwire.torch.graph.topology import Topology, topology

LAYOUTS = ("edges", "blocks")
OWN = ("edge_index", "x", "num_nodes")
"""Attributes of the data that the loader makes itself."""
THREADS_MAX = 1024
STATE = ("pass", "step")


class Batch(SimpleNamespace):
    """Mini-batch of data that is no object of PyG, with the same attributes."""


class Loader:
    """Loads mini-batches of a graph: seeds, sampled in-neighbours, their features.

    Batches are a pure function of (seed, pass, step), whatever the number of threads. `data` is a
    `torch_geometric.data.Data`, a `StoredGraph`, or any object with `edge_index`, int64 [2, E], and, if
    there are features, `x` [V, ...]; other tensors of V or E rows are sliced too. All of them are in main
    memory and may not change while the loader is used.

    A batch has `x`, `edge_index` by the batch's own vertex numbers, `n_id` (vertices, seeds first),
    `e_id` (edges), `input_id` (places of the seeds in `input_nodes`), `batch_size` (number of seeds),
    `num_sampled_nodes` and `num_sampled_edges` (lists, per hop). With `layout="blocks"` it has
    `blocks`, one `Block` per layer, in place of `edge_index`.

    Arguments:
        num_neighbors: Fan-out of each hop, that of the seeds first; -1 takes all in-neighbours.
        batch_size: Number of seeds per batch and rank.
        input_nodes: Seeds: a bool mask [V], vertices, or None for all vertices.
        replace: Whether to draw with replacement.
        weight_attr: Name of the attribute of `data` with the weights of edges [E], in proportion to which
            neighbours are drawn; finite, 0 and more. An edge of weight 0 is never drawn, except where all
            in-neighbours are taken.
        shuffle: Whether each pass has another order.
        seed: Seed of orders and samples; equal on all ranks.
        layout: "edges" as PyG's `NeighborLoader`: every vertex draws once, and all layers use all edges.
            "blocks" as DGL: every vertex draws anew in each layer.
        bounds: First vertices of parts, one per rank, and the number of vertices, such as
            `StoredGraph.bounds`: each rank's seeds are those of its own part. All ranks have as many
            batches. None deals all seeds to all ranks.
        features: Features of all vertices that the ranks share, in place of `data.x`.
        cache: Most bytes of a cache, such as "1GB", before shared features or an `x` that is a mapped file.
            It holds what the next batches use. None reads every batch's rows.
        threads: Number of sampling threads, up to 1024; None for one per core.
        rank, world: This rank and the number of ranks; None asks `torch.distributed`.
    """

    def __init__(
        self,
        data: Any,
        num_neighbors: Sequence[int],
        batch_size: int = 1,
        input_nodes: torch.Tensor | None = None,
        *,
        replace: bool = False,
        weight_attr: str | None = None,
        shuffle: bool = False,
        seed: int = 0,
        layout: str = "edges",
        bounds: Sequence[int] | None = None,
        features: SharedFeatures | None = None,
        cache: int | str | None = None,
        threads: int | None = None,
        rank: int | None = None,
        world: int | None = None,
    ) -> None:
        """Creates the loader; its threads start with the first pass.

        # Errors

        InvalidError for arguments of the wrong type, or that do not fit the graph.
        """
        if layout not in LAYOUTS:
            raise InvalidError(f"layout {shown(layout)}, expected one of {', '.join(LAYOUTS)}")
        fan_outs = wholes("num_neighbors", num_neighbors, -1, UINT32_MAX)
        instance("features", features, SharedFeatures, NoneType)
        instance("weight_attr", weight_attr, str, NoneType)
        self.data = data
        self._vertices = count_vertices(data) if features is None else len(features)
        stored = isinstance(data, StoredGraph)
        edges = getattr(data, "edge_index", None)
        self._topology = data.topology if stored else topology(edges, self._vertices)
        self._rows = rows_for(data, features, self._vertices)
        self._weights = named_weights(data, weight_attr, self._topology)
        self._seeds = seeds(input_nodes, self._vertices)
        if rank is None or world is None:
            rank, world = distributed(rank, world)
        self._options = {
            "fan_outs": [None if fan_out == -1 else fan_out for fan_out in fan_outs],
            "replace": flag("replace", replace),
            "blocks": layout == "blocks",
            "batch": whole("batch_size", batch_size, 1, UINT32_MAX),
            "shuffle": flag("shuffle", shuffle),
            "seed": whole("seed", seed, 0, 2**64 - 1),
            "rank": whole("rank", rank, 0, UINT32_MAX),
            "ranks": whole("world", world, 1, UINT32_MAX),
            "threads": 0 if threads is None else whole("threads", threads, 1, THREADS_MAX),
            "bounds": None if bounds is None else checked_bounds(bounds, self._vertices),
            "cache": None if cache is None else (bytes_of(cache), "foreseen"),
        }
        narrow = torch.int32 if len(self._seeds) < 2**31 else torch.int64
        self._places = torch.empty(self._vertices, dtype=narrow)
        self._places[self._seeds] = torch.arange(len(self._seeds), dtype=narrow)
        self._node_keys, self._edge_keys = self._keys()
        self._next, self._ahead = (0, 0), (-1, 0)
        self._core = self._start((0, 0))

    def __len__(self) -> int:
        """Returns the number of batches of this rank in a pass, the same on all ranks."""
        return self._core.steps

    def __iter__(self) -> Iterator[Any]:
        """Yields the batches of one pass, or of the rest of one after `load_state_dict`."""
        position = self._next
        if position != self._ahead:
            self._core = self._start(position)
        # A pass that is left early is over.
        self._next = (position[0] + 1, 0)
        for step in range(position[1], len(self)):
            batch = self._core.next()
            ends = step + 1 == len(self)
            self._ahead = (position[0] + 1, 0) if ends else (position[0], step + 1)
            yield self._convert(batch)

    @property
    def cache_stats(self) -> dict[str, int]:
        """Rows that the cache had and that it had not, since the loader's threads started."""
        hits, misses = self._core.hits()
        return {"hits": hits, "misses": misses}

    def state_dict(self) -> dict[str, int]:
        """Returns the position after the last batch that was yielded."""
        return {"pass": max(self._ahead[0], 0), "step": self._ahead[1]}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Lets the next pass begin at a position.

        # Errors

        InvalidError if there is no such position.
        """
        if set(instance("state", state, dict)) != set(STATE):
            found = ", ".join(map(str, state)) or "nothing"
            raise InvalidError(f"state has {found}, expected {' and '.join(STATE)}")
        number, step = (whole(name, state[name]) for name in STATE)
        if step >= len(self):
            raise InvalidError(f"pass {number}, step {step}, expected steps of 0..{len(self)}")
        self._next = (number, step)

    def _start(self, position: tuple[int, int]) -> GraphLoader:
        options = {**self._options, "pass": position[0], "step": position[1]}
        self._ahead = position
        seeds = (self._seeds.data_ptr(), len(self._seeds))
        weights = None if self._weights is None else self._weights.data_ptr()
        core, rows = self._topology.core, self._rows.source
        return GraphLoader(core, rows, seeds, json.dumps(options), weights)

    def _keys(self) -> tuple[list[str], list[str]]:
        """Returns the names of other tensors with a row per vertex, and per edge."""
        data, edges = self.data, self._topology.core.edges
        if hasattr(data, "is_node_attr"):
            found = data.to_dict().items()
            tensors = [key for key, value in found if torch.is_tensor(value) and key not in OWN]
            nodes = [key for key in tensors if data.is_node_attr(key)]
            return nodes, [key for key in tensors if data.is_edge_attr(key)]
        found = {
            key: value
            for key, value in vars(data).items()
            if torch.is_tensor(value) and key not in OWN
        }
        nodes = [
            key for key, value in found.items() if value.dim() and len(value) == self._vertices
        ]
        others = [key for key, value in found.items() if value.dim() and len(value) == edges]
        return nodes, [key for key in others if key not in nodes]

    def _convert(self, batch: GraphBatch) -> Any:
        """Returns a batch of the core as tensors; `x` is the core's own memory."""
        made = copy.copy(self.data) if hasattr(self.data, "is_node_attr") else Batch()
        n_id = torch.empty(batch.vertices, dtype=torch.int64)
        batch.write_vertices(n_id.data_ptr())
        edges = edges_of(batch)
        e_id = self._topology.original(edges.positions)
        for keys, numbers in ((self._node_keys, n_id), (self._edge_keys, e_id)):
            for key in keys:
                setattr(made, key, getattr(self.data, key)[numbers])
        x = self._rows.of(batch)
        if x is not None:
            made.x = x
        made.num_nodes = batch.vertices
        made.n_id, made.e_id = n_id, e_id
        made.input_id = self._places[n_id[: batch.seeds]].to(torch.int64)
        made.batch_size = batch.seeds
        made.num_sampled_edges = edges.counts
        ends = [batch.seeds, *edges.sources]
        made.num_sampled_nodes = [batch.seeds, *(b - a for a, b in zip(ends, ends[1:]))]
        if self._options["blocks"]:
            made.edge_index = None
            made.blocks = blocks_of(edges, e_id, batch.seeds)
        else:
            made.edge_index = edges.index
        return made


def rows_for(data: Any, features: SharedFeatures | None, vertices: int) -> Rows:
    """Returns the rows that a loader reads."""
    if features is not None:
        return features.rows
    if isinstance(data, StoredGraph) and data.num_features:
        return data.rows()
    return rows_of_data(data, vertices)


def named_weights(data: Any, name: str | None, graph: Topology) -> torch.Tensor | None:
    """Returns the weights of edges by the core's positions, if they are asked for.

    # Errors

    InvalidError if there are none, or not one per edge.
    """
    if name is None:
        return None
    found = weights_of(data, graph, name)
    if found is None:
        raise InvalidError(
            f'the graph has no {name}, expected weights of edges (weight_attr="{name}")'
        )
    return found


def seeds(input_nodes: torch.Tensor | None, vertices: int) -> torch.Tensor:
    """Returns the vertices of a mask or list, int64."""
    if input_nodes is None:
        return torch.arange(vertices)
    found, shape = on_cpu("input_nodes", input_nodes), list(input_nodes.shape)
    if found.dtype == torch.bool:
        if shape != [vertices]:
            raise InvalidError(f"input_nodes is a mask {shape}, expected [{vertices}]")
        found = found.nonzero().view(-1)
    elif len(shape) != 1:
        raise InvalidError(f"input_nodes is {shape}, expected [seeds] (hint: tensor.view(-1))")
    found = integers("input_nodes", found).contiguous()
    if len(found) == 0:
        raise InvalidError("input_nodes has no vertices, expected at least 1")
    check_vertices("input_nodes", found, vertices)
    if len(found.unique()) != len(found):
        raise InvalidError(
            "input_nodes has a vertex twice, expected each once (hint: tensor.unique())"
        )
    return found


def distributed(rank: int | None, world: int | None) -> tuple[int, int]:
    """Returns rank and number of ranks, from `torch.distributed` where they are not given."""
    if (rank is None) != (world is None):
        raise InvalidError(f"rank {rank} and world {world}, expected both or neither")
    is_there = torch.distributed.is_available() and torch.distributed.is_initialized()
    if rank is None:
        rank = torch.distributed.get_rank() if is_there else 0
    if world is None:
        world = torch.distributed.get_world_size() if is_there else 1
    return rank, world
