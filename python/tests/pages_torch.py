"""The names that blocks about PyTorch on the pages for users begin with, by page and heading."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import pages
import thinwire.torch
from servers import TOKEN, Job

WIDTH = 8


def layers() -> nn.Module:
    """A small model."""
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(WIDTH, 16), nn.Linear(16, WIDTH))


def names(**more):
    """What every block may use."""
    return {"torch": torch, "nn": nn, "dist": dist, "thinwire": thinwire, **more}


def gloo() -> None:
    """The process group of all ranks."""
    if not dist.is_initialized():
        dist.init_process_group("gloo")


def step(model: nn.Module) -> None:
    """A backward pass."""
    model(torch.randn(4, WIDTH)).square().mean().backward()


def own_loop():
    gloo()
    return names(DistributedDataParallel=DistributedDataParallel, model=layers())


def ddp():
    gloo()
    return names(model=DistributedDataParallel(layers()))


def adapted():
    """A model, and as many rows of a batch as are asked for."""
    gloo()
    model = layers()

    def next_rows(count):
        return torch.randn(count, WIDTH), torch.zeros(count, WIDTH)

    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    return names(model=model, optimizer=optimizer, next_rows=next_rows, loss=nn.MSELoss())


def on_hosts():
    """A model on two hosts of one rank, and micro-batches."""
    gloo()
    more = {"device": "cpu", "hosts": 2, "gpus": 1, "model": layers()}
    batches = [torch.randn(4, WIDTH) for _ in range(2)]
    return names(**more, micro_batches=batches, criterion=lambda found: found.square().mean())


class Writer:
    """A writer of TensorBoard that forgets."""

    def add_scalar(self, name, value, step):
        assert name.startswith("thinwire/") and value >= 0 and step == 0


def monitored():
    """A model with its hook, some batches, and a writer."""
    gloo()
    model = DistributedDataParallel(layers())
    hook = thinwire.torch.attach(model, codec="int8")
    batches = [torch.randn(4, WIDTH) for _ in range(3)]
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    return names(model=model, hook=hook, batches=batches, optimizer=optimizer, writer=Writer())


def saved():
    """A hook after a step, and its state in files of all ranks."""
    gloo()
    model = DistributedDataParallel(layers())
    hook = thinwire.torch.attach(model, codec="int8")
    step(model)
    torch.save({"hook": hook.state_dict()}, f"{dist.get_rank()}.pt")
    dist.barrier()
    return names(model=model, hook=hook, folder="checkpoint")


class Training:
    """A training of a few steps, and its state."""

    def __init__(self):
        self.step, self.model = 0, None

    def run(self):
        self.step += 1
        step(self.model)

    def state_dict(self):
        return {"step": self.step}

    def load_state_dict(self, state):
        self.step = state["step"]


def restarted():
    """A checkpoint of step 3, and a process without a process group."""
    import torch.distributed.checkpoint as checkpoint

    begun = saved()
    training, folder = Training(), Path("steps")
    training.step = 3
    last = folder / "step3"
    checkpoint.save({"training": training, "hook": begun["hook"]}, checkpoint_id=last)
    dist.destroy_process_group()

    def model_made(found):
        found["model"] = training.model = DistributedDataParallel(layers())

    more = {"training": training, "folder": folder, "newest": lambda folder: last}
    more |= {"checkpoint": checkpoint, "steps": 6, "every": 2, pages.BETWEEN: model_made}
    return names(**more)


def reconfigured():
    """No process group; ranks tell each other their handles in files."""
    if dist.is_initialized():
        dist.destroy_process_group()
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])

    def told(found):
        Path(f"handle{rank}.new").write_text(found["handle"])
        Path(f"handle{rank}.new").rename(f"handle{rank}")
        store = dist.distributed_c10d._get_default_store()
        store.wait([store_key(each, store, rank) for each in range(world)])
        found["handles"] = [Path(f"handle{each}").read_text() for each in range(world)]

    def store_key(each, store, rank):
        if each == rank:
            store.set(f"told{each}", "")
        return f"told{each}"

    more = {"uuid": 11, "tensor": torch.ones(3), "timedelta": timedelta}
    return names(**more, **{pages.BETWEEN: told})


def job_of_one(**options):
    """Makes this process a member of an elastic job of its own."""
    from thinwire._core import Coordinator

    coordinator = Coordinator("127.0.0.1:0", TOKEN, state="coordinator", **options)
    place = {"THINWIRE_COORDINATOR": coordinator.address, "THINWIRE_TOKEN": TOKEN}
    os.environ.update(place, THINWIRE_MEMBER="new")
    return coordinator


def elastic():
    coordinator, model = job_of_one(), layers()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    samples = [(torch.randn(WIDTH), torch.tensor(each % WIDTH)) for each in range(600)]
    more = {"model": model, "optimizer": optimizer, "data": samples, "coordinator": coordinator}
    more["scheduler"] = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    return names(**more, scaler=torch.amp.GradScaler("cpu"), criterion=nn.CrossEntropyLoss())


class Recommender(nn.Module):
    """A model of items, whose table is made by the block."""

    def __init__(self):
        super().__init__()
        self.top = nn.Linear(64, 1)

    def forward(self, ids):
        return self.top(self.items(ids))


def servers():
    job = Job(Path("recommender"))
    os.environ.update(job.environment)
    data = [(torch.arange(4), torch.ones(4, 1))] * 2
    return names(job=job, model=Recommender(), data=data, criterion=nn.MSELoss())


class Rows(nn.Module):
    """A model of a graph that joins its servers once it has rows."""

    def __init__(self, job):
        super().__init__()
        self.layers = lambda rows, edges: rows
        os.environ.update(job.environment)

    def __setattr__(self, name, value):
        super().__setattr__(name, value)
        if name == "rows":
            server = thinwire.torch.ParameterServer("sgd:lr=0.1")
            self.joined = thinwire.torch.ServerOptimizer(server, self)

    def forward(self, rows, edges):
        return rows.clone().requires_grad_()


def graphs():
    """A graph as PyG has it, in files of Parquet, and in a file with one part."""
    import pyarrow
    import pyarrow.parquet

    from thinwire.torch.graph import Loader, SharedFeatures, StoredGraph, save

    gloo()
    edges = torch.randint(60, (2, 400))
    mask = torch.arange(60) < 20
    data = SimpleNamespace(edge_index=edges, x=torch.randn(60, 3), train_mask=mask, num_nodes=60)
    data.y = torch.randint(3, (60,))
    columns = {"src": edges[0].numpy(), "dst": edges[1].numpy(), "weight": [1.0] * 400}
    pyarrow.parquet.write_table(pyarrow.table(columns), "edges.parquet")
    pages_of = {"embedding": data.x.tolist(), "topic": [0] * 60}
    pyarrow.parquet.write_table(pyarrow.table(pages_of), "pages.parquet")
    save(data, "parts.graph", bounds=[0, 60])
    job = Job(Path("rows"))
    more = {"Loader": Loader, "SharedFeatures": SharedFeatures, "StoredGraph": StoredGraph}
    return names(data=data, model=Rows(job), job=job, **more)


def planned():
    model = nn.Sequential(nn.Embedding(256, 16), nn.Linear(16, 256))
    return names(model=model, tokens=torch.zeros(2, 16, dtype=torch.long))


def imported():
    import transformers

    shape = {"n_layer": 1, "n_head": 2, "n_embd": 16, "vocab_size": 256, "n_positions": 512}
    shape |= {"bos_token_id": 0, "eos_token_id": 0}
    transformers.GPT2LMHeadModel(transformers.GPT2Config(**shape)).save_pretrained("model")
    return names(transformers=transformers, folder="model")


def images():
    import safetensors.torch

    model = nn.Sequential(
        *[nn.Conv2d(3, 4, 7, 8), nn.BatchNorm2d(4), nn.AdaptiveAvgPool2d(1), nn.Flatten()],
        nn.Linear(4, 10),
    )
    Path(".../step-000400").mkdir(parents=True)
    safetensors.torch.save_file(model.state_dict(), ".../step-000400/model.safetensors")
    batches = [torch.randn(2, 3, 32, 32)]
    return names(model=model, safetensors=safetensors, batches_of_images=batches)


class Trainer:
    """As much of the Trainer of transformers as `attach` uses."""

    def __init__(self):
        self.callbacks = []

    def add_callback(self, callback):
        self.callbacks.append(callback)

    def train(self, resume_from_checkpoint=None):
        return resume_from_checkpoint


def frameworks():
    """The frameworks themselves, a stand-in for a trainer, and one for a worker of Ray."""
    import accelerate
    import lightning.pytorch

    import thinwire.torch.accelerate
    import thinwire.torch.lightning
    import thinwire.torch.ray
    import thinwire.torch.transformers

    train = SimpleNamespace(
        torch=SimpleNamespace(prepare_model=lambda model: layers()), get_checkpoint=lambda: None
    )
    ray = thinwire.torch.ray.ray = SimpleNamespace(train=train)
    model = layers()
    more = {"trainer": Trainer(), "accelerator": accelerate.Accelerator(cpu=True), "model": model}
    more |= {"optimizer": torch.optim.SGD(model.parameters(), 0.1), "loader": [1]}
    return names(lightning=lightning.pytorch, ray=ray, **more)


def run(folder, prepared, left_out):
    """Runs the blocks under these headings, each with the names that a function of this file gives."""
    os.chdir(folder)
    ran = pages.run("torch", {place: globals()[name] for place, name in prepared.items()}, left_out)
    if dist.is_initialized():
        dist.destroy_process_group()
    return ran
