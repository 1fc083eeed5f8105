"""Membership of a process in an elastic job: checks before it joins, and signals on which it leaves."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from thinwire import arguments
from thinwire._core import Epoch, InvalidError
from thinwire.arguments import Seconds


class Members(Protocol):
    """Membership of this process in the job: `thinwire._core.Membership`, or a scripted one in tests."""

    def next(self) -> Epoch | None:
        """Waits for the next epoch; returns None if this process has left. Call it between
        steps."""

    def wants_end(self) -> bool:
        """Whether the epoch is to end after a step that all agree on."""

    def synced(self, steps: int) -> None:
        """Notes that the state was taken over, after this number of steps."""

    def applied(self, steps: int) -> None:
        """Notes that this number of steps was applied."""

    def halted(self) -> None:
        """Notes that the epoch has ended for this rank, which applies no further step in it."""

    def successors(self) -> list[tuple[int, int]]:
        """Ranks that leave when the epoch ends, each with the rank that takes over its
        residuals."""

    def leave(self) -> bool:
        """Asks to leave. Returns false if no epoch is under way, so that the process may end at
        once."""

    def tell(self, figures: str) -> None:
        """Reports the figures of this rank, as JSON, for `thinwire top`."""

    def complete(self) -> None:
        """Notes that all steps are done."""


def check(
    options: Mapping[str, Any],
    batch: int,
    compare_every: int,
    coordinator: str | None,
    token: str | None,
    timeout_s: Seconds,
) -> float:
    """Checks the launcher and the arguments that `Elastic` has in every framework, before this process
    joins. `options` are those of an exchange. Returns the timeout in seconds.

    # Errors

    InvalidError that names the first wrong argument, or an unsuitable launcher.
    """
    arguments.options(**options)
    seconds = arguments.job(coordinator, token, timeout_s)
    arguments.whole("batch is", batch, 1)
    arguments.whole("compare_every is", compare_every, 0)
    refuse_agent(os.environ)
    return seconds


def refuse_agent(environment: Mapping[str, str]) -> None:
    """Refuses a launcher that ends or restarts all ranks when one dies.

    # Errors

    InvalidError for a torchrun or an msrun of several ranks.
    """
    launcher = "thinwire run --ranks MIN:MAX"
    world = environment.get("WORLD_SIZE", "1")
    if "TORCHELASTIC_RUN_ID" in environment and world != "1":
        raise InvalidError(
            f"torchrun ends all its {world} ranks when one dies (hint: start a torchrun for each rank, "
            f"with --nproc-per-node 1 --max-restarts N and THINWIRE_MEMBER=new, or use {launcher})"
        )
    workers = environment.get("MS_WORKER_NUM", "1")
    if environment.get("MS_ROLE") == "MS_WORKER" and workers != "1":
        raise InvalidError(
            f"msrun ends all its {workers} ranks when one dies (hint: {launcher} -- python train.py)"
        )


def leave_when_signalled(leave: Callable[[int], None]) -> None:
    """Calls `leave` with the signal on SIGTERM and on the first SIGINT, unless the program has its
    own handlers. A second SIGINT is a KeyboardInterrupt."""

    def interrupted(number: int, _frame: object) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        leave(number)

    if threading.current_thread() is not threading.main_thread():
        return
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, lambda number, _frame: leave(number))
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, interrupted)
