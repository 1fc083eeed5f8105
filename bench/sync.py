"""From `thinwire-bench sync` lines on stdin to Markdown: a table per network, world and model.

With `--steps N`: from the lines of single steps a table of medians of N steps each, the steps after
which the plan was another one, and how many steps after each of `--changes A,B` it was planned for another
link.
With `--matrix`: from `thinwire-bench choice` lines the matrix of their cells.
With `--distortion`: from `thinwire-bench distortion` lines a table. Standard library only.
"""

import argparse
import collections
import itertools
import json
import statistics
import sys

GOAL = 1.02


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int)
    parser.add_argument("--changes", default="", help="steps after which the link was changed")
    parser.add_argument("--matrix", action="store_true")
    parser.add_argument("--distortion", action="store_true")
    options = parser.parse_args()
    lines = [json.loads(line) for line in sys.stdin]
    if options.matrix:
        matrix(lines)
        return
    if options.distortion:
        distortion(lines)
        return
    if options.steps:
        lines = [line for line in lines if "step" in line]
        steps(lines, options.steps)
        answers(lines, [int(step) for step in options.changes.split(",") if step])
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


def matrix(cells: list) -> None:
    """`auto` over the fastest fixed codec, and the cell where that is worst."""
    columns = list(dict.fromkeys((cell["network"], cell["cores"]) for cell in cells))
    found = {(cell["model"], cell["network"], cell["cores"]): cell for cell in cells}
    rows = []
    for model in dict.fromkeys(cell["model"] for cell in cells):
        here = (found.get((model, *column)) for column in columns)
        rows.append([model, *(f"{cell['over_fixed']:.2f}" if cell else "" for cell in here)])
    table(["", *(f"{network}, {cores}" for network, cores in columns)], rows)
    print()
    rows = [
        [
            cell["model"],
            f"{cell['network']}, {cell['cores']}",
            f"{1e3 * cell['auto_s']:.0f}",
            f"{1e3 * cell['fixed'][0]['step_s']:.0f}",
            cell["fixed"][0]["method"],
            in_words(sorted(cell["codecs"], key=lambda codec: -codec[1])),
            str(cell["settling"]),
        ]
        for cell in cells
    ]
    head = ["model", "network, cores", "auto, ms", "fastest, ms", "fastest", "codecs of auto"]
    table([*head, "steps before"], rows)
    worst = max(cells, key=lambda cell: cell["over_fixed"])
    within = sum(cell["over_fixed"] <= GOAL for cell in cells)
    print(
        f"\n{within} of {len(cells)} cells at most {GOAL}; worst: {worst['over_fixed']:.2f}, "
        f"{worst['model']}, {worst['network']}, cores {worst['cores']}"
    )


def distortion(lines: list) -> None:
    """Bits and errors of codecs, and the bits of the best uniform quantiser with the same error."""
    rows = [
        [
            line["gradients"],
            line["codec"],
            f"{line['bits']:.2f}",
            f"{line['error']:.2e}",
            f"{line['bound_bits']:.2f}" if line["bound_bits"] is not None else "-",
        ]
        for line in lines
    ]
    table(["gradients", "codec", "bits", "error", "uniform bound"], rows)


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


def answers(lines: list, changes: list) -> None:
    """After how many steps `auto` planned for the link as it was changed."""
    for change, end in itertools.pairwise([*changes, len(lines)]):
        after = (line for line in lines if change < line["step"] <= end)
        found = (line for line in after if (line.get("planned") or "").startswith("the link went"))
        answer = next(found, None)
        if answer is None:
            print(f"\nchanged after step {change}: no new plan")
        else:
            late = answer["step"] - change
            print(
                f"\nchanged after step {change}: {answer['planned']}; a new plan {late} steps later"
            )


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
