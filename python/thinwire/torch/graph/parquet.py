"""Graphs from files of Parquet, read by pyarrow."""

from __future__ import annotations

import os
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pyarrow
import pyarrow.compute
import pyarrow.parquet
import torch

from thinwire import arguments
from thinwire._core import InvalidError
from thinwire.arguments import instance, shown
from thinwire.torch.graph.rows import VERTICES_MAX, refuse


def read_parquet(
    edges: str | os.PathLike[str],
    columns: Sequence[str] = ("src", "dst"),
    *,
    vertices: str | os.PathLike[str] | int | None = None,
    features: str | Sequence[str] | None = None,
    labels: str | None = None,
    relabel: bool = False,
    ids: str | None = None,
) -> SimpleNamespace:
    """Reads a graph. `Loader` accepts it directly, and `save` writes it to a file for `StoredGraph`
    and `thinwire graph`.

    It has `edge_index`, int64 [2, E], and `num_nodes`; if their columns are given, also `edge_weight`,
    float32 [E], `x`, float32 [V, F], and `y`, int64 [V], which is below 0 where a vertex has no label,
    and -1 for null. Vertices are numbered from 0, unless `relabel` or `ids` is given; `vertex_ids` is
    then a list, of int or of str, of their ids in `edges`.

    Arguments:
        columns: Columns of source and destination in `edges`, and optionally of the weight.
        vertices: File with a row per vertex, in their order, or the number of vertices; None means all
            vertices up to the highest one in `edges`.
        features: Column of `vertices` with a list of numbers per vertex, or columns of numbers.
        labels: Column of `vertices` with a class per vertex.
        relabel: Whether `edges` identifies vertices by arbitrary integers or strings. Vertices are
            then numbered in ascending order of these ids.
        ids: Column of `vertices` with the id of each vertex in `edges`.

    # Errors

    InvalidError if a file cannot be read, lacks a column, or has a value that is not a valid
    vertex, weight, feature or class; the message names the column and the row, counted from 0.
    """
    edges = arguments.path("edges", edges)
    if not isinstance(columns, (list, tuple)) or len(columns) not in (2, 3):
        found = shown(columns) if isinstance(columns, str) else columns
        raise InvalidError(
            f"columns {found}, expected those of source, destination and optionally weight"
        )
    data = SimpleNamespace()
    if relabel or ids is not None:
        known = None if ids is None else named(vertices, ids)
        data.edge_index, data.vertex_ids = relabelled(edges, columns[:2], known)
    else:
        both = [whole(read(edges, name), f"{edges}: {name}") for name in columns[:2]]
        data.edge_index = torch.stack(both)
    ends = data.edge_index
    if len(columns) == 3:
        data.edge_weight = numbers(read(edges, columns[2]), f"{edges}: {columns[2]}")
        refuse(data.edge_weight < 0, data.edge_weight, f"{edges}: {columns[2]}", "0 and more")
    count = int(ends.max()) + 1 if ends.numel() else 0
    of_vertices = isinstance(vertices, (str, bytes, os.PathLike))
    if (features is not None or labels is not None) and not of_vertices:
        raise InvalidError("features and labels need a file of vertices, expected vertices=FILE")
    if relabel and vertices is not None:
        raise InvalidError(
            "relabel needs ids with vertices, expected the column of vertices with the ids that edges use"
        )
    if of_vertices:
        vertices = arguments.path("vertices", vertices)
        data.num_nodes = opened(vertices).metadata.num_rows
        if features is not None:
            data.x = matrix(vertices, features)
        if labels is not None:
            data.y = classes(read(vertices, labels), f"{vertices}: {labels}")
    else:
        data.num_nodes = len(data.vertex_ids) if relabel else count
        if vertices is not None:
            data.num_nodes = arguments.whole("vertices", vertices, 0, VERTICES_MAX)
    if count > data.num_nodes:
        raise InvalidError(f"{edges} has vertex {count - 1}, expected 0..{data.num_nodes}")
    return data


def opened(path: Any) -> pyarrow.parquet.ParquetFile:
    """Opens a file."""
    try:
        return pyarrow.parquet.ParquetFile(path)
    except (OSError, pyarrow.ArrowException) as error:
        raise InvalidError(f"{path}: {str(error).splitlines()[0]}") from error


def read(path: Any, name: str) -> pyarrow.ChunkedArray:
    """Reads a column."""
    file = opened(path)
    names = file.schema_arrow.names
    if name not in names:
        raise InvalidError(f"{path} has no column {name}, expected one of {', '.join(names)}")
    try:
        return file.read(columns=[name]).column(0)
    except (OSError, pyarrow.ArrowException) as error:
        raise InvalidError(f"{path}: {str(error).splitlines()[0]}") from error


def refuse_nulls(column: pyarrow.ChunkedArray, place: str) -> None:
    """Refuses a column in which values are missing."""
    if column.null_count:
        row = pyarrow.compute.index(column.is_null(), True).as_py()
        raise InvalidError(f"{place} has no value in row {row}")


def named(vertices: Any, ids: str) -> pyarrow.Array:
    """Returns the ids of vertices, each once."""
    if not isinstance(vertices, (str, bytes, os.PathLike)):
        raise InvalidError("ids need a file of vertices, expected vertices=FILE")
    file = arguments.path("vertices", vertices)
    column = callable_by(read(file, ids), f"{file}: {ids}")
    counts = pyarrow.compute.value_counts(column)
    if len(counts) < len(column):
        twice = counts.filter(pyarrow.compute.greater(counts.field("counts"), 1))[0]["values"]
        raise InvalidError(f"{file}: {ids} has {shown(twice.as_py())} twice, expected it once")
    return column


def relabelled(
    edges: Any, columns: Sequence[str], known: pyarrow.Array | None
) -> tuple[torch.Tensor, list[Any]]:
    """Returns edges between numbers of vertices, int64 [2, E], and the vertices' ids: the given
    ones, or all that edges use, in ascending order."""
    places = [f"{edges}: {name}" for name in columns]
    ends = [callable_by(read(edges, name), at) for name, at in zip(columns, places, strict=True)]
    if ends[0].type != ends[1].type or (known is not None and known.type != ends[0].type):
        types = ", ".join(str(it.type) for it in [*ends, *([] if known is None else [known])])
        raise InvalidError(f"{edges}: vertices are {types}, expected one type")
    if known is None:
        known = pyarrow.compute.unique(pyarrow.concat_arrays(ends))
        known = known.take(pyarrow.compute.sort_indices(known))
    numbers = [pyarrow.compute.index_in(column, value_set=known) for column in ends]
    for column, found, place in zip(ends, numbers, places, strict=True):
        if found.null_count:
            row = pyarrow.compute.index(found.is_null(), True).as_py()
            wrong = shown(column[row].as_py())
            raise InvalidError(f"{place} is {wrong} in row {row}, expected one of the ids")
    index = [torch.tensor(it.to_numpy()).to(torch.int64) for it in numbers]
    return torch.stack(index), known.to_pylist()


def callable_by(column: pyarrow.ChunkedArray, place: str) -> pyarrow.Array:
    """Returns ids of vertices without nulls, int64 or strings."""
    refuse_nulls(column, place)
    kind = column.type
    if not (pyarrow.types.is_string(kind) or pyarrow.types.is_large_string(kind)):
        if not pyarrow.types.is_integer(kind):
            raise InvalidError(f"{place} is {kind}, expected integers or strings")
        return cast(column, place).combine_chunks()
    return column.cast(pyarrow.large_string()).combine_chunks()


def as_int64(column: pyarrow.ChunkedArray, place: str) -> torch.Tensor:
    """Returns whole numbers without nulls, int64."""
    if not pyarrow.types.is_integer(column.type):
        raise InvalidError(f"{place} is {column.type}, expected whole numbers")
    return torch.tensor(cast(column, place).to_numpy())


def cast(column: pyarrow.ChunkedArray, place: str) -> pyarrow.ChunkedArray:
    """Returns integers of any type as int64."""
    try:
        return column.cast(pyarrow.int64())
    except pyarrow.ArrowException as error:
        raise InvalidError(f"{place}: {str(error).splitlines()[0]}") from error


def whole(column: pyarrow.ChunkedArray, place: str) -> torch.Tensor:
    """Returns vertices, int64."""
    refuse_nulls(column, place)
    values = as_int64(column, place)
    refuse(values < 0, values, place, "vertices numbered from 0")
    return values


def classes(column: pyarrow.ChunkedArray, place: str) -> torch.Tensor:
    """Returns classes, int64, below 0 for none, -1 for nulls."""
    if not pyarrow.types.is_integer(column.type):
        raise InvalidError(f"{place} is {column.type}, expected whole numbers")
    return torch.tensor(cast(column, place).fill_null(-1).to_numpy())


def numbers(column: pyarrow.ChunkedArray, place: str) -> torch.Tensor:
    """Returns finite numbers, float32."""
    refuse_nulls(column, place)
    kind = column.type
    if not (pyarrow.types.is_integer(kind) or pyarrow.types.is_floating(kind)):
        raise InvalidError(f"{place} is {kind}, expected numbers")
    values = torch.tensor(column.to_numpy()).to(torch.float32)
    refuse(~values.isfinite(), values, place, "finite float32")
    return values


def matrix(path: Any, features: str | Sequence[str]) -> torch.Tensor:
    """Returns features, float32 [V, F]."""
    if not instance("features", features, str, list, tuple):
        raise InvalidError("features names no column, expected at least 1")
    if not isinstance(features, str):
        return torch.stack([numbers(read(path, name), f"{path}: {name}") for name in features], 1)
    column, place = read(path, features), f"{path}: {features}"
    kind = column.type
    is_list = pyarrow.types.is_list(kind) or pyarrow.types.is_large_list(kind)
    if not (is_list or pyarrow.types.is_fixed_size_list(kind)):
        return numbers(column, place).unsqueeze(1)
    refuse_nulls(column, place)
    lengths = torch.tensor(pyarrow.compute.list_value_length(column).to_numpy())
    width = int(lengths[0]) if len(lengths) else 0
    if (lengths != width).any():
        row = int((lengths != width).int().argmax())
        raise InvalidError(f"{place} has {lengths[row]} numbers in row {row}, expected {width}")
    flat = pyarrow.compute.list_flatten(column)
    return numbers(flat, f"{place}, of {width} numbers a row,").view(-1, width)
