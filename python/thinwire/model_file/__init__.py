"""Model files that `thinwire model show` and `thinwire plan make` read, from the programs of any framework.

A framework's exporter walks through the framework's program and adds nodes to a `Graph`. It does
this twice, the second time for a batch twice as large. `merge` then finds the sizes that grow with
the batch, and `write` writes the file.
"""

from __future__ import annotations

import json
from os import PathLike, fspath
from pathlib import Path
from typing import Any

from thinwire._core import InvalidError

VERSION = 1
SEQUENCE_MAX = 1 << 30


def check_file(path: Any, sequence: Any) -> None:
    """Refuses, in one line, an invalid path of a model file or length of sequences."""
    if not isinstance(path, (str, PathLike)) or not str(fspath(path)).endswith(".json"):
        said = fspath(path) if isinstance(path, (str, PathLike)) else type(path).__name__
        raise InvalidError(
            f"path is '{said}', expected one that ends in .json (hint: --model recognises a model "
            "file by this ending)"
        )
    whole = isinstance(sequence, int) and not isinstance(sequence, bool)
    if sequence is not None and not (whole and 1 <= sequence <= SEQUENCE_MAX):
        raise InvalidError(f"sequence is {sequence!r}, expected 1 to {SEQUENCE_MAX}")


def write(path: str | PathLike[str], name: str, sequence: int, graph: dict[str, Any]) -> None:
    """Writes a graph with merged sizes, one line for every tensor and node."""

    def lines(values: list[Any]) -> str:
        return "[\n    " + ",\n    ".join(json.dumps(value) for value in values) + "\n  ]"

    fields = [
        f'"thinwire_model": {VERSION}',
        f'"name": {json.dumps(name)}',
        f'"sequence": {sequence}',
        f'"tensors": {lines(graph["tensors"])}',
        f'"nodes": {lines(graph["nodes"])}',
        f'"output": {graph["output"]}',
    ]
    Path(path).write_text("{\n  " + ",\n  ".join(fields) + "\n}\n")
