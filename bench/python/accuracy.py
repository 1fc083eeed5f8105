"""One rank of the accuracy benchmark: what whole trainings lose by each method, over several seeds.

Started once per rank with torchrun's variables. Every method trains the same models from the same
weights on the same batches, through DDP's hook; rank 0 prints a line of JSON per model, method and
seed: the validation loss at the end, bits sent per element of the gradients, and the share of the
elements that each codec carried. Nothing here is timed.
"""

from __future__ import annotations

import argparse
import collections
import copy
import json
import math

import models
import ranks
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import thinwire.torch

METHODS = "none,bf16,auto,int8,int4,int3,ecsq:0.5,ecsq:0.7,ecsq:1.4,powersgd:4"
ALL = (
    "none,bf16,f16,int8,int8:stochastic,int4,int3,int2,onebit,vote,terngrad,qsgd:4,qsgd:8,natural,"
    "e4m3,e5m2,dynamic8,dct:256,randomk:0.25,topk:0.01,dgc:0.01,graddrop:0.01,tbq:0.001,"
    "powersgd:4,powersgd:8,ecsq:0.5,ecsq:0.7,ecsq:1.4"
)
# Windows of text or pictures in a batch of one rank, and the peak of the learning rate.
BATCH = {"gpt": 4, "lstm": 4, "cnn": 32}
RATE = {"gpt": 4e-3, "lstm": 4e-3, "cnn": 1e-3}
# Validation draws so many windows or pictures in all, on all ranks together.
SAMPLES = {"gpt": 1024, "lstm": 1024, "cnn": 4096}
EVERY = 20


def main() -> None:
    options = arguments()
    with ranks.group():
        for seed in range(options.first_seed, options.first_seed + options.seeds):
            for method in options.methods.split(","):
                for name in options.models.split(","):
                    try:
                        result = train(name, method, seed, options)
                    except thinwire.Error as error:
                        result = {"error": str(error)}
                    if dist.get_rank() == 0:
                        record = {"model": name, "method": method, "seed": seed, **result}
                        print(json.dumps(record), flush=True)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--methods", default=METHODS, help="as none,ecsq:0.7,auto,auto@0.02: a budget"
    )
    parser.add_argument("--models", default="gpt,lstm,cnn")
    parser.add_argument("--size", choices=["small", "medium"], default="small")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=0, help="continue with an earlier run's")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--data", help="a text file for gpt and lstm")
    parser.add_argument("--digits", help="a folder with MNIST's files for cnn")
    return parser.parse_args()


def train(name: str, method: str, seed: int, options: argparse.Namespace) -> dict:
    """What a model has learnt after the same number of steps, and what was sent for it."""
    options.batch = BATCH[name]
    model, data = models.trained(name, options.size, seed, dist.get_rank(), options)
    wrapped = DistributedDataParallel(model, gradient_as_bucket_view=True)
    codec, _, budget = method.partition("@")
    hook, average = thinwire.torch.hook(codec=codec, error_budget=float(budget) if budget else None)
    wrapped.register_comm_hook(hook, average)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE[name])
    sent = Sent()
    for step in range(options.steps):
        for group in optimizer.param_groups:
            group["lr"] = RATE[name] * height(step, options.steps)
        given, wanted = data.draw("training")
        loss = cross_entropy(wrapped(given), wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % EVERY == EVERY - 1:
            sent.add(hook.record())
    return {
        "loss": validate(model, data, SAMPLES[name]),
        "world": dist.get_world_size(),
    } | sent.result()


def height(step: int, steps: int) -> float:
    """The learning rate over its peak: it rises for a twentieth of the steps, then falls to a tenth."""
    fallen = 0.5 - 0.5 * math.cos(math.pi * step / steps)
    return min(1.0, (step + 1) / (steps / 20)) * (1 - 0.9 * fallen)


class Sent:
    """Bits per element, and the share of all elements under each codec, over the steps that are asked."""

    def __init__(self) -> None:
        self.bits = 0
        self.elements: collections.Counter[str] = collections.Counter()

    def add(self, record: dict) -> None:
        """Counts the buckets of one step."""
        for bucket in record["buckets"]:
            self.bits += 8 * bucket["sent_bytes"]
            self.elements[bucket["codec"]] += bucket["elements"]

    def result(self) -> dict:
        """Both, if any step was counted."""
        count = sum(self.elements.values())
        if not count:
            return {}
        shares = {codec: part / count for codec, part in self.elements.most_common()}
        return {"bits": self.bits / count, "codecs": shares}


def validate(model: nn.Module, data, samples: int) -> float:
    """The mean loss over the same samples for all methods, which the ranks share among them."""
    data = copy.copy(data)
    data.batch = 64
    generator = torch.Generator().manual_seed(5 + dist.get_rank())
    batches = max(1, samples // (data.batch * dist.get_world_size()))
    total = torch.zeros(1, dtype=torch.float64)
    model.eval()
    with torch.no_grad():
        for _ in range(batches):
            given, wanted = data.draw("validation", generator)
            total += cross_entropy(model(given), wanted).item() / batches
    model.train()
    dist.all_reduce(total)
    return total.item() / dist.get_world_size()


if __name__ == "__main__":
    main()
