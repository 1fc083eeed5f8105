"""The command as a module: `python -m thinwire`.

Ranks are started as the module, too. If they were started by the path of this file, Python would
find `thinwire.torch` under the name `torch`.
"""

from __future__ import annotations

import sys

from thinwire.command import run

if __name__ == "__main__":
    sys.exit(run([sys.executable, "-m", "thinwire"]))
