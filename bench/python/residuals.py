"""What predicts the loss of a codec: residuals beside the gradients of the last steps.

Trains a model once per codec with simulated ranks and error feedback, in one process, from the same
weights on the same batches. Prints a line of JSON per codec and seed: the validation loss relative to
raw in percent, bits per element, the relative squared error of one encoding, and for some numbers of
steps k the norm of the residual over that of the sum of the last k gradients, in the mean over the
steps after the warm-up.
"""

from __future__ import annotations

import argparse
import collections
import json
import math
from collections.abc import Callable

import accuracy
import models
import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy

CODECS = (
    "ecsq:0.35,ecsq:0.7,ecsq:1.4,ecsq:2.5,midpoint:0.7,midpoint:1.4,"
    "powersgd:2,powersgd:4,powersgd:8,powersgd:16,powersgd:32,topk:0.01,topk:0.05,topk:0.1,topk:0.3"
)
# Numbers of steps whose gradients are summed.
WINDOWS = (1, 10, 30, 100)
EVERY = 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--codecs", default=CODECS)
    parser.add_argument("--models", default="gpt,lstm")
    parser.add_argument("--size", choices=["small", "medium", "large"], default="small")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--warm-up-steps", type=int, default=100)
    parser.add_argument("--data", help="a text file for gpt and lstm")
    parser.add_argument("--digits", help="a folder with MNIST's files for cnn")
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    for name in options.models.split(","):
        for seed in range(options.seeds):
            raw = train(name, "none", seed, options)
            for codec in options.codecs.split(","):
                found = train(name, codec, seed, options)
                found["loss_percent"] = 100 * (found["loss"] / raw["loss"] - 1)
                print(json.dumps({"model": name, "codec": codec, "seed": seed} | found), flush=True)


def train(name: str, codec: str, seed: int, options: argparse.Namespace) -> dict:
    """One training with all its ranks."""
    options.batch = accuracy.BATCH[name]
    made = [
        models.trained(name, options.size, seed, rank, options) for rank in range(options.ranks)
    ]
    model = made[0][0]
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW(parameters, lr=accuracy.RATE[name])
    exchanges = [Exchange(p, codec, options.ranks) for p in parameters]
    seen = Seen()
    for step in range(options.steps):
        for group in optimizer.param_groups:
            group["lr"] = accuracy.RATE[name] * accuracy.height(step, options.steps)
        gradients = []
        for _, data in made:
            given, wanted = data.draw("training")
            gradients.append(torch.autograd.grad(cross_entropy(model(given), wanted), parameters))
        is_raw = codec == "none" or step < options.warm_up_steps
        for place, (parameter, exchange) in enumerate(zip(parameters, exchanges)):
            own = [of_rank[place] for of_rank in gradients]
            parameter.grad = sum(own) / len(own) if is_raw else exchange.mean(own)
        optimizer.step()
        if codec != "none":
            seen.add(gradients, exchanges, measures=not is_raw and step % EVERY == 0)
    loss = accuracy.validate(model, made[0][1], accuracy.SAMPLES[name])
    return {"loss": loss} | seen.result()


class Exchange:
    """The exchange of one tensor among ranks, each of which keeps a residual."""

    def __init__(self, parameter: torch.Tensor, codec: str, ranks: int) -> None:
        kind, _, number = codec.partition(":")
        self.residuals = [torch.zeros_like(parameter) for _ in range(ranks)]
        self.error = self.bits = 0.0
        self.is_raw = parameter.dim() < 2
        if kind == "powersgd" and not self.is_raw:
            flat = parameter.flatten(1)
            self.factor = torch.randn(flat.shape[1], min(int(number), *flat.shape))
        self.encode: dict[str, Callable] = {
            "ecsq": lambda all_: [self.quantised(x, float(number), centroids=True) for x in all_],
            "midpoint": lambda all_: [
                self.quantised(x, float(number), centroids=False) for x in all_
            ],
            "powersgd": self.low_rank,
            "topk": lambda all_: [self.largest(x, float(number)) for x in all_],
            "none": lambda all_: all_,
        }
        self.codec = self.encode[kind]

    def mean(self, gradients: list[torch.Tensor]) -> torch.Tensor:
        """The mean of what the ranks decode; what each has lost stays with it."""
        if self.is_raw:
            self.bits = 32.0
            return sum(gradients) / len(gradients)
        owed = [g + residual for g, residual in zip(gradients, self.residuals)]
        decoded = self.codec(owed)
        self.residuals = [x - y for x, y in zip(owed, decoded)]
        whole = sum(float(x.square().sum()) for x in owed)
        self.error = sum(float(e.square().sum()) for e in self.residuals) / max(whole, 1e-30)
        return sum(decoded) / len(decoded)

    def quantised(self, x: torch.Tensor, step: float, *, centroids: bool) -> torch.Tensor:
        """Uniform levels of one step per tensor, decoded as the means or the middles of their values."""
        step = step * float(x.square().mean().sqrt())
        if step == 0.0:
            return x
        levels, places, counts = torch.unique(
            (x / step).round(), return_inverse=True, return_counts=True
        )
        shares = counts / counts.sum()
        self.bits = float(-(shares * shares.log2()).sum())
        if centroids:
            sums = torch.zeros_like(levels).index_add_(0, places.flatten(), x.flatten())
            return (sums / counts)[places]
        return step * levels[places]

    def low_rank(self, owed: list[torch.Tensor]) -> list[torch.Tensor]:
        """One step of power iteration for the mean of all ranks (Vogels and others, PowerSGD, 2019)."""
        shape = owed[0].shape
        mean = sum(owed).flatten(1) / len(owed)
        basis = torch.linalg.qr(mean @ self.factor).Q
        self.factor = mean.T @ basis
        rows, columns = mean.shape
        self.bits = 32 * self.factor.shape[1] * (rows + columns) / (rows * columns)
        product = (basis @ self.factor.T).view(shape)
        return [product for _ in owed]

    def largest(self, x: torch.Tensor, part: float) -> torch.Tensor:
        """The elements of largest magnitude, with 32 bits for a value and what an index takes."""
        count = max(1, round(part * x.numel()))
        threshold = x.abs().flatten().kthvalue(x.numel() - count + 1).values
        entropy = -(part * math.log2(part) + (1 - part) * math.log2(1 - part))
        self.bits = 32 * part + entropy
        return torch.where(x.abs() >= threshold, x, 0.0)


class Seen:
    """Residuals and sums of gradients over the steps."""

    def __init__(self) -> None:
        # Sums of the gradients of all steps before the last ones, the oldest first.
        self.sums: collections.deque = collections.deque(maxlen=max(WINDOWS) + 1)
        self.ratios: dict[int, list[float]] = {window: [] for window in WINDOWS}
        self.errors: list[float] = []
        self.bits: list[float] = []

    def add(self, gradients: list, exchanges: list[Exchange], *, measures: bool) -> None:
        """Counts one step; its residual too if it `measures`."""
        places = [i for i, exchange in enumerate(exchanges) if not exchange.is_raw]
        flat = [torch.cat([of_rank[i].flatten() for i in places]) for of_rank in gradients]
        gradient = sum(flat) / len(flat)
        self.sums.append(gradient + self.sums[-1] if self.sums else gradient)
        if not measures or len(self.sums) <= max(WINDOWS):
            return
        kept = [exchanges[i] for i in places]
        residual = torch.cat([(sum(e.residuals) / len(e.residuals)).flatten() for e in kept])
        for window, ratios in self.ratios.items():
            moved = self.sums[-1] - self.sums[-1 - window]
            ratios.append(float(residual.norm() / moved.norm()))
        sizes = [e.residuals[0].numel() for e in kept]
        weigh = lambda values: sum(v * n for v, n in zip(values, sizes)) / sum(sizes)  # noqa: E731
        self.errors.append(weigh(e.error for e in kept))
        self.bits.append(weigh(e.bits for e in kept))

    def result(self) -> dict:
        """Means over the steps."""
        mean = lambda values: sum(values) / max(1, len(values))  # noqa: E731
        owed = {f"owed_{window}": mean(ratios) for window, ratios in self.ratios.items()}
        return {"error": mean(self.errors), "bits": mean(self.bits)} | owed


if __name__ == "__main__":
    main()
