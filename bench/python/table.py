"""From the DDP benchmark's JSON lines on stdin to tables: one per network, world and model.

A cell is the median over rounds. Compute alone is the median over everything in the table, because
all methods train the same model; `x compute` is the step over it.
"""

from __future__ import annotations

import collections
import json
import statistics
import sys


def main() -> None:
    tables = collections.defaultdict(list)
    for line in sys.stdin:
        record = json.loads(line)
        tables[record["network"], record["world"], record["model"]].append(record)
    for (network, world, model), records in tables.items():
        compute = statistics.median(record["compute_ms"] for record in records)
        millions = records[0]["parameters"] / 1e6
        print(f"\n{model} of {millions:.1f} M parameters, {network}, {world} ranks")
        print(f"\ncompute alone {compute:.0f} ms\n")
        print("| method | step ms | x compute | plain / it | exchange CPU ms | validation loss |")
        print("|---|--:|--:|--:|--:|--:|")
        methods = collections.defaultdict(list)
        for record in records:
            methods[record["method"]].append(record)
        plain = figure(methods.get("plain", []), "step_ms")
        for method, rounds in methods.items():
            step, cpu = figure(rounds, "step_ms"), figure(rounds, "cpu_ms")
            loss = figure(rounds, "loss")
            cells = [method, f"{step:.0f}", f"{step / compute:.2f}"]
            cells += [f"{plain / step:.2f}" if plain else "-", f"{cpu:.0f}"]
            print("| " + " | ".join([*cells, f"{loss:.4f}" if loss else "-"]) + " |")


def figure(records: list[dict], key: str) -> float | None:
    values = [record[key] for record in records if record[key] is not None]
    return statistics.median(values) if values else None


if __name__ == "__main__":
    main()
