"""A transformer over characters whose whole step is one graph; Thinwire is the line with an arrow.

    cd examples/python
    msrun --worker_num=2 --local_worker_num=2 --join=True --log_dir=/tmp/msrun mindspore_transformer.py
    thinwire run --ranks 2 -- python mindspore_transformer.py --data book.txt

Under msrun rank 0 writes to /tmp/msrun/worker_0.log; `thinwire` is the command-line tool, which the wheel
does not hold (docs/python.md).
Without --data it learns sums that it makes itself. Rank 0 prints the mean loss of all ranks.
"""

import argparse
import random
from pathlib import Path

import mindspore as ms
import numpy as np
from mindspore import nn, ops

import thinwire
import thinwire.mindspore


class Block(nn.Cell):
    """Attention to what came before, then an MLP."""

    def __init__(self, width: int, heads: int, context: int) -> None:
        super().__init__()
        self.heads, self.width = heads, width
        self.before, self.between = nn.LayerNorm((width,)), nn.LayerNorm((width,))
        self.queries_keys_values = nn.Dense(width, 3 * width)
        self.out = nn.Dense(width, width)
        self.mlp = nn.SequentialCell(
            nn.Dense(width, 4 * width), nn.GELU(), nn.Dense(4 * width, width)
        )
        self.future = ms.Tensor(np.triu(np.full((context, context), -1e9, np.float32), 1))

    def construct(self, hidden):
        hidden = hidden + self.attention(self.before(hidden))
        return hidden + self.mlp(self.between(hidden))

    def attention(self, hidden):
        """What each place takes from itself and those before: batch x context x width."""
        batch, context, width = hidden.shape
        parts = self.queries_keys_values(hidden)
        parts = parts.reshape((batch, context, 3, self.heads, width // self.heads))
        queries, keys, values = parts.transpose((2, 0, 3, 1, 4))
        scores = ops.matmul(queries, keys.transpose((0, 1, 3, 2)))
        weights = ops.softmax(scores * (width // self.heads) ** -0.5 + self.future, -1)
        mixed = ops.matmul(weights, values).transpose((0, 2, 1, 3))
        return self.out(mixed.reshape((batch, context, width)))


class Transformer(nn.Cell):
    """Scores of the next character at every place."""

    def __init__(self, vocabulary: int, width: int, blocks: int, context: int) -> None:
        super().__init__()
        self.characters = nn.Embedding(vocabulary, width)
        self.places = ms.Parameter(ops.zeros((context, width), ms.float32), name="places")
        self.blocks = nn.SequentialCell([Block(width, 4, context) for _ in range(blocks)])
        self.norm = nn.LayerNorm((width,))
        self.head = nn.Dense(width, vocabulary, has_bias=False)

    def construct(self, characters):
        """Batch x context x vocabulary."""
        hidden = self.characters(characters) + self.places
        return self.head(self.norm(self.blocks(hidden)))


class Loss(nn.Cell):
    """The mean cross entropy of the next characters."""

    def __init__(self, network: nn.Cell) -> None:
        super().__init__(auto_prefix=False)
        self.network = network

    def construct(self, characters, following):
        scores = self.network(characters)
        return ops.cross_entropy(scores.reshape((-1, scores.shape[-1])), following.reshape((-1,)))


def main() -> None:
    """Trains on every rank of the job."""
    options = parsed()
    ms.set_context(mode=ms.GRAPH_MODE)
    ms.set_seed(1)
    group = thinwire.init()
    text = read(options.data) if options.data else sums(20_000)
    vocabulary = sorted(set(text))
    characters = np.array([vocabulary.index(character) for character in text], np.int32)

    network = Transformer(len(vocabulary), options.width, options.blocks, options.context)
    optimizer = nn.Adam(network.trainable_params(), learning_rate=options.rate)
    thinwire.mindspore.broadcast_parameters(optimizer.parameters, group)
    step = nn.TrainOneStepCell(Loss(network), optimizer)
    step.grad_reducer = thinwire.mindspore.reducer(  # <-- Thinwire
        optimizer.parameters, options.codec, group
    )

    generator = np.random.default_rng(group.rank)
    with thinwire.mindspore.guard(step.grad_reducer):
        for number in range(1, options.steps + 1):
            inputs, following = batch(characters, options.batch, options.context, generator)
            loss = step(ms.Tensor(inputs), ms.Tensor(following)).asnumpy()
            if number % 20 == 0 or number == options.steps:
                mean = group.all_reduce(np.array([loss], np.float32), average=True)[0]
                if group.rank == 0:
                    print(f"step {number}: loss {mean:.3f}", flush=True)


def parsed() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="a text file")
    parser.add_argument("--codec", default="auto")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--batch", type=int, default=8, help="texts per rank and step")
    parser.add_argument("--context", type=int, default=32)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--blocks", type=int, default=2)
    parser.add_argument("--rate", type=float, default=3e-3)
    return parser.parse_args()


def read(file: Path) -> str:
    """The text of a file; ends the program without one."""
    try:
        return file.read_text()
    except OSError as error:
        raise SystemExit(f"cannot read {file}: {error.strerror}") from None


def sums(count: int) -> str:
    """Text that can be learnt: 12+7=19, line by line."""
    generator = random.Random(0)
    pairs = [(generator.randrange(20), generator.randrange(20)) for _ in range(count)]
    return "".join(f"{a}+{b}={a + b}\n" for a, b in pairs)


def batch(characters, count, context, generator) -> tuple[np.ndarray, np.ndarray]:
    """Random pieces of the text, and the same one character later: count x context each."""
    starts = generator.integers(0, len(characters) - context - 1, count)
    pieces = np.stack([characters[start : start + context + 1] for start in starts])
    return np.ascontiguousarray(pieces[:, :-1]), np.ascontiguousarray(pieces[:, 1:])


if __name__ == "__main__":
    main()
