"""Mixed precision, steps that are skipped, bad input, and ranks that die, under `fit` on each backend."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import launch
from test_keras_laws import (
    BACKENDS,
    BATCHES,
    EPOCHS,
    data_of,
    environment,
    fit,
    model_of,
    weights_of,
)

pytestmark = pytest.mark.needs("keras")


def parameter(backend: str) -> Any:
    """The environment of a backend, skipped where it is not installed."""
    env = environment(backend)
    marks = pytest.mark.skipif(env is None, reason=f"{backend} is not installed beside Keras")
    return pytest.param(env, id=backend, marks=marks)


ENVIRONMENTS = [parameter(backend) for backend in BACKENDS]


def said(call, *given: Any, **named: Any) -> str:
    """The error of a call, which must be InvalidError of one line."""
    import thinwire

    with pytest.raises(thinwire.InvalidError) as caught:
        call(*given, **named)
    text = str(caught.value)
    assert "\n" not in text, text
    return text


def mixed(folder: str) -> dict[str, Any]:
    """Trainings under mixed_float16, and one with a NaN on rank 1."""
    import keras

    import thinwire
    import thinwire.keras as tk

    group = thinwire.init()
    place = group.rank, group.world

    def optimizer_of() -> Any:
        return keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(0.01), initial_scale=64.0)

    answers: dict[str, Any] = {}
    if group.rank == 0:
        model = model_of(keras, "mixed_float16")
        fit(model, optimizer_of(), -1, group.world)
        answers["one"] = weights_of(model)
    model = model_of(keras, "mixed_float16")
    fit(model, tk.distributed(optimizer_of(), "none"), *place)
    answers["two"] = weights_of(model)
    model = model_of(keras)
    optimizer = tk.distributed(optimizer_of(), "int8")
    inputs, labels = data_of(*place)
    if group.rank == 1:
        labels[5] = np.nan
    model.compile(optimizer, "mse")
    model.fit(inputs, labels, batch_size=4, shuffle=False, verbose=0)
    found = float(keras.ops.convert_to_numpy(optimizer.dynamic_scale))
    steps = int(keras.ops.convert_to_numpy(optimizer.iterations))
    answers["skipped"] = weights_of(model), found, steps
    return answers | {"resumed": resumed(keras, tk, group, folder)}


def resumed(keras, tk, group, folder: str) -> list[list[float]]:
    """The weights after epochs in one run, and in two of which the second continues from files."""
    found = []
    for parts in ((2 * EPOCHS,), (EPOCHS, EPOCHS)):
        model, place = model_of(keras), f"{folder}/{len(parts)}"
        for epochs in parts:
            optimizer = tk.distributed(
                keras.optimizers.SGD(0.05), "topk:0.25", warmup_steps=0, seed=4
            )
            residuals = tk.Residuals(place)
            fit(model, optimizer, group.rank, group.world, epochs=epochs, callbacks=[residuals])
        found.append(weights_of(model))
    return found


@pytest.mark.parametrize("env", ENVIRONMENTS)
def test_mixed_precision_and_restarts(ranks, env, tmp_path):
    first, second = ranks(2, mixed, arguments=[str(tmp_path)], env=env)
    assert first["two"] == second["two"] and first["skipped"] == second["skipped"]
    assert first["two"] == pytest.approx(first["one"], abs=1e-3)
    weights, scale, steps = first["skipped"]
    assert np.isfinite(weights).all() and scale == 32.0 and steps == BATCHES - 1
    whole, continued = first["resumed"]
    assert whole == continued


def refusals() -> dict[str, str]:
    """What is said of bad input."""
    import keras

    import thinwire
    import thinwire.keras as tk

    group = thinwire.init()
    place = group.rank, group.world

    def adam(**options: Any) -> Any:
        return tk.distributed(keras.optimizers.Adam(0.01), "none", **options)

    def scaled(optimizer: Any) -> Any:
        return keras.optimizers.LossScaleOptimizer(optimizer)

    answers: dict[str, str] = {}
    answers["twice"] = said(tk.distributed, adam())
    answers["inside"] = said(scaled, adam())
    answers["codec"] = said(tk.distributed, keras.optimizers.Adam(), "zip")
    answers["kind"] = said(tk.distributed, 3)
    keras.config.set_dtype_policy("mixed_float16")
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    answers["compile"] = said(model.compile, adam(), "mse")
    keras.config.set_dtype_policy("float32")
    plain = keras.optimizers.Adam()
    answers["plain"] = said(fit, model_of(keras), plain, *place, callbacks=[tk.Broadcast()])
    optimizer, one, two = adam(), keras.Variable([1.0]), keras.Variable([2.0])
    gradient = keras.ops.ones(1)
    optimizer.build([one, two])
    optimizer.apply([gradient], [one])
    answers["added"] = said(optimizer.apply, [gradient, gradient], [one, two])
    answers["count"] = said(adam().apply, [gradient], [one, two])
    answers["shape"] = said(adam().apply, [keras.ops.ones(2)], [one])
    wide = keras.Variable(np.zeros(2), dtype="int32", trainable=False)
    answers["dtype"] = said(adam().apply, [keras.ops.zeros(2, "int32")], [wide])
    for name in ("float64", "complex64"):
        wide = keras.Variable(np.zeros(2), dtype=name)
        answers[name] = said(adam().apply, [keras.ops.zeros(2, name)], [wide])
    other = keras.Variable([1.0 + group.rank])
    answers["values"] = said(adam().apply, [gradient], [other])
    other = keras.Variable(np.zeros(2 + group.rank), dtype="float32")
    answers["other"] = said(adam().apply, [keras.ops.zeros(2 + group.rank)], [other])
    if keras.backend.backend() == "tensorflow":
        answers["jit"] = said(fit, model_of(keras), adam(), *place, jit_compile=True)
    if keras.backend.backend() == "jax":
        import jax

        with jax.debug_nans(True):
            answers["nans"] = said(fit, model_of(keras), adam(), *place)
    answers |= exchanges(keras, tk, adam, place)
    group.process += 1  # as after a fork
    answers["fork"] = said(optimizer.apply, [gradient], [one])
    group.process -= 1
    group.close()
    answers["closed"] = said(optimizer.apply, [gradient], [one])
    return answers


def exchanges(keras, tk, adam, place) -> dict[str, str]:
    """What `Broadcast` says of steps that exchange not at all, or twice; nothing of those that do."""
    answers = {"apart": said(fit, apart(keras), adam(), *place, callbacks=[tk.Broadcast()])}
    model, optimizer = model_of(keras), adam()
    # The function of a step is used again, traced anew, and made of two, which PyTorch does not do.
    for steps in (1,) if keras.backend.backend() == "torch" else (1, 2):
        model.compile(optimizer, "mse", steps_per_execution=steps)
        for batch in (4, 2):
            inputs, labels = data_of(*place)
            model.fit(inputs, labels, batch, verbose=0, callbacks=[tk.Broadcast()])
    model.train_step = apart(keras).train_step
    answers["later"] = said(fit, model, optimizer, *place, callbacks=[tk.Broadcast()])
    optimizer = adam()

    class Twice(type(optimizer)):
        """As an optimizer of a Keras that applies gradients twice."""

        def apply(self, *given: Any) -> Any:
            super().apply(*given)
            return super().apply(*given)

    optimizer.__class__ = Twice
    answers["twice in a step"] = said(
        fit, model_of(keras), optimizer, *place, callbacks=[tk.Broadcast()]
    )
    return answers


def apart(keras) -> Any:
    """A model whose steps do not call its optimizer."""
    model = model_of(keras)

    def step(*given: Any) -> Any:
        """On JAX a function of state, elsewhere of data alone."""
        if keras.backend.backend() == "jax":
            return {"loss": 0.0}, given[0]
        return {"loss": keras.ops.zeros(())}

    model.train_step = step
    return model


@pytest.mark.parametrize("env", ENVIRONMENTS)
def test_bad_input_is_refused_in_one_line(ranks, env):
    first, second = ranks(2, refusals, env=env)
    order = "thinwire.keras.distributed(keras.optimizers.LossScaleOptimizer(optimizer))"
    expected = {
        "twice": "adam is distributed already",
        "inside": order,
        "compile": order,
        "codec": "unknown codec 'zip'",
        "kind": "optimizer is 3, expected",
        "plain": "the optimizer is Adam, expected a distributed one",
        "added": "gradients of 2 variables, expected the 1 of the first step",
        "shape": "is float32 [2], but its variable is float32 [1]",
        "dtype": "is int32, expected float32, float16, bfloat16",
        "other": "float32 [3], rank 0 has",
        "jit": "jit_compile=True, expected False",
        "apart": "exchanged 0 times in 1 batches, expected one exchange for each batch",
        "later": "exchanged 0 times in 1 batches, expected one exchange for each batch",
        "twice in a step": {
            "jax": "a second call of one exchange in a program",
        }.get(env["KERAS_BACKEND"], "exchanged 2 times in 1 batches"),
        "count": "1 gradients for 2 variables, expected one for each",
        "float64": "float64",
        "complex64": "complex64",
        "values": "rank 1 has",
        "nans": "jax_debug_nans is on",
        "fork": "is of the parent process, expected an open one",
        "closed": "is closed, expected an open one",
    }
    for name, text in first.items():
        assert expected[name] in text, (name, text)
        assert second[name] == text or name in ("closed", "fork")


def ended(way: str) -> str:
    """What `fit` raises where rank 1 comes to an end after its first epoch, or interrupts rank 0."""
    import keras

    import thinwire
    import thinwire.keras as tk

    group = thinwire.init(heartbeat_timeout_s=3.0)
    processes = group.all_gather(np.array([os.getpid()]))

    class End(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            if (epoch, group.rank) == (1, 1):
                if way == "raise":
                    raise ValueError("no label 11")
                if way == "interrupt":
                    os.kill(processes[0], signal.SIGINT)
                    group.barrier()  # to which rank 0 never comes
                os.kill(os.getpid(), signal.SIGKILL)

    epochs = 1 if (way, group.rank) == ("leave", 1) else EPOCHS
    optimizer = tk.distributed(keras.optimizers.SGD(0.1), "none")
    callbacks = [tk.Broadcast(), End()]
    try:
        with tk.guard(optimizer):
            fit(
                model_of(keras),
                optimizer,
                group.rank,
                group.world,
                epochs=epochs,
                callbacks=callbacks,
            )
    except (thinwire.PeerError, ValueError, KeyboardInterrupt) as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


ENDS = [("kill", backend, "PeerError: lost rank 1") for backend in BACKENDS]
ENDS += [
    ("raise", "jax", "rank 1 raised ValueError: no label 11"),
    ("leave", "tensorflow", "PeerError: lost rank 1: it left"),
    ("interrupt", "jax", "KeyboardInterrupt: "),
]


@pytest.mark.parametrize(("way", "backend", "words"), ENDS)
def test_an_end_of_one_rank_is_heard_in_one_line(way, backend, words):
    env = environment(backend)
    if env is None:
        pytest.skip(f"{backend} is not installed beside Keras")
    waiting, other = launch.run(2, ended, arguments=[way], env=env)
    assert waiting.result and words in waiting.result and "\n" not in waiting.result, waiting
    if way == "interrupt":
        assert "rank 0 raised KeyboardInterrupt" in other.result, other


def test_a_missing_keras_is_named_in_one_line(tmp_path):
    hidden = "import sys; sys.modules['keras'] = None; import thinwire.keras"
    (outcome,) = launch.run(1, written(tmp_path, hidden))
    last = outcome.stderr.strip().rpartition("\n")[2]
    assert outcome.code == 1
    assert last.startswith("ImportError: thinwire.keras needs Keras 3") and "pip install" in last


def written(folder: Path, text: str) -> Path:
    """A program in a file."""
    file = folder / "program.py"
    file.write_text(text)
    return file
