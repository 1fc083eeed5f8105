"""One step of DDP: its buckets, their progress, and the end of the step.

The futures of all buckets complete together, from the thread of the core that has the averages. On
a GPU, the futures also make waiters wait for the copy back.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any

import torch

from thinwire.torch import device as devices
from thinwire.torch.device import Resident
from thinwire.torch.layout import Flat, dtype
from thinwire.torch.parts import Part, Parts
from thinwire.torch.staging import Staging

Future = torch.futures.Future


class Step:
    """The buckets of one step so far. The step is complete with its last bucket, and over when the
    averages have arrived."""

    def __init__(
        self, weight: float = 1.0, on_host: bool = False, parts: Parts | None = None
    ) -> None:
        """Creates a step without buckets.

        Gradients are multiplied by `weight` before they are sent, and are encoded in host memory if
        `on_host`. With `parts`, this rank exchanges only a part of each gradient.
        """
        self.weight = weight
        self.on_host = on_host
        self.parts = parts
        self.on_device = False
        """Whether the core has gradients of this step on a device."""
        self.flats: list[Flat] = []
        self.given: list[bool] = []
        self.complete = False
        self.over = threading.Event()
        self.error: BaseException | None = None
        self.averaged = True
        self._buffers: list[torch.Tensor] = []
        self._futures: list[Future[torch.Tensor]] = []
        self._stagings: list[Staging | Resident | Part] = []

    def add(
        self, parameters: list[torch.Tensor], buffer: torch.Tensor, is_last: bool
    ) -> Future[torch.Tensor]:
        """Adds a bucket and returns the future of its average."""
        device = None if self.on_host else devices.of(buffer)
        self.on_device = self.on_device or device is not None
        staging: Staging | Resident | Part = Resident(device) if device else Staging()
        if self.parts is not None:
            staging = self.parts.of(len(self.flats), parameters, device)
        kind = dtype(buffer)
        self.flats.append(Flat(parameters, staging.update(buffer), kind, device))
        staging.depart()
        self._stagings.append(staging)
        future: Future[torch.Tensor] = Future(devices=[buffer.device] if buffer.is_cuda else None)
        self._buffers.append(buffer)
        self._futures.append(future)
        self.complete = is_last
        if self.error is not None:
            fail(future, self.error)
        return future

    @property
    def is_elsewhere(self) -> bool:
        """Whether gradients are still in transfer, from a device or between ranks, so that
        `arrived` blocks."""
        return any(staging.devices for staging in self._stagings)

    def arrived(self, index: int) -> None:
        """Waits until the core can take the gradients of bucket `index`."""
        self._stagings[index].arrive()

    def end(self, error: BaseException | None) -> None:
        """Ends the step with its averages, or with an error."""
        if error is None:
            error = self._attempt(self._deliver)
        self.error = error
        if error is not None:
            for future in self._futures:
                fail(future, error)
        self.over.set()

    def _attempt(self, action: Callable[[], None]) -> BaseException | None:
        try:
            action()
        except BaseException as error:
            return error
        return None

    def _deliver(self) -> None:
        """Completes each future with its bucket, and releases both."""
        for staging in self._stagings:
            staging.deliver()
        for staging, buffer, future in zip(self._stagings, self._buffers, self._futures):
            with staging.stream(buffer.device):
                staging.follow()
                future.set_result(buffer)
        self._buffers, self._futures, self.flats, self._stagings = [], [], [], []


def completed(buffer: torch.Tensor) -> Future[torch.Tensor]:
    """A completed future with a value."""
    future: Future[torch.Tensor] = Future()
    future.set_result(buffer)
    return future


def fail(future: Future[torch.Tensor], error: BaseException) -> None:
    """Sets an error on a future, unless the future is complete."""
    reason: Any = error if isinstance(error, Exception) else RuntimeError(type(error).__name__)
    with contextlib.suppress(RuntimeError):
        future.set_exception(reason)
