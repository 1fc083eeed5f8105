"""Losses of trainings of 60 to 200 steps under `auto` and under `int8`, over those of `none`.

    thinwire run --ranks 2 -- python bench/python/short_trainings.py --data book.txt --digits MNIST

trains a GPT, an LSTM and a CNN in torch, and a transformer (twice) and LeNet-5 in MindSpore, each from the
same weights on the same batches, over an emulated link on which `auto` uses its whole error budget. Rank 0
prints a row per training: the validation loss of `none`, what the others lose of it in percent, and the
codecs of most elements in a few steps of `auto`.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import thinwire

sys.path.append(str(Path(__file__).parents[2] / "examples" / "python"))

TRAININGS = [
    ("torch", "gpt", 120),
    ("torch", "lstm", 200),
    ("torch", "cnn", 60),
    ("mindspore", "transformer", 120),
    ("mindspore", "transformer", 60),
    ("mindspore", "lenet5", 200),
]
METHODS = ("none", "int8", "auto")
# Steps after which the codecs of `auto` are printed.
SHOWN = (10, 40, 59, 110, 190)

Step = Callable[[int], dict[str, Any]]


def main() -> None:
    options = arguments()
    group = thinwire.init(link=options.link)
    with torch_group() if "torch" in options.frameworks.split(",") else contextlib.nullcontext():
        compare(group, options)
    group.close()


def torch_group() -> contextlib.AbstractContextManager[None]:
    """The group of torch, which a job without trainings in torch does not import."""
    import ranks

    return ranks.group()


def compare(group: thinwire.Group, options: argparse.Namespace) -> None:
    """Runs every training under every method, and prints the table on rank 0."""
    if group.rank == 0:
        print(
            "| training | steps | none | int8 | auto | codecs of auto |\n|---|--:|--:|--:|--:|---|"
        )
    for framework, model, steps in TRAININGS:
        if framework not in options.frameworks.split(","):
            continue
        losses: dict[str, list[float]] = collections.defaultdict(list)
        for seed in range(options.seeds):
            for method in METHODS:
                options.steps = steps
                of_this = group.split(f"{framework} {model} {steps} {seed} {method}")
                loss, codecs = FRAMEWORKS[framework](model, method, seed, of_this, options)
                mean = group.all_reduce(np.array([loss], np.float32), average=True)[0]
                losses[method].append(float(mean))
        if group.rank == 0:
            print(row(f"{framework} {model}", steps, losses, codecs), flush=True)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", required=True, help="a text file")
    parser.add_argument("--digits", required=True, help="a folder with MNIST's files")
    parser.add_argument("--frameworks", default="torch,mindspore")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--link", default="20mbit", help="the bandwidth of a rank")
    return parser.parse_args()


def row(name: str, steps: int, losses: dict[str, list[float]], codecs: list[str]) -> str:
    """Losses of `none`, those of the others over them in percent, each seed by itself."""

    def over(method: str) -> str:
        pairs = zip(losses[method], losses["none"], strict=True)
        return ", ".join(f"{100 * (loss / raw - 1):+.2f} %" for loss, raw in pairs)

    raw = ", ".join(f"{loss:.3f}" for loss in losses["none"])
    cells = [name, str(steps), raw, over("int8"), over("auto"), ", ".join(codecs)]
    return f"| {' | '.join(cells)} |"


def in_torch(name: str, method: str, seed: int, group: thinwire.Group, options: argparse.Namespace):
    """Trains one of the models of the accuracy benchmark, by AdamW with a rate that rises and falls."""
    import accuracy
    import models
    import torch

    import thinwire.torch

    options.batch = accuracy.BATCH[name]
    model, data = models.trained(name, "small", seed, group.rank, options)
    wrapped = torch.nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
    hook, average = thinwire.torch.hook(codec=method, group=group)
    wrapped.register_comm_hook(hook, average)
    optimizer = torch.optim.AdamW(model.parameters())

    def step(number: int) -> dict[str, Any]:
        rate = accuracy.RATE[name] * accuracy.height(number, options.steps)
        for each in optimizer.param_groups:
            each["lr"] = rate
        given, wanted = data.draw("training")
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(wrapped(given), wanted).backward()
        optimizer.step()
        return hook.record()

    codecs = list(trained(step, options.steps))
    return accuracy.validate(model, data, accuracy.SAMPLES[name]), codecs


def in_mindspore(
    name: str, method: str, seed: int, group: thinwire.Group, options: argparse.Namespace
):
    """Trains the network of an example, by Adam at a constant rate."""
    import mindspore as ms
    import mindspore_lenet as lenet
    import mindspore_transformer as transformer
    from mindspore import nn

    import thinwire.mindspore

    ms.set_seed(seed + 1)
    if name == "transformer":
        text = Path(options.data).read_text()
        letters = {letter: code for code, letter in enumerate(sorted(set(text)))}
        data = np.array([letters[letter] for letter in text], np.int32)
        network: nn.Cell = transformer.Loss(transformer.Transformer(len(letters), 64, 2, 32))
        parts = {"training": data[: len(data) * 9 // 10], "validation": data[len(data) * 9 // 10 :]}

        def draw(part: str, count: int, generator: np.random.Generator):
            return transformer.batch(parts[part], count, 32, generator)

    else:
        images, labels = lenet.digits(Path(options.digits))
        loss = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
        network = nn.WithLossCell(as_published(lenet.LeNet()), loss)
        ranges = {"training": (0, 8000), "validation": (8000, len(images))}

        def draw(part: str, count: int, generator: np.random.Generator):
            chosen = generator.integers(*ranges[part], 4 * count)
            return images[chosen], labels[chosen]

    optimizer = nn.Adam(network.trainable_params(), learning_rate=3e-3)
    thinwire.mindspore.broadcast_parameters(optimizer.parameters, group)
    average = thinwire.mindspore.exchange(optimizer.parameters, codec=method, group=group)
    gradients_of = ms.value_and_grad(network, None, optimizer.parameters)
    generator = np.random.default_rng(1000 * seed + group.rank)

    def step(_: int) -> dict[str, Any]:
        given, wanted = draw("training", 8, generator)
        optimizer(average(gradients_of(ms.Tensor(given), ms.Tensor(wanted))[1]))
        return json.loads(average.synchronizer.record())

    codecs = list(trained(step, options.steps))
    generator = np.random.default_rng(5 + group.rank)
    network.set_train(False)
    batches = (draw("validation", 64, generator) for _ in range(8))
    losses = [float(network(ms.Tensor(x), ms.Tensor(y)).asnumpy()) for x, y in batches]
    return sum(losses) / len(losses), codecs


def as_published(network: Any) -> Any:
    """Gives LeNet the activations and the pooling of LeNet-5 ("Gradient-Based Learning Applied to Document
    Recognition", LeCun et al. 1998): they are smooth. Kinks make trainings drift apart by a tenth of such a
    small loss whatever is changed, which hides what a codec loses."""
    from mindspore import nn

    for cells in (network.features, network.classes):
        for index, cell in enumerate(cells):
            if isinstance(cell, nn.ReLU):
                cells[index] = nn.Tanh()
            elif isinstance(cell, nn.MaxPool2d):
                cells[index] = nn.AvgPool2d(2, 2)
    return network


def trained(step: Step, steps: int) -> Iterator[str]:
    """Takes the steps, and says of some of them which codec carried most elements."""
    for number in range(steps):
        buckets = step(number)["buckets"]
        if number in SHOWN:
            elements: collections.Counter[str] = collections.Counter()
            for bucket in buckets:
                elements[bucket["codec"]] += bucket["elements"]
            yield elements.most_common(1)[0][0]


FRAMEWORKS = {"torch": in_torch, "mindspore": in_mindspore}


if __name__ == "__main__":
    main()
