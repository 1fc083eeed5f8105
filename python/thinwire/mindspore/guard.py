"""The handling of a failed step: one clear exception on this rank, and a message to the peers.

MindSpore reports a failed operator as a RuntimeError of many lines without the reason. It refuses
every later call of a compiled cell with a different error. In asynchronous PyNative mode, it raises
wherever a value is read next. A rank that fails for any other reason leaves its peers waiting.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Protocol

import thinwire
from thinwire._core import Synchronizer

from .finite import is_everywhere


class Synchronizing(Protocol):
    """The methods of a synchronizer that `guard` needs."""

    def failure(self) -> thinwire.Error | None:
        """The reason why an operator has failed, if one has."""

    def abort(self, reason: str) -> None:
        """Makes every peer fail with `reason`."""


class Averaging(Protocol):
    """Anything with residuals: GradExchange, a reducer, an Exchange, SynchronousSGD."""

    synchronizer: Synchronizer
    group: thinwire.Group


class Exchanging(Protocol):
    """Anything that exchanges: GradExchange, a reducer, an Exchange, SynchronousSGD, ..."""

    synchronizer: Synchronizing


@contextlib.contextmanager
def guard(exchanging: Exchanging) -> Iterator[None]:
    """Context for training steps: raises the original error of a failed exchange, and reports any
    other error to the peers.

    Raises Thinwire's error, of one line, in place of MindSpore's RuntimeError. Any other exception is
    raised unchanged, and every peer that waits for this rank raises PeerError with the text of that
    exception. `GradExchange` needs no `guard`.
    """
    try:
        yield
    except BaseException as error:
        settle(exchanging.synchronizer, error)
        raise


def settle(synchronizer: Synchronizing, error: BaseException) -> None:
    """Raises the error of the exchange if it failed; otherwise reports `error` to the peers."""
    if is_everywhere(error):
        return
    failure = synchronizer.failure()
    if isinstance(error, thinwire.Error):
        return None if failure else synchronizer.abort(str(error))
    if failure is not None:
        raise failure
    synchronizer.abort(one_line(error))


def one_line(error: BaseException) -> str:
    """Returns the type and the first line of an exception."""
    text = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
