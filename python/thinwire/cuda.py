"""CUDA devices on which the core encodes gradients, for all frameworks.

A framework names a device by its number among those that this process sees. Where the core cannot use
a device, a warning says so in one line, and gradients are copied to host memory.
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
    """Takes a device into use; None, with a warning in one line, where the core cannot use it.

    `name` is what the framework calls the device. `libraries` is the folder of the framework's own
    libraries, next to which NVIDIA's packages have NVRTC.
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

    InvalidError, with what was given.
    """
    if device is not None and device != HOST:
        raise InvalidError(
            f"device is {shown(device)}, expected None, which encodes gradients where they are, or "
            f'"{HOST}"'
        )
