"""Starts ranks by forking a process that has imported their framework: that takes seconds of a
processor, and hundreds of ranks share it.

A rank is a process of its own all the same: it leads a process group, and has its own environment and
output. A script, rank 0, and a rank that fails end as any program does. Two servers take turns, so that
the ranks of one job differ in what Python draws when it begins, such as the order of sets.

The launcher asks in lines of JSON: `{"start": …}` gives the process, `{"state": process}` how it has
ended, null while it runs, and `{"reap": process}` the same at its end. Until then its number is its own.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import json
import os
import select
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any, TextIO

# What a framework may take to be imported on a machine that is busy.
ANSWER_S = 600.0


class ForkServer:
    """A process that has imported `modules`, seen from the launcher."""

    def __init__(self, modules: Sequence[str], variables: Mapping[str, str]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, __file__, *modules],
            env=variables,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
            text=True,
        )
        atexit.register(self.close)

    def close(self) -> None:
        """Ends the server."""
        self.process.kill()
        self.process.communicate()

    def ask(self, request: str, subject: Any) -> Any:
        """What the server answers; RuntimeError, and the end of it, if it does not in time."""
        assert self.process.stdin is not None and self.process.stdout is not None
        try:
            print(json.dumps({request: subject}), file=self.process.stdin, flush=True)
            ready, _, _ = select.select([self.process.stdout], [], [], ANSWER_S)
            line = self.process.stdout.readline() if ready else ""
        except BrokenPipeError:
            line = ""
        if not line:
            self.close()
            raise RuntimeError(f"no answer to {request}: the fork server has ended, or hangs")
        return json.loads(line)


STARTED: dict[tuple[Any, ...], ForkServer] = {}


def server(modules: Sequence[str], variables: Mapping[str, str], rank: int) -> ForkServer:
    """The server of a rank, one of two that have imported `modules`."""
    keys = [(number, *modules, *variables.items()) for number in range(2)]
    for key in keys:  # both import at the same time
        if key not in STARTED or STARTED[key].process.poll() is not None:
            STARTED[key] = ForkServer(modules, variables)
    return STARTED[keys[rank % 2]]


def serve(answers: TextIO) -> dict[str, Any] | None:
    """Answers until the launcher is gone; in a rank, returns its task."""
    for line in iter(sys.stdin.readline, ""):
        ((request, subject),) = json.loads(line).items()
        if request == "start":
            answer: int | None = os.fork()
            if answer == 0:
                answers.close()
                return become(subject)
            # The rank does so too: whoever comes second finds it done, or the rank gone.
            with contextlib.suppress(PermissionError, ProcessLookupError):
                os.setpgid(answer, answer)
        else:
            wait = os.WNOHANG | os.WNOWAIT if request == "state" else 0
            ended = os.waitid(os.P_PID, subject, os.WEXITED | wait)
            answer = None if ended is None else exit_code(ended)
        print(json.dumps(answer), file=answers, flush=True)
    return None


def exit_code(ended: os.waitid_result) -> int:
    """The exit code, or the signal as a negative number."""
    return ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status


def become(start: dict[str, Any]) -> dict[str, Any]:
    """Turns this process into the rank that `start` describes, and returns its task."""
    os.setpgid(0, 0)
    written = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    streams = [(os.devnull, os.O_RDONLY), (start["stdout"], written), (start["stderr"], written)]
    for number, (path, flags) in enumerate(streams):
        file = os.open(path, flags, 0o600)
        os.dup2(file, number)
        os.close(file)
    os.environ.clear()
    os.environ.update(start["environment"])
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed()  # Python's own generator does so by itself
    return start["task"]


if __name__ == "__main__":
    # What is printed while frameworks are imported is no answer.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for module in sys.argv[1:]:
        importlib.import_module(module)
    threads = len(os.listdir("/proc/self/task"))
    assert threads == 1, f"{threads} threads: what the others hold, no fork would ever get"
    gc.freeze()  # or each rank's collector goes through all that was imported
    task = serve(answers)
    if task is not None:
        rank = importlib.import_module("rank")
        rank.play(task)
        # Rank 0, at which the others meet, ends last, and as any program does.
        if task["function"] is not None and os.environ.get("RANK", "0") != "0":
            rank.leave()
