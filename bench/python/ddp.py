"""One rank of the DDP benchmark: every method in turn, in one process group, on one network.

Started once per rank with torchrun's variables. Methods take turns, `--rounds` times; each starts
from the same weights and sees the same batches. Rank 0 prints a line of JSON per method and round:
the median step of the slowest rank, compute alone beside it (the same model without DDP on all ranks
at once), CPU seconds per step beyond compute's, and the validation loss after `--loss-steps` steps,
which the network does not change.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import time

import models
import ranks
import sockets
import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import thinwire.torch

MEETINGS = itertools.count()


def main() -> None:
    options = arguments()
    with ranks.group():
        for round_ in range(options.rounds):
            for method in options.methods.split(","):
                record = {"method": method, "round": round_, **measure(method, options)}
                if dist.get_rank() == 0:
                    print(json.dumps(record), flush=True)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", choices=["gpt", "lstm", "cnn", "layer", "many"], default="gpt")
    parser.add_argument(
        "--methods",
        required=True,
        help="as plain,fp16,powersgd-2,powersgd-4:10,sockets-3.25,none-clear,auto@4,none/host",
    )
    parser.add_argument("--data", help="a text file for gpt")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument(
        "--device", choices=["cpu", "cuda"], default="cpu", help="cuda: all ranks share one GPU"
    )
    parser.add_argument("--warmup", type=int, default=5, help="steps before those that are timed")
    parser.add_argument("--steps", type=int, default=12, help="steps that are timed")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--loss-steps", type=int, default=0)
    return parser.parse_args()


def measure(method: str, options: argparse.Namespace) -> dict:
    """All figures of one method; a suffix as @4 sets DDP's bucket_cap_mb."""
    name, _, bucket_mb = method.partition("@")
    rank, world = dist.get_rank(), dist.get_world_size()
    compute = run(None, None, options)
    result = run(name, float(bucket_mb) if bucket_mb else None, options)
    step_s, compute_s = slowest(result["step_s"]), slowest(compute["step_s"])
    record = {
        "model": options.model,
        "world": world,
        "network": os.environ.get("NETWORK", "loopback"),
        "device": options.device,
        "parameters": result["parameters"],
        "step_ms": 1e3 * step_s,
        "compute_ms": 1e3 * compute_s,
        "cpu_ms": 1e3 * (result["cpu_s"] - compute["cpu_s"]),
        "loss": result["loss"],
        "rank": rank,
    }
    return record | {key: result[key] for key in ("plan", "state") if key in result}


def run(method: str | None, bucket_mb: float | None, options: argparse.Namespace) -> dict:
    """Trains under one method; compute alone without one."""
    model, data = models.make(
        options.model, options.data, options.batch, dist.get_rank(), options.device
    )
    hook, wrapped = None, model
    if method is not None:
        wrapped = DistributedDataParallel(
            model, bucket_cap_mb=bucket_mb, gradient_as_bucket_view=True
        )
        hook = attach(wrapped, method)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    times, cpu = [], 0.0
    warmup = options.warmup if method is not None else 2
    loss_steps = options.loss_steps if method is not None else 0
    for step in range(max(warmup + options.steps, loss_steps)):
        if step == warmup:
            cpu = time.process_time()
        dist.barrier()
        begin = time.perf_counter()
        loss = cross_entropy(wrapped((batch := data.draw("training"))[0]), batch[1])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if options.device == "cuda":
            torch.cuda.synchronize()
        if warmup <= step < warmup + options.steps:
            times.append(time.perf_counter() - begin)
        if step == warmup + options.steps - 1:
            cpu = (time.process_time() - cpu) / options.steps
    result = {
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "step_s": statistics.median(times),
        "cpu_s": cpu,
        "loss": validate(model, data) if loss_steps else None,
    }
    if hook is not None:
        codecs = [bucket["codec"] for bucket in hook.exchange_plan().get("assignments", [])]
        result["plan"] = {codec: codecs.count(codec) for codec in sorted(set(codecs))}
    return result


def attach(model: DistributedDataParallel, method: str):
    """Registers the hook of a method; Thinwire's state, for its plan."""
    if method == "plain":
        return None
    if method == "fp16":
        model.register_comm_hook(None, default_hooks.fp16_compress_hook)
        return None
    if method.startswith("powersgd-"):
        low_rank, _, first_step = method.removeprefix("powersgd-").partition(":")
        state = powerSGD_hook.PowerSGDState(
            None,
            matrix_approximation_rank=int(low_rank),
            start_powerSGD_iter=int(first_step or 3),
        )
        model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
        return None
    if method.startswith("sockets-"):
        bits = float(method.partition("-")[2])
        model.register_comm_hook(sockets.Sockets(bits, meeting_port()), sockets.hook)
        return None
    method, _, within = method.partition("/")
    codec = method.removesuffix("-clear")
    group = in_clear() if codec != method else None
    state, function = thinwire.torch.hook(codec=codec, group=group, within=within or None)
    model.register_comm_hook(state, function)
    return state


def in_clear() -> thinwire.Group:
    """A group that does not encrypt, as gloo does not."""
    coordinator = f"{os.environ['MASTER_ADDR']}:{meeting_port()}"
    rank, world = dist.get_rank(), dist.get_world_size()
    return thinwire.init(rank, world, coordinator, encryption="never")


def meeting_port() -> int:
    """A port that no other method of this run has."""
    return int(os.environ["MASTER_PORT"]) + 7 + next(MEETINGS) * dist.get_world_size()


def slowest(seconds: float) -> float:
    """The largest of all ranks' values."""
    value = torch.tensor([seconds], dtype=torch.float64)
    dist.all_reduce(value, op=dist.ReduceOp.MAX)
    return value.item()


def validate(model: torch.nn.Module, data) -> float:
    """The mean loss over the same eight batches for everybody."""
    generator = torch.Generator().manual_seed(5)
    model.eval()
    with torch.no_grad():
        losses = [
            cross_entropy(model((batch := data.draw("validation", generator))[0]), batch[1]).item()
            for _ in range(8)
        ]
    model.train()
    return statistics.mean(losses)


if __name__ == "__main__":
    main()
