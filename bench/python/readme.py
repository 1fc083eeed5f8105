"""The results of README with the figures of this machine, beside those that README has.

    readme.py README.md FOLDER        # called by `bench/run.sh readme`, which fills the folder

A row is a text with names of figures, which is also how README's own row is read: the two cannot differ in
anything but figures.
"""

from __future__ import annotations

import json
import re
import statistics
import sys
from collections.abc import Callable
from pathlib import Path

import time_to_loss_table

Records = list[dict]
FIGURE = re.compile(r"\{(\w+)(?::[^}]*)?\}")
"""A figure of a row: its name and how it is formatted."""


def ratio(records: Records, method: str, model: str = "gpt") -> float:
    """The step of a method over computing alone."""
    of_model = [each for each in records if each["model"] == model]
    compute = statistics.median(each["compute_ms"] for each in of_model)
    return step(of_model, method) / compute


def step(records: Records, method: str) -> float:
    """Milliseconds of a method's step."""
    return statistics.median(each["step_ms"] for each in records if each["method"] == method)


def thin(steps: Records, losses: Records) -> dict[str, float]:
    ended = {each["method"]: each["loss"] for each in losses}
    figures = {"int3": ratio(steps, "int3@1"), "plain": ratio(steps, "plain")}
    return figures | {"int3_loss": ended["int3@1"], "plain_loss": ended["none"]}


def chosen(steps: Records) -> dict[str, float]:
    others = [ratio(steps, "auto@1", model) for model in ("lstm", "cnn", "layer")]
    return {"gpt": ratio(steps, "auto@1"), "least": min(others), "most": max(others)}


def seconds(records: Records, longer: Records) -> dict[str, float]:
    """`auto` beside the fastest other method."""
    models = ("gpt", "lstm", "cnn")
    thin, fast = (
        [gain(records, network, model) for model in models] for network in ("100mbit", "1gbit")
    )
    steps = [each["steps"] for each in longer if each["method"] == "auto@1"]
    figures = {"least": min(thin), "most": max(thin), "slower": 1 / min(fast)}
    return figures | {"long": gain(longer, "100mbit", "gpt"), "steps": statistics.median(steps)}


def gain(records: Records, network: str, model: str) -> float:
    """The time to a loss of the fastest other method over that of `auto`."""
    here = [each for each in records if (each["network"], each["model"]) == (network, model)]
    medians = {
        method: time_to_loss_table.median([each for each in here if each["method"] == method])
        for method in {each["method"] for each in here}
    }
    auto = medians.pop("auto@1")
    return min(medians.values()) / auto


def device(gpu: Records, steps: Records) -> dict[str, float | str]:
    methods = {"plain": "plain", "int4": "int4@4", "powersgd": "powersgd-4@64"}
    figures = {name: step(steps, method) for name, method in methods.items()}
    return {"gpu": gpu[0]["gpu"], **figures}


def killed(pauses: Records) -> dict[str, float]:
    found = pauses[-1]
    return {"median": found["median_s"], "worst": found["worst_s"], "rounds": found["rounds"]}


def loaded(modes: Records) -> dict[str, float]:
    passes = {each["mode"]: each["pass_s"] for each in modes}
    return {"cached": passes["METIS, cache"], "plain": passes["hash, no cache"]}


ROWS: list[tuple[str, tuple[str, ...], Callable[..., dict]]] = [
    (
        "DDP of a GPT of 10.7 M parameters at 100 Mbit/s: a step takes {int3:.2f} times as long as "
        "computing alone with `int3`, and {plain:.2f} times with raw gradients; validation losses after "
        "120 steps are {int3_loss:.4f} and {plain_loss:.4f}",
        ("steps", "losses"),
        thin,
    ),
    (
        "`auto` with its error budget of 0.02, at 100 Mbit/s: a step takes {gpt:.2f} times as long as "
        "computing alone for that GPT, and {least:.2f} to {most:.2f} times for three other models",
        ("steps",),
        chosen,
    ),
    (
        "Time to a validation loss at 100 Mbit/s: `auto` is {long:.2f} times as fast as PyTorch's best "
        "hook in {steps:.0f} steps of a GPT, and {least:.2f} to {most:.2f} times as fast in trainings of "
        "70 to 160 steps; at 1 Gbit/s, it is up to {slower:.2f} times slower",
        ("seconds", "long"),
        seconds,
    ),
    (
        "CUDA tensors on an {gpu}, codecs on the CPU, GPT at 1 Gbit/s: a step takes {plain:.0f} ms with "
        "plain DDP, {int4:.0f} ms with `int4`, and {powersgd:.0f} ms with PyTorch's PowerSGD",
        ("gpu", "steps"),
        device,
    ),
    (
        "`kill -9` of one of four ranks: survivors end their next step {median:.2f} s after the kill in "
        "the median, and {worst:.2f} s after it in the worst of {rounds} kills",
        ("pauses",),
        killed,
    ),
    (
        "Loading a graph over 100 Mbit/s: {cached:.2f} s per pass with METIS and a cache, {plain:.2f} s "
        "with hashed parts and no cache",
        ("loading",),
        loaded,
    ),
]
"""Each row of README, its measurements, and the function from their lines to its figures."""


def before(row: str, readme: str) -> dict[str, str]:
    """The figures that README has in a row."""
    parts = FIGURE.split(row)
    texts, names = parts[::2], parts[1::2]
    pattern = re.escape(texts[0])
    for name, text in zip(names, texts[1:], strict=True):
        pattern += rf"(?P<{name}>[\w ]*\d(?:[\d.]*\d)?){re.escape(text)}"
    found = re.search(pattern, readme)
    if found is None:
        raise SystemExit(f"README has no row '{row}'")
    return found.groupdict()


def lines(file: Path) -> Records:
    return [json.loads(line) for line in file.read_text().splitlines() if line.startswith("{")]


def again(row: str, files: list[Path], figures: Callable[..., dict]) -> str:
    """A row with the figures of this machine."""
    if not all(file.exists() for file in files):
        return "not measured"
    try:
        return row.format(**figures(*map(lines, files)))
    except (IndexError, KeyError, statistics.StatisticsError) as error:
        return f"a measurement has failed: {error!r}"


def main(readme: str, folder: Path) -> None:
    for number, (row, names, figures) in enumerate(ROWS, 1):
        there = ", ".join(f"{name} {value}" for name, value in before(row, readme).items())
        files = [folder / f"{number}-{name}.json" for name in names]
        print(f"{number}. {again(row, files, figures)}. README has {there}.")
        commands = folder / f"{number}.commands"
        for command in commands.read_text().splitlines() if commands.exists() else ():
            print(f"   {command}")


if __name__ == "__main__":
    main(Path(sys.argv[1]).read_text(), Path(sys.argv[2]))
