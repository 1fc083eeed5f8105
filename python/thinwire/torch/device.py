"""CUDA devices that encode the gradients in their own memory.

The core has a stream on each device. On this stream it encodes a gradient once the stream that
computed the gradient has done so, and later overwrites the gradient with the average. Streams that
read the average wait for the core's stream. Python itself never waits for the device. Where the
core cannot use a device, `thinwire.torch.staging` copies gradients to the host.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import torch

from thinwire import _core, cuda
from thinwire._core import InvalidError

FOUND: dict[int, Device | None] = {}
"""Devices by torch's number; None for those that the core cannot use."""


class Device:
    """One device in use: the core's `Cuda`, and its stream as a torch stream."""

    def __init__(self, core: _core.Cuda, device: torch.device) -> None:
        """`core` is the core's device for torch's `device`."""
        self.core = core
        self._stream = torch.cuda.ExternalStream(core.stream, device=device)
        # Torch keeps most of a device's memory, and would not give it to another allocator.
        core.allocate_by(
            lambda size: torch.cuda.caching_allocator_alloc(size, device, self._stream),
            torch.cuda.caching_allocator_delete,
        )

    def take(self, buffer: torch.Tensor) -> torch.Tensor:
        """Returns gradients as f32 on the device, and lets the core use this memory. It is `buffer`
        itself if that is f32."""
        with torch.no_grad():
            return self._lent(buffer if buffer.dtype is torch.float32 else buffer.float())

    def room(self, buffer: torch.Tensor) -> torch.Tensor:
        """Returns memory for f32 values that will be copied to `buffer`. It is `buffer` itself if
        that is f32."""
        if buffer.dtype is torch.float32:
            return self._lent(buffer)
        return self._lent(buffer.new_empty(buffer.shape, dtype=torch.float32))

    def _lent(self, values: torch.Tensor) -> torch.Tensor:
        """Lets the core's stream use the memory after the work that torch's current stream has
        queued."""
        self.core.after(torch.cuda.current_stream(values.device).cuda_stream)
        # The memory may be given back before the core's stream has used it, when a step is given up.
        values.record_stream(self._stream)
        return values

    def follow(self) -> None:
        """Makes torch's current stream wait for the core's stream."""
        torch.cuda.current_stream(self._stream.device).wait_stream(self._stream)

    def give(self, values: torch.Tensor, buffer: torch.Tensor) -> None:
        """Copies averages from `values`, as returned by `take`, to `buffer`."""
        if values is not buffer:
            with self.stream(), torch.no_grad():
                buffer.copy_(values)
            buffer.record_stream(self._stream)

    def stream(self) -> contextlib.AbstractContextManager[Any]:
        """Makes the core's stream the current one."""
        return torch.cuda.stream(self._stream)


class Resident:
    """The tensors of one exchange on their device; like `Staging`, but nothing is copied to the host."""

    devices: frozenset[torch.device] = frozenset()

    def __init__(self, device: Device) -> None:
        """Creates it without tensors."""
        self.device = device
        self._returns: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._keep: list[torch.Tensor] = []

    def read(self, tensor: torch.Tensor) -> torch.Tensor:
        """The f32 values of `tensor`, for reading only."""
        self._keep.append(self.device.take(tensor))
        return self._keep[-1]

    def write(self, tensor: torch.Tensor) -> torch.Tensor:
        """Memory for f32 values that become the content of `tensor`."""
        values = self.device.room(tensor)
        self._returns.append((values, tensor))
        return values

    def update(self, tensor: torch.Tensor) -> torch.Tensor:
        """The f32 values of `tensor`, which also become its new content."""
        values = self.device.take(tensor)
        self._returns.append((values, tensor))
        return values

    def depart(self) -> None:
        """Does nothing: the core waits for the computation."""

    def arrive(self) -> None:
        """Does nothing: the tensors are where they are needed."""

    def deliver(self) -> None:
        """Queues the work that results need before they are read."""
        for values, tensor in self._returns:
            self.device.give(values, tensor)

    def follow(self) -> None:
        """Makes the current stream wait for the results."""
        self.device.follow()

    def stream(self, device: torch.device) -> contextlib.AbstractContextManager[Any]:
        """Makes the stream of the results the current one."""
        return self.device.stream()


def of(tensor: torch.Tensor) -> Device | None:
    """Returns the device of a tensor, or None if the core cannot use it.

    # Errors

    InvalidError while a CUDA graph captures work on the device, because the data of a step is not
    known then.
    """
    if not tensor.is_cuda:
        return None
    if torch.cuda.is_current_stream_capturing():
        raise InvalidError(
            "a CUDA graph captures this backward, and an exchange between ranks cannot be captured "
            "(hint: capture under model.no_sync(), or train without torch.cuda.graph)"
        )
    number = tensor.device.index
    if number not in FOUND:
        FOUND[number] = opened(tensor.device)
    return FOUND[number]


def opened(device: torch.device) -> Device | None:
    """Opens a device; returns None, with a warning of one line, if the core cannot use it."""
    core = cuda.opened(device.index, str(device), Path(torch.__file__).parent / "lib")
    return None if core is None else Device(core, device)
