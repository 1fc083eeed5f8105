"""From planned trainings' JSON lines on stdin to a table per network: predicted beside measured.

Where a plan was trained several times its step, predicted and measured, is the median. Below each
table: whether bytes are equal, how far trainings of one plan lie apart, the mean error of the step,
Kendall's tau between predicted and measured steps (also between the first round and the last, which
is what the machine allows, and over the pairs of plans that all rounds measured in one order), which
tau predictions would have that were off at random, and the plan that `auto` chose beside the fastest
measured. Standard library only.
"""

import collections
import itertools
import json
import random
import statistics
import sys

# Errors for which it is said what tau they would leave.
OFF = (0.02, 0.05, 0.1)


def main() -> None:
    tables = collections.defaultdict(lambda: collections.defaultdict(list))
    for line in sys.stdin:
        record = json.loads(line)
        tables[record["network"]][record["plan"]].append(record["summary"]["planned"])
    for network, plans in tables.items():
        print(f"\n{network}\n")
        head = ["plan", "sent kB", "counted kB", "step ms", "measured ms", "error", "apart"]
        head += ["memory MB", "grown MB"]
        rows = [row(name, rounds) for name, rounds in plans.items()]
        widths = [max(map(len, column)) for column in zip(head, *rows)]
        for cells in [head, ["-" * (width - 1) + ":" for width in widths], *rows]:
            print("| " + " | ".join(cell.rjust(width) for cell, width in zip(cells, widths)) + " |")
        print("\n" + "\n".join(verdicts(plans)))


def row(name, rounds) -> list:
    ranks = [rank for planned in rounds for rank in planned["ranks"]]
    steps = rounds[0]["steps"]
    sent, counted = (
        max(rank[key] for rank in ranks) / steps / 1e3
        for key in ("predicted_bytes", "counted_bytes")
    )
    step = predicted(rounds)
    memory = max(rank["predicted_memory_bytes"] for rank in ranks) / 1e6
    grown = max(rank["memory_bytes"] for rank in ranks) / 1e6
    return [
        name,
        f"{sent:.1f}",
        f"{counted:.1f}",
        f"{1e3 * step:.1f}",
        f"{1e3 * measured(rounds):.1f}",
        f"{100 * (step / measured(rounds) - 1):+.0f} %",
        f"{100 * apart(rounds):.0f} %",
        f"{memory:.0f}",
        f"{grown:.0f}",
    ]


def predicted(rounds) -> float:
    return statistics.median(planned["predicted_step_s"] for planned in rounds)


def measured(rounds) -> float:
    return statistics.median(planned["step_s"] for planned in rounds)


def apart(rounds) -> float:
    steps = [planned["step_s"] for planned in rounds]
    return max(steps) / min(steps) - 1


def verdicts(plans):
    ranks = [rank for rounds in plans.values() for planned in rounds for rank in planned["ranks"]]
    equal = sum(rank["predicted_bytes"] == rank["counted_bytes"] for rank in ranks)
    yield f"bytes: equal on {equal} of {len(ranks)} ranks"
    fixed = {name: rounds for name, rounds in plans.items() if not name.startswith("auto")}
    spread = [apart(rounds) for rounds in plans.values()]
    yield (
        f"one plan's trainings lie {100 * statistics.mean(spread):.1f} % apart, "
        f"at most {100 * max(spread):.1f} %"
    )
    pairs = [(predicted(rounds), measured(rounds)) for rounds in fixed.values()]
    errors = [abs(told / taken - 1) for told, taken in pairs]
    within = sum(error <= 0.15 for error in errors)
    yield (
        f"step: mean error {100 * statistics.mean(errors):.1f} %, "
        f"{within} of {len(errors)} within 15 %"
    )
    again = [(rounds[0]["step_s"], rounds[-1]["step_s"]) for rounds in fixed.values()]
    yield f"Kendall tau {tau(pairs):.2f}; between the first round and the last {tau(again):.2f}"
    ordered = [
        [(predicted(plan), measured(plan)) for plan in pair]
        for pair in itertools.combinations(fixed.values(), 2)
        if in_one_order(*pair)
    ]
    told = statistics.mean(tau(pair) for pair in ordered) if ordered else 0.0
    count = len(fixed) * (len(fixed) - 1) // 2
    yield f"{len(ordered)} of {count} pairs are in one order in all rounds; their tau {told:.2f}"
    steps = [taken for _, taken in pairs]
    off = ", ".join(f"{100 * error:.0f} %: {tau_if_off(steps, error):.2f}" for error in OFF)
    yield f"tau of predictions that were off at random by (standard deviation) {off}"
    best = min(fixed, key=lambda name: measured(fixed[name]))
    for name, rounds in plans.items():
        if name.startswith("auto"):
            over = measured(rounds) / measured(fixed[best]) - 1
            yield f"{name}: {100 * over:+.1f} % beside the fastest measured, {best}"


def in_one_order(one, other) -> bool:
    signs = {a["step_s"] < b["step_s"] for a, b in zip(one, other)}
    return len(signs) == 1


def tau_if_off(steps, error) -> float:
    draw = random.Random(0)
    guesses = [[(step, step * draw.gauss(1, error)) for step in steps] for _ in range(200)]
    return statistics.mean(tau(guess) for guess in guesses)


def tau(pairs) -> float:
    order = [(a[0] - b[0]) * (a[1] - b[1]) for a, b in itertools.combinations(pairs, 2)]
    agreed = sum(product > 0 for product in order) - sum(product < 0 for product in order)
    return agreed / max(len(order), 1)


if __name__ == "__main__":
    main()
