"""Graphs in files of `thinwire graph`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import torch

from thinwire import arguments
from thinwire._core import GraphFile, InvalidError
from thinwire.arguments import UINT32_MAX, instance, shown, whole, wholes
from thinwire.deprecated import renamed
from thinwire.torch.graph.rows import (
    VERTICES_MAX,
    Rows,
    count_vertices,
    integers,
    on_cpu,
    refuse,
)
from thinwire.torch.graph.topology import Topology, topology

DTYPES = {"f32": torch.float32, "f16": torch.float16, "int8": torch.float32}
"""Dtypes that rows have in the formats of features."""
MASKS = ("train_mask", "val_mask", "test_mask")
CLASS_MAX, TYPE_MAX = UINT32_MAX - 1, 65_535


@renamed(format="codec")
def save(
    data: Any,
    path: str | os.PathLike[str],
    bounds: Sequence[int] | None = None,
    *,
    codec: str | None = None,
    ids: Sequence[int] | Sequence[str] | None = None,
) -> None:
    """Writes a graph to a file, which ranks open with `StoredGraph`.

    `data` is as for `Loader`. The file contains `edge_index`, without the order of its edges, `x` [V, F] of
    finite float32 or float16, `y` (whole numbers [V]; a number below 0, such as -100, means no
    label, and becomes -1 in the file), `train_mask`, `val_mask` and `test_mask` (bool [V]; a vertex
    is in at most one of them), `edge_weight` [E], finite and 0 or more, and `node_type` (whole
    numbers [V], 0 to 65535). `bounds` are the first vertices of parts, and the number of vertices;
    `thinwire graph partition` makes parts with few edges between them. `codec` is the storage
    format of features: None keeps that of `x`; "int8" has a scale per row and a byte per value.
    `ids` are the vertices' ids in their source, all int64 or all str, by default `data.vertex_ids`,
    as `read_parquet` returns them; `StoredGraph.ids` returns them.

    # Errors

    InvalidError for tensors of other shapes, dtypes or values, or a file that cannot be written.
    """
    path = arguments.path("path", path)
    vertices, x = count_vertices(data), getattr(data, "x", None)
    edges: Any = getattr(data, "edge_index", None)
    graph = topology(edges, vertices)
    features = None
    if x is not None:
        x = x.detach().contiguous()
        features = (x.data_ptr(), x.shape[-1], format_of(x, codec))
        check_finite(x)
    elif codec is not None:
        raise InvalidError(f"codec {shown(codec)} for a graph without x, expected None")
    y = column(data, "y", vertices)
    if y is not None:
        refuse(y > CLASS_MAX, y, "y", f"at most {CLASS_MAX}", "at vertex")
    weights = weights_of(data, graph)
    types = column(data, "node_type", vertices)
    if types is not None:
        wrong = (types < 0) | (types > TYPE_MAX)
        refuse(wrong, types, "node_type", f"0 to {TYPE_MAX}", "at vertex")
    split = split_of(data, vertices)
    labels = None if y is None else y.data_ptr()
    uses = split.data_ptr() if split.any() else None
    parts = None if bounds is None else checked_bounds(bounds, vertices)
    of_edges, of_vertices = [None if it is None else it.data_ptr() for it in (weights, types)]
    table = ids_of(getattr(data, "vertex_ids", None) if ids is None else ids, vertices)
    GraphFile.write(path, graph.core, features, labels, uses, parts, of_edges, of_vertices, table)


def ids_of(ids: Any, vertices: int) -> list[int] | list[str] | None:
    """Returns the ids of vertices in their source; None if they are not known.

    # Errors

    InvalidError unless there is one int64 or str per vertex.
    """
    if ids is None:
        return None
    found = ids.tolist() if hasattr(ids, "tolist") else list(instance("ids", ids, list, tuple))
    if len(found) != vertices:
        raise InvalidError(f"{len(found)} ids, expected {vertices}, one per vertex")
    if all(isinstance(it, str) for it in found) or all(map(is_int64, found)):
        return found
    raise InvalidError("ids of several types, expected all int64 or all str")


def is_int64(value: Any) -> bool:
    """Returns whether this is a signed 64-bit integer."""
    return isinstance(value, int) and not isinstance(value, bool) and -(1 << 63) <= value < 1 << 63


def weights_of(data: Any, graph: Topology, name: str = "edge_weight") -> torch.Tensor | None:
    """Returns the weights of edges by the core's positions, float32 [E]; None if there are none.

    # Errors

    InvalidError if there is not exactly one weight per edge.
    """
    weights = getattr(data, name, None)
    if weights is None:
        return None
    edges = graph.core.edges
    if not torch.is_tensor(weights) or weights.shape != (edges,) or weights.is_complex():
        raise InvalidError(f"{name} is {shown(weights)}, expected a tensor [{edges}] of weights")
    weights = on_cpu(name, weights.detach()).to(torch.float32)
    return (weights if graph.edges is None else weights[graph.edges]).contiguous()


def format_of(x: torch.Tensor, codec: str | None) -> str:
    """Returns the format in which a file keeps features.

    # Errors

    InvalidError for another shape, dtype or codec.
    """
    names = {torch.float32: "f32", torch.float16: "f16"}
    if x.dim() != 2 or x.dtype not in names:
        raise InvalidError(f"x is {x.dtype} {list(x.shape)}, expected float32 or float16 [V, F]")
    name = names[x.dtype] if codec is None else codec
    known = [name for name, dtype in DTYPES.items() if dtype == x.dtype]
    if name not in known:
        expected = f"expected one of {', '.join(known)}"
        raise InvalidError(f"codec {shown(name)} for x of {x.dtype}, {expected}")
    return name


def check_finite(x: torch.Tensor) -> None:
    """Refuses features that are not finite."""
    # Unlike isfinite, this reads all rows once and allocates nothing.
    if x.numel() and not all(end.isfinite() for end in torch.aminmax(x)):
        vertex, column = (~x.isfinite()).nonzero()[0].tolist()
        found = f"x is {x[vertex, column].item()} at vertex {vertex}, feature {column}"
        raise InvalidError(f"{found}, expected a finite number")


def column(data: Any, name: str, vertices: int) -> torch.Tensor | None:
    """Returns one whole number per vertex, int64 [vertices]; None if the data has no such
    attribute."""
    found = getattr(data, name, None)
    if found is None:
        return None
    check_rows(name, found, vertices)
    return integers(name, found).cpu().contiguous()


def check_rows(name: str, tensor: torch.Tensor, vertices: int) -> None:
    """Refuses anything but a tensor [vertices]."""
    if instance(name, tensor, torch.Tensor).shape != (vertices,):
        raise InvalidError(f"{name} is {list(tensor.shape)}, expected [{vertices}]")


def split_of(data: Any, vertices: int) -> torch.Tensor:
    """Returns the use of every vertex, uint8 [vertices]: the number of its mask, counted from 1, or 0."""
    split = torch.zeros(vertices, dtype=torch.uint8)
    for number, name in enumerate(MASKS, 1):
        mask = getattr(data, name, None)
        if mask is None:
            continue
        check_rows(name, mask, vertices)
        if mask.dtype != torch.bool:
            raise InvalidError(f"{name} is {mask.dtype}, expected torch.bool")
        mask = mask.cpu()
        twice = mask & (split > 0)
        if twice.any():
            vertex = int(twice.int().argmax())
            other = MASKS[int(split[vertex]) - 1]
            raise InvalidError(
                f"{other} and {name} both have vertex {vertex}, expected it in only one of them"
            )
        split[mask] = number
    return split


def checked_bounds(bounds: Sequence[int], vertices: int) -> list[int]:
    """Returns the bounds of parts.

    # Errors

    InvalidError if they are not whole numbers that ascend from 0 to `vertices`.
    """
    found = wholes("bounds", bounds)
    if not found or found[0] != 0 or found[-1] != vertices or found != sorted(found):
        hint = "" if found else " (hint: thinwire graph partition --parts N cuts a graph)"
        raise InvalidError(f"bounds {found}, expected ascending numbers from 0 to {vertices}{hint}")
    return found


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

        InvalidError if the file is missing or damaged.
        """
        path = arguments.path("path", path)
        if os.path.isdir(path):
            raise InvalidError(f"{path} is a folder, expected a file (hint: thinwire graph import)")
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
        self.origins: torch.Tensor | None = None
        """The number of each vertex before the graph was partitioned, int64 [V]; None without parts."""
        if self.bounds:
            self.origins = torch.empty(self.num_nodes, dtype=torch.int64)
            self._file.write_origins(self.origins.data_ptr())

    @property
    def ids(self) -> list[int] | list[str] | None:
        """The id of each vertex in the graph's source, if `thinwire graph import --relabel` or
        `save` has stored it; every access returns a new list."""
        return self._file.ids()

    def verify(self) -> None:
        """Reads the whole file and compares it with its checksums.

        # Errors

        InvalidError if the file is damaged, or so old that it has no checksums.
        """
        self._file.verify()

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

        InvalidError if there are none, or their format is not a PyTorch dtype.
        """
        if self._file.format is None:
            raise InvalidError("the graph has no features")
        name, columns = self._file.format
        if name not in DTYPES:
            known = ", ".join(DTYPES)
            raise InvalidError(f"features have the format {name}, expected one of {known}")
        start = whole("start", start, 0, VERTICES_MAX)
        end = self.num_nodes if end is None else whole("end", end, 0, VERTICES_MAX)
        like = torch.empty(0, columns, dtype=DTYPES[name])
        return Rows(like, self._file.rows(start, end), name if name == "int8" else None)

    def part(self, number: int) -> Rows:
        """Returns the features of a part, for `SharedFeatures`.

        # Errors

        InvalidError if there is no such part.
        """
        number, parts = whole("part", number), max(len(self.bounds) - 1, 0)
        if number >= parts:
            raise InvalidError(
                f"part {number}, expected one of {parts} parts (hint: thinwire graph partition)"
            )
        return self.rows(self.bounds[number], self.bounds[number + 1])
