"""Signatures for functions that pass their `**options` to another function.

The `attach` functions of integrations take all arguments of `hook` without listing them. With these
signatures, `help()` shows the arguments, and a name that `hook` does not have is refused at once.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection
from typing import Any, TypeVar, cast

Called = TypeVar("Called", bound=Callable[..., Any])
REST = inspect.Parameter.VAR_KEYWORD


def options_of(
    other: Callable[..., Any], leave_out: Collection[str] = ()
) -> Callable[[Called], Called]:
    """Replaces `**options` in a function's signature by the arguments of `other` that the function
    lacks.

    A method such as `__init__` may be decorated as well. Arguments in `leave_out` are not taken.
    """
    theirs = inspect.signature(other).parameters

    def decorate(function: Called) -> Called:
        own = inspect.signature(function)
        kept = [each for each in own.parameters.values() if each.kind is not REST]
        added = [
            each.replace(kind=inspect.Parameter.KEYWORD_ONLY)
            for name, each in theirs.items()
            if name not in own.parameters and name not in (*leave_out, "self")
        ]
        signature = own.replace(parameters=[*kept, *added])

        @functools.wraps(function)
        def called(*arguments: Any, **options: Any) -> Any:
            try:
                signature.bind(*arguments, **options)
            except TypeError as error:
                raise TypeError(f"{function.__qualname__}() {error}") from None
            return function(*arguments, **options)

        called.__signature__ = signature  # type: ignore[attr-defined]
        return cast(Called, called)

    return decorate
