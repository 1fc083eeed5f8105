"""The process group of a benchmark's ranks, which are started with torchrun's variables."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

import torch
import torch.distributed as dist


@contextlib.contextmanager
def group() -> Iterator[None]:
    """A gloo group of all ranks on the benchmark's network, with one thread of torch each."""
    torch.set_num_threads(1)
    if interface := os.environ.get("NETWORK_INTERFACE"):
        os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
    dist.init_process_group("gloo")
    yield
    dist.barrier()
    dist.destroy_process_group()
