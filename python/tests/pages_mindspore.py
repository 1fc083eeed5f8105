"""The names that blocks about MindSpore on the pages for users begin with, by page and heading."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import mindspore
import numpy as np
from mindspore import Tensor, nn
from mindspore.train import Model

import mindspore_models as models
import pages
import thinwire.mindspore
from servers import TOKEN, Job


def names(**more):
    """What every block may use."""
    return {"mindspore": mindspore, "thinwire": thinwire, "nn": nn, "Model": Model, **more}


def mnist(folder, num_shards=1, shard_id=0):
    """A dataset like MnistDataset's, of a few batches."""
    return models.dataset(models.batches(2, shard_id, num_shards))


def trained():
    network = models.network()
    model = Model(network, models.loss_function(), models.momentum(network))
    return names(MnistDataset=mnist, folder="data", model=model, epochs=1)


def in_a_loop():
    """As `trained`, then a loop of one's own."""
    network = models.network()
    optimizer = models.momentum(network)
    loss = models.loss_function()
    inputs, labels = map(Tensor, next(iter(models.batches(1))))

    def forward(inputs, labels):
        return found["scaler"].scale(loss(network(inputs), labels))

    def computed(found):
        gradient = mindspore.value_and_grad(forward, None, optimizer.parameters)
        found["gradients"] = gradient(inputs, labels)[1]

    found = {**trained(), "optimizer": optimizer, pages.BETWEEN: computed}
    return found


class Recommender(nn.Cell):
    """A network of items, whose table is made by the block."""

    def __init__(self):
        super().__init__()
        self.top = nn.Dense(64, 1)

    def construct(self, ids):
        return self.top(self.items(ids))


def served():
    job = Job(Path("recommender"))
    os.environ.update(job.environment)
    data = models.dataset([(np.arange(4, dtype=np.int32), np.ones((4, 1), np.float32))] * 2)
    more = {"job": job, "network": Recommender(), "loss": nn.MSELoss(), "data": data, "epochs": 1}
    return names(**more)


class Words(nn.Cell):
    """A table of words and a head."""

    def __init__(self):
        super().__init__()
        self.table, self.head = nn.Embedding(256, 16), nn.Dense(16, 256)

    def construct(self, ids):
        return self.head(self.table(ids))


def planned():
    return names(network=Words(), ids=Tensor(np.zeros((2, 16), np.int32)))


def imported():
    def trained(found):
        Path(".../step-000400").mkdir(parents=True)
        shutil.copy("model.safetensors", ".../step-000400/model.safetensors")

    cells = [nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Dense(4 * 8 * 8, 10)]
    images = np.zeros((2, 3, 8, 8), np.float32)
    return names(network=nn.SequentialCell(cells), images=images, **{pages.BETWEEN: trained})


def saved():
    exchange = thinwire.mindspore.GradExchange("int8")
    network = models.network()
    models.train_by_model(network, models.momentum(network), models.batches(2), [exchange])
    return names(exchange=exchange, folder=os.getcwd())


class Source:
    """Samples by number."""

    def __len__(self):
        return 1024

    def __getitem__(self, number):
        return np.full(models.WIDTHS[0], number / 1024, np.float32), np.int32(number % 10)


def elastic():
    from thinwire._core import Coordinator

    coordinator = Coordinator("127.0.0.1:0", TOKEN, state="coordinator")
    place = {"THINWIRE_COORDINATOR": coordinator.address, "THINWIRE_TOKEN": TOKEN}
    os.environ.update(place, THINWIRE_MEMBER="new")
    network = models.network()
    more = {"coordinator": coordinator, "network": network, "source": Source(), "epochs": 1}
    return names(optimizer=models.momentum(network), loss=models.loss_function(), **more)


def adapted():
    network = models.network()
    optimizer, loss = models.momentum(network), models.loss_function()
    average = thinwire.mindspore.exchange(optimizer.parameters, codec="int8")

    def next_rows(count):
        samples = [Source()[number] for number in range(count)]
        return tuple(Tensor(np.stack(each)) for each in zip(*samples))

    def forward(inputs, labels):
        return loss(network(inputs), labels)

    gradient_function = mindspore.value_and_grad(forward, None, optimizer.parameters)
    more = {"gradient_function": gradient_function, "next_rows": next_rows, "average": average}
    return names(ms=mindspore, ops=mindspore.ops, optimizer=optimizer, **more)


def run(folder, prepared, left_out):
    """Runs the blocks under these headings, each with the names that a function of this file gives."""
    os.chdir(folder)
    functions = {place: globals()[name] for place, name in prepared.items()}
    return pages.run("mindspore", functions, left_out)
