"""Pytrees as the core describes them: a name, a shape and a dtype for each leaf.

The core gets leaves in the order in which backward computes gradients: that of the tree, reversed. Leaves
without elements have nothing to exchange.
"""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from thinwire._core import InvalidError
from thinwire.arguments import shown

DTYPES = {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}
BUCKET = 0
"""The core gets all gradients as one bucket, and cuts it."""


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
        """As messages show it."""
        return f"{self.dtype}{list(self.shape)}"

    def struct(self) -> jax.ShapeDtypeStruct:
        """Its shape and dtype for JAX."""
        return jax.ShapeDtypeStruct(self.shape, jnp.dtype(self.dtype))


class Tree:
    """The structure of a pytree of parameters, and the check of gradients against it."""

    def __init__(self, params: Any) -> None:
        """Of arrays, or of anything with shapes and dtypes.

        # Errors

        InvalidError for a leaf that is not f32, f16 or bf16, and for none.
        """
        named, self.structure = jax.tree_util.tree_flatten_with_path(params)
        self.leaves = [described(name, leaf) for name, leaf in zip(names(named), values(named))]
        self.places = [at for at in reversed(range(len(named))) if self.leaves[at].size]
        """The leaves that are exchanged, in the core's order."""
        if not self.places:
            raise InvalidError("no parameters to exchange, expected a pytree of arrays")

    def core(self) -> list[tuple[str, list[int], str, int]]:
        """Descriptions for the core."""
        leaves = [self.leaves[at] for at in self.places]
        return [(each.name, list(each.shape), DTYPES[each.dtype], BUCKET) for each in leaves]

    def lines(self) -> list[str]:
        """Names, shapes and dtypes, which all ranks must have in common."""
        return [f"{leaf.name} {leaf}" for leaf in self.leaves]

    def checksums(self, params: Any) -> list[str]:
        """Lines that say which values parameters have; nothing of those without values."""
        found = zip(self.leaves, jax.tree_util.tree_leaves(params))
        return [f"{leaf.name} of {checksum(value)}" for leaf, value in found]

    def flat(self, gradients: Any) -> list[Any]:
        """The leaves of gradients.

        # Errors

        InvalidError unless they are like the parameters.
        """
        named, structure = jax.tree_util.tree_flatten_with_path(gradients)
        if structure != self.structure:
            raise InvalidError(f"the gradients are another pytree: {self.unlike(named)}")
        found = values(named)
        for leaf, value in zip(self.leaves, found):
            given = described(leaf.name, value, "gradient of ")
            if given != leaf:
                raise InvalidError(f"gradient of {leaf.name} is {given}, its parameter {leaf}")
        return found

    def unlike(self, named: Sequence[Any]) -> str:
        """How another pytree differs, in words."""
        mine, theirs = [leaf.name for leaf in self.leaves], names(named)
        more = [name for name in theirs if name not in mine]
        less = [name for name in mine if name not in theirs]
        if more:
            return f"it has {more[0]}, and the parameters no such leaf"
        if less:
            return f"it has no {less[0]}, as the parameters have"
        return "its leaves are in other containers than the parameters"


def values(named: Sequence[Any]) -> list[Any]:
    """The leaves of what was flattened with paths."""
    return [value for _, value in named]


def names(named: Sequence[Any]) -> list[str]:
    """A name of its own for each leaf: "layers/0/kernel", or JAX's own words where two would be alike."""
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


def checksum(value: Any) -> str:
    """Says in a word which values an array has."""
    if isinstance(value, jax.ShapeDtypeStruct):
        return "unknown values"
    return f"checksum {zlib.crc32(np.asarray(value).tobytes()):08x}"
