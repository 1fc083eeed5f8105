"""One rank of the benchmark of a slow rank: steps per second of the others with it and without it.

Started once per rank with torchrun's variables. A step sleeps for as long as its arithmetic would take,
so that ranks need no cores, and then exchanges as the method says; on the last rank it may take
`--factor` times as long. Trainings without and with the slow rank take turns. Rank 0 prints a row of
Markdown per method: the steps per second of the ranks that are not slow, the ratio of neighbouring
trainings, and how often such a rank has averaged with others beside the slow one, per step.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time

import ranks
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import thinwire.torch

WARMUP = 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--methods", nargs="+", default=["pair:1", "sma:0.1@none", "step@none"])
    parser.add_argument("--step-ms", type=float, default=20.0)
    parser.add_argument("--factor", type=float, default=2.0)
    parser.add_argument("--steps", type=int, default=150, help="of each training")
    parser.add_argument(
        "--runs", type=int, default=5, help="trainings without and with the slow rank"
    )
    parser.add_argument("--width", type=int, default=512, help="of three square layers")
    parser.add_argument("--json", help="a file to which a line per method is added")
    options = parser.parse_args()
    with ranks.group():
        if dist.get_rank() == 0:
            print("| method | steps per s | with a slow rank | ratio | least | averaged |")
            print("|---|--:|--:|--:|--:|--:|")
        for method in options.methods:
            report(method, measured(method, options), options.json)


def measured(method: str, options: argparse.Namespace) -> list[list[tuple[float, float]]]:
    """Of each pair of trainings, without and with the slow rank: what `steps_per_s` tells."""
    return [
        [training(method, factor, options) for factor in (1.0, options.factor)]
        for _ in range(options.runs)
    ]


def training(method: str, factor: float, options: argparse.Namespace) -> tuple[float, float]:
    """Mean steps per second of the ranks that are not slow, and rounds that ended per step there."""
    torch.manual_seed(0)
    layers = [torch.nn.Linear(options.width, options.width) for _ in range(3)]
    model: torch.nn.Module = torch.nn.Sequential(*layers)
    mode, _, codec = method.partition("@")
    rounds = None
    if mode == "step":
        model = DistributedDataParallel(model)
        thinwire.torch.attach(model, codec=codec or "none")
    else:
        rounds = thinwire.torch.Rounds(model, mode, codec or None)
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    given = torch.randn(1, options.width)
    begin, ended = time.perf_counter(), 0.0
    for step in range(options.steps + WARMUP):
        if step == WARMUP:
            dist.barrier()
            begin, ended = time.perf_counter(), 0.0
        # The backward pass is short, and what it exchanges is not hidden.
        time.sleep(options.step_ms / 1e3 * (factor if rank == last else 1.0))
        optimizer.zero_grad()
        model(given).square().mean().backward()
        optimizer.step()
        ended += rounds.step()["ended"] if rounds else 1
    seconds = time.perf_counter() - begin
    if rounds:
        rounds.finish()
    told = torch.tensor([options.steps / seconds, ended / options.steps]) * float(rank != last)
    dist.all_reduce(told)
    speed, averaged = (told / last).tolist()
    return speed, averaged


def report(method: str, runs: list[list[tuple[float, float]]], path: str | None) -> None:
    """Rank 0's row and line."""
    if dist.get_rank() != 0:
        return
    alone, beside = ([run[which][0] for run in runs] for which in (0, 1))
    ratios = [slow / fast for fast, slow in zip(alone, beside)]
    averaged = statistics.median(run[1][1] for run in runs)
    row = [
        method,
        f"{statistics.median(alone):.1f}",
        f"{statistics.median(beside):.1f}",
        f"{statistics.median(ratios):.3f}",
        f"{min(ratios):.3f}",
        f"{averaged:.2f}",
    ]
    print("| " + " | ".join(row) + " |", flush=True)
    if path:
        line = {"method": method, "alone": alone, "beside": beside, "averaged": averaged}
        with open(path, "a") as file:
            print(json.dumps(line), file=file)


if __name__ == "__main__":
    main()
