"""From planned trainings' JSON lines on stdin to a table per network: predicted beside measured.

Below each: whether bytes are equal, the mean error of the step, Kendall's tau between predicted and
measured steps, and the plan that `auto` chose beside the fastest measured. Standard library only.
"""

import collections
import itertools
import json
import statistics
import sys


def main() -> None:
    tables = collections.defaultdict(list)
    for line in sys.stdin:
        record = json.loads(line)
        tables[record["network"]].append((record["plan"], record["summary"]["planned"]))
    for network, plans in tables.items():
        print(f"\n{network}\n")
        head = ["plan", "sent kB", "counted kB", "step ms", "measured ms", "error"]
        head += ["memory MB", "grown MB"]
        rows = [row(name, planned) for name, planned in plans]
        widths = [max(map(len, column)) for column in zip(head, *rows)]
        for cells in [head, ["-" * (width - 1) + ":" for width in widths], *rows]:
            print("| " + " | ".join(cell.rjust(width) for cell, width in zip(cells, widths)) + " |")
        print("\n" + "\n".join(verdicts(plans)))


def row(name, planned) -> list:
    ranks = planned["ranks"]
    predicted, counted = (
        max(rank[key] for rank in ranks) / planned["steps"] / 1e3
        for key in ("predicted_bytes", "counted_bytes")
    )
    step, measured = planned["predicted_step_s"], planned["step_s"]
    memory = max(rank["predicted_memory_bytes"] for rank in ranks) / 1e6
    grown = max(rank["memory_bytes"] for rank in ranks) / 1e6
    return [
        name,
        f"{predicted:.1f}",
        f"{counted:.1f}",
        f"{1e3 * step:.1f}",
        f"{1e3 * measured:.1f}",
        f"{100 * (step / measured - 1):+.0f} %",
        f"{memory:.0f}",
        f"{grown:.0f}",
    ]


def verdicts(plans):
    ranks = [rank for _, planned in plans for rank in planned["ranks"]]
    equal = sum(rank["predicted_bytes"] == rank["counted_bytes"] for rank in ranks)
    yield f"bytes: equal on {equal} of {len(ranks)} ranks"
    fixed = [(name, planned) for name, planned in plans if not name.startswith("auto")]
    pairs = [(planned["predicted_step_s"], planned["step_s"]) for _, planned in fixed]
    errors = [abs(predicted / measured - 1) for predicted, measured in pairs]
    within = sum(error <= 0.15 for error in errors)
    yield (
        f"step: mean error {100 * statistics.mean(errors):.1f} %, "
        f"{within} of {len(errors)} within 15 %"
    )
    yield f"Kendall tau {tau(pairs):.2f}"
    best = min(fixed, key=lambda plan: plan[1]["step_s"])
    for name, planned in plans:
        if name.startswith("auto"):
            over = planned["step_s"] / best[1]["step_s"] - 1
            yield f"{name}: {100 * over:+.1f} % beside the fastest measured, {best[0]}"


def tau(pairs) -> float:
    order = [(a[0] - b[0]) * (a[1] - b[1]) for a, b in itertools.combinations(pairs, 2)]
    agreed = sum(product > 0 for product in order) - sum(product < 0 for product in order)
    return agreed / max(len(order), 1)


if __name__ == "__main__":
    main()
