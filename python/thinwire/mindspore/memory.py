"""Tensors as NumPy arrays and back: the same memory on the CPU, a copy on the host elsewhere."""

from __future__ import annotations

from typing import Any

import mindspore as ms
import numpy as np
from mindspore import ops


def view(tensor: ms.Tensor) -> np.ndarray[Any, Any]:
    """The values of a tensor as a contiguous array, once they have been computed.

    It is the tensor's own memory where that is the host's and contiguous, and a copy otherwise.
    """
    return tensor.asnumpy()


def address(array: np.ndarray[Any, Any]) -> int:
    """Where the first element of a contiguous array is."""
    return array.ctypes.data


def store(parameter: ms.Parameter, array: np.ndarray[Any, Any]) -> None:
    """Gives a parameter the values of an array that `view` made of it and that has changed since."""
    if address(array) != parameter.data_ptr():
        ops.assign(parameter, ms.Tensor(array))
