"""Pytrees as the core describes them: a name, a shape and a dtype for each leaf.

The core gets leaves in the order in which backward computes gradients: the reverse order of the
tree. Leaves without elements have nothing to exchange. Leaves of layers that `jax.lax.scan` runs
through have a row for each layer. The core gets the rows as separate parameters, so it can send
each row when the layer's gradients are ready.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from thinwire._core import InvalidError
from thinwire.agreement import checksum
from thinwire.arguments import shown

DTYPES = {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}


@dataclasses.dataclass(frozen=True)
class Leaf:
    """Name, shape and dtype of one leaf."""

    name: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def size(self) -> int:
        """Number of elements."""
        return int(np.prod(self.shape, dtype=np.int64))

    def __str__(self) -> str:
        """The leaf's text in messages."""
        return f"{self.dtype}{list(self.shape)}"

    def struct(self) -> jax.ShapeDtypeStruct:
        """The leaf's shape and dtype for JAX."""
        return jax.ShapeDtypeStruct(self.shape, jnp.dtype(self.dtype))


@dataclasses.dataclass(frozen=True)
class Part:
    """A parameter of the core: a leaf, or the row of a leaf that belongs to one layer."""

    at: int
    leaf: Leaf
    layer: int | None = None


class Tree:
    """The structure of a pytree of parameters, and the check of gradients against it."""

    def __init__(self, params: Any, scanned: Sequence[str] = ()) -> None:
        """`params` has arrays, or anything with shapes and dtypes; `scanned` are names of subtrees
        of layers.

        # Errors

        InvalidError for a leaf that is not f32, f16 or bf16, for a tree without leaves, and for a
        subtree without leaves or whose leaves have different numbers of rows.
        """
        named, self.structure = jax.tree_util.tree_flatten_with_path(params)
        self.leaves = [described(name, leaf) for name, leaf in zip(names(named), values(named))]
        self.scanned = {name: self.members(name) for name in scanned}
        self.layers = {name: self.count(name) for name in scanned}
        rows = {at for members in self.scanned.values() for at in members}
        groups = [self.rows(name, layer) for name in scanned for layer in self.countdown(name)]
        whole = reversed(range(len(named)))
        groups.append([Part(at, self.leaves[at]) for at in whole if at not in rows])
        self.groups = [[part for part in group if part.leaf.size] for group in groups]
        """Parts that become ready together, in the core's order."""
        self.parts = [part for group in self.groups for part in group]
        if not self.parts:
            raise InvalidError("no parameters to exchange, expected a pytree of arrays")

    def members(self, name: str) -> list[int]:
        """The leaves of a subtree."""
        found = [
            at
            for at, leaf in enumerate(self.leaves)
            if leaf.name == name or leaf.name.startswith(f"{name}/")
        ]
        if not found:
            raise InvalidError(f"scanned has {shown(name)}, but the parameters have no such leaf")
        return found

    def count(self, name: str) -> int:
        """The number of layers of a subtree."""
        shapes = [self.leaves[at].shape for at in self.scanned[name]]
        counts = {shape[:1] for shape in shapes}
        if len(counts) > 1 or () in counts:
            raise InvalidError(
                f"leaves of {name} have {sorted(counts)} rows, expected one for each layer"
            )
        return shapes[0][0]

    def countdown(self, name: str) -> Sequence[int]:
        """The layers of a subtree, in the order in which backward reaches them."""
        return range(self.layers[name])[::-1]

    def row(self, at: int) -> Leaf:
        """One layer's row of a leaf."""
        leaf = self.leaves[at]
        return dataclasses.replace(leaf, shape=leaf.shape[1:])

    def rows(self, name: str, layer: int) -> list[Part]:
        """The parameters of a layer."""
        members = [(at, self.row(at)) for at in reversed(self.scanned[name])]
        return [
            Part(at, dataclasses.replace(row, name=f"{row.name}[{layer}]"), layer)
            for at, row in members
        ]

    def core(self) -> list[tuple[str, list[int], str, int]]:
        """Descriptions of the parameters for the core, which divides groups of them into
        buckets."""
        return [
            (part.leaf.name, list(part.leaf.shape), DTYPES[part.leaf.dtype], number)
            for number, group in enumerate(group for group in self.groups if group)
            for part in group
        ]

    def lines(self) -> list[str]:
        """Names, shapes and dtypes, which all ranks must have in common."""
        return [f"{leaf.name} {leaf}" for leaf in self.leaves]

    def checksums(self, params: Any) -> list[str]:
        """Lines with fingerprints of the parameters' values, if they have values."""
        found = zip(self.leaves, jax.tree_util.tree_leaves(params))
        return [f"{leaf.name} of {checksum(known(value))}" for leaf, value in found]

    def flat(self, tree: Any, what: str = "gradients") -> list[Any]:
        """The leaves of gradients, or of other parameters.

        # Errors

        InvalidError unless they have the structure, shapes and dtypes of the parameters.
        """
        named, structure = jax.tree_util.tree_flatten_with_path(tree)
        if structure != self.structure:
            raise InvalidError(f"the {what} are a different pytree: {self.unlike(named)}")
        is_gradient = what == "gradients"
        kind, other = ("gradient of ", "its parameter") if is_gradient else ("", "in the beginning")
        expect_like(self.leaves, values(named), kind, other)
        return values(named)

    def layer(self, name: str, tree: Any) -> list[Any]:
        """The leaves of one layer of a subtree.

        # Errors

        InvalidError unless they are rows of the subtree's leaves.
        """
        rows = [self.row(at) for at in self.scanned[name]]
        leaves = jax.tree_util.tree_leaves(tree)
        if len(leaves) != len(rows):
            raise InvalidError(
                f"a layer of {len(leaves)} leaves is marked, expected {len(rows)} as in {name}"
            )
        expect_like(rows, leaves, "layer's ", "a row of the parameter")
        return leaves

    def unlike(self, named: Sequence[Any]) -> str:
        """A description of the differences to another pytree."""
        mine, theirs = [leaf.name for leaf in self.leaves], names(named)
        more = [name for name in theirs if name not in mine]
        less = [name for name in mine if name not in theirs]
        if more:
            return f"it has {more[0]}, but the parameters have no such leaf"
        if less:
            return f"it has no {less[0]}, as the parameters have"
        return "its leaves are in other containers than the parameters"


def expect_like(leaves: Sequence[Leaf], found: Sequence[Any], kind: str, other: str) -> None:
    """Refuses arrays of other shapes or dtypes."""
    for leaf, value in zip(leaves, found):
        given = described(leaf.name, value, kind)
        if given != leaf:
            raise InvalidError(f"{kind}{leaf.name} is {given}, {other} {leaf}")


def values(named: Sequence[Any]) -> list[Any]:
    """The leaves of a pytree that was flattened with paths."""
    return [value for _, value in named]


def names(named: Sequence[Any]) -> list[str]:
    """Returns a unique name for each leaf, such as "layers/0/kernel", or JAX's own notation if two
    such names would be equal."""
    simple = [
        jax.tree_util.keystr(path, simple=True, separator="/") or "params" for path, _ in named
    ]
    if len(set(simple)) == len(simple):
        return simple
    return [jax.tree_util.keystr(path) for path, _ in named]


def described(name: str, leaf: Any, kind: str = "") -> Leaf:
    """The description of an array that can be exchanged.

    # Errors

    InvalidError for anything else.
    """
    if not hasattr(leaf, "dtype") or not hasattr(leaf, "shape"):
        raise InvalidError(
            f"{kind}{name} is {shown(leaf)}, expected an array (hint: leave out what is not trained, as "
            "equinox.filter(model, equinox.is_inexact_array) does)"
        )
    dtype = str(leaf.dtype)
    if dtype not in DTYPES:
        raise InvalidError(f"{kind}{name} is {dtype}, expected float32, float16 or bfloat16")
    return Leaf(name, tuple(leaf.shape), dtype)


def known(value: Any) -> Any:
    """Returns the array of a leaf; None if the leaf only describes one."""
    return None if isinstance(value, jax.ShapeDtypeStruct) else value
