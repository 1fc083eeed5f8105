"""Finishes the steps that are still running when the program or an exchange ends.

JAX runs steps asynchronously, so the last steps may still run when the script is over. They are
finished before groups close, because the exit handler of this module is registered later, and
Python calls exit handlers in reverse order. A failure that the program has not seen is printed in
one line, and makes the exit status 1.
"""

from __future__ import annotations

import atexit
import contextlib
import sys
import threading
import weakref
from typing import Any, Protocol

import jax

from thinwire import _core, interrupts


class Source(Protocol):
    """The object that a program calls; it keeps the error of a step."""

    def failure(self) -> _core.Error | None:
        """The reason why a step has failed, if one has."""


class Steps:
    """The steps of one exchange. A program may still run them after the exchange itself was
    deleted."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.heard = False
        """Whether the program has received the error of a failed step."""

    def failure(self) -> _core.Error | None:
        """The reason why a step has failed, if the program has not received it."""
        return None if self.heard else self.source.failure()

    def finish(self) -> None:
        """Waits until no program calls the core. Then releases the synchronizer, unless a failure
        must still be reported."""
        # Garbage is collected on any thread, on one of XLA's in the middle of a step, too; else at exit.
        if threading.current_thread() is not threading.main_thread():
            return
        settle()
        if self.failure() is None:
            _followed.discard(self)


_followed: set[Steps] = set()


def follow(exchange: Any, source: Source) -> Steps:
    """Keeps the objects that the programs of an exchange call until its steps are finished."""
    steps = Steps(source)
    _followed.add(steps)
    weakref.finalize(exchange, steps.finish).atexit = False
    interrupts.watch(exchange.group)
    return steps


def settle() -> None:
    """Waits until all steps that this thread has dispatched have run. The core keeps their
    errors."""
    try:
        jax.effects_barrier()
    except Exception:
        # JAX keeps the error of its last program with effects, and would print it twice at its own end.
        with contextlib.suppress(Exception):
            jax.jit(lambda: jax.debug.callback(lambda: None))()
            jax.effects_barrier()


def _leave() -> None:
    """Finishes all steps, and prints a failure that the program has not received."""
    settle()
    failures = filter(None, (steps.failure() for steps in _followed))
    failure = next(failures, None)
    # After an exception Python has said why it ends, and the status says so too.
    raised = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    if failure is not None and raised is None:
        print(f"thinwire: a step has failed: {failure}", file=sys.stderr)
        _core.fail_at_exit()


atexit.register(_leave)
