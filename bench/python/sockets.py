"""The floor of an exchange: as many bytes by plain sockets, and no arithmetic at all.

As a hook of DDP it sends as many bytes for each bucket as an all-reduce of so many bits per element
would, to the next rank of a circle, while as many come from the one before; gradients stay what they
are. What a step takes with it, moving the bytes takes, on whatever processors compute as well.
"""

import os
import queue
import socket
import threading
import time

import torch
import torch.distributed as dist
from torch.futures import Future

PIECE_BYTES = 1 << 16


class Sockets:
    """The hook's state: two sockets, and a thread for each."""

    def __init__(self, bits: float, port: int) -> None:
        rank, world = dist.get_rank(), dist.get_world_size()
        self.bytes_per_element = bits / 8 * 2 * (world - 1) / world
        addresses: list = [None] * world
        dist.all_gather_object(addresses, own_address())
        listener = socket.create_server(("", port + rank))
        dist.barrier()
        self.outgoing = connect(addresses[(rank + 1) % world], port + (rank + 1) % world)
        self.incoming, _ = listener.accept()
        listener.close()
        self.to_send: queue.Queue = queue.Queue()
        self.to_receive: queue.Queue = queue.Queue()
        for work in (self.send, self.receive):
            threading.Thread(target=work, daemon=True).start()

    def send(self) -> None:
        piece = memoryview(bytes(PIECE_BYTES))
        while True:
            left = self.to_send.get()
            while left:
                left -= self.outgoing.send(piece[:left])

    def receive(self) -> None:
        piece = bytearray(PIECE_BYTES)
        while True:
            left, future, gradient = self.to_receive.get()
            while left:
                left -= self.incoming.recv_into(piece, min(left, PIECE_BYTES))
            future.set_result(gradient)


def hook(state: Sockets, bucket: dist.GradBucket) -> Future[torch.Tensor]:
    """Moves a bucket's bytes, and leaves its gradients alone."""
    gradient, future = bucket.buffer(), Future()
    length = int(gradient.numel() * state.bytes_per_element)
    state.to_send.put(length)
    state.to_receive.put((length, future, gradient))
    return future


def own_address() -> str:
    """Where the others reach this rank: the end of a way to rank 0."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((os.environ["MASTER_ADDR"], 1))
        return probe.getsockname()[0]


def connect(address: str, port: int) -> socket.socket:
    for _ in range(100):
        try:
            return socket.create_connection((address, port))
        except OSError:
            time.sleep(0.05)
    raise ConnectionError(f"no answer from {address}:{port}")
