"""From modes.py's JSON lines on stdin to Markdown: a table per model, a row per method.

The loss at equal samples is in percent above that of DDP in the same seed: the mean over seeds, and their
range. Seconds are the steps after which the validation loss is first at most `--above` percent above the
end of DDP's curve, times the seconds of a step on the network; the median over seeds. Steps in which a
method sends raw take as long as DDP's. `auto` has the curve of the codec that it gave most buckets.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys

BASE = "plain"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--above", type=float, nargs="+", default=[0.5, 5.0])
    options = parser.parse_args()
    cells = [cell for cell in map(json.loads, sys.stdin) if "error" not in cell]
    for model in dict.fromkeys(cell["model"] for cell in cells):
        mine = [cell for cell in cells if cell["model"] == model]
        curves = by_method(mine, "curve")
        if BASE not in curves:
            print(f"{model}: no curve of {BASE}", file=sys.stderr)
            continue
        times = {
            network: {cell["method"]: cell for cell in mine if is_timed(cell, network)}
            for network in dict.fromkeys(it["network"] for it in mine if it["part"] == "time")
        }
        for above in options.above:
            table(model, curves, times, above)
        for cell in mine:
            if cell["part"] == "whole":
                compare(cell, curves, times)


def by_method(cells: list[dict], part: str) -> dict[str, dict[int, dict]]:
    """Cells by method and seed."""
    found: dict[str, dict[int, dict]] = {}
    for cell in cells:
        if cell["part"] == part:
            found.setdefault(cell["method"], {})[cell["seed"]] = cell
    return found


def is_timed(cell: dict, network: str) -> bool:
    return cell["part"] == "time" and cell["network"] == network


def table(model: str, curves: dict, times: dict, above: float) -> None:
    """One model to one target."""
    base = curves[BASE]
    first = next(iter(base.values()))
    losses = ", ".join(f"{cell['loss']:.3f}" for cell in base.values())
    print(
        f"\n{model} of {first['parameters'] / 1e6:.2f} M parameters, {first['world']} ranks, "
        f"{first['steps']} steps; losses of {BASE}: {losses}; to {above:g} % above\n"
    )
    networks = list(times)
    print("| method | loss | seeds | steps | kB per step | " + " | ".join(networks) + " |")
    print("|---|--:|--:|--:|--:|" + "--:|" * len(networks))
    methods = list(dict.fromkeys([*curves, *(name for cells in times.values() for name in cells)]))
    seconds = {
        (method, network): product(method, curves, times[network], above)
        for method in methods
        for network in networks
    }
    for method in methods:
        entries = []
        for network in networks:
            best = min(seconds[other, network] for other in methods)
            entries.append(entry(seconds[method, network], best, times[network].get(method)))
        sent = next(
            (cells[method]["sent_bytes"] for cells in times.values() if method in cells), None
        )
        kilobytes = "" if sent is None else f"{sent / 1e3:.1f}"
        row = [method, *learnt(curves.get(method, {}), base, above), kilobytes, *entries]
        print("| " + " | ".join(row) + " |")


def learnt(mine: dict[int, dict], base: dict[int, dict], above: float) -> list[str]:
    """The loss at equal samples, its range over seeds, and the steps to the target."""
    seeds = sorted(mine.keys() & base.keys())
    if not seeds:
        return ["", "", ""]
    ratios = [100 * (mine[seed]["loss"] / base[seed]["loss"] - 1) for seed in seeds]
    steps = statistics.median(steps_to(mine[seed], base[seed], above) for seed in seeds)
    span = f"{min(ratios):+.1f} to {max(ratios):+.1f}" if len(seeds) > 1 else "one"
    return [f"{statistics.mean(ratios):+.1f} %", span, f"{steps:.0f}" if steps < math.inf else "–"]


def steps_to(cell: dict, base: dict, above: float) -> float:
    """The steps after which the loss is low enough; infinitely many if it never is."""
    target = base["curve"][-1][1] * (1 + above / 100)
    return next((step for step, loss, _ in cell["curve"] if loss <= target), math.inf)


def product(method: str, curves: dict, times: dict[str, dict], above: float) -> float:
    """Seconds to the target on one network."""
    timed, base = times.get(method), curves[BASE]
    mine = curves.get(curve_of(method, timed), {})
    seeds = sorted(mine.keys() & base.keys())
    if timed is None or not seeds:
        return math.inf
    raw = timed["raw_steps"]
    if raw and BASE not in times:
        return math.inf
    raw_s = times[BASE]["step_s"] if raw else 0.0
    values = [steps_to(mine[seed], base[seed], above) for seed in seeds]
    return statistics.median(
        min(raw, steps) * raw_s + max(0.0, steps - raw) * timed["step_s"] for steps in values
    )


def curve_of(method: str, timed: dict | None) -> str:
    """The method whose curve this one has: that of the codec that `auto` took."""
    name, _, bucket = method.partition("@")
    if name != "auto" or timed is None:
        return method
    return f"{max(timed['plan'], key=timed['plan'].get)}@{bucket}"


def entry(seconds: float, best: float, timed: dict | None) -> str:
    """Seconds to the target and milliseconds of a step."""
    if timed is None:
        return ""
    step = f"({1e3 * timed['step_s']:.0f} ms)"
    if seconds == math.inf:
        return f"– {step}"
    text = f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"
    return f"**{text}** {step}" if seconds == best else f"{text} {step}"


def compare(cell: dict, curves: dict, times: dict) -> None:
    """A training on the network beside the product of its parts."""
    method, network, seed = cell["method"], cell["network"], cell["seed"]
    steps, loss, seconds = cell["curve"][-1]
    timed, curve = times.get(network, {}).get(method), curves.get(method, {}).get(seed)
    if timed is None or curve is None:
        return
    product_s = steps * timed["step_s"]
    print(
        f"\n{method} at {network} as a whole: {seconds:.0f} s and a loss of {loss:.4f} after {steps} "
        f"steps; the product has {product_s:.0f} s and {curve['curve'][-1][1]:.4f}"
    )


if __name__ == "__main__":
    main()
