"""From time_to_loss.py's JSON lines on stdin to Markdown: a table per model, a row per network.

A cell is the median over seeds of the seconds to the target, and in brackets their range and the steps.
The fastest method of a row is in bold. A defeat of `auto` is marked by how many times longer it took
than the fastest. Trainings that were ended by the limit count as infinitely long.
"""

from __future__ import annotations

import collections
import json
import math
import statistics
import sys


def main() -> None:
    tables = collections.defaultdict(list)
    for line in sys.stdin:
        record = json.loads(line)
        tables[record["model"], record["world"]].append(record)
    for (model, world), records in tables.items():
        first = records[0]
        millions = first["parameters"] / 1e6
        print(
            f"\n{model} of {millions:.1f} M parameters, {world} ranks, to a loss of {first['target']}\n"
        )
        methods = list(dict.fromkeys(record["method"] for record in records))
        print("| network | " + " | ".join(methods) + " | auto |")
        print("|---|" + "--:|" * (len(methods) + 1))
        for network in dict.fromkeys(record["network"] for record in records):
            row(network, methods, [r for r in records if r["network"] == network])


def row(network: str, methods: list[str], records: list[dict]) -> None:
    """Prints one network's cells and the verdict."""
    by_method = {m: [r for r in records if r["method"] == m] for m in methods}
    medians = {m: median(found) for m, found in by_method.items()}
    best = min(medians, key=medians.get)
    cells = [cell(by_method[m], medians[m], m == best) for m in methods]
    print("| " + " | ".join([network, *cells, verdict(medians)]) + " |")


def median(records: list[dict]) -> float:
    values = [r["seconds"] if r["seconds"] is not None else math.inf for r in records]
    return statistics.median(values) if values else math.inf


def cell(records: list[dict], middle: float, is_best: bool) -> str:
    """Seconds, their range, and steps; the limit where it came first."""
    if not records:
        return "-"
    if middle == math.inf:
        return f"> {records[0]['limit_s']:.0f} s"
    reached = [r for r in records if r["seconds"] is not None]
    low, high = (f(r["seconds"] for r in reached) for f in (min, max))
    steps = statistics.median(r["steps"] for r in reached)
    text = f"**{middle:.1f}**" if is_best else f"{middle:.1f}"
    missed = f", {len(records) - len(reached)} missed" if len(reached) < len(records) else ""
    return f"{text} ({low:.1f} to {high:.1f}; {steps:.0f} steps{missed})"


def verdict(medians: dict[str, float]) -> str:
    """Whether auto is the fastest; else by how much it is slower."""
    ours = [m for m in medians if m.startswith("auto")]
    if not ours:
        return "-"
    auto, others = medians[ours[0]], [value for m, value in medians.items() if m not in ours]
    best = min(others, default=math.inf)
    if auto == math.inf:
        return "not reached"
    if auto > best:
        return f"defeat: {auto / best:.2f}×"
    return "first" if best == math.inf else f"first by {best / auto:.2f}×"


if __name__ == "__main__":
    main()
