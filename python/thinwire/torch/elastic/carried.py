"""State of schedulers and similar objects, in a form that `torch.load` can read on another rank.

For bytes that come from another rank, `torch.load` does not create objects of a program's own
types. NumPy values are sent as bytes. A value that would not arrive unchanged is refused before any
rank depends on it.

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
    """Returns a value in the form that is sent; `path` names the value in errors.

    # Errors

    InvalidError for a type that cannot be sent.
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
    """The value, restored from the form that `carried` returned."""
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
    """Returns a key of a dict or an element of a set, after checking that it can be sent unchanged.

    # Errors

    InvalidError for a type that cannot be sent.
    """
    if type(value) not in PLAIN:
        raise refused(value, path)
    return value


def refused(value: Any, path: str) -> InvalidError:
    """The error text for a value that cannot be sent."""
    text = " ".join(repr(value).split())
    return InvalidError(
        f"the state of {path} is a {type(value).__name__}, {text[:60]}, expected numbers, text, "
        "tensors, values of NumPy, or lists, tuples, sets and dicts of them (hint: let state_dict "
        "return only such values)"
    )
