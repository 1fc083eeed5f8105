"""Ranks: real processes of one Python program, with the environment that torchrun gives, bounded in time.

Tests of a communication library need processes that fail and hang like a user's do. Each rank here
leads a process group of its own, which is killed at the end whatever happened; its output goes to
files, so that nobody waits for a full pipe; and a rank that hangs prints where each of its threads
stands before it ends.

    outcomes = launch.run(2, average, env={"THINWIRE_TIMEOUT_S": "5"})
    outcomes = launch.run(2, Path("examples/python/train.py"), arguments=["--steps", "3"])

A function is one at the top of its file; its result is what it returns, as JSON. A script's result is
the last line of its stdout, where that is JSON. Ranks of a framework are forked from a process that has
imported it (fork_server.py), if nothing is added to their environment but their place, Thinwire's own
variables and those of `IMPORTED_BY`: others may be read when the framework is imported.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import fork_server

RANK = Path(__file__).with_name("rank.py")
Environment = Mapping[str, str | None]

# What another launcher, in whose job the tests may run, would say about ranks.
FOREIGN = ("OMPI_", "PMI_", "MPI_", "SLURM_", "MS_", "THINWIRE_", "TORCHELASTIC_", "GROUP_")
# Variables that say which rank it is, and Thinwire's own: no framework reads them when it is imported.
OURS = ("THINWIRE_", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
# Read when a framework is imported: for each value a process of its own imports it.
IMPORTED_BY = ("KERAS_BACKEND",)
# The environment of ranks that import everything themselves.
ANEW = {"IMPORTS": "anew"}
IMPORTS = re.compile(r"^\s*(?:import|from) (\w+)", re.MULTILINE)
# What ranks of a framework import sooner or later, ours last, as programs do.
TORCH = ("torch", "torch.distributed.fsdp", "torch.distributed.checkpoint", "torch._dynamo")
OUR_TORCH = ("thinwire.torch", "pytest")
IMPORTED = {
    "transformers": (*TORCH, "transformers.trainer", *OUR_TORCH),
    "lightning": (*TORCH, "lightning", *OUR_TORCH),
    "accelerate": (*TORCH, "accelerate", *OUR_TORCH),
    "torch": (*TORCH, *OUR_TORCH),
    "mindspore": ("mindspore", "thinwire.mindspore", "pytest"),
    "keras": ("keras", "thinwire.keras", "pytest"),
    "jax": ("jax", "optax", "thinwire.jax", "pytest"),
    "tensorflow": ("tensorflow", "thinwire.tensorflow", "pytest"),
}
# Whatever takes longer hangs, on a machine that is busy with something else too.
PATIENCE_S = 300.0
GRACE_S = 5.0
LOOK_S = 0.02


@dataclasses.dataclass
class Outcome:
    """How one rank ended: its exit code (negative: the signal), its result, and what it said."""

    rank: int
    code: int
    result: Any
    stdout: str
    stderr: str


class Process(Protocol):
    """A rank that was started."""

    def exit_code(self) -> int | None:
        """How it has ended, None while it runs; its number stays its own."""

    def kill(self) -> int:
        """Ends it and whatever it started, and returns its exit code."""


def run(
    world: int,
    program: Callable[..., Any] | Path | str,
    *,
    arguments: Sequence[Any] = (),
    env: Environment | Callable[[int], Environment] | None = None,
    timeout: float = PATIENCE_S,
    wait_for_all: bool = True,
) -> list[Outcome]:
    """Runs `program` in `world` processes and returns how each ended, in the order of the ranks.

    `env` adds to the environment, or removes what is None; it may be a function of the rank. Without
    `wait_for_all` the others are killed some seconds after the first rank that failed.
    """
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="thinwire-ranks-")))
        port = stack.enter_context(reserved_ports(2))
        processes: list[Process] = []
        for rank in range(world):
            added = env(rank) if callable(env) else env
            task = task_of(rank, program, arguments, timeout, folder)
            processes.append(start(task, rank, world, port, added or {}, folder))
            stack.callback(processes[-1].kill)
        codes = wait(processes, timeout + GRACE_S, wait_for_all)
        return [outcome(rank, code, folder) for rank, code in enumerate(codes)]


def results(outcomes: Sequence[Outcome]) -> list[Any]:
    """The results of all ranks; AssertionError with everything that they said if one failed."""
    __tracebackhide__ = True
    failed = [outcome.rank for outcome in outcomes if outcome.code != 0]
    if failed:
        said = "".join(report(outcome) for outcome in outcomes)
        raise AssertionError(f"ranks {failed} of {len(outcomes)} failed\n{said}")
    return [outcome.result for outcome in outcomes]


def report(outcome: Outcome) -> str:
    """What one rank said, under a heading."""
    ended = f"exit {outcome.code}" if outcome.code >= 0 else signal.Signals(-outcome.code).name
    stdout = f"-- stdout\n{outcome.stdout}" if outcome.stdout else ""
    return f"---- rank {outcome.rank} ended with {ended}\n{stdout}-- stderr\n{outcome.stderr}\n"


@contextlib.contextmanager
def reserved_ports(count: int) -> Iterator[int]:
    """The first of `count` free ports in a row, which nobody else gets while the context is open.

    They stay bound here without listening: who sets SO_REUSEADDR, as every server does, can bind
    them; the kernel gives them to nobody who asks for any port. torchrun's ranks meet at MASTER_PORT,
    Thinwire's at the next.
    """
    for _ in range(100):
        with contextlib.ExitStack() as stack:
            first = bound(stack, 0)
            try:
                for port in range(first + 1, first + count):
                    bound(stack, port)
            except (OSError, OverflowError):
                continue
            yield first
            return
    raise RuntimeError(f"no {count} free ports in a row in 100 attempts")


def bound(stack: contextlib.ExitStack, port: int) -> int:
    """Binds `port`, or any for 0, until `stack` closes, and returns it."""
    held = stack.enter_context(socket.socket())
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind(("127.0.0.1", port))
    return held.getsockname()[1]


def environment(rank: int, world: int, port: int, added: Environment) -> dict[str, str]:
    """The environment of one rank: ours without foreign ranks, torchrun's variables, and `added`."""
    variables: dict[str, str | None] = dict(surroundings())
    for name, number in {"RANK": rank, "WORLD_SIZE": world, "MASTER_PORT": port}.items():
        variables[name] = str(number)
    variables |= {"LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(world)}
    variables |= {"MASTER_ADDR": "127.0.0.1"}
    variables |= added
    return {name: value for name, value in variables.items() if value is not None}


def surroundings() -> dict[str, str]:
    """What all ranks have in their environment; what pytest says there changes from test to test."""
    strange = (*FOREIGN, "PYTEST_")
    variables = {name: value for name, value in os.environ.items() if not name.startswith(strange)}
    return variables | {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}


def task_of(
    rank: int,
    program: Callable[..., Any] | Path | str,
    arguments: Sequence[Any],
    timeout: float,
    folder: Path,
) -> dict[str, Any]:
    """What rank.py is told."""
    file, function = named(program)
    task = {"file": file, "function": function, "arguments": list(arguments)}
    return task | {"timeout_s": timeout, "result": str(folder / f"{rank}.json")}


def start(
    task: dict[str, Any], rank: int, world: int, port: int, added: Environment, folder: Path
) -> Process:
    """Starts one rank as the leader of a process group of its own."""
    variables = environment(rank, world, port, added)
    stdout, stderr = (folder / f"{rank}.{name}" for name in ("stdout", "stderr"))
    modules = imported(Path(task["file"]))
    known = all(name.startswith((*OURS, *IMPORTED_BY)) for name in added)
    # A torch of another environment starts threads when Keras imports it.
    if modules and known and "THINWIRE_LAST_PATH" not in added:
        given = {name: variables[name] for name in IMPORTED_BY if name in variables}
        server = fork_server.server(modules, surroundings() | given, rank)
        order = {"task": task, "environment": variables}
        order |= {"stdout": str(stdout), "stderr": str(stderr)}
        return Forked(server, server.ask("start", order))
    with stdout.open("wb") as out, stderr.open("wb") as err:
        return Spawned(
            subprocess.Popen(
                [sys.executable, str(RANK), json.dumps(task)],
                env=variables,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )
        )


def imported(file: Path) -> tuple[str, ...]:
    """What a fork server imports for ranks of a program; nothing if it names no framework."""
    named = set(IMPORTS.findall(file.read_text()))
    return next((modules for name, modules in IMPORTED.items() if name in named), ())


@dataclasses.dataclass
class Spawned:
    """A rank that is our child."""

    process: subprocess.Popen[bytes]

    def exit_code(self) -> int | None:
        """How it has ended; it is not reaped."""
        flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
        ended = os.waitid(os.P_PID, self.process.pid, flags)
        return None if ended is None else fork_server.exit_code(ended)

    def kill(self) -> int:
        """Kills its group and reaps it."""
        if self.process.returncode is None:
            kill_group(self.process.pid)
        return self.process.wait()


@dataclasses.dataclass
class Forked:
    """A rank that is a fork server's child."""

    server: fork_server.ForkServer
    pid: int
    code: int | None = None

    def exit_code(self) -> int | None:
        """How it has ended; it is not reaped."""
        return self.server.ask("state", self.pid) if self.code is None else self.code

    def kill(self) -> int:
        """Kills its group and reaps it."""
        if self.code is None:
            kill_group(self.pid)
            self.code = self.server.ask("reap", self.pid)
        return self.code


def kill_group(leader: int) -> None:
    """Kills a process and whatever it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGKILL)


def named(program: Callable[..., Any] | Path | str) -> tuple[str, str | None]:
    """The file of a program, and the function in it that is meant, if one is."""
    if not callable(program):
        return str(Path(program).resolve()), None
    if "<" in program.__qualname__:
        raise ValueError(f"{program.__qualname__} is not a function at the top of its file")
    return str(sys.modules[program.__module__].__file__), program.__qualname__


def wait(processes: Sequence[Process], timeout: float, wait_for_all: bool) -> list[int]:
    """Waits until all have ended, kills what is left at the end of the time, and returns exit codes."""
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        codes = [process.exit_code() for process in processes]
        if None not in codes:
            break
        if not wait_for_all and any(codes):
            wait_for_all, deadline = True, min(deadline, time.monotonic() + GRACE_S)
        time.sleep(LOOK_S)
    return [process.kill() for process in processes]


def runs(process: int) -> bool:
    """Whether a process runs; one that has ended and waits for its parent does not."""
    try:
        return " Z " not in Path(f"/proc/{process}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def outcome(rank: int, code: int, folder: Path) -> Outcome:
    """Reads what a rank has left behind."""
    stdout, stderr = (
        (folder / f"{rank}.{name}").read_text(errors="replace") for name in ("stdout", "stderr")
    )
    answer = folder / f"{rank}.json"
    text = answer.read_text() if answer.exists() else stdout.rstrip().rpartition("\n")[2]
    try:
        result = json.loads(text)
    except ValueError:
        result = None
    return Outcome(rank, code, result, stdout, stderr)
