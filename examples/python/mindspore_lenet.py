"""LeNet on handwritten digits, trained by Model.train; Thinwire is the lines marked with an arrow.

    cd examples/python
    msrun --worker_num=2 --local_worker_num=2 --join=True --log_dir=/tmp/msrun mindspore_lenet.py
    thinwire run --ranks 2 -- python mindspore_lenet.py --data mnist

Under msrun rank 0 writes to /tmp/msrun/worker_0.log; `thinwire` is the command-line tool, which the wheel
does not hold (docs/python.md).
--data is a folder with images and labels as MNIST has them (*-images-idx3-ubyte.gz); without it, the
digits are made here. Each rank trains on its part; rank 0 prints the accuracy on digits that nobody
has trained on.
"""

import argparse
import gzip
from pathlib import Path

import mindspore as ms
import numpy as np
from mindspore import nn
from mindspore.train import Model

import thinwire
import thinwire.mindspore

SIDE = 28
CLASSES = 10


class LeNet(nn.Cell):
    """Two convolutions and three dense layers."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.SequentialCell(
            nn.Conv2d(1, 6, 5, pad_mode="same"),
            nn.ReLU(),
            nn.MaxPool2d(2, 2),
            nn.Conv2d(6, 16, 5, pad_mode="valid"),
            nn.ReLU(),
            nn.MaxPool2d(2, 2),
            nn.Flatten(),
        )
        self.classes = nn.SequentialCell(
            nn.Dense(400, 120), nn.ReLU(), nn.Dense(120, 84), nn.ReLU(), nn.Dense(84, CLASSES)
        )

    def construct(self, images):
        """Scores of the classes: batch x 10."""
        return self.classes(self.features(images))


def main() -> None:
    """Trains on every rank of the job."""
    options = parsed()
    ms.set_context(mode=ms.GRAPH_MODE if options.mode == "graph" else ms.PYNATIVE_MODE)
    ms.set_seed(1)
    group = thinwire.init()  # <-- who is who, from the launcher's environment
    images, labels = digits(options.data) if options.data else made_digits(2000)
    images, labels = images[: options.images], labels[: options.images]
    held_out = len(images) // 5
    mine = slice(held_out + group.rank, None, group.world)
    training = dataset(images[mine], labels[mine], options.batch)

    network = LeNet()
    optimizer = nn.Adam(network.trainable_params(), learning_rate=2e-3)
    loss = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
    model = Model(network, loss, optimizer)
    exchange = thinwire.mindspore.GradExchange(options.codec, group)  # <-- the exchange
    model.train(options.epochs, training, callbacks=[exchange], dataset_sink_mode=False)

    if group.rank == 0:
        scores = network(ms.Tensor(images[:held_out])).asnumpy()
        right = float(np.mean(scores.argmax(axis=1) == labels[:held_out]))
        print(
            f"{group.world} ranks, codec {options.codec}: {100 * right:.1f} % of {held_out} right"
        )


def parsed() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="a folder with images and labels")
    parser.add_argument("--images", type=int, help="how many of them to use")
    parser.add_argument("--codec", default="auto")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch", type=int, default=32, help="images per rank and step")
    parser.add_argument("--mode", choices=["graph", "pynative"], default="graph")
    return parser.parse_args()


def digits(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """Images, count x 1 x 28 x 28 from 0 to 1, and labels, as MNIST's files have them."""
    images = np.frombuffer(content(folder, "*-images-idx3-ubyte.gz")[16:], np.uint8)
    labels = np.frombuffer(content(folder, "*-labels-idx1-ubyte.gz")[8:], np.uint8)
    return images.reshape(-1, 1, SIDE, SIDE) / np.float32(255), labels.astype(np.int32)


def content(folder: Path, pattern: str) -> bytes:
    """The bytes of the one file in a folder that has such a name; ends the program without one."""
    files = sorted(folder.glob(pattern))
    if len(files) != 1:
        raise SystemExit(f"{len(files) or 'no'} {pattern} in {folder}, expected one")
    return gzip.decompress(files[0].read_bytes())


def made_digits(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Ten blurred patterns, each image one of them under noise."""
    generator = np.random.default_rng(0)
    coarse = generator.random((CLASSES, 7, 7)) > 0.5
    patterns = np.kron(coarse, np.ones((4, 4)))
    labels = generator.integers(0, CLASSES, count).astype(np.int32)
    images = patterns[labels] + generator.standard_normal((count, SIDE, SIDE))
    return images.reshape(-1, 1, SIDE, SIDE).astype(np.float32), labels


def dataset(images: np.ndarray, labels: np.ndarray, batch: int) -> ms.dataset.Dataset:
    """Whole batches, shuffled in each epoch."""
    pairs = ms.dataset.NumpySlicesDataset((images, labels), ["images", "labels"], shuffle=True)
    return pairs.batch(batch, drop_remainder=True)


if __name__ == "__main__":
    main()
