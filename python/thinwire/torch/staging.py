"""Tensors of one collective as contiguous host memory, and the copies back.

A contiguous tensor on the CPU is used directly. Strided tensors, and lazily negated or conjugated ones,
are copied. A tensor on a CUDA device is copied to pinned memory and back. Copies to the host and
copies back have separate streams, so that neither delays the computation. A copy to the host waits
for the stream that is current at the call of the collective, so it sees all values computed before
it; an event marks the end of the copy. Waiting for the collective makes the waiter's current stream
wait for the copy back.
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch


class Staging:
    """The host side of the tensors of one collective."""

    def __init__(self) -> None:
        """Creates it without tensors."""
        self.back: list[tuple[torch.Tensor, torch.Tensor]] = []
        self.keep: list[torch.Tensor] = []
        self.devices: set[torch.device] = set()
        self.copied = False
        self.sent: list[Any] = []
        self.returned: list[tuple[torch.device, Any]] = []

    def read(self, tensor: torch.Tensor) -> torch.Tensor:
        """`tensor` in host memory, for reading only."""
        return self.remember(tensor if direct(tensor) else self.copy(tensor))

    def scratch(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy in host memory that the caller may change."""
        return self.remember(self.copy(tensor))

    def write(self, tensor: torch.Tensor) -> torch.Tensor:
        """Returns host memory, whose values are later copied to `tensor`."""
        return self.remember(tensor if direct(tensor) else self.room(tensor, returns=True))

    def update(self, tensor: torch.Tensor) -> torch.Tensor:
        """`tensor` in host memory, which also becomes its new content."""
        if direct(tensor):
            return self.remember(tensor)
        host = self.copy(tensor)
        self.back.append((tensor, host))
        return self.remember(host)

    def remember(self, host: torch.Tensor) -> torch.Tensor:
        """Keeps `host` alive for the collective, and outside of the autograd graph."""
        self.keep.append(host)
        return host.detach()

    def copy(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy in host memory; from a device it arrives later, see `arrive`."""
        host = self.room(tensor, returns=False)
        with torch.no_grad():
            if tensor.is_cuda:
                download(tensor, host)
            else:
                host.copy_(tensor)
        return host

    def room(self, tensor: torch.Tensor, returns: bool) -> torch.Tensor:
        """Host memory in the shape of `tensor`, pinned if the tensor is on a device."""
        refuse(tensor)
        self.copied = True
        if tensor.is_cuda:
            self.devices.add(tensor.device)
        host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
        if returns:
            self.back.append((tensor, host))
        return host

    def depart(self) -> None:
        """Marks the end of the copies to the host, and of all computation before them."""
        for device in self.devices:
            self.sent.append(departures(device).record_event())

    def arrive(self) -> None:
        """Waits until the copies to the host have arrived."""
        for event in self.sent:
            event.synchronize()

    def deliver(self) -> None:
        """Copies results back; to a device the copies are queued, see `follow`."""
        with torch.no_grad():
            for tensor, host in self.back:
                if tensor.is_cuda:
                    upload(tensor, host)
                else:
                    tensor.copy_(host)
        for device in self.devices:
            self.returned.append((device, returns(device).record_event()))

    def stream(self, device: torch.device) -> contextlib.AbstractContextManager[Any]:
        """Makes the stream that copies results to `device` the current one."""
        if device.type != "cuda":
            return contextlib.nullcontext()
        return torch.cuda.stream(returns(device))

    def follow(self) -> None:
        """Makes the current streams wait for the copies back."""
        for device, event in self.returned:
            torch.cuda.current_stream(device).wait_event(event)


def direct(tensor: torch.Tensor) -> bool:
    """Whether the tensor is already contiguous host memory with its actual values."""
    refuse(tensor)
    plain = not tensor.is_conj() and not tensor.is_neg()
    return tensor.device.type == "cpu" and tensor.is_contiguous() and plain


def refuse(tensor: torch.Tensor) -> None:
    """Refuses tensors without dense memory that the CPU can access.

    # Errors

    ValueError for sparse tensors and for devices other than the CPU and CUDA.
    """
    if tensor.layout != torch.strided:
        raise ValueError(
            f"thinwire exchanges dense tensors, got {tensor.layout} (hint: to_dense())"
        )
    if tensor.device.type not in ("cpu", "cuda"):
        raise ValueError(
            f"thinwire exchanges tensors on cpu and cuda, got {tensor.device} (hint: .cpu())"
        )


STREAMS: dict[tuple[torch.device, str], Any] = {}


def returns(device: torch.device) -> Any:
    """The stream on which results go back to `device`."""
    return side_stream(device, "returns")


def departures(device: torch.device) -> Any:
    """The stream that copies tensors to the host, after all work queued on the current stream."""
    stream = side_stream(device, "departures")
    stream.wait_stream(torch.cuda.current_stream(device))
    return stream


def side_stream(device: torch.device, purpose: str) -> Any:
    """Returns the stream of `device` for this purpose; creates it once."""
    if (device, purpose) not in STREAMS:
        STREAMS[device, purpose] = torch.cuda.Stream(device)
    return STREAMS[device, purpose]


def download(tensor: torch.Tensor, host: torch.Tensor) -> None:
    """Queues the copy of a tensor to the host."""
    stream = departures(tensor.device)
    with torch.cuda.stream(stream):
        host.copy_(tensor, non_blocking=True)
    tensor.record_stream(stream)


def upload(tensor: torch.Tensor, host: torch.Tensor) -> None:
    """Queues the copy of a result to its device."""
    stream = returns(tensor.device)
    with torch.cuda.stream(stream):
        tensor.copy_(host, non_blocking=True)
    tensor.record_stream(stream)
