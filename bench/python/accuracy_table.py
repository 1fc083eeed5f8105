"""From accuracy.py's JSON lines on stdin to Markdown: a table per number of ranks, a row per method.

A cell is the validation loss over that of `none` with the same seed, in percent: the mean over seeds
and the worst of them, beside the bits that a rank sent per element.
"""

from __future__ import annotations

import collections
import json
import statistics
import sys


def main() -> None:
    worlds = collections.defaultdict(list)
    errors = {}
    for line in sys.stdin:
        record = json.loads(line)
        if "error" in record:
            errors[record["method"]] = record["error"]
        else:
            worlds[record["world"]].append(record)
    for world, records in worlds.items():
        table(world, records)
    for method, error in errors.items():
        print(f"\nno {method}: {error}")


def table(world: int, records: list[dict]) -> None:
    names = list(dict.fromkeys(record["model"] for record in records))
    results = {(r["method"], r["model"], r["seed"]): r for r in records}
    print(f"\n{world} ranks; bits per element, then the loss to that of none: mean, worst\n")
    print("| method | " + " | ".join(f"{name} bits | mean | worst" for name in names) + " |")
    print("|---|" + "--:|--:|--:|" * len(names))
    for method in dict.fromkeys(record["method"] for record in records):
        cells = [method]
        for name in names:
            found = {s: r for (m, n, s), r in results.items() if (m, n) == (method, name)}
            bits = [r["bits"] for r in found.values() if "bits" in r]
            cells.append(f"{statistics.mean(bits):.2f}" if bits else "-")
            cells += compared(found, {s: results.get(("none", name, s)) for s in found})
        print("| " + " | ".join(cells) + " |")
    print()
    for name in names:
        losses = [r["loss"] for (m, n, _), r in results.items() if (m, n) == ("none", name)]
        if losses:
            print(f"none, {name}: " + ", ".join(f"{loss:.4f}" for loss in losses))
        for method in dict.fromkeys(m for m, n, _ in results if n == name and m.startswith("auto")):
            print(f"{method}, {name}: {choices(results, method, name)}")


def compared(found: dict, references: dict) -> list[str]:
    """The mean and the worst of the losses against those of none, in percent."""
    changes = [
        100 * (r["loss"] / references[s]["loss"] - 1) for s, r in found.items() if references[s]
    ]
    if not changes:
        return ["-", "-"]
    return [f"{statistics.mean(changes):+.2f} %", f"{max(changes):+.2f} %"]


def choices(results: dict, method: str, name: str) -> str:
    """What auto chose: the share of the elements under each codec, over all seeds."""
    found = [r["codecs"] for (m, n, _), r in results.items() if (m, n) == (method, name)]
    total = collections.Counter()
    for shares in found:
        total.update(shares)
    return ", ".join(f"{codec} {part / len(found):.0%}" for codec, part in total.most_common())


if __name__ == "__main__":
    main()
