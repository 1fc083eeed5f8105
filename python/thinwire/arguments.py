"""Checks of arguments for all frameworks: an error names the argument, its value and the expected
values."""

from __future__ import annotations

import datetime
import glob
import json
import numbers
import operator
import os
import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy

from thinwire import _core
from thinwire.errors import InvalidError, InvalidTypeError

Codecs = str | Mapping[str, str] | Callable[[str], str]
"""A codec, or codecs by the names of parameters."""
Seconds = float | datetime.timedelta
"""A time: a number of seconds, or a timedelta."""
UINT32_MAX = 2**32 - 1
INT64_MAX = 2**63 - 1
TIMEOUT_S_MIN, TIMEOUT_S_MAX = 0.1, 86_400.0
"""Limits on a timeout, in seconds."""
HEARTBEAT_S_MIN = 1.0
"""Least time of silence, in seconds, after which a rank may count as lost."""
SHOWN_MAX = 40
"""Largest number of characters of a string in a message."""


def shown(value: Any) -> str:
    """Returns the text of a value in messages: a number or string itself, the dtype and shape of a
    tensor or array, or else the name of the type."""
    if isinstance(value, str):
        return json.dumps(value[:SHOWN_MAX], ensure_ascii=False)
    if value is None or isinstance(value, (numbers.Number, datetime.timedelta)):
        return str(value)
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        return f"{type(value).__name__} {value.dtype} {list(value.shape)}"
    return type(value).__name__


def instance(name: str, value: Any, *kinds: type) -> Any:
    """Returns the value if it is of one of these types.

    # Errors

    InvalidTypeError for a value of another type.
    """
    if not isinstance(value, kinds):
        expected = " or ".join(kind.__name__ for kind in kinds).replace("NoneType", "None")
        raise InvalidTypeError(f"{name} is {shown(value)}, expected {expected}")
    return value


def flag(name: str, value: Any) -> bool:
    """Returns True or False.

    # Errors

    InvalidTypeError for any other value.
    """
    if not isinstance(value, (bool, numpy.bool_)):
        raise InvalidTypeError(f"{name} is {shown(value)}, expected True or False")
    return bool(value)


def whole(name: str, value: Any, least: int = 0, most: int = INT64_MAX) -> int:
    """Returns a whole number from `least` to `most`.

    # Errors

    InvalidError for a number out of range, and InvalidTypeError for anything else, booleans and floats
    included.
    """
    try:
        found = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        found = None
    if found is None or not least <= found <= most:
        wanted = (
            f"from {least} to {most}"
            if found is not None and found > most
            else f"of at least {least}"
        )
        kind = InvalidTypeError if found is None else InvalidError
        raise kind(f"{name} {shown(value)}, expected a whole number {wanted}")
    return found


def wholes(name: str, values: Any, least: int = 0, most: int = INT64_MAX) -> list[int]:
    """Returns the whole numbers of a sequence, tensor or array, each from `least` to `most`, as a list.

    # Errors

    InvalidError for other numbers, and InvalidTypeError for anything but a sequence.
    """
    found = values.tolist() if hasattr(values, "tolist") else values
    if isinstance(found, (str, bytes)) or not isinstance(found, Sequence):
        raise InvalidTypeError(f"{name} is {shown(values)}, expected a list of whole numbers")
    return [whole(f"{name} has", value, least, most) for value in found]


def path(name: str, value: Any) -> str:
    """Returns the path of a file as a string.

    # Errors

    InvalidTypeError for anything but a path.
    """
    try:
        return os.fsdecode(value)
    except TypeError:
        raise InvalidTypeError(f"{name} is {shown(value)}, expected the path of a file") from None


def seconds(name: str, value: Any, least: float, most: float) -> float:
    """Returns a number of seconds from `least` to `most`, given as a number or as a timedelta.

    # Errors

    InvalidError for any other number, NaN included, and InvalidTypeError for anything else.
    """
    number = value.total_seconds() if isinstance(value, datetime.timedelta) else value
    is_number = isinstance(number, numbers.Real) and not isinstance(number, bool)
    if not is_number or not least <= number <= most:
        kind = InvalidError if is_number else InvalidTypeError
        raise kind(f"{name} is {shown(value)}, expected seconds from {least:g} to {most:g}")
    return float(number)


def timeouts(timeout_s: Any, heartbeat_timeout_s: Any = None) -> tuple[float, float | None]:
    """Returns the timeouts of a group in seconds; the second is None if no heartbeat timeout is
    given.

    # Errors

    InvalidError that names the first of them that the core would refuse.
    """
    timeout_s = seconds("timeout_s", timeout_s, TIMEOUT_S_MIN, TIMEOUT_S_MAX)
    if heartbeat_timeout_s is not None:
        heartbeat_timeout_s = seconds(
            "heartbeat_timeout_s", heartbeat_timeout_s, HEARTBEAT_S_MIN, timeout_s
        )
    return timeout_s, heartbeat_timeout_s


def job(coordinator: Any, token: Any, timeout_s: Any) -> float:
    """Checks the address and the secret of a job, each of which may be None, and returns the timeout in
    seconds.

    # Errors

    InvalidError that names the first of them.
    """
    text_or_none("coordinator", coordinator)
    text_or_none("token", token)
    return timeouts(timeout_s)[0]


def options(world: int | None = None, **given: Any) -> None:
    """Refuses options of an exchange that a Synchronizer would refuse, before this rank connects to
    others.

    With `world`, it also refuses options that do not work with that number of ranks.

    # Errors

    InvalidError that names the first of them.
    """
    for name, value in given.items():
        if name in KINDS:
            KINDS[name](name, value)
    _core.check(**given, world=world)


def codec(given: Any, names: Collection[str] = ()) -> Any:
    """Returns codecs by the names of parameters in the core's form, PATTERN=CODEC,PATTERN=CODEC.
    They are given as a mapping, or as a function, which is called with each of `names`. Any other
    codec is returned unchanged.

    # Errors

    InvalidError for a mapping without a pattern, a pattern that the core cannot read, and a function
    without names; InvalidTypeError for other types of patterns and codecs.
    """
    if isinstance(given, Mapping):
        rules = list(given.items())
        if not rules:
            raise InvalidError(
                'codec is an empty mapping, expected patterns, such as {"*": "int8"}'
            )
    elif callable(given):
        rules = chosen(given, names)
    else:
        return given
    for pattern, each in rules:
        instance("pattern of codec", pattern, str)
        instance(f"codec of {pattern}", each, str)
        for place, sign in ((pattern, "="), (pattern, ","), (each, ",")):
            if sign in place:
                raise InvalidError(
                    f"codec has {shown(place)}, expected no '{sign}' (hint: ? matches any character)"
                )
    return ",".join(f"{pattern}={each}" for pattern, each in rules)


def chosen(function: Callable[[str], Any], names: Collection[str]) -> list[tuple[str, Any]]:
    """Returns the codec of each name that a function gives, with the most frequent one for all others."""
    if not names:
        raise InvalidError(
            "codec is a function of names, and no parameter has one (hint: "
            "named_parameters=model.named_parameters())"
        )
    codecs = {name: function(name) for name in names}
    usual, _ = Counter(codecs.values()).most_common(1)[0]
    # The core reads patterns; no other character is special to it, but for those between rules.
    escaped = {name: re.sub("[=,]", "?", glob.escape(name)) for name in names}
    return [
        *((escaped[name], each) for name, each in codecs.items() if each != usual),
        ("*", usual),
    ]


def text(name: str, value: Any) -> None:
    """Refuses anything but a string."""
    instance(name, value, str)


def text_or_none(name: str, value: Any) -> None:
    """Refuses anything but a string or None."""
    instance(name, value, str, type(None))


def integer(name: str, value: Any) -> None:
    """Refuses anything but a whole number of any size."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise InvalidTypeError(f"{name} is {shown(value)}, expected a whole number")


def integer_or_none(name: str, value: Any) -> None:
    """Refuses anything but a whole number or None."""
    if value is not None:
        integer(name, value)


def number_or_none(name: str, value: Any) -> None:
    """Refuses anything but a number or None."""
    if value is not None and (isinstance(value, bool) or not isinstance(value, numbers.Real)):
        raise InvalidTypeError(f"{name} is {shown(value)}, expected a number")


KINDS: dict[str, Callable[[str, Any], object]] = {
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
