"""From the training jobs' JSON lines on stdin to tables: one per network and world, a row per codec.

Reads the figures that `thinwire train --json` ends with (FIGURES below); what is missing is shown
as "-". A cell is the median over rounds. Standard library only.
"""

import collections
import json
import statistics
import sys

# Column, key in the summary, factor.
FIGURES = [
    ("step ms", "step_s", 1000),
    ("compute ms", "compute_s", 1000),
    ("sent kB/step", "sent_bytes_per_step", 0.001),
    ("raw kB/step", "raw_bytes_per_step", 0.001),
    ("loss", "loss", 1),
    ("val loss", "validation_loss", 1),
]


def main() -> None:
    tables = collections.defaultdict(lambda: collections.defaultdict(list))
    for line in sys.stdin:
        record = json.loads(line)
        tables[record["network"], record["world"]][record["codec"]].append(record["summary"])
    for (network, world), codecs in tables.items():
        print(f"\n{network}, {world} ranks\n")
        head = ["codec", *(name for name, _, _ in FIGURES), "x compute", "x none"]
        rows = [
            row(codec, summaries, codecs.get("none", [])) for codec, summaries in codecs.items()
        ]
        widths = [max(map(len, column)) for column in zip(head, *rows)]
        for cells in [head, ["-" * (width - 1) + ":" for width in widths], *rows]:
            print("| " + " | ".join(cell.rjust(width) for cell, width in zip(cells, widths)) + " |")


def row(codec, summaries, raw) -> list:
    cells = [codec]
    for _, key, factor in FIGURES:
        value = figure(summaries, key)
        cells.append("-" if value is None else f"{value * factor:.4g}")
    step = figure(summaries, "step_s")
    return cells + [ratio(step, figure(summaries, "compute_s")), ratio(step, figure(raw, "step_s"))]


def figure(summaries, key):
    values = [summary[key] for summary in summaries if summary.get(key) is not None]
    return statistics.median(values) if values else None


def ratio(mine, other) -> str:
    return f"{mine / other:.2f}" if mine and other else "-"


if __name__ == "__main__":
    main()
