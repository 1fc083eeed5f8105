"""What happens when a step fails: one clear exception here, and word to the peers.

MindSpore reports a failed operator as a RuntimeError of many lines without the reason, refuses every
later call of a compiled cell with another, and in asynchronous PyNative mode raises wherever a value
is looked at next. A rank that fails for reasons of its own leaves its peers waiting.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Protocol

import thinwire
from thinwire import _core

from .operator import SYMBOL

# What MindSpore says when our operator has failed: at once, and for each later call of its graph.
SIGNS = (SYMBOL, "An error occurred in the previous step of this model execution")


class Exchanging(Protocol):
    """Anything with a synchronizer: GradExchange, a reducer, an Exchange, SynchronousSGD, ..."""

    synchronizer: _core.Synchronizer


@contextlib.contextmanager
def guard(exchanging: Exchanging) -> Iterator[None]:
    """Around training steps: raises a failed exchange as what it is, and tells the peers of any other.

    Raises PeerError or InvalidError, with one line, in place of MindSpore's RuntimeError. Any other
    exception passes, and every peer that waits for this rank raises PeerError with its text.
    `GradExchange` does it by itself.
    """
    try:
        yield
    except BaseException as error:
        settle(exchanging.synchronizer, error)
        raise


def settle(synchronizer: _core.Synchronizer, error: BaseException) -> None:
    """Raises the reason if `error` says that the exchange failed; tells the peers of it otherwise."""
    if isinstance(error, thinwire.Error):
        return
    reason = failure(synchronizer) if any(sign in str(error) for sign in SIGNS) else None
    if reason is not None:
        raise reason from None
    synchronizer.abort(one_line(error))


def failure(synchronizer: _core.Synchronizer) -> thinwire.Error | None:
    """What ended the exchanges of this synchronizer, if anything has."""
    try:
        synchronizer.begin()
    except thinwire.Error as error:
        return error
    return None


def one_line(error: BaseException) -> str:
    """Kind and first line of an exception."""
    text = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
