"""Gradients of the benchmarks' models for `thinwire-bench distortion`: files of f32, little-endian.

For every model and step one file, FOLDER/MODEL-STEP.f32, with pieces of the gradients of all matrices
in the order of the parameters, at most 2^20 elements in all.
"""

from __future__ import annotations

import argparse
import pathlib

import models
import torch
from torch.nn.functional import cross_entropy

PIECE = 1 << 16
PIECES_MAX = 16


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--models", default="gpt,lstm,cnn")
    parser.add_argument("--steps", default="20,100")
    parser.add_argument("--data", help="a text file for gpt and lstm")
    parser.add_argument("--batch", type=int, default=8)
    options = parser.parse_args()
    steps = [int(step) for step in options.steps.split(",")]
    for name in options.models.split(","):
        record(name, steps, options)


def record(name: str, steps: list[int], options: argparse.Namespace) -> None:
    """Trains one model and writes its gradients after some steps."""
    model, data = models.make(name, options.data, options.batch, 0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(1, max(steps) + 1):
        inputs, targets = data.draw("training")
        optimizer.zero_grad()
        cross_entropy(model(inputs), targets).backward()
        if step in steps:
            matrices = [p.grad.flatten() for p in model.parameters() if p.dim() > 1]
            pieces = torch.cat(matrices).split(PIECE)
            stride = -(-len(pieces) // PIECES_MAX)
            chosen = torch.cat(pieces[::stride]).numpy().astype("<f4")
            chosen.tofile(options.folder / f"{name}-{step}.f32")
        optimizer.step()


if __name__ == "__main__":
    main()
