"""State dicts split into their tensors by path, and the rest with placeholders.

State sources have equal tensors, but plain numbers may differ between them, and so may the order of
their dicts. So all state sources send the tensors, in the order of their paths, and one of them
sends the rest.

Law: `join(*split(tree))` is the tree.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch

ALIGNMENT = 16
"""Tensors begin at multiples of this number of bytes, as views of any dtype must."""


@dataclasses.dataclass(frozen=True)
class Described:
    """Dtype and shape of a tensor."""

    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Bytes that the tensor takes, up to the beginning of the next."""
        elements = torch.Size(self.shape).numel()
        return -(-elements * self.dtype.itemsize // ALIGNMENT) * ALIGNMENT


Tensors = dict[str, torch.Tensor]
Shapes = dict[str, Described]
PLACE = "thinwire.tensor"
"""The only key of a dict that stands for a tensor."""


def split(tree: Any) -> tuple[Any, Tensors]:
    """Returns the tree with paths in place of its tensors, and the tensors by their paths."""
    tensors: Tensors = {}
    return taken(tree, "", tensors), tensors


def taken(tree: Any, path: str, tensors: Tensors) -> Any:
    """Returns a part of a tree without its tensors, and adds these to `tensors`."""
    if isinstance(tree, torch.Tensor):
        tensors[path] = tree.detach()
        return {PLACE: path}
    if isinstance(tree, Mapping):
        return {key: taken(value, f"{path}/{key}", tensors) for key, value in tree.items()}
    if type(tree) in (list, tuple):
        return type(tree)([taken(value, f"{path}/{at}", tensors) for at, value in enumerate(tree)])
    return tree


def leaves(tree: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """The leaves of a tree, each with its path."""
    if isinstance(tree, Mapping):
        parts: Iterable[tuple[Any, Any]] = tree.items()
    elif isinstance(tree, (list, tuple)):
        parts = enumerate(tree)
    else:
        yield path, tree
        return
    for key, each in parts:
        yield from leaves(each, f"{path}/{key}" if path else str(key))


def join(tree: Any, tensors: Tensors) -> Any:
    """The tree with its tensors."""
    if isinstance(tree, dict):
        if tree.keys() == {PLACE}:
            return tensors[tree[PLACE]]
        return {key: join(value, tensors) for key, value in tree.items()}
    if type(tree) in (list, tuple):
        return type(tree)([join(value, tensors) for value in tree])
    return tree


def described(tensors: Tensors) -> Shapes:
    """Dtypes and shapes by path, in the order of the paths."""
    return {
        path: Described(each.dtype, tuple(each.shape)) for path, each in sorted(tensors.items())
    }


def packed(tensors: Tensors) -> torch.Tensor:
    """The bytes of all tensors in host memory, in the order of their paths."""
    shapes = described(tensors)
    flat = torch.zeros(sum(each.size for each in shapes.values()), dtype=torch.uint8)
    for path, view in viewed(flat, shapes).items():
        view.copy_(tensors[path])
    return flat


def viewed(flat: torch.Tensor, shapes: Shapes) -> Tensors:
    """Returns the tensors whose bytes are in `flat`; they share its memory."""
    tensors, start = {}, 0
    for path, each in shapes.items():
        elements = torch.Size(each.shape).numel()
        part = flat[start : start + elements * each.dtype.itemsize]
        tensors[path] = part.view(each.dtype).reshape(each.shape)
        start += each.size
    return tensors
