"""One rank of `launch`: runs a function of a file, or a script, and writes down what it returns.

It watches itself: when the time is over, it prints where each thread stands and ends, also when the
test run that started it is gone.
"""

import atexit
import faulthandler
import importlib.util
import json
import os
import runpy
import signal
import sys
import threading
from pathlib import Path
from typing import Any


def play(task: dict[str, Any]) -> None:
    """Does what `task` says."""
    faulthandler.enable()
    # A shell's background jobs inherit that an interrupt is ignored, and Python leaves it so.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    faulthandler.dump_traceback_later(task["timeout_s"], exit=True)
    sys.path[0] = str(Path(task["file"]).parent)
    # Packages of another environment, behind those of this one.
    sys.path += filter(None, [os.environ.get("THINWIRE_LAST_PATH")])
    if task["function"] is None:
        sys.argv = [task["file"], *map(str, task["arguments"])]
        runpy.run_path(task["file"], run_name="__main__")
    else:
        result = load(Path(task["file"]), task["function"])(*task["arguments"])
        Path(task["result"]).write_text(json.dumps(result))


def leave() -> None:
    """Ends this process after its threads and what is to be done at exit, without taking the rest apart.

    That costs a third of a second where a framework was imported, most of it for copies of memory which a
    forked process shares with others.
    """
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def load(file: Path, function: str):
    """The function at the top of a file, which is imported under its own name."""
    spec = importlib.util.spec_from_file_location(file.stem, file)
    module = importlib.util.module_from_spec(spec)
    sys.modules[file.stem] = module
    spec.loader.exec_module(module)
    return getattr(module, function)


if __name__ == "__main__":
    play(json.loads(sys.argv[1]))
