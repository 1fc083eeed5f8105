"""CUDA devices on which the core encodes gradients, for all frameworks.

A framework names a device by its number among the devices that this process sees. If the core
cannot use a device, it warns in one line, and gradients are copied to host memory.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

from thinwire import _core
from thinwire._core import InvalidError
from thinwire.arguments import shown

HOST = "host"
"""The value of an option `device` that encodes gradients in host memory."""


def opened(number: int, name: str, libraries: Path) -> _core.Cuda | None:
    """Opens a device; returns None, with a warning of one line, if the core cannot use it.

    `name` is the framework's name of the device. `libraries` is the folder of the framework's own
    libraries; NVIDIA's packages install NVRTC next to it.
    """
    try:
        return _core.Cuda.open(number, str(libraries))
    except _core.Error as error:
        warnings.warn(
            f"gradients on {name} are copied to host memory and encoded there: {error} "
            "(hint: device='host' does the same without this warning)",
            stacklevel=3,
        )
        return None


def check(device: Any) -> None:
    """Refuses anything but None and "host".

    # Errors

    InvalidError, whose message has the given value.
    """
    if device is not None and device != HOST:
        raise InvalidError(
            f"device is {shown(device)}, expected None, which encodes gradients where they are, or "
            f'"{HOST}"'
        )
