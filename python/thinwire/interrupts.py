"""Ctrl-C while a thread other than Python's main thread waits for other ranks.

Python delivers signals to its main thread, which a framework may keep in a graph until the step ends.
Code that waits in such a graph for a peer checks, by this module, whether Ctrl-C was pressed, and
then ends the wait. If no Python code waits, as under XLA's handlers, a thread checks for Ctrl-C and
ends the group.
"""

from __future__ import annotations

import contextlib
import select
import signal
import socket
import threading
import time
import types
import weakref
from typing import TYPE_CHECKING

from thinwire.lifetime import raised

if TYPE_CHECKING:
    from thinwire.group import Group

LOOK_S = 0.2
"""The time that Python has to raise KeyboardInterrupt itself, in seconds."""
_watched: weakref.WeakSet[Group] = weakref.WeakSet()
ended: weakref.WeakSet[Group] = weakref.WeakSet()
"""Groups that Ctrl-C has ended. They are recorded because Keras ignores a KeyboardInterrupt while
it converts logs."""
_watcher: threading.Thread | None = None
_read: socket.socket | None = None
_write: socket.socket | None = None


def follow() -> None:
    """Begins to watch for Ctrl-C, unless something else watches for it, such as an event loop."""
    global _read, _write
    is_first = threading.current_thread() is threading.main_thread()
    if _write is not None or not is_first:
        return
    _read, _write = socket.socketpair()
    _read.setblocking(False)
    _write.setblocking(False)
    others = signal.set_wakeup_fd(_write.fileno(), warn_on_full_buffer=False)
    if others != -1:
        signal.set_wakeup_fd(others)
    elif signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupt)


def watch(group: Group) -> None:
    """Makes Ctrl-C end the group if Python's main thread is in native code that does not react to
    it.

    JAX waits in native code when a program reads an array. Ctrl-C then makes the step fail, the
    peers learn why, and Python raises KeyboardInterrupt when its main thread returns.
    """
    global _watcher
    follow()
    _watched.add(group)
    if _read is not None and _watcher is None:
        _watcher = threading.Thread(target=_look, args=[_read], name="thinwire-ctrl-c", daemon=True)
        _watcher.start()


def _look(read: socket.socket) -> None:
    while True:
        select.select([read], [], [])
        time.sleep(LOOK_S)
        # What Python has raised for was taken out meanwhile.
        for group in list(_watched) if pressed() else ():
            ended.add(group)
            with contextlib.suppress(Exception):  # it may be closed
                group.abort(raised(group.rank, KeyboardInterrupt()))


def _interrupt(number: int, frame: types.FrameType | None) -> None:
    """Raises KeyboardInterrupt as Python's own handler does, and makes sure that no later wait
    raises it again."""
    pressed()
    signal.default_int_handler(number, frame)


def forget() -> None:
    """Forgets an earlier Ctrl-C for which a different handler has raised."""
    if threading.current_thread() is threading.main_thread():
        pressed()


def pressed() -> bool:
    """Whether Ctrl-C was pressed since the last call and must be raised as KeyboardInterrupt."""
    found = b""
    if _read is not None:
        with contextlib.suppress(BlockingIOError):
            found = _read.recv(4096)
    # Notebooks set Python's own handler for each cell.
    raises = signal.getsignal(signal.SIGINT) in (signal.default_int_handler, _interrupt)
    return raises and signal.SIGINT in found
