"""DiLoCo: ranks train apart and communicate once in many steps; Thinwire's lines have an arrow.

    torchrun --nproc-per-node 2 examples/python/torch_diloco.py --every 20

No process group of PyTorch is needed: `thinwire.init` reads what torchrun says. Each rank sees another
half of the plane and learns a classifier of both. Rank 0 prints how well all ranks' common model does
on points of both halves.
"""

import argparse

import torch
from torch import nn
from torch.nn.functional import cross_entropy

import thinwire
import thinwire.torch


def main() -> None:
    """Trains on every rank of the job."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--every", type=int, default=20, help="steps between two rounds")
    parser.add_argument("--codec", default="int4", help="none, int8, int4, topk:0.1, ...")
    options = parser.parse_args()

    group = thinwire.init()  # <-- Thinwire
    model = nn.Sequential(
        nn.Linear(2, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 2)
    )
    rounds = thinwire.torch.Rounds(
        model, f"diloco:{options.every}", codec=options.codec, group=group
    )  # <-- Thinwire
    inner = torch.optim.AdamW(model.parameters(), lr=3e-3)

    torch.manual_seed(1 + group.rank)
    everywhere = points(2000)
    for step in range(1, options.steps + 1):
        mine = points(64)
        mine[:, 0] = mine[:, 0].abs() * (1 if group.rank % 2 else -1)
        loss = cross_entropy(model(mine), ring(mine))
        inner.zero_grad()
        loss.backward()
        inner.step()
        if rounds.step()["ended"] and group.rank == 0:  # <-- Thinwire
            right = (model(everywhere).argmax(1) == ring(everywhere)).float().mean().item()
            print(f"step {step} loss {loss.item():.3f} right {right:.3f}", flush=True)
    rounds.finish()  # <-- Thinwire
    group.close()


def points(count: int) -> torch.Tensor:
    """Random points of the plane."""
    return 2 * torch.randn(count, 2)


def ring(places: torch.Tensor) -> torch.Tensor:
    """The class of each point: whether it lies in a ring that is not centred."""
    distance = (places - torch.tensor([0.5, -0.3])).norm(dim=1)
    return ((distance > 1.0) & (distance < 2.5)).long()


if __name__ == "__main__":
    main()
