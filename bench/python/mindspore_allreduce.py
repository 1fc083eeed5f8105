"""All-reduce inside a graph: Thinwire's operator against MindSpore's AllReduce, in turn in one run.

    python bench/python/mindspore_allreduce.py

starts itself under msrun with two workers, whose collectives on CPUs are the built-in ones, and prints
two tables: medians over the rounds of the time that the slower rank took for one all-reduce, and what
the operator costs in a world of one, where it exchanges nothing, next to one memcpy of the gradients:
the fastest of all rounds each, because a memcpy takes whatever time its neighbours leave it.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import mindspore as ms
import numpy as np
from mindspore import nn, ops
from mindspore.communication import init

import thinwire
import thinwire.mindspore

MIB = 1 << 20
WORKERS = 2
WARMUP = 3
EACH = "memcpy, each tensor"
# A transformer of 8.6 million parameters: as many tensors, large and small, as a real one has.
LAYER = [(384,), (384,), (1152, 384), (384, 384), (384,), (384,), (1024, 384), (384, 1024)]
SHAPES = [(256, 384), (128, 384)] + LAYER * 6 + [(384,), (256, 384)]


def main() -> None:
    options = arguments()
    if "MS_WORKER_NUM" in os.environ:
        table = measure(options)
        if table is not None:
            Path(options.table).write_text(table)
    else:
        print(under_msrun(options))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--sizes-mib", type=int, nargs="+", default=[1, 16, 64])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--table", help="a file for the tables; set by the first process")
    return parser.parse_args()


def under_msrun(options: argparse.Namespace) -> str:
    """Runs this script in two workers and returns what rank 0 wrote."""
    with tempfile.TemporaryDirectory() as folder:
        table = Path(folder, "table")
        command = ["msrun", f"--worker_num={WORKERS}", f"--local_worker_num={WORKERS}"]
        command += [f"--master_port={free_port()}", f"--log_dir={folder}", "--join=True"]
        command += [str(Path(__file__).resolve()), "--table", str(table)]
        command += ["--rounds", str(options.rounds)]
        command += ["--sizes-mib", *map(str, options.sizes_mib)]
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        ended = subprocess.run(command, env=os.environ | {"PATH": path}, capture_output=True)
        if not table.exists():
            logs = [file.read_text(errors="replace") for file in Path(folder).glob("*.log")]
            sys.exit("\n".join([ended.stderr.decode(errors="replace"), *logs]))
        return table.read_text()


def free_port() -> int:
    """A port that nobody listens on, with a free one after it."""
    with socket.socket() as probe, socket.socket() as after:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        try:
            after.bind(("127.0.0.1", port + 1))
        except OSError:
            return free_port()
        return port


def measure(options: argparse.Namespace) -> str | None:
    """Both tables, on rank 0."""
    ms.set_context(mode=ms.GRAPH_MODE)
    init()
    group = thinwire.init()
    lines = ["| size | built-in AllReduce | Thinwire | ratio |", "|---|---|---|---|"]
    for size in options.sizes_mib:
        built_in, ours = compare(size * MIB // 4, options.rounds, group)
        ratio = f"1/{built_in / ours:.1f}"
        lines.append(f"| {size} MiB | {built_in:.1f} ms | {ours:.1f} ms | {ratio} |")
    if group.rank == 0:
        lines += ["", *overhead(options.rounds)]
    group.barrier()
    return "\n".join(lines) if group.rank == 0 else None


class BuiltIn(nn.Cell):
    """MindSpore's all-reduce, in a graph."""

    def __init__(self) -> None:
        super().__init__()
        self.all_reduce = ops.AllReduce()

    def construct(self, gradient):
        return self.all_reduce(gradient)


class Ours(nn.Cell):
    """Thinwire's, in a graph; like the other it lets NaN pass."""

    def __init__(self, elements: int, group: thinwire.Group) -> None:
        super().__init__()
        parameter = ms.Parameter(ms.Tensor(np.zeros(elements, np.float32)), name="gradient")
        self.reducer = thinwire.mindspore.reducer([parameter], "none", group, non_finite="nan")

    def construct(self, gradient):
        return self.reducer((gradient,))[0]


def compare(elements: int, rounds: int, group: thinwire.Group) -> tuple[float, float]:
    """Medians in milliseconds, of MindSpore's and of ours."""
    gradient = ms.Tensor(np.ones(elements, np.float32))
    cells = [BuiltIn(), Ours(elements, group)]
    times: list[list[float]] = [[], []]
    for round_ in range(WARMUP + rounds):
        for cell, taken in zip(cells, times):
            group.barrier()
            seconds = timed(lambda cell=cell: cell(gradient))
            slowest = group.all_gather(np.array([seconds])).max()
            if round_ >= WARMUP:
                taken.append(1e3 * float(slowest))
    return statistics.median(times[0]), statistics.median(times[1])


class Gradients(nn.Cell):
    """A graph that has gradients and gives one number, with or without the operator in between."""

    def __init__(self, parameters: list[ms.Parameter], reducer: nn.Cell | None) -> None:
        super().__init__(auto_prefix=False)
        self.gradients = ms.ParameterTuple(parameters)
        self.reducer = reducer

    def construct(self, number):
        if self.reducer is None:
            return number + 1.0
        return ops.depend(number + 1.0, self.reducer(self.gradients))


def overhead(rounds: int) -> list[str]:
    """The operator in a world of one, where it copies, against one memcpy of the same bytes."""
    alone = thinwire.init(rank=0, world=1)
    parameters = [
        ms.Parameter(ms.Tensor(np.ones(shape, np.float32)), name=f"parameter{index}")
        for index, shape in enumerate(SHAPES)
    ]
    reducer = thinwire.mindspore.reducer(parameters, "none", alone)
    without, with_operator = Gradients(parameters, None), Gradients(parameters, reducer)
    number = ms.Tensor(np.float32(0))
    calls = {
        "graph without the operator": lambda: without(number),
        "graph with it": lambda: with_operator(number),
    }
    calls |= memcpys([parameter.asnumpy() for parameter in parameters])
    times = in_turn(calls, 10 * rounds)
    extra = times["graph with it"] - times["graph without the operator"]
    size = sum(parameter.nbytes for parameter in parameters)
    lines = [f"| {size / MIB:.1f} MiB in {len(SHAPES)} tensors | ms |", "|---|---|"]
    lines += [f"| {name} | {taken:.2f} |" for name, taken in times.items()]
    return [*lines, f"| operator / memcpy, each tensor | {extra / times[EACH]:.2f} |"]


def memcpys(sources: list[np.ndarray]) -> dict[str, Callable[[], object]]:
    """Copies of these arrays one by one, and of one array as large as all of them."""
    targets = [np.ones_like(source) for source in sources]
    whole = np.ones(sum(source.size for source in sources), np.float32)
    other = np.ones_like(whole)
    return {
        EACH: lambda: [memcpy(*pair) for pair in zip(targets, sources)],
        "memcpy, one block": lambda: memcpy(other, whole),
    }


def memcpy(target: np.ndarray, source: np.ndarray) -> None:
    """The C library's."""
    ctypes.memmove(target.ctypes.data, source.ctypes.data, source.nbytes)


def in_turn(calls: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """The fewest milliseconds of each call."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for round_ in range(WARMUP + rounds):
        for name, call in calls.items():
            seconds = timed(call)
            if round_ >= WARMUP:
                times[name].append(1e3 * seconds)
    return {name: min(taken) for name, taken in times.items()}


def timed(call: Callable[[], object]) -> float:
    """Seconds until what was called is done and its result can be read."""
    begun = time.perf_counter()
    result = call()
    if isinstance(result, ms.Tensor):
        result.asnumpy()
    return time.perf_counter() - begun


if __name__ == "__main__":
    main()
