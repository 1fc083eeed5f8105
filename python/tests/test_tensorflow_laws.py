"""TensorFlow on two ranks trains as one process does on the whole batch, with equal bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.needs("tensorflow")
STEPS, ROWS = 6, 8


def model_of(tf) -> dict[str, Any]:
    """Variables of a small network: an embedding, two layers, a scalar, and one without a gradient."""
    draws = np.random.default_rng(3)
    shapes = {"table": (20, 6), "hidden": (6, 7), "bias": (7,), "out": (7, 1), "scale": ()}
    shapes |= {"unused": (3,), "empty": (0, 4)}
    return {
        name: tf.Variable(draws.normal(size=shape).astype(np.float32), name=name)
        for name, shape in shapes.items()
    }


def loss_of(tf, model, rows, labels):
    """The squared error of some rows."""
    found = tf.reduce_mean(tf.gather(model["table"], rows), axis=1)
    found = tf.tanh(found @ model["hidden"] + model["bias"]) @ model["out"] * model["scale"]
    return tf.reduce_mean((found[:, 0] - labels) ** 2) + 0.0 * tf.reduce_sum(model["empty"])


def batches(rank: int, world: int):
    """This rank's part of each batch."""
    draws = np.random.default_rng(5)
    for _ in range(STEPS):
        rows, labels = draws.integers(0, 20, (ROWS, 3)), draws.normal(size=ROWS).astype(np.float32)
        part = slice(rank * ROWS // world, (rank + 1) * ROWS // world)
        yield rows[part], labels[part]


def trained(tf, wrap, rank: int, world: int, graph: bool = True) -> dict[str, list[float]]:
    """The variables after some steps of SGD; `wrap` gives the gradients of a tape."""
    model = model_of(tf)

    def step(rows, labels):
        with tf.GradientTape() as tape:
            loss = loss_of(tf, model, rows, labels)
        gradients = wrap(tape, loss, model)
        assert gradients["unused"] is None
        for name, gradient in gradients.items():
            if isinstance(gradient, tf.IndexedSlices):
                model[name].scatter_sub(tf.IndexedSlices(0.1 * gradient.values, gradient.indices))
            elif gradient is not None:
                model[name].assign_sub(0.1 * gradient)

    run = tf.function(step) if graph else step
    for rows, labels in batches(rank, world):
        run(rows, labels)
    return {name: each.numpy().ravel().tolist() for name, each in model.items()}


def everything() -> dict[str, Any]:
    """What two ranks find, in one process each."""
    import tensorflow as tf

    import thinwire
    import thinwire.tensorflow as tw

    group = thinwire.init()
    place = group.rank, group.world
    answers = {"one": trained(tf, lambda tape, loss, model: tape.gradient(loss, model), 0, 1)}
    for graph in (True, False):
        for codec in ("none", "int8", "topk:0.25"):
            def by_tape(tape, loss, model, codec=codec):
                return tw.DistributedGradientTape(tape, codec=codec).gradient(loss, model)

            answers[f"tape {codec} {graph}"] = trained(tf, by_tape, *place, graph)
    return answers


def test_laws(ranks):
    first, second = ranks(2, everything)
    assert first == second
    one = first.pop("one")
    for name, found in first.items():
        for variable, values in found.items():
            if " none " in name:
                assert values == pytest.approx(one[variable], abs=1e-6), (name, variable)
