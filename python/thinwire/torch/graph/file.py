"""Graphs in files of `thinwire graph`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import torch

from thinwire._core import GraphFile, InvalidError
from thinwire.torch.graph.rows import Rows, on_cpu
from thinwire.torch.graph.topology import Topology, topology

DTYPES = {"f32": torch.float32, "f16": torch.float16, "int8": torch.float32}
"""Dtypes that rows have in the formats of features."""


def save(
    data: Any,
    path: str | os.PathLike[str],
    bounds: Sequence[int] | None = None,
    *,
    format: str | None = None,
) -> None:
    """Writes a graph to a file, which ranks open with `StoredGraph`.

    `data` is as for `Loader`. The file gets `edge_index`, without the order of its edges, `x` [V, F] of
    float32 or float16, `y` (whole numbers [V], below 0 for none), `train_mask`, `val_mask` and
    `test_mask`, of which a vertex has one, `edge_weight` [E], finite and 0 or more, and `node_type` (whole
    numbers [V] from 0 on). `bounds` are the first vertices of parts, and the number of
    vertices; `thinwire graph partition` makes parts with few edges between them. `format` is that of the
    features: None for that of `x`, "int8" for a scale per row and a byte per value, of finite values.

    # Errors

    InvalidError for tensors of other shapes or dtypes, or a file that cannot be written.
    """
    x, y = getattr(data, "x", None), getattr(data, "y", None)
    vertices = len(x) if x is not None else int(data.num_nodes)
    graph = topology(data.edge_index, vertices)
    features = None
    if x is not None:
        x = on_cpu("x", x.detach()).contiguous()
        features = (x.data_ptr(), x.shape[-1], format_of(x, format))
    if y is not None:
        y = y.to("cpu", torch.int64).contiguous()
        check_rows("y", y, vertices)
    weights = weights_of(data, graph)
    types = getattr(data, "node_type", None)
    if types is not None:
        types = types.to("cpu", torch.int64).contiguous()
        check_rows("node_type", types, vertices)
    split = torch.zeros(vertices, dtype=torch.uint8)
    for number, name in enumerate(("train_mask", "val_mask", "test_mask"), 1):
        mask = getattr(data, name, None)
        if mask is not None:
            check_rows(name, mask, vertices)
            split[mask.to("cpu", torch.bool)] = number
    labels = None if y is None else y.data_ptr()
    uses = split.data_ptr() if split.any() else None
    parts = None if bounds is None else list(bounds)
    extras = [None if it is None else it.data_ptr() for it in (weights, types)]
    GraphFile.write(path, graph.core, features, labels, uses, parts, *extras)


def weights_of(data: Any, graph: Topology, name: str = "edge_weight") -> torch.Tensor | None:
    """Returns the weights of edges by the core's positions, float32 [E]; None if there are none.

    # Errors

    InvalidError if they are not one per edge.
    """
    weights = getattr(data, name, None)
    if weights is None:
        return None
    edges = graph.core.edges
    if not torch.is_tensor(weights) or weights.shape != (edges,):
        found = list(weights.shape) if torch.is_tensor(weights) else type(weights).__name__
        raise InvalidError(f"{name} is {found}, expected a tensor [{edges}]")
    weights = on_cpu(name, weights.detach()).to(torch.float32)
    return (weights if graph.edges is None else weights[graph.edges]).contiguous()


def format_of(x: torch.Tensor, format: str | None) -> str:
    """Returns the format in which a file keeps features.

    # Errors

    InvalidError for another shape, dtype or format.
    """
    names = {torch.float32: "f32", torch.float16: "f16"}
    if x.dim() != 2 or x.dtype not in names:
        raise InvalidError(f"x is {x.dtype} {list(x.shape)}, expected float32 or float16 [V, F]")
    name = format or names[x.dtype]
    if DTYPES.get(name) != x.dtype:
        known = ", ".join(name for name, dtype in DTYPES.items() if dtype == x.dtype)
        raise InvalidError(f'format "{name}" of {x.dtype}, expected one of {known}')
    return name


def check_rows(name: str, tensor: torch.Tensor, vertices: int) -> None:
    """Refuses a tensor that is not [vertices]."""
    if tensor.shape != (vertices,):
        raise InvalidError(f"{name} is {list(tensor.shape)}, expected [{vertices}]")


class StoredGraph:
    """Graph in a file of `thinwire graph import` or `generate`, for `Loader`.

    Topology and features stay in the file, whose pages all processes of a machine share. `y` has the
    labels, int64 [V], -1 where a vertex has none; masks are bool [V]; `edge_weight` has the weights of
    edges, float32 [E], and `node_type` the types of vertices, int64 [V]. They are None if the file has
    none.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Opens the file.

        # Errors

        InvalidError if there is no such file, or it is damaged.
        """
        self._file = GraphFile(path)
        self.topology = Topology(self._file.graph(), None)
        self.num_nodes = self.topology.core.vertices
        self.num_edges = self.topology.core.edges
        self.num_classes = self._file.classes
        self.y: torch.Tensor | None = None
        if self.num_classes is not None:
            self.y = torch.empty(self.num_nodes, dtype=torch.int64)
            self._file.write_labels(self.y.data_ptr())
        split = torch.empty(self.num_nodes, dtype=torch.uint8)
        self._file.write_split(split.data_ptr())
        self.train_mask, self.val_mask, self.test_mask = (
            split == number if (split == number).any() else None for number in (1, 2, 3)
        )
        has_weights, has_types = self._file.extras
        self.edge_weight: torch.Tensor | None = None
        if has_weights:
            self.edge_weight = torch.empty(self.num_edges, dtype=torch.float32)
            self._file.write_weights(self.edge_weight.data_ptr())
        self.node_type: torch.Tensor | None = None
        if has_types:
            self.node_type = torch.empty(self.num_nodes, dtype=torch.int64)
            self._file.write_types(self.node_type.data_ptr())
        self.bounds = self._file.bounds
        """First vertices of the parts, and the number of vertices; empty without parts."""

    @property
    def num_features(self) -> int:
        """Number of features of a vertex, 0 without any."""
        return self._file.format[1] if self._file.format else 0

    def columns(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns a copy of the topology in compressed sparse columns: offsets, int64 [V + 1], and
        in-neighbours, int64 [E]."""
        offsets = torch.empty(self.num_nodes + 1, dtype=torch.int64)
        neighbors = torch.empty(self.num_edges, dtype=torch.int64)
        self.topology.core.write_columns(offsets.data_ptr(), neighbors.data_ptr())
        return offsets, neighbors

    def rows(self, start: int = 0, end: int | None = None) -> Rows:
        """Returns the features of vertices `start..end`, by default of all vertices.

        # Errors

        InvalidError if there are none, or their format is no dtype of PyTorch.
        """
        if self._file.format is None:
            raise InvalidError("the graph has no features")
        name, columns = self._file.format
        if name not in DTYPES:
            known = ", ".join(DTYPES)
            raise InvalidError(f"features have the format {name}, expected one of {known}")
        end = self.num_nodes if end is None else end
        like = torch.empty(0, columns, dtype=DTYPES[name])
        return Rows(like, self._file.rows(start, end), name if name == "int8" else None)

    def part(self, number: int) -> Rows:
        """Returns the features of a part, for `SharedFeatures`.

        # Errors

        InvalidError if there is no such part.
        """
        if not 0 <= number < len(self.bounds) - 1:
            parts = max(len(self.bounds) - 1, 0)
            raise InvalidError(f"part {number} of {parts} (hint: thinwire graph partition)")
        return self.rows(self.bounds[number], self.bounds[number + 1])
