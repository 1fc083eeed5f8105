"""A GPT over characters in an elastic job: it trains on while ranks die, leave and join.

    thinwire run --ranks 2:4 --restarts 10 -- python examples/python/jax_elastic.py

`kill -9` of any rank costs the step under way, which the others do again; SIGTERM lets a rank leave. Rank 0
prints the loss over the part of the text that is not trained on, as JSON.
"""

import argparse
import json
import logging
import os
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax_gpt import GPT, read, sums

import thinwire.jax


class Record:
    """The samples of every step that this rank tries, and the steps that it has applied, as JSON."""

    def __init__(self, folder: Path | None) -> None:
        """Records nothing without a folder."""
        self.file = folder and folder.joinpath(f"{os.getpid()}.json").open("w")

    def write(self, **line: object) -> None:
        """Writes a line at once, so that a killed rank has written all that it has sent."""
        if self.file:
            print(json.dumps(line), file=self.file, flush=True)


def main() -> None:
    """Trains as one rank of the job."""
    options = parsed()
    logging.basicConfig(level=logging.INFO, format="%(message)s")  # changes of the members
    logging.getLogger("jax").setLevel(logging.WARNING)
    text = read(options.data) if options.data else sums(20_000)
    vocabulary = sorted(set(text))
    characters = np.array([vocabulary.index(character) for character in text])
    count = (len(characters) - 1) // options.context
    rows = characters[: count * options.context].reshape(count, options.context)
    cut = count * 9 // 10

    model = GPT(len(vocabulary), options.width, options.blocks)
    params = model.init(jax.random.key(0), jnp.zeros((1, options.context - 1), int))
    optimizer = optax.adamw(options.rate)

    def losses(params, rows):
        scores = model.apply(params, rows[:, :-1])
        each = optax.softmax_cross_entropy_with_integer_labels(scores, rows[:, 1:])
        return each.mean(axis=1)

    @jax.jit
    def gradient(state, numbers, rows, weights):
        return jax.value_and_grad(lambda params: weights @ losses(params, rows))(state[0])

    @jax.jit
    def update(state, gradients):
        params, moments = state
        updates, moments = optimizer.update(gradients, moments, params)
        return optax.apply_updates(params, updates), moments

    state = params, optimizer.init(params)
    elastic = thinwire.jax.Elastic(state, params, batch=options.batch, codec=options.codec)
    loader = elastic.loader((np.arange(cut), rows[:cut]), seed=0)

    record, times = Record(options.record), []
    begun = time.monotonic()
    for _ in loader.passes(options.passes):
        for numbers, batch in loader:
            place, since, done = elastic.place, time.monotonic(), elastic.steps
            record.write(step=done, epoch=place.epoch, samples=numbers.tolist())
            elastic.step(gradient, update, numbers, batch)
            if elastic.steps > done:  # not void
                record.write(applied=done, epoch=place.epoch)
                times.append(time.monotonic() - since)
    if elastic.rank == 0:
        last = {"step": elastic.steps, "at_s": time.monotonic() - begun}
        last["value"] = float(jax.jit(losses)(elastic.state[0], rows[cut:]).mean())
        step_s = sorted(times)[len(times) // 2] if times else None
        print(json.dumps({"validation": [last], "time": {"step_s": step_s}}))


def parsed() -> argparse.Namespace:
    """The options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=Path, help="a text file")
    parser.add_argument("--record", type=Path, help="a folder for the samples of every step")
    parser.add_argument("--codec", default="int8", help="none, int8, int4, powersgd:4, auto, ...")
    numbers = {"passes": 2, "batch": 32, "context": 64, "width": 64, "blocks": 2}
    for name, value in numbers.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--rate", type=float, default=3e-3)
    options = parser.parse_args()
    if options.record:
        options.record.mkdir(parents=True, exist_ok=True)
    return options


if __name__ == "__main__":
    main()
