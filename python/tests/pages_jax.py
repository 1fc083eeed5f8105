"""The names that blocks on the pages about JAX begin with, by page and heading."""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import safetensors.numpy

import jax_models as models
import pages
import thinwire.jax

TOKEN = "0123456789abcdef"


def names(**more: Any) -> dict[str, Any]:
    """What every block may use."""
    known = {"jax": jax, "jnp": jnp, "optax": optax, "thinwire": thinwire}
    return {**known, "params": models.parameters(), **more}


def trained() -> dict[str, Any]:
    return names(mean_loss=models.loss, batches=models.batches(steps=3))


def scanned() -> dict[str, Any]:
    layers = {"layers": {"w": jnp.ones((3, 4, 4))}}
    return names(params=layers, batch=[jnp.ones((2, 4)), jnp.ones((2, 4))])


def saved(folder: Path) -> dict[str, Any]:
    def wait(found: dict[str, Any]) -> None:
        found["group"].barrier()

    optimizer = thinwire.jax.averaged(optax.sgd(0.1), models.parameters(), "int8")
    group = thinwire.init()
    between = {pages.BETWEEN: wait, "folder": folder, "safetensors": safetensors}
    return names(optimizer=optimizer, group=group, **between)


def in_rounds() -> dict[str, Any]:
    """A step without an exchange."""
    optimizer = optax.sgd(0.1)

    @jax.jit
    def step(params: Any, state: Any, batch: Any) -> Any:
        updates, state = optimizer.update(jax.grad(models.loss)(params, batch), state)
        return optax.apply_updates(params, updates), state

    state = optimizer.init(models.parameters())
    return names(step=step, state=state, batches=models.batches(steps=3))


def elastic(folder: Path) -> dict[str, Any]:
    """An elastic job of one rank."""
    from thinwire._core import Coordinator

    state = folder / f"state-{os.environ['RANK']}"
    coordinator = Coordinator("127.0.0.1:0", TOKEN, state=state)
    os.environ.update(coordinator.seat(), THINWIRE_MEMBER="new")
    inputs, targets = map(np.concatenate, zip(*models.batches(steps=80)))
    more = {"functools": functools, "optimizer": optax.adam(1e-3), "coordinator": coordinator}
    losses = jax.vmap(lambda params, *each: models.loss(params, each), (None, 0, 0))
    return names(inputs=inputs, targets=targets, losses=losses, **more)


def run(folder: str) -> list[str]:
    """Runs all blocks, and returns their first lines."""
    prepared = {
        "README.md > JAX": names,
        "docs/jax.md > JAX": trained,
        "docs/jax.md > Overlap": scanned,
        "docs/jax.md > Several devices": names,
        "docs/jax.md > Modes": in_rounds,
        "docs/jax.md > Ranks that come and go": lambda: elastic(Path(folder)),
        "docs/jax.md > Saving and resuming": lambda: saved(Path(folder)),
    }
    assert {block.place for block in pages.blocks() if block.framework == "jax"} == prepared.keys()
    return pages.run("jax", prepared, [])
