"""Failures of one rank of a PyTorch training: seconds until the last rank has ended, by method.

Each run starts the ranks of a small DDP training as programs of their own, as a launcher without an agent
does: nobody ends the others when one fails. One rank fails, before its first step or after three, and the
time from there to the end of the last rank is taken; a rank that lives 60 s longer counts as ">60", and is
killed. Methods take turns: "plain" is DDP over gloo, all others are codecs of Thinwire.
"""

import argparse
import contextlib
import functools
import json
import math
import os
import pathlib
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time

FAILURES = {
    "batch": "an exception while a batch is loaded",
    "backward": "an exception between forward and backward",
    "memory": "out of memory within backward",
    "kill": "kill -9",
    "exit": "sys.exit(1)",
    "state": "a state file that was cut short",
    "worker": "an exception in a DataLoader worker",
    "busy": "kill -9 with busy DataLoader workers",
}
PLACES = {"before": 0, "after": 3}
CAP_S = 60.0
START_S = 180.0  # until the failure, on a machine that is busy
LOOK_S = 0.01
BUSY_S = 2 * CAP_S
WIDTH = 64


def main() -> None:
    options = arguments()
    if options.play:
        return play(json.loads(options.play))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # ends the ranks, too
    seconds: dict[tuple[str, str], dict[str, list[float]]] = {}
    for number in range(options.rounds):
        for failure in options.failures.split(","):
            for place in PLACES:
                cells = seconds.setdefault((failure, place), {})
                for method in options.methods.split(","):
                    took = measure(options, failure, place, method)
                    record = {"failure": failure, "place": place, "method": method, "round": number}
                    capped = {"seconds": took if math.isfinite(took) else None}
                    report(options, {**record, **capped, "shown": cell([took])})
                    cells.setdefault(method, []).append(took)
    print_table(options.methods.split(","), seconds)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--methods", default="plain,int8,auto")
    parser.add_argument("--failures", default=",".join(FAILURES), help=f"of {', '.join(FAILURES)}")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--world", type=int, default=2)
    parser.add_argument("--rank", type=int, help="who fails; the last one if not given")
    parser.add_argument("--json", help="a file for the raw figures")
    parser.add_argument("--play", help=argparse.SUPPRESS)
    options = parser.parse_args()
    for failure in options.failures.split(","):
        if failure not in FAILURES:
            parser.error(f"unknown failure '{failure}', expected {', '.join(FAILURES)}")
    return options


def report(options: argparse.Namespace, record: dict) -> None:
    """One run, on stderr and in the file of raw figures."""
    print(json.dumps(record), file=sys.stderr)
    if options.json:
        with open(options.json, "a") as file:
            print(json.dumps(record), file=file)


def measure(options: argparse.Namespace, failure: str, place: str, method: str) -> float:
    """One run: seconds from the failure to the end of the last rank, infinite beyond the cap."""
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        task = {"failure": failure, "at": PLACES[place], "method": method, "folder": folder}
        task["who"] = options.world - 1 if options.rank is None else options.rank
        port = free_port()
        started = [start(task, rank, options.world, port) for rank in range(options.world)]
        for process in started:
            stack.callback(end, process)
        began, mark = time.time(), pathlib.Path(folder, "failed")
        running = list(started)
        while running and time.time() < limit(mark, began):
            running = [process for process in running if process.poll() is None]
            ended = time.time()
            time.sleep(LOOK_S)
        if not mark.exists():
            said = pathlib.Path(folder, f"{task['who']}.stderr").read_text()[-400:]
            print(f"no failure in {failure}, {place}, {method}: {said}", file=sys.stderr)
            return math.nan
        return math.inf if running else ended - float(mark.read_text())


def limit(mark: pathlib.Path, began: float) -> float:
    """Until when to wait."""
    text = mark.read_text() if mark.exists() else ""
    return float(text) + CAP_S if text else began + START_S


def free_port() -> int:
    """A port that nobody listens on right now."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return held.getsockname()[1]


def start(task: dict, rank: int, world: int, port: int) -> subprocess.Popen:
    """Starts a rank with torchrun's variables, as the leader of a process group."""
    variables = {"RANK": rank, "WORLD_SIZE": world, "LOCAL_RANK": rank, "MASTER_PORT": port}
    environment = {name: str(value) for name, value in variables.items()}
    environment |= {"MASTER_ADDR": "127.0.0.1", "OMP_NUM_THREADS": "1"}
    with open(f"{task['folder']}/{rank}.stderr", "w") as said:
        return subprocess.Popen(
            [sys.executable, __file__, "--play", json.dumps(task)],
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
            start_new_session=True,
        )


def end(process: subprocess.Popen) -> None:
    """Ends a rank and its workers."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def print_table(methods: list[str], seconds: dict) -> None:
    print(f"\n| failure | first step | {' | '.join(f'{method}, s' for method in methods)} |")
    print("|---|---|" + "--:|" * len(methods))
    for (failure, place), cells in seconds.items():
        columns = [cell(cells[method]) for method in methods]
        print(f"| {FAILURES[failure]} | {place} | {' | '.join(columns)} |")


def cell(runs: list[float]) -> str:
    """The median, and the range of several runs."""
    known = sorted(run for run in runs if not math.isnan(run))
    if not known:
        return "-"
    middle = shown(statistics.median_high(known))
    return middle if len(known) == 1 else f"{middle} ({shown(known[0])} to {shown(known[-1])})"


def shown(seconds: float) -> str:
    return f">{CAP_S:.0f}" if math.isinf(seconds) else f"{seconds:.1f}"


def play(task: dict) -> None:
    """One rank: trains until it fails or learns that another one has."""
    import torch
    import torch._dynamo  # or the first step of an optimizer takes seconds
    import torch.distributed as dist
    from torch.utils.data import DataLoader

    dist.init_process_group("gloo")
    fails = dist.get_rank() == task["who"]
    failure = task["failure"] if fails else "none"
    source = training = made(task["method"])
    if task["failure"] == "state" and task["at"] == 0:
        step(training, torch.ones(2, WIDTH))
        training = made(task["method"])
    workers = 2 if task["failure"] in ("worker", "busy") else 0
    dist.barrier()
    loader = DataLoader(batches(task, failure), 2, num_workers=workers)
    for number, batch in enumerate(watched(task, loader)):
        if number == task["at"]:
            if task["failure"] == "state":
                reload(task, source, training, fails)
            fail(task, failure)
        step(training, batch, functools.partial(fail_in_step, task, failure, number))
        if number + 1 == task["at"]:
            dist.barrier()


def made(method: str) -> tuple:
    """A model in DDP, its optimizer, and its hook, None for DDP alone."""
    import torch

    import thinwire.torch

    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(WIDTH, WIDTH))
    hook = None if method == "plain" else thinwire.torch.attach(model, codec=method)
    return model, torch.optim.SGD(model.parameters(), 1e-4, momentum=0.9), hook


def step(training: tuple, batch, look=lambda loss: None) -> None:
    """One step of a training; `look` is called with its loss before backward."""
    model, optimizer, _ = training
    optimizer.zero_grad()
    loss = model(batch).square().sum()
    look(loss)
    loss.backward()
    optimizer.step()


def fail_in_step(task: dict, failure: str, number: int, loss) -> None:
    """Fails between forward and backward, or makes backward fail."""
    if number == task["at"] and failure == "backward":
        raise failed(task, ValueError("no such class"))
    if number == task["at"] and failure == "memory":
        loss.register_hook(lambda _: raised(task, RuntimeError("out of memory")))


def reload(task: dict, source: tuple, target: tuple, fails: bool) -> None:
    """Saves one training's state and lets another continue from it; one rank's file is cut short."""
    import torch
    import torch.distributed as dist

    file = pathlib.Path(task["folder"], f"{dist.get_rank()}.pt")
    _, optimizer, hook = source
    torch.save({"optimizer": optimizer.state_dict(), "hook": hook and hook.state_dict()}, file)
    dist.barrier()
    if fails:
        os.truncate(file, file.stat().st_size // 2)
        marked(task)
    saved = torch.load(file)
    target[1].load_state_dict(saved["optimizer"])
    if hook is not None:
        target[2].load_state_dict(saved["hook"])


def batches(task: dict, failure: str):
    """The rows of a training, some of which raise, or keep a worker busy."""
    import torch

    class Rows(torch.utils.data.Dataset):
        def __len__(self) -> int:
            return 1_000_000

        def __getitem__(self, row: int) -> torch.Tensor:
            batch = row // 2
            if failure == "worker" and batch == task["at"]:
                raise ValueError("no such picture")
            if failure == "busy" and batch > task["at"]:
                time.sleep(BUSY_S)
            return torch.ones(WIDTH)

    return Rows()


def watched(task: dict, loader):
    """The batches of a loader, of which a failure is noted where it arrives: workers are ahead."""
    try:
        yield from loader
    except ValueError:
        marked(task)
        raise


def fail(task: dict, failure: str) -> None:
    """Fails where a batch is about to be used."""
    if failure == "batch":
        raise failed(task, ValueError("bad batch"))
    if failure in ("kill", "busy"):
        marked(task)
        os.kill(os.getpid(), signal.SIGKILL)
    if failure == "exit":
        marked(task)
        sys.exit(1)


def marked(task: dict) -> None:
    """Notes when the failure was, at once for whoever looks."""
    file = pathlib.Path(task["folder"], f"failed.{os.getpid()}")
    file.write_text(repr(time.time()))
    file.rename(file.with_name("failed"))


def failed(task: dict, error: Exception) -> Exception:
    """Notes that a rank fails with an error, which is returned."""
    marked(task)
    return error


def raised(task: dict, error: Exception) -> None:
    raise failed(task, error)


if __name__ == "__main__":
    main()
