"""The handling of a failed step: one clear exception on this rank, and a message to the peers.

JAX reports a failed call only when the program reads a value: as a JaxRuntimeError that contains
Thinwire's message. A loop that reads nothing continues. A rank that fails for any other reason
leaves its peers waiting.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import jax

from thinwire._core import Error
from thinwire.lifetime import raised


@contextlib.contextmanager
def guard(exchanging: Any) -> Iterator[None]:
    """Context for training steps: raises the original error of a failed exchange, and reports other
    errors to the peers.

        with thinwire.jax.guard(optimizer):
            params, state, loss = step(params, state, batch)

    `exchanging` is what `thinwire.jax.exchange` or `thinwire.jax.averaged` returned. It raises
    Thinwire's one-line error in place of JAX's, or with another exception as its cause. The error
    of an earlier step is raised before the next step begins. If no step has failed, an exception is
    raised unchanged, and every peer that waits for this rank raises PeerError with the text of that
    exception.
    """
    exchange = getattr(exchanging, "exchange", exchanging)
    exchange.raise_failure()
    try:
        yield
    except BaseException as error:
        if isinstance(error, Exception) and not isinstance(error, Error):
            # JAX's error is the failure itself in many lines.
            exchange.raise_failure(None if isinstance(error, jax.errors.JaxRuntimeError) else error)
        exchange.group.abort(raised(exchange.group.rank, error))
        raise
    exchange.raise_failure()
