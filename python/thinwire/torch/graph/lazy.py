"""Values of a batch that are computed when they are first read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any


class Later:
    """A value that is computed once, when it is first asked for."""

    __slots__ = ("_make", "_value")

    def __init__(self, make: Callable[[], Any]) -> None:
        """Creates the value that `make` returns."""
        self._make: Callable[[], Any] | None = make
        self._value: Any = None

    def get(self) -> Any:
        """Returns the value, and releases what it is made from."""
        make = self._make
        if make is not None:
            self._value, self._make = make(), None
        return self._value


class Lazy(dict[str, Any]):
    """Dictionary whose readers see the values of its `Later` objects.

    A value is computed when it is read; operations that read everything, such as pickling, compute
    all values. `copy` computes nothing.
    """

    def __getitem__(self, name: str) -> Any:
        """Returns a value."""
        value = super().__getitem__(name)
        if isinstance(value, Later):
            value = value.get()
            self[name] = value
        return value

    def __iter__(self) -> Iterator[str]:
        """Iterates over names. A method of its own is what makes `dict(lazy)` and `**lazy` read values by
        the one above."""
        return super().__iter__()

    def get(self, name: str, default: Any = None) -> Any:
        """Returns a value, or the default."""
        try:
            return self[name]
        except KeyError:
            return default

    def copy(self) -> Lazy:
        """Returns a copy with the same values to be computed."""
        return Lazy(list(dict.items(self)))

    __copy__ = copy

    def __reduce__(self) -> tuple[type[dict[str, Any]], tuple[dict[str, Any]]]:
        """Pickles and copies deeply as a dictionary of values."""
        return dict, (dict(self),)


def computing(method: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a method of dictionaries that first computes all values."""

    @wraps(method)
    def call(lazy: Lazy, *arguments: Any) -> Any:
        for name in lazy:
            lazy[name]  # computed, and kept
        return method(lazy, *arguments)

    return call


for _name in (
    *("items", "values", "pop", "popitem", "setdefault"),
    *("__eq__", "__ne__", "__or__", "__ror__", "__repr__"),
):
    setattr(Lazy, _name, computing(getattr(dict, _name)))
