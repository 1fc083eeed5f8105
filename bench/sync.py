"""From `thinwire bench sync --json` lines on stdin to Markdown: a table per network, world and model.

With `--steps N`: from the lines of single steps a table of medians of N steps each, and the steps
after which the plan was another one. Standard library only.
"""

import argparse
import collections
import itertools
import json
import statistics
import sys


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int)
    options = parser.parse_args()
    lines = [json.loads(line) for line in sys.stdin]
    if options.steps:
        steps([line for line in lines if "step" in line], options.steps)
        return
    groups = collections.defaultdict(list)
    for line in lines:
        if "network" in line:
            groups[line["network"], line["world"], line["model"]].append(line)
    for (network, world, model), group in groups.items():
        compute = 1e3 * group[0]["compute_s"]
        print(f"\n{model}, {network}, {world} ranks, {compute:.0f} ms of computing\n")
        first = group[0]["sync_s"]
        rows = [
            [
                line["method"],
                f"{1e3 * line['sync_s']:.0f}",
                f"{line['sync_s'] / first:.3f}",
                f"{1e3 * line['step_s']:.0f}",
                f"{1e3 * line['cores_s']:.0f}" if line.get("cores_s") else "",
                f"{line['sent_bytes'] / 1e6:.1f}",
                str(line["buckets"]),
                in_words(line["codecs"]),
                in_words(algorithms(line["plan"])),
            ]
            for line in group
        ]
        head = ["method", "to synchronise, ms", "x first", "step, ms", "cores, ms"]
        table([*head, "sent, MB", "buckets", "codecs", "algorithms"], rows)


def steps(lines: list, count: int) -> None:
    """Medians, and where plans changed."""
    rows = []
    for chunk in (lines[begin : begin + count] for begin in range(0, len(lines), count)):
        median = statistics.median(line["step_s"] for line in chunk)
        last = chunk[-1]
        span = f"{chunk[0]['step']} to {last['step']}"
        rows.append([span, f"{1e3 * median:.0f}", in_words(last["codecs"])])
    table(["steps", "median step, ms", "codecs at the end"], rows)
    print()
    for before, after in itertools.pairwise(lines):
        if before["codecs"] != after["codecs"]:
            print(f"after step {after['step']}: {in_words(after['codecs'])}")


def algorithms(plan: list) -> list:
    """Number of buckets by algorithm."""
    found = collections.Counter(assignment["algorithm"] for assignment in plan)
    return [(name, count) for name, count in found.most_common()]


def in_words(codecs: list) -> str:
    return ", ".join(f"{count} {codec}" for codec, count in codecs)


def table(head: list, rows: list) -> None:
    widths = [max(map(len, column)) for column in zip(head, *rows)]
    for cells in [head, ["-" * (width - 1) + ":" for width in widths], *rows]:
        print("| " + " | ".join(cell.rjust(width) for cell, width in zip(cells, widths)) + " |")


if __name__ == "__main__":
    main()
