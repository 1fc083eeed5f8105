"""The ends of groups with their process: at exit, after an exception, and in a fork.

The package's root imports this in every process that uses the core. The command `thinwire` also
starts through the root, so nothing here takes time to import.
"""

from __future__ import annotations

import atexit
import concurrent.futures.thread  # noqa: F401
import contextlib
import os
import stat
import sys
import threading
import weakref
from typing import Any

from thinwire import _core

open_groups: weakref.WeakSet[Any] = weakref.WeakSet()
"""The `thinwire.Group`s of this process that are not closed."""


def ended(group: Any) -> str:
    """Returns the reason why a group has ended in this process: "closed", or "of the parent
    process" in a fork. Returns "" for an open group."""
    if group.process != os.getpid():
        return "of the parent process"
    return "" if group in open_groups else "closed"


def raised(rank: int, error: BaseException) -> str:
    """Returns the line that tells the other ranks about an exception on this one."""
    text = " ".join(f"{type(error).__name__}: {error}".split()).removesuffix(":")
    return f"rank {rank} raised {text[:500]}"


def _tell() -> None:
    """If this rank has raised an exception, tells the other ranks, which then fail at once with
    this reason.

    It runs before Python waits for its threads, some of which may wait for other ranks.
    """
    error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    if error is None or isinstance(error, _core.PeerError):
        return
    for group in list(open_groups):
        # A fork has no part in the groups of its parent.
        with contextlib.suppress(_core.Error):
            group.abort(raised(group.rank, error))


def _leave() -> None:
    """Closes the open groups, and waits for running callbacks while the interpreter still
    exists."""
    _core.close_all([group.core for group in open_groups])
    _core.settle()


def _let_go() -> None:
    """Closes the parent's sockets in a forked process, such as a worker of a DataLoader.

    The other ranks notice the parent's death only when no process has the parent's sockets open.
    The descriptors of these sockets then refer to /dev/null, because copies of the parent's objects
    still use them.
    """
    null = os.open(os.devnull, os.O_RDWR)
    for number, inode in _core.sockets():
        with contextlib.suppress(OSError):
            found = os.fstat(number)
            # The descriptor of a socket that was closed before may belong to another file by now.
            if stat.S_ISSOCK(found.st_mode) and found.st_ino == inode:
                os.dup2(null, number, inheritable=False)
    os.close(null)


os.register_at_fork(after_in_child=_let_go)
# Not public, but how concurrent.futures, imported above, ends its threads. The last comes first, so
# the other ranks are told before anybody waits for a thread.
getattr(threading, "_register_atexit", atexit.register)(_tell)
atexit.register(_leave)
