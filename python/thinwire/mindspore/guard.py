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
from thinwire._core import Synchronizer

from .finite import is_everywhere


class Synchronizing(Protocol):
    """What `guard` needs of a synchronizer."""

    def failure(self) -> thinwire.Error | None:
        """Why an operator has failed, if it has."""

    def abort(self, reason: str) -> None:
        """Makes every peer fail with `reason`."""


class Averaging(Protocol):
    """What has residuals: GradExchange, a reducer, an Exchange, SynchronousSGD."""

    synchronizer: Synchronizer
    group: thinwire.Group


class Exchanging(Protocol):
    """Anything that exchanges: GradExchange, a reducer, an Exchange, SynchronousSGD, ..."""

    synchronizer: Synchronizing


@contextlib.contextmanager
def guard(exchanging: Exchanging) -> Iterator[None]:
    """Around training steps: raises a failed exchange as what it is, and tells the peers of any other.

    Raises Thinwire's error, of one line, in place of MindSpore's RuntimeError. Any other exception passes,
    and every peer that waits for this rank raises PeerError with its text. `GradExchange` does it by
    itself.
    """
    try:
        yield
    except BaseException as error:
        settle(exchanging.synchronizer, error)
        raise


def settle(synchronizer: Synchronizing, error: BaseException) -> None:
    """Raises why the exchange failed if it did; tells the peers of `error` otherwise."""
    if is_everywhere(error):
        return
    failure = synchronizer.failure()
    if isinstance(error, thinwire.Error):
        return None if failure else synchronizer.abort(str(error))
    if failure is not None:
        raise failure
    synchronizer.abort(one_line(error))


def one_line(error: BaseException) -> str:
    """Kind and first line of an exception."""
    text = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
