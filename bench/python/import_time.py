"""Milliseconds that importing a module takes beyond importing its framework.

    python bench/python/import_time.py                  # thinwire.jax beyond jax
    python bench/python/import_time.py keras thinwire.keras

Processes that import the framework alone and both take turns; times are those of `python -X importtime`.
"""

from __future__ import annotations

import argparse
import re
import statistics
import subprocess
import sys

# Microseconds, cumulative, of a module that no other one imports.
LINE = re.compile(r"^import time: +\d+ \| +(\d+) \| (\S+)$", re.MULTILINE)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("framework", nargs="?", default="jax")
    parser.add_argument("module", nargs="?", default="thinwire.jax")
    parser.add_argument("--runs", type=int, default=10)
    options = parser.parse_args()
    alone, before, beyond = [], [], []
    for _ in range(options.runs):
        alone.append(imported(options.framework)[options.framework])
        both = imported(options.framework, options.module)
        before.append(both.pop(options.framework))
        # The packages around a module are imported before it.
        beyond.append(sum(both[name] for name in both if options.module.startswith(name)))
    for what, times in (
        (f"{options.framework} alone", alone),
        (f"{options.framework}, before {options.module}", before),
        (f"{options.module} beyond {options.framework}", beyond),
    ):
        low, high = min(times), max(times)
        print(f"{what}: {statistics.median(times):.1f} ms ({low:.1f} to {high:.1f})")


def imported(*modules: str) -> dict[str, float]:
    """The milliseconds of each module that a process imports by itself."""
    command = [sys.executable, "-X", "importtime", "-c", f"import {', '.join(modules)}"]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    return {name: int(microseconds) / 1000 for microseconds, name in LINE.findall(said)}


if __name__ == "__main__":
    main()
