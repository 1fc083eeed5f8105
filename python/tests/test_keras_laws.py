"""Keras on two ranks trains as one process does on the whole batch, with equal bits, on each backend."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import launch

pytestmark = pytest.mark.needs("keras")
BACKENDS = ("tensorflow", "jax", "torch")
BATCH, BATCHES, EPOCHS = 8, 4, 2
OPTIMIZERS = {
    "sgd": ("SGD", {"learning_rate": 0.05, "momentum": 0.9}),
    "adam": ("Adam", {"learning_rate": 0.01}),
    "clipped": ("SGD", {"learning_rate": 0.05, "global_clipnorm": 0.5}),
    "accumulating": ("Adam", {"learning_rate": 0.01, "gradient_accumulation_steps": 2}),
}


def environment(backend: str) -> dict[str, str] | None:
    """The environment of ranks on a backend, None where it is not installed."""
    env = {"KERAS_BACKEND": backend}
    if importlib.util.find_spec(backend) is not None:
        return env
    packages = os.environ.get("TORCH_PACKAGES") if backend == "torch" else None
    return {**env, "THINWIRE_LAST_PATH": packages} if packages else None


def model_of(keras, policy: str = "float32") -> Any:
    """An embedding, a frozen normalization and two layers, with the same values in each process."""
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((3,), dtype="int32"),
            layers.Embedding(20, 4, dtype=policy),
            layers.Flatten(dtype=policy),
            layers.BatchNormalization(trainable=False, dtype=policy),
            layers.Dense(9, activation="tanh", dtype=policy),
            layers.Dense(1, dtype=policy),
        ],
        name="network",
    )
    draws = np.random.default_rng(3)
    for variable in model.weights:
        if "moving" not in variable.path:
            variable.assign(0.5 * draws.normal(size=variable.shape))
    return model


def data_of(rank: int, world: int) -> tuple[Any, Any]:
    """This rank's part of every batch."""
    draws = np.random.default_rng(5)
    inputs = draws.integers(0, 20, (BATCHES, world, BATCH // world, 3)).astype(np.int32)
    labels = inputs.sum(axis=-1, keepdims=True).astype(np.float32) / 30 - 1
    part = slice(None) if rank < 0 else slice(rank, rank + 1)
    return inputs[:, part].reshape(-1, 3), labels[:, part].reshape(-1, 1)


def weights_of(model) -> list[float]:
    """All values of a model."""
    return np.concatenate([np.ravel(each) for each in model.get_weights()]).tolist()


def fit(model, optimizer, rank: int, world: int, **named: Any) -> Any:
    """Trains a model on this rank's data, or as one process where the rank is below 0."""
    callbacks = named.pop("callbacks", [])
    compiled = {name: named.pop(name) for name in list(named) if name.startswith("jit")}
    model.compile(optimizer, "mse", metrics=["mae"], **compiled)
    inputs, labels = data_of(rank, world)
    batch = BATCH if rank < 0 else BATCH // world
    options = {"epochs": EPOCHS, "shuffle": False, "verbose": 0, **named}
    return model.fit(inputs, labels, batch_size=batch, callbacks=callbacks, **options)


def everything(folder: str) -> dict[str, Any]:
    """What this rank finds, by the backend of the environment."""
    import keras

    import thinwire
    import thinwire.keras as tk

    group = thinwire.init()
    place = group.rank, group.world
    answers: dict[str, Any] = {"one": {}, "two": {}, "bits": {}}

    def optimizer_of(name: str) -> Any:
        kind, options = OPTIMIZERS[name]
        return getattr(keras.optimizers, kind)(**options)

    for name in OPTIMIZERS:
        if group.rank == 0:
            model = model_of(keras)
            fit(model, optimizer_of(name), -1, group.world)
            answers["one"][name] = weights_of(model)
        model = model_of(keras)
        if group.rank == 1:
            model.layers[-1].bias.assign([7.0])  # the callback takes rank 0's
        fit(model, tk.distributed(optimizer_of(name), "none"), *place, callbacks=[tk.Broadcast()])
        answers["two"][name] = weights_of(model)
    for codec in ("int8", "topk:0.25"):
        model = model_of(keras)
        optimizer = tk.distributed(optimizer_of("adam"), codec, seed=3, warmup_steps=0)
        history = fit(model, optimizer, *place, callbacks=[tk.MetricAverage()])
        answers["bits"][codec] = weights_of(model), history.history
        assert (
            optimizer.exchange.exchange_plan()["assignments"]
            and optimizer.exchange.record()["step"] >= 7
        )
    answers["given"] = {
        codec: given(keras, tk, group, codec) for codec in ("none", "int8", "topk:0.25")
    }
    answers["saved"] = str(Path(folder) / f"model{group.rank}.keras")
    model.save(answers["saved"])
    return answers


def given(keras, tk, group, codec: str) -> list[float]:
    """The averages of gradients that are the same on every backend, after some steps."""
    shapes = ((5, 40), (9,), (700, 30))
    variables = [keras.Variable(np.zeros(shape), dtype="float32") for shape in shapes]
    optimizer = tk.distributed(
        keras.optimizers.SGD(1.0), codec, seed=3, warmup_steps=0, bucket_bytes=1 << 14
    )
    optimizer.build(variables)
    for step in range(3):
        draws = np.random.default_rng([group.rank, step])
        gradients = [draws.normal(size=shape).astype(np.float32) for shape in shapes]
        optimizer.apply([keras.ops.convert_to_tensor(each) for each in gradients], variables)
    arrays = [keras.ops.convert_to_numpy(each) for each in variables]
    return np.concatenate([each.ravel()[:500] for each in arrays]).tolist()


GIVEN: dict[str, Any] = {}
"""The averages of given gradients on the backends so far."""


@pytest.mark.parametrize("backend", BACKENDS)
def test_laws(ranks, backend, tmp_path):
    env = environment(backend)
    if env is None:
        pytest.skip(f"{backend} is not installed beside Keras")
    first, second = ranks(2, everything, arguments=[str(tmp_path)], env=env)
    for name, values in first["two"].items():
        assert values == second["two"][name], name
        assert values == pytest.approx(first["one"][name], abs=1e-6), name
    assert first["bits"] == second["bits"]
    assert first["given"] == second["given"]
    assert all(
        first["given"] == GIVEN.setdefault(name, first["given"]) for name in (backend, *GIVEN)
    )
    anew = {**env, **launch.ANEW}
    (loaded,) = ranks(1, without_thinwire, arguments=[first["saved"]], env=anew)
    assert loaded == ["Adam", first["bits"]["topk:0.25"][0]]


def without_thinwire(file: str) -> list[Any]:
    """The optimizer's class and the weights of a saved model, where Thinwire cannot be imported."""
    import sys

    sys.modules["thinwire"] = None
    import keras

    model = keras.saving.load_model(file)
    assert isinstance(model.optimizer, keras.optimizers.Adam)
    assert model.optimizer.iterations.numpy() == EPOCHS * BATCHES
    return [type(model.optimizer).__name__, weights_of(model)]
