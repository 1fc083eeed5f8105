"""The end of exchanges: steps that are under way when the program, or an exchange, ends.

JAX runs steps behind the program's back, so the last ones may run when the script is over. They are
finished before groups close, in whatever order modules were imported: what is registered last is called
first. A failure of which the program has not heard is said in one line, and makes the exit status 1.
"""

from __future__ import annotations

import atexit
import contextlib
import sys
import weakref
from typing import Any

import jax

from thinwire import _core

_exchanges: weakref.WeakSet[Any] = weakref.WeakSet()
_heard: weakref.WeakSet[Any] = weakref.WeakSet()


def follow(exchange: Any) -> None:
    """Finishes the steps of an exchange before it goes."""
    _exchanges.add(exchange)
    weakref.finalize(exchange, _finish, exchange.synchronizer).atexit = False


def heard(exchange: Any) -> None:
    """Says that the program has got the failure of an exchange."""
    _heard.add(exchange)


def _finish(synchronizer: _core.Synchronizer) -> None:
    """Keeps the core's part until no program runs that calls it."""
    settle()


def settle() -> None:
    """Waits until all steps have run; their errors are kept by the core."""
    try:
        jax.effects_barrier()
    except Exception:
        # JAX keeps the error of its last program with effects, and would print it twice at its own end.
        with contextlib.suppress(Exception):
            jax.jit(lambda: jax.debug.callback(lambda: None))()
            jax.effects_barrier()


def _leave() -> None:
    """Finishes all steps, and says what has failed unheard."""
    settle()
    failures = (each.failure() for each in _exchanges if each not in _heard)
    failure = next((each for each in failures if each is not None), None)
    # After an exception Python has said why it ends, and the status says so too.
    raised = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    if failure is not None and raised is None:
        print(f"thinwire: a step has failed: {failure}", file=sys.stderr)
        _core.fail_at_exit()


atexit.register(_leave)
