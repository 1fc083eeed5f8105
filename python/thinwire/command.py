"""The command `thinwire` as a script or a module of this package: Python only starts it, the core
does the rest.

Ranks start by the same script or module, so this file imports nothing that takes time, and the
package's root does not import NumPy.
"""

from __future__ import annotations

import os
import signal
import sys

from thinwire import _core


def main() -> int:
    """Runs the command as this script with the arguments of this process, and returns its exit code."""
    return run([sys.executable, os.path.abspath(sys.argv[0])])


def run(words: list[str]) -> int:
    """Runs the command with the arguments of this process; it starts its ranks with `words`."""
    # What Python has changed, and programs that the command starts would inherit.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    return _core.command(words, sys.argv[1:])
