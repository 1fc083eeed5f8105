"""Checks of arguments for all frameworks: an error has the name, the value and what is expected."""

from __future__ import annotations

import json
import numbers
import operator
import os
from collections.abc import Sequence
from typing import Any

import numpy

from thinwire import _core
from thinwire._core import InvalidError

UINT32_MAX = 2**32 - 1
INT64_MAX = 2**63 - 1
TIMEOUT_S_MIN, TIMEOUT_S_MAX = 0.1, 86_400.0
"""Limits on a timeout, in seconds."""
HEARTBEAT_S_MIN = 1.0
"""Least time of silence, in seconds, after which a rank may count as lost."""
SHOWN_MAX = 40
"""Largest number of characters of a string in a message."""


def shown(value: Any) -> str:
    """Returns a value as messages show it: numbers and strings themselves, tensors and arrays by dtype
    and shape, anything else by its type."""
    if isinstance(value, str):
        return json.dumps(value[:SHOWN_MAX], ensure_ascii=False)
    if value is None or isinstance(value, numbers.Number):
        return str(value)
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        return f"{type(value).__name__} {value.dtype} {list(value.shape)}"
    return type(value).__name__


def instance(name: str, value: Any, *kinds: type) -> Any:
    """Returns a value of one of these types.

    # Errors

    InvalidError for another type.
    """
    if not isinstance(value, kinds):
        expected = " or ".join(kind.__name__ for kind in kinds).replace("NoneType", "None")
        raise InvalidError(f"{name} is {shown(value)}, expected {expected}")
    return value


def flag(name: str, value: Any) -> bool:
    """Returns True or False.

    # Errors

    InvalidError for any other value.
    """
    if not isinstance(value, (bool, numpy.bool_)):
        raise InvalidError(f"{name} is {shown(value)}, expected True or False")
    return bool(value)


def whole(name: str, value: Any, least: int = 0, most: int = INT64_MAX) -> int:
    """Returns a whole number from `least` to `most`.

    # Errors

    InvalidError for a number out of range, and for anything else, booleans and floats included.
    """
    try:
        found = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        found = None
    if found is None or not least <= found <= most:
        end = f"to {most}" if found is not None and found > most else "on"
        raise InvalidError(f"{name} {shown(value)}, expected a whole number from {least} {end}")
    return found


def wholes(name: str, values: Any, least: int = 0, most: int = INT64_MAX) -> list[int]:
    """Returns the whole numbers of a sequence, tensor or array, each from `least` to `most`, as a list.

    # Errors

    InvalidError for other numbers, and for anything but a sequence.
    """
    found = values.tolist() if hasattr(values, "tolist") else values
    if isinstance(found, (str, bytes)) or not isinstance(found, Sequence):
        raise InvalidError(f"{name} is {shown(values)}, expected a list of whole numbers")
    return [whole(f"{name} has", value, least, most) for value in found]


def path(name: str, value: Any) -> str:
    """Returns the path of a file as a string.

    # Errors

    InvalidError for anything but a path.
    """
    try:
        return os.fsdecode(value)
    except TypeError:
        raise InvalidError(f"{name} is {shown(value)}, expected the path of a file") from None


def seconds(name: str, value: Any, least: float, most: float) -> float:
    """Returns a number of seconds from `least` to `most`.

    # Errors

    InvalidError for any other number, NaN included, and for anything else.
    """
    is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if not is_number or not least <= value <= most:
        raise InvalidError(f"{name} is {shown(value)}, expected seconds from {least:g} to {most:g}")
    return float(value)


def timeouts(timeout_s: Any, heartbeat_timeout_s: Any = None) -> None:
    """Refuses timeouts of a group that the core would not take; no heartbeat timeout is None.

    # Errors

    InvalidError that names the first of them.
    """
    most = seconds("timeout_s", timeout_s, TIMEOUT_S_MIN, TIMEOUT_S_MAX)
    if heartbeat_timeout_s is not None:
        seconds("heartbeat_timeout_s", heartbeat_timeout_s, HEARTBEAT_S_MIN, most)


def job(coordinator: Any, token: Any, timeout_s: Any) -> None:
    """Refuses what is no place of a job: its address and secret, or None, and a timeout.

    # Errors

    InvalidError that names the first of them.
    """
    text_or_none("coordinator", coordinator)
    text_or_none("token", token)
    timeouts(timeout_s)


def options(world: int | None = None, **given: Any) -> None:
    """Refuses options of an exchange that a Synchronizer would refuse, before anybody is met.

    With `world`, the number of ranks, also those that it would refuse among so many.

    # Errors

    InvalidError that names the first of them.
    """
    for name, value in given.items():
        KINDS.get(name, lambda *_: None)(name, value)
    _core.check(**given, world=world)


def text(name: str, value: Any) -> None:
    """Refuses anything but a string."""
    instance(name, value, str)


def text_or_none(name: str, value: Any) -> None:
    """Refuses anything but a string or None."""
    instance(name, value, str, type(None))


def integer(name: str, value: Any) -> None:
    """Refuses anything but a whole number of any size."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise InvalidError(f"{name} is {shown(value)}, expected a whole number")


def integer_or_none(name: str, value: Any) -> None:
    """Refuses anything but a whole number or None."""
    if value is not None:
        integer(name, value)


def number_or_none(name: str, value: Any) -> None:
    """Refuses anything but a number or None."""
    if value is not None and (isinstance(value, bool) or not isinstance(value, numbers.Real)):
        raise InvalidError(f"{name} is {shown(value)}, expected a number")


KINDS = {
    "codec": text,
    "feedback": text,
    "algorithm": text_or_none,
    "bucket_bytes": integer,
    "seed": integer,
    "warmup_steps": integer_or_none,
    "error_budget": number_or_none,
    "momentum_correction": number_or_none,
    "unchecked": flag,
}
"""Checks of the types of an exchange's options; the core checks their values."""
