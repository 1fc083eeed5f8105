"""A GPT over characters in flax, trained by optax; Thinwire is the lines marked with an arrow.

    thinwire run -n 2 -- python examples/python/jax_gpt.py --steps 100
    thinwire run -n 2 -- python examples/python/jax_gpt.py --data book.txt --codec int4

Without --data it learns sums that it makes itself. Rank 0 prints the mean loss of all ranks.
"""

import argparse
import random
from pathlib import Path

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

import thinwire.jax


class Block(nn.Module):
    """Attention and an MLP."""

    width: int

    @nn.compact
    def __call__(self, hidden):
        mask = nn.make_causal_mask(hidden[..., 0])
        hidden += nn.MultiHeadDotProductAttention(num_heads=4)(nn.LayerNorm()(hidden), mask=mask)
        wide = nn.gelu(nn.Dense(4 * self.width)(nn.LayerNorm()(hidden)))
        return hidden + nn.Dense(self.width)(wide)


class GPT(nn.Module):
    """Scores of the next character at every place."""

    vocabulary: int
    width: int
    blocks: int

    @nn.compact
    def __call__(self, characters):
        hidden = nn.Embed(self.vocabulary, self.width)(characters)
        hidden += nn.Embed(1024, self.width)(jnp.arange(characters.shape[1]))
        for _ in range(self.blocks):
            hidden = Block(self.width)(hidden)
        return nn.Dense(self.vocabulary, use_bias=False)(nn.LayerNorm()(hidden))


def main() -> None:
    """Trains on every rank of the job."""
    options = parsed()
    group = thinwire.init()
    text = read(options.data) if options.data else sums(20_000)
    vocabulary = sorted(set(text))
    characters = np.array([vocabulary.index(character) for character in text])

    model = GPT(len(vocabulary), options.width, options.blocks)
    params = model.init(jax.random.key(0), jnp.zeros((1, options.context), int))
    params = thinwire.jax.broadcast(params)  # <-- Thinwire: rank 0's
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(options.rate))
    optimizer = thinwire.jax.averaged(optimizer, params, options.codec)  # <-- Thinwire
    state = optimizer.init(params)

    def mean_loss(params, rows):
        scores = model.apply(params, rows[:, :-1])
        return optax.softmax_cross_entropy_with_integer_labels(scores, rows[:, 1:]).mean()

    @jax.jit
    def train(params, state, rows):
        loss, gradients = jax.value_and_grad(mean_loss)(params, rows)
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, loss

    draw = np.random.default_rng(group.rank)
    for step in range(1, options.steps + 1):
        starts = draw.integers(len(characters) - options.context, size=options.batch)
        rows = np.stack([characters[start : start + options.context + 1] for start in starts])
        with thinwire.jax.guard(optimizer):  # <-- Thinwire: errors of one line
            params, state, loss = train(params, state, rows)
        if step == 1 or step % 20 == 0 or step == options.steps:
            report(group, step, loss)


def parsed() -> argparse.Namespace:
    """What was asked for."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=Path, help="a text file")
    parser.add_argument("--codec", default="auto", help="none, int8, int4, powersgd:4, auto, ...")
    numbers = {"steps": 200, "batch": 16, "context": 64, "width": 64, "blocks": 2}
    for name, value in numbers.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--rate", type=float, default=3e-3)
    return parser.parse_args()


def read(file: Path) -> str:
    """The text of a file; ends the program without one."""
    try:
        return file.read_text()
    except OSError as error:
        raise SystemExit(f"cannot read {file}: {error.strerror}") from None


def sums(count: int) -> str:
    """So many sums of two numbers, one per line."""
    numbers = random.Random(0)
    pairs = [(numbers.randrange(50), numbers.randrange(50)) for _ in range(count)]
    return "".join(f"{first}+{second}={first + second}\n" for first, second in pairs)


def report(group: thinwire.Group, step: int, loss: jax.Array) -> None:
    """Prints the mean loss of all ranks."""
    mean = group.all_reduce(np.array(loss, np.float32), average=True)
    if group.rank == 0:
        print(f"step {step} loss {mean.item():.3f}", flush=True)


if __name__ == "__main__":
    main()
