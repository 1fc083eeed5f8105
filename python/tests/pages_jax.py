"""The names that blocks on the pages about JAX begin with, by page and heading."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import optax
import safetensors.numpy

import jax_models as models
import pages
import thinwire.jax


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


def run(folder: str) -> list[str]:
    """Runs all blocks, and returns their first lines."""
    prepared = {
        "docs/jax.md > JAX": trained,
        "docs/jax.md > Overlap": scanned,
        "docs/jax.md > Several devices": names,
        "docs/jax.md > Saving and resuming": lambda: saved(Path(folder)),
    }
    assert {block.place for block in pages.blocks() if block.framework == "jax"} == prepared.keys()
    return pages.run("jax", prepared, [])
