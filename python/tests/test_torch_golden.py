"""Golden values of DDP's hook and of FSDP2: parameters after twenty steps, for every codec, bit for bit.

Every rank minimises a quadratic of its own, whose gradients are products and differences of float32,
so that the parameters are the same on every machine. They are recorded in `golden.json`;
`THINWIRE_GOLDEN=update` records them anew.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.needs("torch")

RECORDED = Path(__file__).parent / "golden.json"
STEPS = 20
RATE = 0.25
SHAPES = {"head": (48, 70), "bias": (48,), "hidden": (70, 34), "input": (34, 64)}
OF_DDP = (
    *["none", "f16", "bf16", "e4m3", "int8", "int4", "int8:stochastic", "onebit", "topk:0.1"],
    *["dgc:0.1", "graddrop:0.1", "powersgd:2", "intsgd"],
)
OF_FSDP = (("none", None), ("int8", None), ("int4", "int8"), ("bf16", "bf16"), ("onebit", None))


@pytest.mark.parametrize("world", [2, 4])
def test_parameters_are_the_recorded_ones(ranks: Any, world: int) -> None:
    """DDP's on every rank alike, and each rank's shards of FSDP2's."""
    results = ranks(world, digests)
    whole = [result["ddp"] for result in results]
    assert all(one == whole[0] for one in whole)
    found = {"ddp": whole[0], "fsdp": [result["fsdp"] for result in results]}
    recorded = json.loads(RECORDED.read_text()) if RECORDED.exists() else {}
    if os.environ.get("THINWIRE_GOLDEN") == "update":
        recorded[str(world)] = found
        RECORDED.write_text(json.dumps(recorded, indent=1) + "\n")
    assert found == recorded[str(world)]


def digests() -> dict[str, dict[str, str]]:
    """Digests of the parameters under every codec."""
    import torch.distributed as dist

    dist.init_process_group("gloo")
    found = {
        "ddp": {codec: of_ddp(codec) for codec in OF_DDP},
        "fsdp": {
            f"{codec}, gathered {gather}": of_fsdp(codec, gather) for codec, gather in OF_FSDP
        },
    }
    dist.destroy_process_group()
    return found


def of_ddp(codec: str) -> str:
    """Digest of the parameters of DDP with the hook."""
    from torch.nn.parallel import DistributedDataParallel

    import thinwire.torch

    model = DistributedDataParallel(quadratic(), bucket_cap_mb=0.02)
    model.register_comm_hook(*thinwire.torch.hook(codec, warmup_steps=0, seed=0))
    return trained(model)


def of_fsdp(codec: str, gather: str | None) -> str:
    """Digest of this rank's shards under FSDP2."""
    from torch.distributed.fsdp import fully_shard

    from thinwire.torch.fsdp import fsdp

    model = quadratic()
    for part in model.parts:
        fully_shard(part)
    fully_shard(model)
    fsdp(model, codec=codec, gather_codec=gather, seed=0)
    return trained(model)


def quadratic() -> Any:
    """Module whose loss is half the squared distance of its parameters to this rank's targets."""
    import torch
    import torch.distributed as dist

    class Part(torch.nn.Module):
        def __init__(self, number: int, shape: tuple[int, ...]) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(shape))
            self.target = target(dist.get_rank(), number, shape)
            self.curvature = 1.0 + number / 4

        def forward(self) -> Any:
            return (self.weight - self.target).square().sum() * (self.curvature / 2)

    class Quadratic(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            parts = (Part(number, shape) for number, shape in enumerate(SHAPES.values()))
            self.parts = torch.nn.ModuleList(parts)

        def forward(self) -> Any:
            return sum(part() for part in self.parts)

    return Quadratic()


def target(rank: int, number: int, shape: tuple[int, ...]) -> Any:
    """Whole numbers below 2^10 over 2^8, of which a few are eight times as large."""
    import torch

    element = torch.arange(torch.Size(shape).numel())
    mixed = (element + 1) * 0x9E3779B9 + (rank * 31 + number * 7 + 1) * 0x85EBCA6B & 0xFFFFFFFF
    mixed = (mixed ^ mixed >> 15) * 0x2C1B3C6D & 0xFFFFFFFF
    value = (mixed >> 22).float() / 256 - 2
    return torch.where(element % 37 == 0, 8 * value, value).reshape(shape)


def trained(model: Any) -> str:
    """Digest of what this rank holds of the parameters after all steps."""
    import torch

    for _ in range(STEPS):
        model().backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= RATE * parameter.grad
                parameter.grad = None
    digest = hashlib.sha256()
    for parameter in model.parameters():
        local = parameter.to_local() if hasattr(parameter, "to_local") else parameter
        octets = local.detach().contiguous().view(torch.uint8)
        digest.update(octets.numpy().tobytes())
    return digest.hexdigest()[:16]
