"""The command as a module: `python -m thinwire`.

Ranks start as the module, too: the path of this file as a script would make Python find `thinwire.torch` as
`torch`.
"""

from __future__ import annotations

import sys

from thinwire.command import run

if __name__ == "__main__":
    sys.exit(run([sys.executable, "-m", "thinwire"]))
