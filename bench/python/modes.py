"""One rank of the benchmark of modes: losses by step without a network, or the time of steps on one.

Started once per rank with torchrun's variables. `--part curve` trains whole models by every method, from
the same weights on the same batches; the loss at a step is that of the mean of all ranks' parameters, on
the same samples for all. `--part time` counts the seconds and bytes of a few steps on the network.
`--part whole` does both at once. Rank 0 adds a line of JSON per cell to a file, and cells that the file
has are not run again. modes_table.py multiplies steps by seconds.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import json
import os
import pathlib
import statistics
import sys
import time
from collections.abc import Iterator

import accuracy
import ddp
import models
import ranks
import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import post_localSGD_hook as post_local
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.optim import PostLocalSGDOptimizer
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import thinwire.torch

ROUNDS = ("local", "diloco", "sma", "pair")
# Windows or pictures of one validation on the way, on all ranks together.
SAMPLES = {"gpt": 512, "lstm": 512, "cnn": 1024}
# Steps between validations: the end of a round of the usual 30 steps is always one.
EVERY = 30
# Steps before those that are timed, for `auto` and low rank with what they send raw first, and the least
# number of those.
WARMUP, WARMUP_LATE, TIMED = 10, 60, 50
# Per-step methods on a thin link are timed until this many seconds have gone, but ten steps at least.
ENOUGH_S = 60


def main() -> None:
    options = arguments()
    path = pathlib.Path(options.json)
    done = (
        {key(json.loads(line)) for line in path.read_text().splitlines()} if path.exists() else ()
    )
    network = os.environ.get("NETWORK", "loopback")
    with ranks.group():
        for seed, name, method in itertools.product(
            range(options.first_seed, options.first_seed + options.seeds),
            options.models.split(","),
            options.methods,
        ):
            cell = {"part": options.part, "model": name, "method": method, "seed": seed}
            cell |= {"batch": batch_of(name, options), "rate": options.rate}
            steps = 0 if options.part == "time" else options.steps
            cell |= {"network": network, "size": options.size, "steps": steps}
            if key(cell) in done:
                continue
            dist.barrier()
            try:
                cell |= train(name, method, seed, options)
            except thinwire.Error as error:
                cell |= {"error": str(error)}
            if dist.get_rank() == 0:
                with path.open("a") as file:
                    print(json.dumps(cell), file=file)
                print(f"{name}, {method}, seed {seed}: {cell.get('loss')}", file=sys.stderr)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--part", choices=["curve", "time", "whole"], required=True)
    parser.add_argument("--json", required=True, help="the file that cells are added to")
    parser.add_argument(
        "--methods",
        nargs="+",
        required=True,
        help="as plain auto@1 powersgd-4:10 post-local:30:100 diloco:30,fragments=4@int4@classic@0.5",
    )
    parser.add_argument("--models", default="gpt,lstm,cnn")
    parser.add_argument("--size", choices=["small", "medium"], default="small")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=2100, help="of a curve")
    parser.add_argument("--batch", type=int, help="of a rank; the accuracy benchmark's by default")
    parser.add_argument(
        "--rate", type=float, default=1.0, help="factor of the accuracy benchmark's learning rate"
    )
    parser.add_argument("--data", help="a text file for gpt and lstm")
    parser.add_argument("--digits", help="a folder with MNIST's files for cnn")
    return parser.parse_args()


def batch_of(name: str, options: argparse.Namespace) -> int:
    """Rows of a step of one rank."""
    return options.batch or accuracy.BATCH[name]


def key(cell: dict) -> tuple:
    """What makes a cell another one."""
    names = ("part", "model", "method", "seed", "network", "size", "steps", "batch", "rate")
    return tuple(cell[name] for name in names)


class Training:
    """A model under one method; `step` is one step of it, whose record has what rounds did."""

    def __init__(self, name: str, method: str, seed: int, options: argparse.Namespace) -> None:
        of_model = argparse.Namespace(**vars(options) | {"batch": batch_of(name, options)})
        self.model, self.data = models.trained(name, options.size, seed, dist.get_rank(), of_model)
        self.elements = sum(each.numel() for each in self.model.parameters())
        self.rate = accuracy.RATE[name] * options.rate
        self.forward: torch.nn.Module = self.model
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=self.rate, fused=True)
        self.period, self.raw_steps = 1, 0
        self.hook = self.rounds = None
        if method.startswith(ROUNDS):
            mode, codec, feedback, height = [*method.split("@"), "", "", ""][:4]
            self.rate *= float(height or 1)
            self.rounds = thinwire.torch.Rounds(
                self.model, mode, codec or None, feedback=feedback or "classic"
            )
            self.period = period_of(mode)
        elif method.startswith("post-local:"):
            method, _, height = method.partition("@")
            self.rate *= float(height or 1)
            self._post_local(*map(int, method.split(":")[1:]), timed=options.part == "time")
        else:
            method, _, bucket_mb = method.partition("@")
            self._wrap(float(bucket_mb) if bucket_mb else None)
            self.hook = ddp.attach(self.forward, method)
            self.raw_steps = int(method.partition(":")[2]) if method.startswith("powersgd-") else 0

    def step(self, height: float = 1.0) -> dict:
        """Trains on one batch, at this part of the peak of the learning rate."""
        for group in self.optimizer.param_groups:
            group["lr"] = self.rate * height
        given, wanted = self.data.draw("training")
        self.optimizer.zero_grad()
        cross_entropy(self.forward(given), wanted).backward()
        self.optimizer.step()
        return self.rounds.step() if self.rounds else {}

    def finish(self) -> None:
        """Ends with the same parameters on all ranks."""
        if self.rounds:
            self.rounds.finish()

    @torch.no_grad()
    def validate(self, samples: int) -> float:
        """The loss of the mean of all ranks' parameters."""
        model = copy.deepcopy(self.model)
        flat = torch.nn.utils.parameters_to_vector(model.parameters()) / dist.get_world_size()
        dist.all_reduce(flat)
        torch.nn.utils.vector_to_parameters(flat, model.parameters())
        return accuracy.validate(model, self.data, samples)

    def _post_local(self, period: int, warmup: int, timed: bool) -> None:
        """PyTorch's post-local SGD; the steps that are timed are those after its warm-up."""
        self.period, self.raw_steps = period, warmup
        first = 0 if timed else warmup
        self._wrap(None)
        state = post_local.PostLocalSGDState(
            None, None, start_localSGD_iter=first, post_local_gradient_allreduce=False
        )
        self.forward.register_comm_hook(state, post_local.post_localSGD_hook)
        averager = PeriodicModelAverager(period=period, warmup_steps=first)
        self.optimizer = PostLocalSGDOptimizer(self.optimizer, averager)

    def _wrap(self, bucket_mb: float | None) -> None:
        self.forward = DistributedDataParallel(
            self.model, bucket_cap_mb=bucket_mb, gradient_as_bucket_view=True
        )


def period_of(mode: str) -> int:
    """Steps from one round of all parameters to the next."""
    first, _, rest = mode.partition(",")
    given = dict(setting.split("=") for setting in rest.split(",") if setting)
    return int(given.get("every", 1)) if first.startswith("sma") else int(first.split(":")[1])


def train(name: str, method: str, seed: int, options: argparse.Namespace) -> dict:
    """One cell."""
    training = Training(name, method, seed, options)
    common = {
        "parameters": training.elements,
        "world": dist.get_world_size(),
        "period": training.period,
        "raw_steps": training.raw_steps,
    }
    if options.part == "time":
        is_late = method.startswith(("auto", "powersgd:"))
        return common | timed(training, WARMUP_LATE if is_late else WARMUP)
    return common | learnt(training, name, options.steps)


def learnt(training: Training, name: str, steps: int) -> dict:
    """Losses by step, the seconds beside them without validations, and the loss in the end."""
    curve, seconds = [], 0.0
    begin = time.perf_counter()
    for step in range(steps):
        training.step(accuracy.height(step, steps))
        if step % EVERY == EVERY - 1:
            seconds += time.perf_counter() - begin
            loss = training.validate(SAMPLES[name])
            curve.append([step + 1, round(loss, 5), round(seconds, 3)])
            begin = time.perf_counter()
    training.finish()
    return {"curve": curve, "loss": training.validate(accuracy.SAMPLES[name])}


def timed(training: Training, warmup: int) -> dict:
    """Seconds of a step on the slowest rank, the bytes that rank 0 sends, and what rounds waited."""
    period = training.period
    least = -(-TIMED // period) * period
    for _ in range(max(warmup, period)):
        training.step()
    dist.barrier()
    sent, begin, seconds, waits, loads = sent_bytes(), time.perf_counter(), [], [], []
    for _ in steps_within(least, ENOUGH_S if period == 1 else None):
        before, sent_before = time.perf_counter(), sent_bytes()
        waits.append(training.step().get("wait_s", 0.0))
        seconds.append(time.perf_counter() - before)
        loads.append(sent_bytes() - sent_before)
    count = len(seconds)
    step_s = statistics.mean(seconds) if period > 1 else statistics.median(seconds)
    result = {
        "step_s": ddp.slowest(step_s),
        "median_s": ddp.slowest(statistics.median(seconds)),
        "mean_s": ddp.slowest((time.perf_counter() - begin) / count),
        "wait": ddp.slowest(sum(waits)) / sum(seconds),
        "timed": count,
        "sent_bytes": (sent_bytes() - sent) / count,
        "busiest_bytes": max(loads),
        "load": os.getloadavg()[0],
    }
    if training.hook is not None:
        codecs = [
            bucket["codec"] for bucket in training.hook.exchange_plan().get("assignments", [])
        ]
        result["plan"] = {codec: codecs.count(codec) for codec in sorted(set(codecs))}
    return result


def steps_within(least: int, enough_s: float | None) -> Iterator[int]:
    """Counts steps; all ranks end together, earlier if rank 0 says that it is enough."""
    begin = time.perf_counter()
    for step in range(least):
        if enough_s is not None and step % 10 == 0 and step:
            over = torch.tensor(float(time.perf_counter() - begin > enough_s))
            dist.broadcast(over, 0)
            if over:
                return
        yield step


def sent_bytes() -> int:
    """The bytes that have left this rank's namespace."""
    interface = os.environ.get("NETWORK_INTERFACE", "lo")
    return int(pathlib.Path(f"/sys/class/net/{interface}/statistics/tx_bytes").read_text())


if __name__ == "__main__":
    main()
