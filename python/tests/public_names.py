"""The public names of modules and their signatures, as lines that a test compares with those of before.

    python public_names.py thinwire thinwire.torch

Public is what a module's `__all__` has, and of its classes what Thinwire has written and is not private.
"""

from __future__ import annotations

import importlib
import inspect
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parent / "testdata" / "public_names"


def expect_as_before(module: str) -> None:
    """Compares the names of a module, imported in a process of its own, with its file.

    With UPDATE_TESTDATA=1 the file is written anew.
    """
    done = subprocess.run(
        [sys.executable, __file__, module], capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    file = FOLDER / f"{module}.txt"
    if "UPDATE_TESTDATA" in os.environ:
        FOLDER.mkdir(parents=True, exist_ok=True)
        file.write_text(done.stdout)
    missing = "a name that goes warns for one minor version before, see thinwire/deprecated.py"
    assert done.stdout == file.read_text(), (
        f"with UPDATE_TESTDATA=1 the file is written anew; {missing}"
    )


def expect_class_to_warn(name: str) -> None:
    """Expects a class that was public to warn of the function that makes it."""
    module, _, kind = name.rpartition(".")
    function = f"{module}.{kind.lower()}"
    with pytest.warns(
        DeprecationWarning, match=rf"^{name} is deprecated, expected {function} "
    ) as seen:
        assert inspect.isclass(getattr(importlib.import_module(module), kind))
    assert [each.filename for each in seen] == [__file__]


def lines_of(module: str) -> Iterator[str]:
    """The public names of a module and of its classes, one a line."""
    found = importlib.import_module(module)
    for name in sorted(found.__all__):
        value = getattr(found, name)
        yield f"{module}.{name}{said(value)}"
        if inspect.isclass(value):
            yield from members_of(f"{module}.{name}", value)


def members_of(name: str, kind: type) -> Iterator[str]:
    """The public members of a class, but for those of other packages' classes."""
    ours = [each for each in kind.__mro__ if each.__module__.partition(".")[0] == "thinwire"]
    for member in sorted({each for base in ours for each in vars(base)}):
        if member.startswith("_") and member not in (
            "__call__",
            "__enter__",
            "__len__",
            "__iter__",
        ):
            continue
        yield f"{name}.{member}{said(inspect.getattr_static(kind, member))}"


def said(value: Any) -> str:
    """The kind of a value, or the signature of what can be called."""
    if inspect.isclass(value):
        bases = ", ".join(each.__name__ for each in value.__bases__ if each is not object)
        return f"({bases}): {signature(value)}" if bases else f": {signature(value)}"
    if isinstance(value, (staticmethod, classmethod)):
        return f": {type(value).__name__} {signature(value.__func__)}"
    if isinstance(value, property):
        return f": property{returned(value.fget)}"
    if callable(value):
        return signature(value)
    return f": {type(value).__name__}"


def signature(value: Any) -> str:
    """The signature; that of an exception has no names."""
    if inspect.isclass(value) and issubclass(value, BaseException):
        return "exception"
    # Defaults that are objects have addresses.
    return re.sub(r" at 0x[0-9a-f]+", "", str(inspect.signature(value)))


def returned(getter: Any) -> str:
    """The type that a property is said to have."""
    found = inspect.signature(getter).return_annotation
    return "" if found is inspect.Signature.empty else f" -> {inspect.formatannotation(found)}"


if __name__ == "__main__":
    for each in sys.argv[1:]:
        print(*lines_of(each), sep="\n")
