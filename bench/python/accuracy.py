"""One rank of the accuracy benchmark: what training loses by each codec, over several seeds.

Started once per rank with torchrun's variables. Every codec trains the same models from the same
weights on the same batches, through DDP's hook; rank 0 prints a line of JSON per model, codec and
seed: the validation loss, and for pictures the share that is right. Nothing here is timed.
"""

from __future__ import annotations

import argparse
import gzip
import json
import pathlib

import models
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import thinwire.torch

CODECS = (
    "none,bf16,f16,int8,int8:stochastic,int4,int3,int2,onebit,vote,terngrad,qsgd:4,qsgd:8,natural,"
    "e4m3,e5m2,dynamic8,dct:256,randomk:0.25,topk:0.01,dgc:0.01,graddrop:0.01,tbq:0.001,"
    "powersgd:4,powersgd:8"
)


class Digits:
    """MNIST's pictures: the first 8,000 to train, the rest to validate."""

    def __init__(self, folder: str, batch: int, rank: int, seed: int) -> None:
        def read(name: str, head: int) -> torch.Tensor:
            found = sorted(pathlib.Path(folder).glob(f"*{name}*.gz"))
            raw = gzip.decompress(found[0].read_bytes())[head:]
            return torch.frombuffer(bytearray(raw), dtype=torch.uint8)

        self.pictures = read("images-idx3", 16).view(-1, 1, 28, 28).float() / 255 - 0.13
        self.labels = read("labels-idx1", 8).long()
        self.batch = batch
        self.generator = torch.Generator().manual_seed(1000 * seed + rank)

    def draw(self) -> tuple[torch.Tensor, torch.Tensor]:
        """A batch of this rank's own."""
        chosen = torch.randint(8000, (self.batch,), generator=self.generator)
        return self.pictures[chosen], self.labels[chosen]

    def validate(self, model: nn.Module) -> dict:
        """Loss and accuracy over all that is never trained on."""
        guess, labels = model(self.pictures[8000:]), self.labels[8000:]
        right = (guess.argmax(1) == labels).float().mean().item()
        return {"loss": cross_entropy(guess, labels).item(), "accuracy": right}


class Letters:
    """A text, as in the other benchmarks."""

    def __init__(self, path: str | None, batch: int, rank: int, seed: int) -> None:
        self.text = models.Text(path, batch, rank)
        self.text.generator = torch.Generator().manual_seed(1000 * seed + rank)

    def draw(self) -> tuple[torch.Tensor, torch.Tensor]:
        """A batch of this rank's own."""
        return self.text.draw("training")

    def validate(self, model: nn.Module) -> dict:
        """The mean loss over the same batches for everybody."""
        generator = torch.Generator().manual_seed(5)
        batches = [self.text.draw("validation", generator) for _ in range(24)]
        losses = [cross_entropy(model(given), wanted).item() for given, wanted in batches]
        return {"loss": sum(losses) / len(losses)}


def convolutions() -> nn.Module:
    """A small CNN: 0.2 M parameters."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(32 * 49, 128), nn.ReLU(), nn.Linear(128, 10),
    )  # fmt: skip


def main() -> None:
    options = arguments()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    for seed in range(options.first_seed, options.first_seed + options.seeds):
        for codec in options.codecs.split(","):
            for name in options.models.split(","):
                try:
                    result = train(name, codec, seed, options)
                except thinwire.Error as error:
                    result = {"error": str(error)}
                if dist.get_rank() == 0:
                    record = {"model": name, "codec": codec, "seed": seed, **result}
                    print(json.dumps(record), flush=True)
    dist.barrier()
    dist.destroy_process_group()


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--codecs", default=CODECS)
    parser.add_argument("--models", default="gpt,cnn")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=0, help="go on with an earlier run's")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--data", help="a text file for gpt")
    parser.add_argument("--digits", help="a folder with MNIST's files for cnn")
    return parser.parse_args()


def train(name: str, codec: str, seed: int, options: argparse.Namespace) -> dict:
    """What a model has learnt after the same number of steps."""
    rank = dist.get_rank()
    if name == "gpt":
        data = Letters(options.data, 8, rank, seed)
        torch.manual_seed(seed)
        model = models.GPT(data.text.vocabulary, width=128, layers=4, heads=4)
    else:
        data = Digits(options.digits, 16, rank, seed)
        torch.manual_seed(seed)
        model = convolutions()
    wrapped = DistributedDataParallel(model, gradient_as_bucket_view=True)
    wrapped.register_comm_hook(*thinwire.torch.hook(codec=codec, seed=seed))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(options.steps):
        given, wanted = data.draw()
        loss = cross_entropy(wrapped(given), wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        return data.validate(model)


if __name__ == "__main__":
    main()
