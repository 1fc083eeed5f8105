"""The law of imported models: a training of ours finds what the framework that the model comes from finds.

A framework's test trains the model for `STEPS` steps on `windows` or `batches_of_images`, which are those
of `thinwire train`, and gives `check_training` what it found.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

TOKENS = 16
STEPS, RATE, WARMUP, SEED = 8, 3e-3, 20, 1
# Rows of a step, of texts and of images: statistics of few images are noise.
ROWS, IMAGE_ROWS = 4, 8
CLASSES = 10
PADDING = (0, 1, 65)

CLUSTER = """
[[device]]
name = "core"
tflops = 0.001
memory_gib = 1
memory_gbyte_per_s = 1

[[level]]
name = "node"
size = {inner}
latency_us = 1
gbit = 100

[[level]]
name = "nodes"
size = {outer}
latency_us = 10
gbit = 1
"""
# Micro-batches and flags of each plan.
PLANS = {
    "data": (1, ["--mesh", "2", "--cuts", "data"]),
    "tensor": (1, ["--mesh", "1,2", "--cuts", "grid"]),
    "pipeline": (2, ["--stages", "2", "--micro-batches", "2"]),
}
Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class Training:
    """What a framework finds: losses, the gradients of the first step, and the parameters after it."""

    losses: list[float]
    gradients: Arrays
    first: Arrays


def shown(command: Any) -> dict[str, Any]:
    """What the command shows of `model.json`."""
    return json.loads(command("model", "show", "model.json", "--batch", "2", "--json"))


def check_parameters(report: dict[str, Any], expected: dict[str, list[int]]) -> None:
    """Names, shapes and count are those of the framework."""
    assert {tensor["name"]: tensor["shape"] for tensor in report["trained"]} == expected
    assert report["parameters"] == sum(int(np.prod(shape)) for shape in expected.values())


def planned(command: Any, batch: int, inner: int, outer: int) -> list[Any]:
    """Flags of a plan of `model.json` for nodes of some devices."""
    text = CLUSTER.format(inner=inner, outer=outer)
    (command.folder / "cluster.toml").write_text(text)
    machines = ["--cluster", "cluster.toml", "--batch", batch, "--output", "plan.toml"]
    return ["--model", "model.json", "--precision", "single", *machines]


def check_training(
    command: Any, batch: int, flags: list[Any], training: Callable[[int], Training]
) -> Path:
    """Losses, gradients and the parameters after the first step are those of the framework, and so are the
    losses under every plan. `training` is the framework's own, for a number of micro-batches.

    Returns the file of the parameters after the first step.
    """
    from safetensors.numpy import load_file

    flags = [*flags, "--weights", "model.safetensors", "--clip", "0", "--lr", RATE]
    flags += ["--validation-batches", "0", "--link", "none", "--json"]
    flags += ["--lr-warmup-steps", WARMUP, "--seed", SEED, "--report", "none"]
    alone = ["--model", "model.json", "--batch", batch, "--ranks", "1", "--codec", "none"]
    run = json.loads(command("train", *alone, *flags, "--steps", "1"))
    training = functools.cache(training)
    expected = training(1)
    assert found(run) == pytest.approx(expected.losses[:1], abs=1e-4)
    kept = command.folder / "thinwire-checkpoints" / "step-000001"
    check_gradients(load_file(kept / "optimizer.safetensors"), expected.gradients)
    values = load_file(kept / "model.safetensors")
    assert values.keys() == expected.first.keys()
    for parameter, value in expected.first.items():
        # A step of Adam is as long whatever the gradient, so where that is rounding, so is the step.
        assert np.abs(values[parameter] - value).max() <= 2.1 * RATE / WARMUP, parameter

    for plan, (pieces, cuts) in PLANS.items():
        command("plan", "price", *planned(command, batch, 2, 1), *cuts)
        rest = ["--plan", "plan.toml", "--steps", STEPS, "--checkpoint-dir", "none"]
        run = json.loads(command("train", *rest, *flags))
        assert found(run) == pytest.approx(training(pieces).losses, abs=1e-3), plan
    return kept / "model.safetensors"


def check_gradients(means: Arrays, gradients: Arrays) -> None:
    """The means that AdamW keeps after the first step are a tenth of the framework's gradients."""
    whole = sum(float(np.square(gradient).sum()) for gradient in gradients.values()) ** 0.5
    for parameter, gradient in gradients.items():
        found = means[f"{parameter}.mean"] / 0.1
        # Rows of tables without a gradient, such as those of padding and of tokens that do not occur.
        if gradient.ndim == 2:
            assert not found[~gradient.any(-1)].any(), parameter
        error = np.linalg.norm(found - gradient)
        # Some gradients are zero but for rounding, such as those of biases of keys.
        assert error <= 1e-3 * np.linalg.norm(gradient) + 1e-6 * whole, parameter


def found(run: dict[str, Any]) -> list[float]:
    """The losses of a training."""
    return [point["value"] for point in run["losses"]]


def text() -> bytes:
    """A text to learn. Every sequence has tokens that are padding for some models."""
    tokens = bytearray((at * at // 7 + at // 3) % 256 for at in range(3000))
    for at in range(0, len(tokens), 3):
        tokens[at] = PADDING[at // 3 % len(PADDING)]
    return bytes(tokens)


def images(shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Images to learn, and their labels."""
    draw = np.random.default_rng(5)
    x = draw.integers(0, 256, (200, *shape), dtype=np.uint8)
    return x, draw.integers(0, CLASSES, 200)


def windows(text: bytes) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Tokens and targets of every step of the first pass, as crates/train/src/data.rs deals them."""
    held = text[: len(text) - len(text) // 10]
    offset = below(0x6F66_6673, 0, TOKENS)
    starts = [offset + at * TOKENS for at in shuffled((len(held) - 1 - offset) // TOKENS)]
    for at in range(0, len(starts) - ROWS, ROWS):
        rows = [list(held[start : start + TOKENS + 1]) for start in starts[at : at + ROWS]]
        rows = np.array(rows, np.int64)
        yield rows[:, :-1], rows[:, 1:]


def batches_of_images(x: np.ndarray, y: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """The images and labels of every step of the first pass; every tenth image is held out."""
    places = [at // 9 * 10 + at % 9 for at in shuffled(len(y) - len(y) // 10)]
    for at in range(0, len(places) - IMAGE_ROWS, IMAGE_ROWS):
        rows = places[at : at + IMAGE_ROWS]
        yield x[rows].astype(np.float32) / 255, y[rows]


def shuffled(count: int) -> list[int]:
    order = list(range(count))
    for last in range(count - 1, 0, -1):
        other = below(0x7368_7566, last, last + 1)
        order[last], order[other] = order[other], order[last]
    return order


def below(stream: int, element: int, bound: int) -> int:
    """A number below a bound, as `Key::below` of crate wire draws it: Philox4x32-10."""
    mask = 0xFFFF_FFFF
    counter, key = [element // 4, 0, stream, 0], [SEED, 0]
    for _ in range(10):
        low, high = counter[0] * 0xD251_1F53, counter[2] * 0xCD9E_8D57
        counter = [
            high >> 32 ^ counter[1] ^ key[0],
            high & mask,
            low >> 32 ^ counter[3] ^ key[1],
            low & mask,
        ]
        key = [key[0] + 0x9E37_79B9 & mask, key[1] + 0xBB67_AE85 & mask]
    return counter[element % 4] * bound >> 32
