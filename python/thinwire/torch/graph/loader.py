"""Loader of mini-batches that PyG's models take."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from types import NoneType
from typing import Any

import numpy
import torch

from thinwire._core import GraphBatch, GraphLoader, InvalidError
from thinwire.arguments import UINT32_MAX, flag, instance, shown, whole, wholes
from thinwire.server.table import bytes_of
from thinwire.torch.graph.attributes import Attributes, is_dense, is_pyg
from thinwire.torch.graph.batch import Batch, attributes_of
from thinwire.torch.graph.blocks import blocks_of, edges_of, positions_of, vertices_of
from thinwire.torch.graph.division import Place, agree, checksum, found_place
from thinwire.torch.graph.file import StoredGraph, checked_bounds, weights_of
from thinwire.torch.graph.lazy import Later
from thinwire.torch.graph.options import check_others
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
THREADS_MAX = 1024
STATE = ("pass", "step")


class Loader:
    """Loads mini-batches of a graph: seeds, sampled in-neighbours, their features.

    Batches are a pure function of (seed, pass, step), whatever the number of threads. `data` is a
    `torch_geometric.data.Data`, a `StoredGraph`, or any object with `edge_index`, int64 [2, E],
    and, if there are features, `x` [V, ...]. Other tensors with an entry per vertex or edge are
    sliced too, as PyG does. All tensors must be in main memory and must not change while the loader
    is used. The exception is an `x` that requires a gradient: its rows are copied when a batch is
    yielded, and the gradient flows back to `x`. Reading an attribute of a batch raises InvalidError
    if the tensor in `data` was changed in place in the meantime.

    A batch has `x`, `edge_index` by the batch's own vertex numbers, `n_id` (vertices, seeds first),
    `e_id` (edges), `input_id` (places of the seeds in `input_nodes`), `batch_size` (number of seeds),
    `num_seeds` (number of seeds of this step on all ranks), `num_sampled_nodes` and
    `num_sampled_edges` (lists, per hop). With `layout="blocks"` it has `blocks`, one `Block` per
    layer, in place of `edge_index`. All tensors except `x` and edges are created when they are
    first read, or together by `to`, `clone` or pickle.

    Arguments:
        num_neighbors: Fan-out of each hop, beginning with the seeds' hop; -1 takes all in-neighbours.
        batch_size: Largest number of seeds per batch and rank; lengths of batches differ by at most one.
        input_nodes: Seeds: a bool mask [V] or vertices, as a tensor, a NumPy array, a list or a range;
            None for all vertices. With `split`, the seeds of all ranks together.
        replace: Whether to draw with replacement.
        weight_attr: Name of the attribute of `data` with the weights of edges [E]; neighbours are
            drawn in proportion to them. Weights are finite and at least 0. An edge of weight 0 is
            never drawn, except where all in-neighbours are taken.
        shuffle: Whether each pass has a different order.
        drop_last: Whether every batch has `batch_size` seeds; a pass then leaves some seeds out.
        seed: Seed of orders and samples; equal on all ranks. Loaders with the same seed have the same
            passes, whatever `torch.manual_seed` says.
        layout: "edges" like PyG's `NeighborLoader`: neighbours of every vertex are drawn once, and
            all layers use all edges. "blocks" like DGL: they are drawn separately for each layer.
        bounds: First vertices of parts, one per rank, and the number of vertices, such as
            `StoredGraph.bounds`: each rank's seeds are those of its own part. All ranks have the
            same number of batches. None divides all seeds among all ranks.
        features: Features of all vertices that the ranks share, in place of `data.x`.
        cache: Largest size of a cache, such as "1GB", for shared features or for an `x` that is a
            mapped file. It holds rows that the next batches use. None reads the rows of every batch
            without a cache.
        threads: Number of sampling threads, up to 1024; None for one per core.
        split: Whether seeds are divided over the ranks. The ranks compare graph, seeds and options
            before the first batch, and raise an error if these differ. False gives this rank all of
            `input_nodes`, such as for an evaluation on one rank or seeds that the script has
            divided.
        transform: Function of every batch.
        pin_memory: Whether batches are in pinned memory, if there is CUDA.
        rank, world: This rank and the number of ranks; if they are given, ranks compare nothing. If
            they are None, the loader asks `torch.distributed` before each pass.
        others: Options of PyG's `NeighborLoader` that change nothing here, such as `num_workers`.
    """

    def __init__(
        self,
        data: Any,
        num_neighbors: Sequence[int],
        batch_size: int = 1,
        input_nodes: torch.Tensor | numpy.ndarray[Any, Any] | Sequence[int] | None = None,
        *,
        replace: bool = False,
        weight_attr: str | None = None,
        shuffle: bool = False,
        drop_last: bool = False,
        seed: int = 1,
        layout: str = "edges",
        bounds: Sequence[int] | None = None,
        features: SharedFeatures | None = None,
        cache: int | str | None = None,
        threads: int | None = None,
        split: bool = True,
        transform: Callable[[Any], Any] | None = None,
        pin_memory: bool = False,
        rank: int | None = None,
        world: int | None = None,
        **others: Any,
    ) -> None:
        """Creates the loader; its threads start with the first pass.

        # Errors

        InvalidError for arguments that have the wrong type or do not fit the graph.
        """
        check_others(others)
        if layout not in LAYOUTS:
            raise InvalidError(f"layout {shown(layout)}, expected one of {', '.join(LAYOUTS)}")
        fan_outs = wholes("num_neighbors", num_neighbors, -1, UINT32_MAX)
        instance("features", features, SharedFeatures, NoneType)
        instance("weight_attr", weight_attr, str, NoneType)
        self.data = data
        self._vertices = count_vertices(data) if features is None else len(features)
        stored = isinstance(data, StoredGraph)
        self._topology = data.topology if stored else topology(edges_in(data), self._vertices)
        self._rows = rows_for(data, features, self._vertices)
        self._has_own_x = features is None and not stored
        self._weights = named_weights(data, weight_attr, self._topology)
        self._seeds, places = seeds(input_nodes, self._vertices)
        self._divides = flag("split", split)
        self._given = given_place(rank, world)
        self._transform = transform
        self._pins = flag("pin_memory", pin_memory) and torch.cuda.is_available()
        self._options = {
            "fan_outs": [None if fan_out == -1 else fan_out for fan_out in fan_outs],
            "replace": flag("replace", replace),
            "blocks": layout == "blocks",
            "batch": whole("batch_size", batch_size, 1, UINT32_MAX),
            "full": flag("drop_last", drop_last),
            "shuffle": flag("shuffle", shuffle),
            "seed": whole("seed", seed, 0, 2**64 - 1),
            "threads": 0 if threads is None else whole("threads", threads, 1, THREADS_MAX),
            "bounds": None if bounds is None else checked_bounds(bounds, self._vertices),
            "cache": None if cache is None else (bytes_of(cache), "foreseen"),
        }
        narrow = torch.int32 if self._vertices < 2**31 else torch.int64
        self._places = torch.empty(self._vertices, dtype=narrow)
        self._places[self._seeds] = places.to(narrow)
        self._place, self._has_agreed = self._found(), False
        self._next, self._ahead = (0, 0), (-1, 0)
        self._core, self._is_free = self._start((0, 0)), True

    def __len__(self) -> int:
        """Returns the number of batches of this rank in a pass, the same on all ranks."""
        return self._core.steps

    def __iter__(self) -> Iterator[Any]:
        """Yields the batches of one pass, or of the rest of one after `load_state_dict`.

        Passes that run at the same time are independent: each has its own batches and threads.

        # Errors

        InvalidError on all ranks, before the first batch, if ranks differ in graph, seeds or
        options.
        """
        self._settle()
        position = self._next
        if not self._is_free or position != self._ahead:
            self._core = self._start(position)
        core, self._is_free = self._core, False
        # A pass that is left early is over.
        self._next = (position[0] + 1, 0)
        attributes = Attributes.of(self.data, self._vertices, self._topology.core.edges)
        for step in range(position[1], core.steps):
            batch = core.next()
            ends = step + 1 == core.steps
            self._ahead = (position[0] + 1, 0) if ends else (position[0], step + 1)
            made = self._convert(batch, attributes)
            made.num_seeds = core.together(step)
            if self._pins:
                made = made.pin_memory()
            # The threads continue with the next pass.
            self._is_free = self._is_free or (ends and core is self._core)
            yield made if self._transform is None else self._transform(made)

    @property
    def dataset(self) -> range:
        """The positions in `input_nodes` of the seeds of all ranks."""
        return range(len(self._seeds))

    def weight(self, batch: Any) -> float:
        """Returns the factor for a rank's loss that is summed over the seeds of a batch.

        With this factor, the average of all ranks' gradients is the gradient of the mean over all
        seeds of the step. Ranks' batches differ in length, and with uneven parts they may be empty,
        so that their mean loss is NaN.
        """
        return self._place.world / max(batch.num_seeds, 1)

    @property
    def cache_stats(self) -> dict[str, int]:
        """Numbers of rows found in the cache and not found in it, since the loader's threads started."""
        hits, misses = self._core.hits()
        return {"hits": hits, "misses": misses}

    def state_dict(self) -> dict[str, int]:
        """Returns the position after the last batch that was yielded."""
        return {"pass": max(self._ahead[0], 0), "step": self._ahead[1]}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Makes the next pass begin at a position.

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

    def _found(self) -> Place:
        """Returns the place among the ranks that divide the seeds."""
        return (self._given or found_place()) if self._divides else Place(0, 1)

    def _settle(self) -> None:
        """Updates this rank's place, and compares seeds and options with those of the other ranks.
        Before `init_process_group`, the place is that of a single rank."""
        place = self._found()
        if place != self._place:
            self._place, self._has_agreed = place, False
            self._next = (self._next[0], 0)
            self._core, self._is_free = self._start(self._next), True
        if place.world > 1 and self._given is None and not self._has_agreed:
            agree(self._facts(), place)
            self._has_agreed = True

    def _facts(self) -> list[str]:
        """Returns descriptions of everything that must be equal on all ranks."""
        own = ("threads", "cache")
        options = {name: value for name, value in self._options.items() if name not in own}
        edges = None if isinstance(self.data, StoredGraph) else self.data.edge_index
        return [
            f"{self._vertices} vertices",
            f"{self._topology.core.edges} edges",
            f"edges: {checksum(edges)}",
            f"seeds: {checksum(self._seeds)}",
            *(f"{name} {value}" for name, value in options.items()),
            f"weights of edges: {checksum(self._weights)}",
            "pass {}, step {}".format(*self._next),
        ]

    def _start(self, position: tuple[int, int]) -> GraphLoader:
        place = {"rank": self._place.rank, "ranks": self._place.world}
        options = {**self._options, **place, "pass": position[0], "step": position[1]}
        self._ahead = position
        seeds = (self._seeds.data_ptr(), len(self._seeds))
        weights = None if self._weights is None else self._weights.data_ptr()
        core, rows = self._topology.core, self._rows.source
        return GraphLoader(core, rows, seeds, json.dumps(options), weights)

    def _convert(self, batch: GraphBatch, attributes: Attributes) -> Any:
        """Returns a batch of the core as tensors; `x` is the core's own memory."""
        made = copy.copy(self.data) if is_pyg(self.data) else Batch()
        lazy = attributes_of(made)
        if "adj_t" in lazy:
            del lazy["adj_t"]
        # A batch may outlive its loader, so no value refers to it.
        n_id, e_id = (
            Later(partial(vertices_of, batch)),
            Later(partial(edges_in_list, self._topology, batch)),
        )
        attributes.write(self.data, lazy, n_id, e_id)
        x = getattr(self.data, "x", None)
        if self._rows.like is not None and not (self._has_own_x and x is None):
            made.x = self._rows.of(batch)
        elif x is not None and is_dense(x):
            made.x = x[n_id.get()]
        made.num_nodes = batch.vertices
        lazy["n_id"], lazy["e_id"] = n_id, e_id
        lazy["input_id"] = Later(partial(places_of, self._places, n_id, batch.seeds))
        made.batch_size = batch.seeds
        edges = edges_of(batch)
        made.num_sampled_edges = edges.counts
        ends = [batch.seeds, *edges.sources]
        made.num_sampled_nodes = [batch.seeds, *(b - a for a, b in zip(ends, ends[1:]))]
        if self._options["blocks"]:
            made.edge_index = None
            made.blocks = blocks_of(edges, e_id, batch.seeds)
        else:
            made.edge_index = edges.index
        return made


def edges_in_list(graph: Topology, batch: GraphBatch) -> torch.Tensor:
    """Returns the numbers of a batch's edges in the caller's list."""
    return graph.original(positions_of(batch))


def places_of(places: torch.Tensor, n_id: Later, seeds: int) -> torch.Tensor:
    """Returns the places of a batch's seeds in `input_nodes`."""
    return places[n_id.get()[:seeds]].to(torch.int64)


def edges_in(data: Any) -> torch.Tensor:
    """Returns the edges of data.

    # Errors

    InvalidError for data with `adj_t` alone.
    """
    edges: Any = getattr(data, "edge_index", None)
    if edges is None and getattr(data, "adj_t", None) is not None:
        raise InvalidError(
            "the graph has adj_t and no edge_index (hint: ToSparseTensor(remove_edge_index=False))"
        )
    return edges


def rows_for(data: Any, features: SharedFeatures | None, vertices: int) -> Rows:
    """Returns the rows that a loader reads."""
    if features is not None:
        return features.rows
    if isinstance(data, StoredGraph) and data.num_features:
        return data.rows()
    is_trained = getattr(getattr(data, "x", None), "requires_grad", False)
    return rows_of_data(None if is_trained else data, vertices)


def named_weights(data: Any, name: str | None, graph: Topology) -> torch.Tensor | None:
    """Returns the weights of edges by the core's positions, if they are asked for.

    # Errors

    InvalidError if `data` has no such weights, or not exactly one per edge.
    """
    if name is None:
        return None
    found = weights_of(data, graph, name)
    if found is None:
        raise InvalidError(
            f'the graph has no {name}, expected weights of edges (weight_attr="{name}")'
        )
    return found


def seeds(input_nodes: Any, vertices: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the vertices of a mask or list, int64, and their places in it."""
    if input_nodes is None:
        return torch.arange(vertices), torch.arange(vertices)
    if isinstance(input_nodes, (list, tuple, range, numpy.ndarray)):
        try:
            input_nodes = torch.as_tensor(numpy.asarray(input_nodes))
        except (TypeError, ValueError):
            raise InvalidError(
                f"input_nodes is {shown(input_nodes)}, expected vertices or a mask"
            ) from None
    found, shape = on_cpu("input_nodes", input_nodes), list(input_nodes.shape)
    is_mask = found.dtype == torch.bool
    if is_mask:
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
    return found, found if is_mask else torch.arange(len(found))


def given_place(rank: int | None, world: int | None) -> Place | None:
    """Returns the place that the arguments give; None if they give none.

    # Errors

    InvalidError if only one of `rank` and `world` is given.
    """
    if (rank is None) != (world is None):
        raise InvalidError(f"rank {rank} and world {world}, expected both or neither")
    if rank is None or world is None:
        return None
    return Place(whole("rank", rank, 0, UINT32_MAX), whole("world", world, 1, UINT32_MAX))
