"""The same values on all ranks before the first step."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import thinwire
from thinwire._core import InvalidError
from thinwire.agreement import agree, together
from thinwire.arguments import shown
from thinwire.jax.tree import names, values
from thinwire.meeting import group_or_default

NUMBERS = (bool, int, float, complex)


def broadcast(tree: Any, group: thinwire.Group | None = None, root: int = 0) -> Any:
    """Returns a pytree with the values that rank `root` has: parameters, an optimizer's state, random keys.

    Leaves are arrays of any dtype, typed keys included, and Python's numbers. group: by default
    that of the launcher's environment. A collective call, outside of compiled programs.

    # Errors

    InvalidError on all ranks, before anything is sent, for other leaves, and where names, shapes or
    dtypes differ between ranks; PeerError if a rank is lost.
    """
    group = group_or_default(group)
    named, structure = jax.tree_util.tree_flatten_with_path(tree)
    called = names(named)

    def arrays() -> list[np.ndarray[Any, Any]]:
        return [copied(name, leaf) for name, leaf in zip(called, values(named))]

    copies = together(group.core, arrays)
    pairs = zip(called, copies)
    agree([f"{name} {each.dtype}{list(each.shape)}" for name, each in pairs], group.core)
    for copy in copies:
        group.core.broadcast(copy.ctypes.data, copy.nbytes, root)
    found = [like(leaf, copy) for leaf, copy in zip(values(named), copies)]
    return jax.tree_util.tree_unflatten(structure, found)


def copied(name: str, leaf: Any) -> np.ndarray[Any, Any]:
    """Returns a copy of a leaf's values in host memory, on all ranks in the order of dimensions."""
    if isinstance(leaf, jax.core.Tracer):
        raise InvalidError(
            f"{name} is traced, expected an array (hint: broadcast outside of jax.jit)"
        )
    if is_key(leaf):
        return np.array(jax.random.key_data(leaf), order="C")
    if hasattr(leaf, "dtype") and hasattr(leaf, "shape") or isinstance(leaf, NUMBERS):
        array = np.array(leaf, order="C")
        if not array.dtype.hasobject:
            return array
    raise InvalidError(f"{name} is {shown(leaf)}, expected an array or a number")


def like(leaf: Any, values: np.ndarray[Any, Any]) -> Any:
    """Returns the values as a leaf of the same kind as `leaf`, on the same device."""
    if isinstance(leaf, NUMBERS):
        return type(leaf)(values.item())
    if is_key(leaf):
        return jax.random.wrap_key_data(jnp.asarray(values), impl=jax.random.key_impl(leaf))
    if isinstance(leaf, jax.Array):
        # A leaf that is nowhere in particular must stay free to follow others to a mesh.
        return jax.device_put(values, leaf.sharding if leaf.committed else None)
    return values


def is_key(leaf: Any) -> bool:
    """Whether a leaf is an array of typed random keys."""
    return isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
