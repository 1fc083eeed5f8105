"""The exceptions of Thinwire, which the core raises too.

A caller's mistake is an `InvalidError` or its subclass `InvalidTypeError`. It can also be caught as
`ValueError` or `TypeError`, as usual in Python and in frameworks.
"""

from __future__ import annotations

__all__ = ["Error", "InvalidError", "InvalidTypeError", "NoRankError", "PeerError"]


class Error(RuntimeError):
    """The base of all exceptions of Thinwire."""

    __module__ = "thinwire"


class InvalidError(Error, ValueError):
    """The caller's mistake; nothing has changed."""

    __module__ = "thinwire"


class InvalidTypeError(InvalidError, TypeError):
    """An argument of the wrong type; nothing has changed."""

    __module__ = "thinwire"


class PeerError(Error):
    """A rank is lost or silent, has raised, or disagrees; the group has ended."""

    __module__ = "thinwire"


class NoRankError(InvalidError):
    """This process belongs to the job but has no rank: it is a scheduler."""

    __module__ = "thinwire._core"
