"""A small model for tests of JAX: its parameters, loss and batches, and trees of every kind of leaf."""

from __future__ import annotations

import zlib

import jax
import jax.numpy as jnp
import numpy as np

BATCH, STEPS = 8, 30
DTYPES = (jnp.float32, jnp.float16, jnp.bfloat16)


def parameters():
    """Weights of two layers, a scalar and a leaf without elements."""
    first, second = jax.random.split(jax.random.key(0))
    return {
        "first": {"kernel": 0.1 * jax.random.normal(first, (16, 32)), "bias": jnp.zeros(32)},
        "second": [0.1 * jax.random.normal(second, (32, 4)), jnp.zeros((0, 3))],
        "scale": jnp.float32(1.0),
    }


def loss(params, batch):
    """The mean over a batch, so that averages of ranks are that of the whole."""
    inputs, targets = batch
    hidden = jnp.tanh(inputs @ params["first"]["kernel"] + params["first"]["bias"])
    return jnp.mean((params["scale"] * hidden @ params["second"][0] - targets) ** 2)


def batches(rank: int = 0, world: int = 1, steps: int = STEPS):
    """A rank's part of each batch."""
    draw = np.random.default_rng(0)
    part = slice(rank * BATCH // world, (rank + 1) * BATCH // world)
    for _ in range(steps):
        inputs, targets = draw.normal(size=(BATCH, 16)), draw.normal(size=(BATCH, 4))
        yield inputs[part].astype("f4"), targets[part].astype("f4")


def train(optimizer, parts, params=None, of=loss):
    """Trains in a compiled step, and returns the parameters."""
    import optax

    params = parameters() if params is None else params

    @jax.jit
    def step(params, state, batch):
        updates, state = optimizer.update(jax.grad(of)(params, batch), state, params)
        return optax.apply_updates(params, updates), state

    state = optimizer.init(params)
    for part in parts:
        params, state = step(params, state, part)
    return params


def random_tree(draw: np.random.Generator):
    """A pytree of random structure with leaves of every dtype, of no, one and many elements."""

    def tree(depth: int):
        if depth == 0 or draw.random() < 0.3:
            shape = tuple(int(each) for each in draw.integers(0, 7, draw.integers(0, 4)))
            return jnp.ones(shape, DTYPES[draw.integers(len(DTYPES))])
        children = [tree(depth - 1) for _ in range(draw.integers(1, 4))]
        if draw.random() < 0.5:
            return children
        return {f"leaf {at}": child for at, child in enumerate(children)}

    return {"there": jnp.ones((3, 5)), "drawn": tree(3)}


def drawn(tree, draw: np.random.Generator):
    """A tree like this one with numbers drawn for all elements."""
    return jax.tree.map(lambda x: jnp.asarray(draw.normal(size=x.shape), x.dtype), tree)


def bits(tree) -> int:
    """A number that says which bits all leaves have."""
    leaves = jax.tree_util.tree_leaves(tree)
    return zlib.crc32(b"".join(np.asarray(leaf).tobytes() for leaf in leaves))


def difference(one, other) -> float:
    """The largest difference of two elements."""
    pairs = zip(jax.tree_util.tree_leaves(one), jax.tree_util.tree_leaves(other))
    gaps = [np.abs(np.asarray(a, "f4") - np.asarray(b, "f4")) for a, b in pairs]
    return float(max(gap.max(initial=0.0) for gap in gaps))
