"""Ctrl-C while a thread other than Python's main thread waits for other ranks.

Python delivers signals to its main thread, which a framework may keep in a graph until the step ends.
Code that waits there for a peer checks here whether Ctrl-C was pressed, and ends the wait.
"""

from __future__ import annotations

import contextlib
import signal
import socket
import threading
import types

_read: socket.socket | None = None
_write: socket.socket | None = None


def follow() -> None:
    """Begins to watch for Ctrl-C; does nothing if something else does, such as an event loop."""
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


def _interrupt(number: int, frame: types.FrameType | None) -> None:
    """Raises KeyboardInterrupt as Python's own handler does, and no later wait raises it once more."""
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
