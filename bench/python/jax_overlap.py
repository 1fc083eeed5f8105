"""One rank of the overlap benchmark of JAX, Keras on JAX, and TensorFlow.

Started once per rank with torchrun's variables. Gradients of 16 MB; for each codec, in turn: backward
alone, the exchange alone of gradients that are there, the step with the exchange inside, and the same step
with the exchange behind the compiled program. Rank 0 prints a line of JSON per form of the step and codec:
medians of the slowest rank, and the bar, the longer of backward and exchange plus a quarter.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable

import numpy as np

import thinwire

LAYERS, WIDTH = 8, 724
WARMUP = 3
Forms = dict[str, Callable[[], object]]


def main() -> None:
    options = arguments()
    group = thinwire.init()
    forms = {"jax": jax_forms, "keras": keras_forms, "tensorflow": tensorflow_forms}
    for codec in options.codecs.split(","):
        for name, parts in forms[options.framework](group, codec, options.batch):
            times = measured(group, parts, options.steps, options.rounds)
            if group.rank == 0:
                print(json.dumps(record(options.framework, name, codec, times)), flush=True)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--framework", choices=["jax", "keras", "tensorflow"], required=True)
    parser.add_argument("--codecs", default="none,int8")
    parser.add_argument("--batch", type=int, default=512, help="rows of a rank's batch")
    parser.add_argument("--steps", type=int, default=5, help="steps of each part in a round")
    parser.add_argument("--rounds", type=int, default=3)
    return parser.parse_args()


def measured(group: thinwire.Group, parts: Forms, steps: int, rounds: int) -> dict[str, float]:
    """The median seconds of each part on the slowest rank; parts take turns."""
    times: dict[str, list[float]] = {name: [] for name in parts}
    for round_ in range(rounds):
        for name, part in parts.items():
            for step in range(steps + (WARMUP if round_ == 0 else 0)):
                group.barrier()
                begin = time.perf_counter()
                part()
                seconds = np.array([time.perf_counter() - begin])
                if round_ > 0 or step >= WARMUP:
                    times[name].append(float(group.all_gather(seconds).max()))
    return {name: statistics.median(found) for name, found in times.items()}


def record(framework: str, form: str, codec: str, times: dict[str, float]) -> dict:
    """Prints the figures of one form of the step."""
    bar = 1.25 * max(times["backward"], times["wire"])
    return {
        "framework": framework,
        "form": form,
        "codec": codec,
        "network": os.environ.get("NETWORK", "loopback"),
        **{f"{name}_ms": 1e3 * seconds for name, seconds in times.items()},
        "bar_ms": 1e3 * bar,
        "holds": times["step"] <= bar,
    }


def jax_forms(group: thinwire.Group, codec: str, batch: int):
    """Layers one after the other, and layers under `jax.lax.scan`, marked."""
    import jax
    import jax.numpy as jnp

    import thinwire.jax

    inputs = jax.random.normal(jax.random.key(group.rank), (batch, WIDTH))
    stacked = jax.random.normal(jax.random.key(9), (LAYERS, WIDTH, WIDTH)) / WIDTH**0.5

    def unrolled(params, inputs):
        hidden = inputs
        for weights in params["layers"]:
            hidden = jnp.tanh(hidden @ weights)
        return jnp.mean(hidden**2)

    def scanned(mark):
        def block(hidden, layer):
            number, weights = layer
            return jnp.tanh(hidden @ mark(weights, number)), None

        def loss(params, inputs):
            hidden, _ = jax.lax.scan(block, inputs, (jnp.arange(LAYERS), params["layers"]))
            return jnp.mean(hidden**2)

        return loss

    def forms(params, plain, exchange, marked, outside):
        """`exchange` is part of the step of `marked`; `outside` is called behind the program of `plain`."""
        backward = jax.jit(jax.grad(plain))
        step = jax.jit(lambda params, inputs: exchange(jax.grad(marked)(params, inputs)))
        gradients = jax.block_until_ready(backward(params, inputs))

        def behind():
            return jax.block_until_ready(outside(jax.block_until_ready(backward(params, inputs))))

        return {
            "backward": lambda: jax.block_until_ready(backward(params, inputs)),
            "wire": lambda: jax.block_until_ready(outside(gradients)),
            "step": lambda: jax.block_until_ready(step(params, inputs)),
            "outside": behind,
        }

    params = {"layers": list(stacked)}
    exchange = thinwire.jax.exchange(params, codec, group, warmup_steps=0)
    yield "unrolled", forms(params, unrolled, exchange, unrolled, exchange)
    params = {"layers": stacked}
    exchange = thinwire.jax.exchange(params, codec, group, warmup_steps=0, scanned=["layers"])
    whole = thinwire.jax.exchange(params, codec, group, warmup_steps=0)
    plain = scanned(lambda weights, number: weights)
    yield "scanned", forms(params, plain, exchange, scanned(exchange.mark), whole)


def keras_forms(group: thinwire.Group, codec: str, batch: int):
    """`fit` on the backend of KERAS_BACKEND."""
    import keras

    import thinwire.keras

    draws = np.random.default_rng(group.rank)
    inputs = draws.normal(size=(batch, WIDTH)).astype(np.float32)

    def built(wrap):
        keras.utils.set_random_seed(3)
        layers = [keras.layers.Dense(WIDTH, "tanh", use_bias=False) for _ in range(LAYERS)]
        model = keras.Sequential([keras.Input((WIDTH,)), *layers])
        model.compile(wrap(keras.optimizers.SGD(1e-3)), "mse")
        return model

    plain = built(lambda optimizer: optimizer)
    model = built(
        lambda optimizer: thinwire.keras.distributed(optimizer, codec, group, warmup_steps=0)
    )
    other = thinwire.keras.distributed(keras.optimizers.SGD(1e-3), codec, group, warmup_steps=0)
    variables = [keras.Variable(each) for each in plain.get_weights()]
    other.build(variables)
    gradients = [keras.ops.convert_to_tensor(draws.normal(size=(WIDTH, WIDTH)), "float32")] * LAYERS

    def exchanged():
        averages = other.exchange(gradients, variables)
        return [keras.ops.convert_to_numpy(each) for each in averages]

    def behind():
        plain.train_on_batch(inputs, inputs)
        exchanged()

    yield (
        "fit",
        {
            "backward": lambda: plain.train_on_batch(inputs, inputs),
            "wire": exchanged,
            "step": lambda: model.train_on_batch(inputs, inputs),
            "outside": behind,
        },
    )


def tensorflow_forms(group: thinwire.Group, codec: str, batch: int):
    """A function with a tape; Horovod's tape beside it where it is installed."""
    import tensorflow as tf

    import thinwire.tensorflow

    tf.config.threading.set_intra_op_parallelism_threads(1)
    draws = np.random.default_rng(9)
    shape = (LAYERS, WIDTH, WIDTH)
    values = (draws.normal(size=shape) / WIDTH**0.5).astype(np.float32)
    variables = [tf.Variable(each) for each in values]
    inputs = tf.random.stateless_normal((batch, WIDTH), (group.rank, 1))

    def gradients(wrap):
        def step():
            with tf.GradientTape() as tape:
                hidden = inputs
                for weights in variables:
                    hidden = tf.tanh(hidden @ weights)
                loss = tf.reduce_mean(hidden**2)
            return wrap(tape).gradient(loss, variables)

        return tf.function(step)

    def of_thinwire(tape):
        return thinwire.tensorflow.DistributedGradientTape(tape, codec, group, warmup_steps=0)

    backward, step = gradients(lambda tape: tape), gradients(of_thinwire)
    average = thinwire.tensorflow.exchange(variables, codec, group, warmup_steps=0)
    outside = tf.function(average)
    given = backward()
    yield (
        "tf.function",
        {
            "backward": backward,
            "wire": lambda: outside(given),
            "step": step,
            "outside": lambda: outside(backward()),
        },
    )


if __name__ == "__main__":
    main()
