"""The names that blocks about Keras and TensorFlow on the pages begin with, by page and heading."""

from __future__ import annotations

import os
import tempfile
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import pages
import thinwire.keras
import thinwire.tensorflow

TOKEN = "0123456789abcdef"


def fitted() -> dict[str, Any]:
    """A model, its data and a compiled optimizer."""
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3), keras.layers.Dense(1)])
    optimizer = thinwire.keras.distributed(keras.optimizers.Adam(1e-3), codec="int8")
    model.compile(optimizer, "mse")
    draws = np.random.default_rng(1)
    inputs, labels = (draws.normal(size=(64, width)).astype(np.float32) for width in (4, 1))
    names = {"keras": keras, "tf": tf, "thinwire": thinwire, "folder": tempfile.mkdtemp()}
    return {**names, "model": model, "optimizer": optimizer, "inputs": inputs, "labels": labels}


def in_a_loop() -> dict[str, Any]:
    """The same with an optimizer that exchanges nothing by itself."""
    return {**fitted(), "optimizer": keras.optimizers.Adam(1e-3)}


def elastic() -> dict[str, Any]:
    """A model in an elastic job of this rank alone."""
    from thinwire._core import Coordinator

    names = fitted()
    coordinator = Coordinator("127.0.0.1:0", TOKEN, state=f"{names['folder']}/state")
    os.environ.update(coordinator.seat(), THINWIRE_MEMBER="new")
    return {**names, "loss": "mse", "coordinator": coordinator}


def run(prepared: dict[str, str]) -> list[str]:
    """Runs the blocks of the pages on this rank."""
    return pages.run("keras", {place: globals()[name] for place, name in prepared.items()}, [])
