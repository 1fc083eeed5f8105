"""State of schedulers and the like as another rank can load it, and a file that `torch.load` opens.

`torch.load` makes no objects of a program's own types out of bytes that come from elsewhere. NumPy's values
travel as their bytes; what would not arrive as it was is refused, before anybody depends on it.

Law: `found(carried(state))` is the state.
"""

from __future__ import annotations

import collections
from typing import Any

import numpy as np
import torch

from thinwire._core import InvalidError

PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size)
TENSORS = (torch.Tensor, torch.nn.Parameter)
NUMPY = "thinwire.numpy"
"""The only key of a dict that stands for a value of NumPy: its dtype, shape and bytes."""


def carried(value: Any, path: str) -> Any:
    """A value in the form that travels; `path` names it.

    # Errors

    InvalidError for a type that does not travel.
    """
    kind = type(value)
    if kind in PLAIN or kind in TENSORS:
        return value
    if isinstance(value, (np.generic, np.ndarray)) and value.dtype.kind in "biufcmM":
        shape = list(value.shape) if isinstance(value, np.ndarray) else None
        return {NUMPY: [value.dtype.str, shape, value.tobytes()]}
    if kind in (dict, collections.OrderedDict):
        return kind(
            (known(key, path), carried(each, f"{path}/{key}")) for key, each in value.items()
        )
    if kind in (list, tuple):
        return kind(carried(each, f"{path}/{at}") for at, each in enumerate(value))
    if kind is set:
        return {known(each, path) for each in value}
    raise refused(value, path)


def found(value: Any) -> Any:
    """The value that `carried` has put into its form."""
    kind = type(value)
    if kind is dict and value.keys() == {NUMPY}:
        name, shape, raw = value[NUMPY]
        values = np.frombuffer(bytearray(raw), name)
        return values[0] if shape is None else values.reshape(shape)
    if kind in (dict, collections.OrderedDict):
        return kind((key, found(each)) for key, each in value.items())
    if kind in (list, tuple):
        return kind(found(each) for each in value)
    return value


def known(value: Any, path: str) -> Any:
    """A key of a dict or an element of a set, which has no form but its own.

    # Errors

    InvalidError for a type that does not travel.
    """
    if type(value) not in PLAIN:
        raise refused(value, path)
    return value


def refused(value: Any, path: str) -> InvalidError:
    """What to say of a value that does not travel."""
    text = " ".join(repr(value).split())
    return InvalidError(
        f"the state of {path} is a {type(value).__name__}, {text[:60]}, expected numbers, text, tensors, "
        "values of NumPy, or lists, tuples, sets and dicts of them (hint: a state_dict that returns such)"
    )
