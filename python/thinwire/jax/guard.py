"""What happens when a step fails: one clear exception here, and word to the peers.

JAX reports a failed call as a JaxRuntimeError where a value is read, with our line in it, and a loop that
reads nothing goes on. A rank that fails for reasons of its own leaves its peers waiting.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from thinwire._core import Error
from thinwire.jax import ending
from thinwire.lifetime import raised


@contextlib.contextmanager
def guard(exchanging: Any) -> Iterator[None]:
    """Around training steps: raises a failed exchange as what it is, and tells the peers of other errors.

        with thinwire.jax.guard(optimizer):
            params, state, loss = step(params, state, batch)

    `exchanging` is what `thinwire.jax.exchange` or `thinwire.jax.averaged` returned. It raises Thinwire's
    error, of one line, in place of JAX's; before the step, where an earlier one has failed. Any other
    exception passes, and every peer that waits for this rank raises PeerError with its text.
    """
    exchange = getattr(exchanging, "exchange", exchanging)
    exchange.raise_failure()
    try:
        yield
    except BaseException as error:
        failure = exchange.failure()
        if failure is not None and not isinstance(error, Error):
            ending.heard(exchange)
            raise failure from None
        exchange.group.abort(raised(exchange.group.rank, error))
        raise
    exchange.raise_failure()
