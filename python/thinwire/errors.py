"""The exceptions of Thinwire, which the core raises too.

Both of a caller's mistakes are `InvalidError`s; whoever expects the exceptions of Python and of frameworks
catches them as `ValueError` and `TypeError`.
"""

from __future__ import annotations

__all__ = ["Error", "InvalidError", "InvalidTypeError", "NoRankError", "PeerError"]


class Error(RuntimeError):
    """Whatever went wrong in Thinwire."""

    __module__ = "thinwire"


class InvalidError(Error, ValueError):
    """The caller's mistake; nothing has changed."""

    __module__ = "thinwire"


class InvalidTypeError(InvalidError, TypeError):
    """An argument of another type than expected; nothing has changed."""

    __module__ = "thinwire"


class PeerError(Error):
    """A rank is lost, silent, has raised or disagrees; the group is over."""

    __module__ = "thinwire"


class NoRankError(InvalidError):
    """This process has a part in the job, but no rank: it is a scheduler."""

    __module__ = "thinwire._core"
