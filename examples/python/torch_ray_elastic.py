"""An elastic training on Ray: a worker that dies is replaced while the others train on.

    pip install ray
    python examples/python/torch_ray_elastic.py --kill 20

Workers are tasks that Ray starts again when their process dies. Each joins the job of a coordinator, the
command `thinwire coordinator` beside this program, and takes over the state of the others: none of them is
restarted, and no checkpoint is read. With `--kill 20`, one worker kills itself in that step, once.
"""

import argparse
import os
import secrets
import signal
import socket
import subprocess
import time
from pathlib import Path

import ray
import torch
from torch import nn
from torch.nn.functional import mse_loss
from torch.utils.data import TensorDataset

import thinwire
import thinwire.torch


@ray.remote(num_cpus=1, max_retries=10)
def work(coordinator: str, token: str, mark: Path | None, options: argparse.Namespace) -> str:
    """Trains until the job is over; `mark` is where the worker that kills itself says that it has."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    try:
        elastic = thinwire.torch.Elastic(
            model, optimizer, batch=64, codec=options.codec, coordinator=coordinator, token=token
        )
    except thinwire.PeerError:
        return "came after the end"
    joined = elastic.steps
    inputs = torch.randn(640, 32)
    loader = elastic.loader(TensorDataset(inputs, inputs.sum(1, keepdim=True)))
    for _ in loader.passes(options.passes):
        for rows, sums in loader:
            optimizer.zero_grad()
            loss = mse_loss(elastic.model(rows), sums)
            loss.backward()
            optimizer.step()
            time.sleep(options.pause)
            if mark and elastic.steps >= options.kill and not mark.exists():
                mark.touch()
                os.kill(os.getpid(), signal.SIGKILL)
    place = f"rank {elastic.rank} of {elastic.world}"
    return f"{place}: steps {joined} to {elastic.steps}, loss {loss.item():.4f}"


def main() -> None:
    """Starts the coordinator and the workers, and prints what these have done."""
    options = parsed()
    ray.init()
    token = secrets.token_hex(16)
    address = f"{ray.util.get_node_ip_address()}:{free_port()}"
    listen = ["thinwire", "coordinator", "--listen", address, "--ranks", f"1:{options.workers}"]
    coordinator = subprocess.Popen(listen, env={**os.environ, "THINWIRE_TOKEN": token})
    mark = Path(f"/tmp/thinwire-killed-{token}")
    marks = [mark if options.kill and each == 1 else None for each in range(options.workers)]
    try:
        workers = [work.remote(address, token, each, options) for each in marks]
        for line in sorted(ray.get(workers)):
            print(line, flush=True)
    finally:
        coordinator.terminate()
        coordinator.wait()
        mark.unlink(missing_ok=True)
        ray.shutdown()


def free_port() -> int:
    """Returns a port that nobody listens on."""
    with socket.socket() as listener:
        listener.bind(("", 0))
        port: int = listener.getsockname()[1]
        return port


def parsed() -> argparse.Namespace:
    """The options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--codec", default="int8", help="none, int8, powersgd:4, auto, ...")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--passes", type=int, default=100, help="passes over the data")
    parser.add_argument("--kill", type=int, default=0, help="the step in which a worker dies")
    parser.add_argument("--pause", type=float, default=0.05, help="seconds between steps")
    return parser.parse_args()


if __name__ == "__main__":
    main()
