"""Small networks of MindSpore that become model files, and how MindSpore itself trains them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import mint, nn, ops
from mindspore.experimental import optim

import import_law as law

CLASSES, VOCABULARY, WIDTH = 10, 256, 32


class LeNet(nn.Cell):
    """LeNet-5 as MindSpore's documentation has it."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 6, 5, pad_mode="valid")
        self.conv2 = nn.Conv2d(6, 16, 5, pad_mode="valid", has_bias=True)
        self.relu, self.pool, self.flatten = nn.ReLU(), nn.MaxPool2d(2, 2), nn.Flatten()
        self.fc1, self.fc2 = nn.Dense(16 * 5 * 5, 120), nn.Dense(120, 84)
        self.fc3 = nn.Dense(84, CLASSES)

    def construct(self, x):
        x = self.pool(self.relu(self.conv1(x)))
        x = self.flatten(self.pool(self.relu(self.conv2(x))))
        return self.fc3(self.relu(self.fc2(self.relu(self.fc1(x)))))


class Bottleneck(nn.Cell):
    """Fewer channels, a wider convolution, and four times as many channels, beside what came in."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        out = 4 * width
        self.conv1, self.bn1 = nn.Conv2d(channels, width, 1), nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, pad_mode="pad", padding=1)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3, self.bn3 = nn.Conv2d(width, out, 1), nn.BatchNorm2d(out)
        self.relu, self.shortcut = nn.ReLU(), None
        if stride != 1 or channels != out:
            convolution = nn.Conv2d(channels, out, 1, stride)
            self.shortcut = nn.SequentialCell(convolution, nn.BatchNorm2d(out))

    def construct(self, x):
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.relu(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y))
        if self.shortcut is not None:
            x = self.shortcut(x)
        return self.relu(y + x)


class ResNet(nn.Cell):
    """ResNet-50 in its usual shape, or a small one."""

    def __init__(
        self, blocks: Iterable[int] = (3, 4, 6, 3), width: int = 64, classes: int = 1000
    ) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 7, 2, pad_mode="pad", padding=3)
        self.bn1, self.relu = nn.BatchNorm2d(width), nn.ReLU()
        self.pool = nn.MaxPool2d(3, 2, pad_mode="pad", padding=1)
        layers, channels = [], width
        for stage, count in enumerate(blocks):
            for at in range(count):
                stride = 2 if stage > 0 and at == 0 else 1
                layers.append(Bottleneck(channels, width << stage, stride))
                channels = 4 * width << stage
        self.layers, self.mean = nn.SequentialCell(layers), nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Dense(channels, classes)

    def construct(self, x):
        x = self.layers(self.pool(self.relu(self.bn1(self.conv1(x)))))
        return self.fc(ops.flatten(self.mean(x)))


class Attention(nn.Cell):
    """Every token's mean of the values of all tokens."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.query, self.key = nn.Dense(width, width), nn.Dense(width, width)
        self.value, self.output = nn.Dense(width, width), nn.Dense(width, width)
        self.heads, self.size = heads, width // heads

    def split(self, x):
        batch, tokens, _ = x.shape
        return x.reshape(batch, tokens, self.heads, self.size).transpose(0, 2, 1, 3)

    def construct(self, x):
        q, k, v = self.split(self.query(x)), self.split(self.key(x)), self.split(self.value(x))
        scores = ops.matmul(q, k.swapaxes(-1, -2)) / self.size**0.5
        mixed = ops.matmul(ops.softmax(scores, -1), v)
        return self.output(mixed.transpose(0, 2, 1, 3).reshape(x.shape))


class Layer(nn.Cell):
    """Attention and a perceptron, each with a norm after it."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention, self.norm1 = Attention(width, heads), nn.LayerNorm((width,))
        self.up, self.down = nn.Dense(width, 4 * width), nn.Dense(4 * width, width)
        self.gelu, self.norm2 = nn.GELU(approximate=False), nn.LayerNorm((width,))

    def construct(self, x):
        x = self.norm1(x + self.attention(x))
        return self.norm2(x + self.down(self.gelu(self.up(x))))


class Bert(nn.Cell):
    """BERT with its head of words, which is the table of words again."""

    def __init__(
        self, width: int = WIDTH, layers: int = 2, heads: int = 4, vocabulary: int = VOCABULARY
    ) -> None:
        super().__init__()
        self.words, self.types = nn.Embedding(vocabulary, width), nn.Embedding(2, width)
        self.places = nn.Embedding(2 * law.TOKENS, width)
        self.norm = nn.LayerNorm((width,), epsilon=1e-12)
        self.layers = nn.SequentialCell([Layer(width, heads) for _ in range(layers)])
        self.transform, self.gelu = nn.Dense(width, width), nn.GELU()
        self.head_norm = nn.LayerNorm((width,), epsilon=1e-12)
        self.bias = ms.Parameter(ops.zeros(vocabulary), name="bias")

    def construct(self, ids):
        x = self.words(ids) + self.places(ops.arange(ids.shape[1]))
        x = self.layers(self.norm(x + self.types(ops.zeros_like(ids))))
        x = self.head_norm(self.gelu(self.transform(x)))
        return ops.matmul(x, self.words.embedding_table.T) + self.bias


class Encoder(nn.Cell):
    """MindSpore's own layers of a transformer, which see earlier tokens, and a head of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, WIDTH)
        layer = nn.TransformerEncoderLayer(
            WIDTH, 4, 64, dropout=0.0, activation="gelu", batch_first=True
        )
        self.encoder, self.head = nn.TransformerEncoder(layer, 2), nn.Dense(WIDTH, VOCABULARY)
        hidden = np.triu(np.full((law.TOKENS, law.TOKENS), -np.inf, np.float32), 1)
        self.mask = ms.Tensor(hidden)

    def construct(self, ids):
        return self.head(self.encoder(self.words(ids), self.mask))


class Mobile(nn.Cell):
    """What networks for small devices have, with sizes that differ by direction, and one of `mint`'s."""

    def __init__(self) -> None:
        super().__init__()
        # It pads by itself, on two sides differently.
        self.stem = nn.Conv2d(3, 8, (3, 5), (1, 2), has_bias=True)
        self.depthwise = nn.Conv2d(8, 8, 3, pad_mode="pad", padding=(1, 1, 2, 1), group=8)
        self.norm, self.gate = nn.BatchNorm2d(8), nn.Dense(8, 8)
        self.means = nn.AvgPool2d(3, 2, pad_mode="pad", padding=1)
        self.highest = nn.MaxPool2d((3, 2), 2, pad_mode="same")
        self.linear, self.inner = mint.nn.Linear(600, 32), nn.LayerNorm((32,))
        self.scale = ms.Parameter(ops.ones(32), name="scale.gamma")
        self.head = nn.Dense(64, CLASSES)

    def construct(self, x):
        x = self.norm(self.depthwise(ops.relu6(self.stem(x))))
        gate = ops.hardsigmoid(self.gate(x.mean((2, 3))))
        x = ops.hardswish(x) * gate.expand_dims(-1).expand_dims(-1)
        x = self.highest(self.means(x))
        low, high = ops.split(x, 4, 1)
        x = ops.cat([low[:, 1:], high, x], 1)
        x = self.inner(self.linear(x.flatten(start_dim=1)))
        x = ops.gelu(x * self.scale) - ops.tanh(x) / 2.0
        return self.head(ops.cat([ops.sigmoid(x), ops.silu(x) + x.pow(2) - 0.5], -1))


class Oddity(nn.Cell):
    """One thing that a model file has not."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self.what, self.norm = what, mint.nn.LayerNorm(32)  # which has no kernel for CPUs

    def construct(self, x):
        if self.what == "roll":
            return ops.roll(x, 1, 1)
        if self.what == "half":
            return x.astype(ms.float16)
        if self.what == "choose":
            return x if x.sum() > 0 else -x
        if self.what == "masked":
            hidden = ms.Tensor(np.triu(np.ones((32, 32), bool), 1))
            return ops.matmul(ops.softmax(ops.masked_fill(x, hidden, -1e9)), self.norm(x))
        if self.what == "two":
            return x + 1, x
        return unknown(x)  # noqa: F821


class Odd(nn.Cell):
    """A network with an oddity in it."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self.inner = Oddity(what)

    def construct(self, x):
        return self.inner(x)


class Words(nn.Cell):
    """A table whose operator has no kernel for CPUs."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.table, self.head = mint.nn.Embedding(8, 4, **options), nn.Dense(4, 8)

    def construct(self, x):
        return self.head(self.table(x))


def small_resnet() -> ResNet:
    return ResNet((1, 1), 8, CLASSES)


NETWORKS = {
    "lenet": LeNet,
    "resnet": small_resnet,
    "mobile": Mobile,
    "bert": Bert,
    "encoder": Encoder,
}


def built(name: str) -> nn.Cell:
    """A network in training in which everything matters: gains and biases are none of one and zero."""
    network = NETWORKS[name]()
    draw = np.random.default_rng(5)
    for parameter in network.trainable_params():
        value = draw.standard_normal(parameter.shape)
        if parameter.ndim == 1:
            value = 0.1 * value + parameter.name.endswith("gamma")
        else:
            # Under batch norm weights may be large, and steps are small beside them.
            large = name == "resnet" and parameter.ndim == 4
            value *= (9.0 if large else 1.5) / np.sqrt(np.prod(parameter.shape[1:]))
        parameter.set_data(ms.Tensor(value.astype(np.float32)))
    return network.set_train()


def example(shape: Sequence[int]) -> ms.Tensor:
    """Two samples of this shape: tokens or an image."""
    return ms.Tensor(np.zeros((2, *shape), np.int32 if len(shape) == 1 else np.float32))


def trained(name: str, batches: Any, pieces: int) -> law.Training:
    """What MindSpore finds in a training whose steps are made of `pieces` micro-batches."""
    ms.runtime.launch_blocking()
    network, criterion = built(name), nn.CrossEntropyLoss()
    parameters = network.trainable_params()
    decayed = [parameter for parameter in parameters if parameter.ndim > 1]
    others = [parameter for parameter in parameters if parameter.ndim <= 1]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    optimizer = optim.AdamW(groups, lr=law.RATE, betas=(0.9, 0.95), eps=1e-8)

    def forward(x, labels):
        logits = ops.cat([network(part) for part in ops.chunk(x, pieces)])
        return criterion(logits.reshape(-1, logits.shape[-1]), labels.reshape(-1))

    differentiated = ms.value_and_grad(forward, None, optimizer.parameters)
    if name == "bert":  # the largest, each step of which PyNative mode puts together anew
        differentiated = ms.jit(differentiated)
    losses, gradients, first = [], {}, {}
    for step, (x, labels) in zip(range(law.STEPS), batches, strict=False):
        x = ms.Tensor(x if x.dtype == np.float32 else x.astype(np.int32))
        loss, gradient = differentiated(x, ms.Tensor(labels.astype(np.int32)))
        losses.append(float(loss.asnumpy()))
        for group in optimizer.param_groups:
            ops.assign(group["lr"], ms.Tensor(law.RATE * (step + 1) / law.WARMUP, ms.float32))
        optimizer(gradient)
        if step == 0:
            names = [parameter.name for parameter in optimizer.parameters]
            gradients = {name: value.asnumpy() for name, value in zip(names, gradient)}
            first = {value.name: value.asnumpy().copy() for value in parameters}
    return law.Training(losses, gradients, first)
