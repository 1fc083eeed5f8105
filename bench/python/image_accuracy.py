"""Accuracy on digits of `thinwire train` beside torch's own, from the same weights.

    python bench/python/image_accuracy.py target/release/thinwire DIGITS [STEPS]

trains a ResNet with bottlenecks, a ViT and a ConvNeXt of transformers on the first 8,000 digits of MNIST's
files in the folder DIGITS, of which every tenth is held out, by `thinwire train` on two ranks under each
codec and in torch. It prints the accuracy on the other 2,000, evaluated by torch for all: a checkpoint goes
back to torch, and running statistics of batch norm are computed anew from the training images. Every seed
is another order of the rows from the same weights; the last line of a model has means over them, and the
least and the most. `--models`, `--codec` and `--seeds` choose among models, codecs and numbers of orders.
"""

from __future__ import annotations

import argparse
import copy
import gzip
import json
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import numpy
import torch
import transformers
from safetensors.torch import load_file, save_file

import thinwire.torch

TRAINED, HELD_OUT, BATCH, RATE, WARMUP = 8000, 10, 32, 2e-3, 40
COMMON = {"num_channels": 1, "num_labels": 10}
PATCHES = {"image_size": 28, "patch_size": 7, "hidden_size": 64, "intermediate_size": 128}
CERTAIN = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
MODELS = {
    "ResNet": (
        "ResNetForImageClassification",
        {
            "embedding_size": 16,
            "hidden_sizes": [32, 64],
            "depths": [1, 1],
            "layer_type": "bottleneck",
        },
    ),
    "ViT": (
        "ViTForImageClassification",
        {**PATCHES, **CERTAIN, "num_hidden_layers": 2, "num_attention_heads": 4},
    ),
    "ConvNeXt": (
        "ConvNextForImageClassification",
        {"hidden_sizes": [16, 32], "depths": [1, 2], "num_stages": 2, "patch_size": 2},
    ),
}


def digits(folder: Path) -> tuple[numpy.ndarray, numpy.ndarray]:
    """Images `[N, 1, 28, 28]` and labels of MNIST's files."""
    images = gzip.decompress((folder / "t10k-images-idx3-ubyte.gz").read_bytes())[16:]
    labels = gzip.decompress((folder / "t10k-labels-idx1-ubyte.gz").read_bytes())[8:]
    x = numpy.frombuffer(images, dtype=numpy.uint8).reshape(-1, 1, 28, 28)
    return x, numpy.frombuffer(labels, dtype=numpy.uint8).astype(numpy.int64)


def batches(x: torch.Tensor, y: torch.Tensor, steps: int) -> Any:
    """Rows of every step: passes over all images but those held out."""
    kept = torch.tensor([at for at in range(len(y)) if at % HELD_OUT < HELD_OUT - 1])
    order = torch.cat(
        [kept[torch.randperm(len(kept))] for _ in range(steps * BATCH // len(kept) + 1)]
    )
    for step in range(steps):
        rows = order[step * BATCH : (step + 1) * BATCH]
        yield x[rows], y[rows]


def trained_by_torch(model: Any, x: torch.Tensor, y: torch.Tensor, steps: int) -> None:
    """AdamW as `thinwire train` has it, with its rates and its clipping."""
    groups = [
        {"params": [p for p in model.parameters() if p.ndim > 1], "weight_decay": 0.1},
        {"params": [p for p in model.parameters() if p.ndim <= 1], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.95))
    for step, (images, labels) in enumerate(batches(x, y, steps)):
        loss = torch.nn.functional.cross_entropy(model(images).logits, labels)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for group in optimizer.param_groups:
            group["lr"] = rate(step, steps)
        optimizer.step()


def rate(step: int, steps: int) -> float:
    """Linear warm-up and a cosine to a tenth."""
    if step < WARMUP:
        return RATE * (step + 1) / WARMUP
    part = (step - WARMUP) / max(steps - WARMUP, 1)
    return RATE * (0.1 + 0.45 * (1 + numpy.cos(numpy.pi * part)))


def trained_by_thinwire(
    command: Path, model: Any, folder: Path, steps: int, choice: list[Any]
) -> None:
    """Trains from the model's values; the checkpoint is loaded into the model."""
    thinwire.torch.export_graph(model, (torch.zeros(2, 1, 28, 28),), folder / "model.json")
    values = {name: value.detach() for name, value in model.named_parameters()}
    save_file(values, folder / "weights.safetensors")
    flags = ["--model", "model.json", "--data", "digits.npz", "--weights", "weights.safetensors"]
    flags += ["--ranks", 2, *choice, "--batch", BATCH, "--steps", steps, "--lr", RATE]
    flags += [
        "--lr-warmup-steps",
        WARMUP,
        "--validation-batches",
        25,
        "--link",
        "none",
        "--json",
        "--report",
        "none",
    ]
    flags += ["--checkpoint-dir", "kept"]
    run = [command, "train", *map(str, flags)]
    ended = subprocess.run(run, cwd=folder, capture_output=True, text=True, check=False)
    if ended.returncode != 0:
        raise SystemExit(ended.stderr)
    kept = sorted((folder / "kept").glob("step-*"))[-1] / "model.safetensors"
    model.load_state_dict(load_file(kept), strict=False)


def accuracy(model: Any, train: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> float:
    """Part of the digits in their class, in torch's evaluation with statistics of the training images."""
    with torch.no_grad():
        torch.optim.swa_utils.update_bn(train.split(256), model)
        found = torch.cat([model.eval()(part).logits.argmax(1) for part in x.split(256)])
    return float((found == y).float().mean())


def trainings(
    options: argparse.Namespace, model: Any, pixels: Any, labels: Any, seed: int
) -> dict[str, float]:
    """Accuracies of torch and of thinwire under each codec, with one order of the rows."""
    x, y = torch.tensor(pixels).float() / 255, torch.tensor(labels)
    rest = (x[:TRAINED], x[TRAINED:], y[TRAINED:])
    by_torch = copy.deepcopy(model)
    torch.manual_seed(seed)
    trained_by_torch(by_torch, x[:TRAINED], y[:TRAINED], options.steps)
    figures = {"torch": accuracy(by_torch, *rest)}
    for codec in options.codec:
        ours = copy.deepcopy(model)
        with tempfile.TemporaryDirectory() as folder:
            numpy.savez(Path(folder) / "digits.npz", x=pixels[:TRAINED], y=labels[:TRAINED])
            choice = ["--codec", codec, "--seed", seed]
            command = options.command.resolve()
            trained_by_thinwire(command, ours, Path(folder), options.steps, choice)
        figures[codec] = accuracy(ours, *rest)
    return figures


def summary(runs: list[dict[str, float]]) -> dict[str, list[float]]:
    """Mean, least and most of every way to train, in percent."""

    def three(values: list[float]) -> list[float]:
        return [
            round(100 * value, 1) for value in (float(numpy.mean(values)), min(values), max(values))
        ]

    return {way: three([run[way] for run in runs]) for way in runs[0]}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("command", type=Path)
    parser.add_argument("digits", type=Path)
    parser.add_argument("steps", type=int, nargs="?", default=400)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--codec", nargs="+", default=["int8"])
    parser.add_argument("--seeds", type=int, default=1)
    options = parser.parse_args()
    pixels, labels = digits(options.digits)
    for name in options.models:
        kind, sizes = MODELS[name]
        torch.manual_seed(1)
        kind = getattr(transformers, kind)
        model = kind(kind.config_class(**COMMON, **sizes)).train()
        runs = []
        for seed in range(1, options.seeds + 1):
            runs.append(trainings(options, model, pixels, labels, seed))
            print(json.dumps({"model": name, "seed": seed, **runs[-1]}), flush=True)
        print(json.dumps({"model": name, "steps": options.steps, **summary(runs)}), flush=True)


if __name__ == "__main__":
    main()
