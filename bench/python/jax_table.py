"""From the JSON lines of jax_overlap.py and jax_training.py on stdin to Markdown.

`--target` is the validation loss whose time is asked for; by default the last loss of the first method that
exchanges raw gradients.
"""

from __future__ import annotations

import argparse
import json
import sys


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--target", type=float)
    target = parser.parse_args().target
    # Gloo prints lines of its own.
    records = [json.loads(line) for line in sys.stdin if line.startswith("{")]
    overlap = [record for record in records if "form" in record]
    if overlap:
        print(
            "\n16 MB of gradients, ms; the bar is the longer of backward and exchange plus a quarter\n"
        )
        print("| network | framework | step | codec | backward | exchange | step | bar | outside |")
        print("|---|---|---|---|--:|--:|--:|--:|--:|")
    for record in overlap:
        parts = ("backward", "wire", "step", "bar", "outside")
        figures = [f"{record[f'{part}_ms']:.0f}" for part in parts]
        figures[2] += "" if record["holds"] else " (over)"
        names = [record[name] for name in ("network", "framework", "form", "codec")]
        print("| " + " | ".join([*names, *figures]) + " |")
    trained = [record for record in records if "curve" in record]
    for network in dict.fromkeys(record["network"] for record in trained):
        table(network, [each for each in trained if each["network"] == network], target)


def table(network: str, records: list[dict], target: float | None) -> None:
    """Prints the methods on one network."""
    raw = [each["loss"] for each in records if each["method"] in ("none", "gloo")]
    target = target or (raw[0] if raw else records[0]["loss"])
    first = records[0]
    size = f"{first['parameters'] / 1e6:.1f} M parameters, {first['world']} ranks"
    print(f"\nGPT of {size}, {network}\n")
    print(f"| method | ms per step | MB sent per step | s to a loss of {target} | last loss |")
    print("|---|--:|--:|--:|--:|")
    for each in records:
        seconds = [at for at, _, loss in each["curve"] if loss <= target]
        reached = f"{seconds[0]:.1f}" if seconds else "-"
        figures = f"{each['step_ms']:.0f} | {each['sent_mb']:.1f} | {reached} | {each['loss']:.3f}"
        print(f"| {each['method']} | {figures} |")


if __name__ == "__main__":
    main()
