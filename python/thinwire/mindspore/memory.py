"""Tensors as NumPy arrays and back: the same memory on the CPU, a copy on the host elsewhere."""

from __future__ import annotations

from typing import Any

import mindspore as ms
import numpy as np
from mindspore import ops


def view(tensor: ms.Tensor) -> np.ndarray[Any, Any]:
    """Waits for the values of a tensor, and returns them as a contiguous array.

    The array shares the tensor's memory if that is contiguous host memory, and is a copy otherwise.
    """
    return tensor.asnumpy()


def address(array: np.ndarray[Any, Any]) -> int:
    """The address of the first element of a contiguous array."""
    return array.ctypes.data


def store(parameter: ms.Parameter, array: np.ndarray[Any, Any]) -> None:
    """Copies an array back to its parameter, after `view` has returned the array and the caller has
    changed it."""
    if address(array) != parameter.data_ptr():
        ops.assign(parameter, ms.Tensor(array))
