"""A regression in a `tf.function` of one's own, with TensorFlow alone; Thinwire is the lines with an arrow.

    thinwire run --ranks 2 -- python examples/python/tensorflow_loop.py --codec int8
    torchrun --nproc-per-node 2 examples/python/tensorflow_loop.py

Each rank draws its own rows; rank 0 prints the loss now and then.
"""

import argparse

import numpy as np
import tensorflow as tf

import thinwire
import thinwire.tensorflow

WIDTH = 64


def main() -> None:
    """Trains on every rank of the job."""
    options = parsed()
    group = thinwire.init()  # <-- who is who, from the launcher's environment
    draws = np.random.default_rng(group.rank)
    variables = [
        tf.Variable(draws.normal(size=shape).astype(np.float32) / 8)
        for shape in ((WIDTH, WIDTH), (WIDTH,), (WIDTH, 1))
    ]
    thinwire.tensorflow.broadcast_variables(variables)  # <-- the same start

    @tf.function
    def step(rows: tf.Tensor) -> tf.Tensor:
        """One step of SGD."""
        with tf.GradientTape() as tape:
            hidden = tf.nn.relu(rows @ variables[0] + variables[1])
            error = hidden @ variables[2] - tf.reduce_sum(tf.abs(rows), axis=1, keepdims=True) / 8
            loss = tf.reduce_mean(error**2)
        tape = thinwire.tensorflow.DistributedGradientTape(tape, options.codec)  # <-- the exchange
        for variable, gradient in zip(variables, tape.gradient(loss, variables)):
            variable.assign_sub(0.02 * gradient)
        return thinwire.tensorflow.all_reduce(loss, average=True)  # <-- the loss of all ranks

    for number in range(options.steps):
        rows = draws.normal(size=(options.batch, WIDTH)).astype(np.float32)
        loss = float(step(tf.constant(rows)))
        if group.rank == 0 and (number + 1) % 20 == 0:
            print(f"step {number + 1}, loss {loss:.4f}")


def parsed() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--codec", default="auto")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--batch", type=int, default=32, help="rows per rank and step")
    return parser.parse_args()


if __name__ == "__main__":
    main()
