"""Deprecated names: they work for one more minor version, with a DeprecationWarning.

Law: before a name is removed, it warns for one minor version (docs/compatibility.md).
"""

from __future__ import annotations

import functools
import importlib
import inspect
import warnings
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

Called = TypeVar("Called", bound=Callable[..., Any])


def warn(old: str, new: str, stacklevel: int = 3) -> None:
    """Warns the caller of an old name; the caller is `stacklevel` calls above."""
    text = f"{old} is deprecated, expected {new} (hint: the next minor version is without {old})"
    warnings.warn(text, DeprecationWarning, stacklevel=stacklevel)


def renamed(**names: str) -> Callable[[Called], Called]:
    """Makes a function accept keyword arguments by their old names; `names` maps each to its new name.

    # Errors

    TypeError for a call with both the old and the new name of one argument.
    """

    def decorate(function: Called) -> Called:
        @functools.wraps(function)
        def called(*arguments: Any, **options: Any) -> Any:
            for old in names.keys() & options.keys():
                new = names[old]
                if new in options:
                    raise TypeError(
                        f"{function.__qualname__}() got {old} and {new}, expected {new}"
                    )
                warn(f"{old}=", f"{new}=")
                options[new] = options.pop(old)
            return function(*arguments, **options)

        return cast(Called, called)

    return decorate


def method(old: str, current: Called) -> Called:
    """Returns a method by its old name, which calls the current one."""

    def called(*arguments: Any, **options: Any) -> Any:
        warn(f"{old}()", f"{current.__name__}()")
        return current(*arguments, **options)

    called.__doc__ = f"`{current.__name__}`, under the name that it had."
    called.__name__ = called.__qualname__ = old
    called.__signature__ = inspect.signature(current)  # type: ignore[attr-defined]
    return cast(Called, called)


def classes(
    module: str, made: Mapping[str, tuple[str, str]], stacklevel: int = 3
) -> Callable[[str], Any]:
    """Returns a module's `__getattr__` for classes that were public in addition to the functions
    that create them.

    `made` maps the name of each class to its submodule and its function.
    """

    def attribute(name: str) -> Any:
        if name not in made:
            raise AttributeError(f"module '{module}' has no attribute '{name}'")
        place, function = made[name]
        warn(f"{module}.{name}", f"{module}.{function}", stacklevel)
        return getattr(importlib.import_module(f"{module}.{place}"), name)

    return attribute
