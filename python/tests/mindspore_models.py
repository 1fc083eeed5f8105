"""What the tests of thinwire.mindspore train: a small network, its data, and every way to train it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import mindspore as ms
import numpy as np
from mindspore import nn, ops
from mindspore.train import Callback, Model

import thinwire
import thinwire.mindspore

MODES = {"graph": ms.GRAPH_MODE, "pynative": ms.PYNATIVE_MODE}
BATCH = 32
WIDTHS = (64, 128, 64, 10)


def use(mode: str) -> None:
    """Switches to a mode; in PyNative operators run at once, which costs less on few cores."""
    ms.set_context(mode=MODES[mode])
    ms.runtime.launch_blocking()


def network(seed: int = 0) -> nn.Cell:
    """A perceptron whose parameters depend on the seed alone."""
    generator = np.random.default_rng(seed)
    layers = []
    for inputs, outputs in zip(WIDTHS, WIDTHS[1:]):
        weight = generator.standard_normal((outputs, inputs)) / np.sqrt(inputs)
        bias = generator.standard_normal(outputs) * 0.01
        layers += [nn.Dense(inputs, outputs, tensor(weight), tensor(bias)), nn.ReLU()]
    return nn.SequentialCell(layers[:-1])


def momentum(cell: nn.Cell) -> nn.Optimizer:
    """The optimizer of all comparisons."""
    return nn.Momentum(cell.trainable_params(), learning_rate=0.05, momentum=0.9)


class OnStep(Callback):
    """Calls a function with the number of each step of Model.train before it begins."""

    def __init__(self, function) -> None:
        super().__init__()
        self.function, self.step = function, 0

    def on_train_step_begin(self, run_context) -> None:
        self.function(self.step)
        self.step += 1


def loss_function() -> nn.Cell:
    """Cross entropy, the mean over the batch."""
    return nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")


def batches(steps: int, rank: int = 0, world: int = 1) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Inputs and labels of each step: this rank's part of the joint batch."""
    generator = np.random.default_rng(7)
    part = slice(rank * BATCH // world, (rank + 1) * BATCH // world)
    for _ in range(steps):
        inputs = generator.standard_normal((BATCH, WIDTHS[0])).astype(np.float32)
        labels = generator.integers(0, WIDTHS[-1], BATCH).astype(np.int32)
        yield inputs[part], labels[part]


def train_by_model(cell: nn.Cell, optimizer: nn.Optimizer, data, callbacks: list[Callback]) -> None:
    """Model.train, one epoch."""
    model = Model(cell, loss_function(), optimizer)
    model.train(1, dataset(data), callbacks=callbacks, dataset_sink_mode=False)


def dataset(data) -> ms.dataset.Dataset:
    """Batches as MindSpore wants them; they are made before anything is trained."""
    examples = list(data)
    return ms.dataset.GeneratorDataset(
        lambda: iter(examples), ["inputs", "labels"], shuffle=False, num_parallel_workers=1
    )


def train_by_cell(cell: nn.Cell, optimizer: nn.Optimizer, data, reducer: nn.Cell | None) -> None:
    """nn.TrainOneStepCell."""
    step = nn.TrainOneStepCell(nn.WithLossCell(cell, loss_function()), optimizer)
    if reducer is not None:
        step.grad_reducer = reducer
    for inputs, labels in data:
        step(ms.Tensor(inputs), ms.Tensor(labels))


def train_by_loop(cell: nn.Cell, optimizer: nn.Optimizer, data, average) -> None:
    """value_and_grad, with a call between gradients and optimizer."""
    loss = loss_function()

    def forward(inputs, labels):
        return loss(cell(inputs), labels)

    gradient = ms.value_and_grad(forward, None, optimizer.parameters)
    for inputs, labels in data:
        _, gradients = gradient(ms.Tensor(inputs), ms.Tensor(labels))
        optimizer(average(gradients))


def train_by_jit(cell: nn.Cell, optimizer: nn.Optimizer, data, reducer: nn.Cell) -> None:
    """The whole step as one compiled function."""
    loss = loss_function()

    def forward(inputs, labels):
        return loss(cell(inputs), labels)

    gradient = ms.value_and_grad(forward, None, optimizer.parameters)

    @ms.jit
    def step(inputs, labels):
        value, gradients = gradient(inputs, labels)
        return ops.depend(value, optimizer(reducer(gradients)))

    for inputs, labels in data:
        step(ms.Tensor(inputs), ms.Tensor(labels))


def trained(way: str, codec: str, group: thinwire.Group, steps: int) -> nn.Cell:
    """A network after `steps` steps on this rank's part of the data, averaged in one of the WAYS.

    Every rank begins with another network, and each way has to make them rank 0's.
    """
    cell = network(seed=group.rank)
    optimizer = momentum(cell)
    data = batches(steps, group.rank, group.world)
    WAYS[way](cell, optimizer, data, codec, group)
    return cell


def callback(cell, optimizer, data, codec, group) -> None:
    """Model.train with our callback."""
    exchange = thinwire.mindspore.GradExchange(codec, group)
    train_by_model(cell, optimizer, data, [exchange])


def step_cell(cell, optimizer, data, codec, group) -> None:
    """TrainOneStepCell with our reducer."""
    thinwire.mindspore.broadcast_parameters(optimizer.parameters, group)
    reducer = thinwire.mindspore.reducer(optimizer.parameters, codec, group)
    train_by_cell(cell, optimizer, data, reducer)


def loop(cell, optimizer, data, codec, group) -> None:
    """A loop in Python with our exchange."""
    thinwire.mindspore.broadcast_parameters(optimizer.parameters, group)
    average = thinwire.mindspore.exchange(optimizer.parameters, codec, group)
    train_by_loop(cell, optimizer, data, average)


def jit(cell, optimizer, data, codec, group) -> None:
    """A compiled step with our reducer in it."""
    thinwire.mindspore.broadcast_parameters(optimizer.parameters, group)
    reducer = thinwire.mindspore.reducer(optimizer.parameters, codec, group)
    train_by_jit(cell, optimizer, data, reducer)


def held(cell, optimizer, data, codec, group) -> None:
    """Model.train with our optimizer around the other."""
    wrapped = thinwire.mindspore.SynchronousSGD(optimizer, codec, group)
    train_by_model(cell, wrapped, data, [])


WAYS = {"callback": callback, "cell": step_cell, "loop": loop, "jit": jit, "optimizer": held}


def tensor(array: np.ndarray, dtype=ms.float32) -> ms.Tensor:
    """A tensor of these values."""
    return ms.Tensor(np.asarray(array, np.float32)).astype(dtype)


def arrays(cell: nn.Cell) -> list[np.ndarray]:
    """Copies of all parameters."""
    return [parameter.asnumpy().copy() for parameter in cell.trainable_params()]


def fingerprint(cell: nn.Cell) -> str:
    """A hash of all parameters, bit for bit."""
    return hashlib.sha256(b"".join(array.tobytes() for array in arrays(cell))).hexdigest()
