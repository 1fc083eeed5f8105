"""An adaptive batch beside fixed ones: rows read and seconds of training until a loss is reached.

    python bench/policies.py --data tinyshakespeare.txt -- --layers 2 --width 128 --context 64

Every training reads the same number of rows at most, with the learning rate of its batch by the square root
from that of the first one. The first to reach the target by rows and by time are marked. Standard library
only; THINWIRE names the binary (target/release/thinwire by default).
"""

import argparse
import json
import math
import os
import pathlib
import statistics
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
THINWIRE = os.environ.get("THINWIRE", str(ROOT / "target/release/thinwire"))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", help="a text; thinwire's own by default")
    parser.add_argument(
        "--batches", default="8,16,32,64,128", help="the first is the adaptive one's"
    )
    parser.add_argument("--rows", type=int, default=32_000, help="rows of a training")
    parser.add_argument("--lr", type=float, default=0.002, help="learning rate of the first batch")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--link", default="none")
    parser.add_argument("--every", type=int, default=20)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument(
        "--target", type=float, help="validation loss; the worst last one by default"
    )
    parser.add_argument("flags", nargs="*", help="flags of thinwire train")
    options = parser.parse_args()
    batches = [int(batch) for batch in options.batches.split(",")]
    runs = {}
    for seed in range(1, options.seeds + 1):
        for batch in batches:
            runs.setdefault(f"batch {batch}", []).append(train(options, batch, batches, [], seed))
        policy = f"noise-scale:max={batches[-1]},every={options.every}"
        name = f"{batches[0]} to {batches[-1]} by noise"
        found = train(options, batches[0], batches, ["--policy", policy], seed)
        runs.setdefault(name, []).append(found)
    target = options.target or max(
        run["validation"][-1]["value"] for all in runs.values() for run in all
    )
    print(f"until a validation loss of {target:.3f}, medians of {options.seeds} seeds\n")
    print("| training | rows | steps | seconds | last loss |\n| --- | ---: | ---: | ---: | ---: |")
    for name, all in runs.items():
        found = [reached(run, target) for run in all]
        cells = [statistics.median(each) for each in zip(*found)]
        last = statistics.median(run["validation"][-1]["value"] for run in all)
        rows, steps, seconds = (f"{cell:.4g}" if math.isfinite(cell) else "never" for cell in cells)
        print(f"| {name} | {rows} | {steps} | {seconds} | {last:.3f} |")


def train(options, batch, batches, more, seed):
    """The run of a training, with its batches by step."""
    rate = options.lr * math.sqrt(batch / batches[0])
    steps = options.rows // batch
    command = [
        *(
            THINWIRE,
            "train",
            "--ranks",
            str(options.ranks),
            "--link",
            options.link,
            "--codec",
            "int8",
        ),
        *("--batch", str(batch), "--steps", str(steps), "--lr", f"{rate:.6f}", "--seed", str(seed)),
        *("--report", "none", "--json", "--checkpoint-dir", "none", "--sample-bytes", "0"),
        *(["--data", options.data] if options.data else []),
        *more,
        *options.flags,
    ]
    ended = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    run = json.loads(ended.stdout.splitlines()[0])
    run["batch"] = batch
    print(
        f"{' '.join(more) or 'batch'} {batch}, seed {seed}: {run['validation'][-1]}",
        file=sys.stderr,
    )
    return run


def reached(run, target):
    """Rows, steps and seconds at the first validation that is low enough, between which they are drawn."""
    before = None
    for point in run["validation"]:
        here = (rows_at(run, point["step"]), point["step"], point["at_s"])
        if point["value"] <= target:
            if before is None:
                return here
            old, value = before
            part = (value - target) / (value - point["value"])
            return tuple(a + part * (b - a) for a, b in zip(old, here))
        before = (here, point["value"])
    return (math.inf,) * 3


def rows_at(run, steps):
    """Rows that were read in so many steps."""
    batch, rows = run["batch"], 0
    changes = {change["step"] + 1: change["batch"] for change in run.get("adjusted", [])}
    for step in range(steps):
        batch = changes.get(step, batch)
        rows += batch
    return rows


if __name__ == "__main__":
    main()
