"""One rank of the time-to-loss benchmark: seconds of training until the validation loss is low enough.

Started once per rank with torchrun's variables. For each seed every method trains one model from the
same weights on the same batches; the clock runs from the first step on, measurements of `auto` and
warm-ups included, and stands still while the model is validated. The loss of a moment is the mean of
the last three validations, which have the same samples for all. Rank 0 prints a line of JSON per
method and seed; a training that reaches `--limit` seconds first has none for its time.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import statistics
import time

import accuracy
import ddp
import models
import ranks
import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

# What plain DDP reaches after 100 to 200 steps, about 70 % of its way from the loss of a guess.
TARGET = {"gpt": 2.45, "lstm": 2.2, "cnn": 1.2}
# Windows or pictures of one validation.
SAMPLES = {"gpt": 128, "lstm": 128, "cnn": 512}
RISE_STEPS = 20
SMOOTHED = 3


def main() -> None:
    options = arguments()
    with ranks.group():
        for seed in range(options.first_seed, options.first_seed + options.seeds):
            for method in options.methods.split(","):
                result = train(method, seed, options)
                if dist.get_rank() == 0:
                    record = {"model": options.model, "method": method, "seed": seed}
                    record |= {"network": os.environ.get("NETWORK", "loopback"), **result}
                    print(json.dumps(record), flush=True)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", choices=sorted(accuracy.BATCH), default="gpt")
    parser.add_argument(
        "--methods", required=True, help="as plain@1,fp16@1,powersgd-4:10@64,auto@1"
    )
    parser.add_argument("--size", choices=["small", "medium"], default="medium")
    parser.add_argument("--target", type=float, help="the validation loss to reach")
    parser.add_argument("--limit", type=float, default=60, help="seconds after which to give up")
    parser.add_argument("--every", type=int, default=10, help="steps between validations")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=0, help="continue with an earlier run's")
    parser.add_argument("--data", help="a text file for gpt and lstm")
    parser.add_argument("--digits", help="a folder with MNIST's files for cnn")
    return parser.parse_args()


def train(method: str, seed: int, options: argparse.Namespace) -> dict:
    """How long one training takes to the target, and how many steps."""
    name, _, bucket_mb = method.partition("@")
    options.batch = accuracy.BATCH[options.model]
    model, data = models.trained(options.model, options.size, seed, dist.get_rank(), options)
    wrapped = DistributedDataParallel(
        model,
        bucket_cap_mb=float(bucket_mb) if bucket_mb else None,
        gradient_as_bucket_view=True,
    )
    ddp.attach(wrapped, name)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.0)
    target = options.target or TARGET[options.model]
    rate = accuracy.RATE[options.model]
    recent: collections.deque[float] = collections.deque(maxlen=SMOOTHED)
    seconds, step, loss, curve = 0.0, 0, float("inf"), []
    while loss > target and seconds < options.limit:
        dist.barrier()
        begin = time.perf_counter()
        for _ in range(options.every):
            optimizer.param_groups[0]["lr"] = rate * min(1.0, (step + 1) / RISE_STEPS)
            given, wanted = data.draw("training")
            optimizer.zero_grad()
            cross_entropy(wrapped(given), wanted).backward()
            optimizer.step()
            step += 1
        seconds += ddp.slowest(time.perf_counter() - begin)
        recent.append(accuracy.validate(model, data, SAMPLES[options.model]))
        if len(recent) == SMOOTHED:
            loss = statistics.mean(recent)
            curve.append([round(seconds, 3), step, round(loss, 4)])
    return {
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "world": dist.get_world_size(),
        "target": target,
        "limit_s": options.limit,
        "seconds": seconds if loss <= target else None,
        "steps": step,
        "step_ms": 1e3 * seconds / step,
        "loss": loss,
        "curve": curve,
    }


if __name__ == "__main__":
    main()
