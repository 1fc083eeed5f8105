"""Residuals of FSDP2 belong to parameters, whichever of them have a gradient in a step."""

from __future__ import annotations

import io
import random
import time
from typing import Any

import pytest

pytestmark = pytest.mark.needs("torch")

MODELS, STEPS = 18, 6
CODECS = (
    "int8",
    "int4",
    "int3",
    "onebit",
    "topk:0.1",
    "dgc:0.1",
    "graddrop:0.1",
    "randomk:0.25",
    "none",
)
# Some are equally large, and some do not divide by two.
SHAPES = ((8, 6), (8, 6), (8, 6), (4, 12), (7, 3), (1,), (9,), (5, 2, 2))
# A rank gives up after a minute, and others when they miss it.
NOTICED_WITHIN_S = 30.0


def test_what_is_applied_and_owed_is_what_was_given(ranks: Any) -> None:
    """Random models and codecs: per parameter, over all steps and ranks, in float64."""
    for wrong in ranks(2, unbalanced):
        assert wrong == []


def unbalanced() -> list[str]:
    """What is wrong with any of the models."""
    import torch
    import torch.distributed as dist

    from thinwire.torch import group as groups

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    group = groups.of()
    return [line for seed in range(MODELS) for line in Case(seed, group).wrong()]


class Case:
    """A random model, the same on all ranks, and what its parameters gave and got."""

    def __init__(self, seed: int, group: Any) -> None:
        """Nothing given yet; the model comes with `made`."""
        import torch

        self.draw, self.group = random.Random(seed), group
        self.codec = self.draw.choice(CODECS)
        self.by_columns, self.zeros = self.draw.random() < 0.3, self.draw.random() < 0.2
        self.shapes = {
            prefix: self.drawn() for prefix in self.draw.choice(([""], ["", "p"], ["", "p", "q"]))
        }
        self.model, self.exchange = self.made()
        self.names = [name for name, _ in self.model.named_parameters()]
        self.late = self.draw.choice(self.names)
        zeros = {
            name: torch.zeros(each.shape).double() for name, each in self.model.named_parameters()
        }
        self.given, self.got = zeros, {name: each.clone() for name, each in zeros.items()}

    def drawn(self) -> dict[str, tuple[int, ...]]:
        """Shapes of a module's parameters."""
        return {name: self.draw.choice(SHAPES) for name in "abcd"[: self.draw.randint(1, 4)]}

    def made(self) -> tuple[Any, Any]:
        """The model, sharded, with an exchange that knows nothing."""
        from torch.distributed.fsdp import fully_shard

        from thinwire.torch.fsdp import fsdp
        from torch_models import Experts

        blocks = {name: Experts(shapes) for name, shapes in self.shapes.items() if name}
        model = Experts(self.shapes[""], blocks)
        for unit in (*model.blocks.values(), model):
            fully_shard(unit, shard_placement_fn=self.placement)
        if self.zeros and hasattr(model, "set_reduce_scatter_unused_params"):
            model.set_reduce_scatter_unused_params(True)
        return model, fsdp(model, codec=self.codec, group=self.group)

    def placement(self, parameter: Any) -> Any:
        """Cut by rows, or some by columns."""
        from torch.distributed.tensor import Shard

        even = parameter.dim() > 1 and parameter.shape[1] % 2 == 0
        return Shard(1 if self.by_columns and even else 0)

    def wrong(self) -> list[str]:
        """Trains, and returns the parameters of which something is lost or too much."""
        import torch.distributed as dist

        for step in range(STEPS):
            if step == STEPS // 2 and self.draw.random() < 0.5:
                self.resume()
            self.model.get_parameter(self.late).requires_grad_(step >= 2)
            passes = self.draw.randint(1, 2)
            for number in range(passes):
                self.model.set_requires_gradient_sync(number == passes - 1)
                self.learn(1000 * step + number)
        self.collect()
        apart = {name: given - self.owed(name) for name, given in self.given.items()}
        for each in apart.values():
            dist.all_reduce(each)
        errors = {name: (apart[name] - got).abs().max().item() for name, got in self.got.items()}
        wrong = {name: error for name, error in errors.items() if not error < 1e-4}
        return [f"{self.codec} {self.shapes}: {wrong}"] if wrong else []

    def collect(self) -> None:
        """Adds up what all steps of the model have got."""
        for name, each in self.model.named_parameters():
            if each.grad is not None:
                self.got[name] += each.grad.full_tensor().double()

    def learn(self, number: int) -> None:
        """A pass in which some parameters have a gradient, the same ones on all ranks."""
        import torch
        import torch.distributed as dist

        free = [name for name in self.names if self.model.get_parameter(name).requires_grad]
        if not free:
            return
        generator = torch.Generator().manual_seed(2 * number + dist.get_rank())
        factors = {
            name: torch.randn(self.given[name].shape, generator=generator)
            for name in self.draw.sample(free, self.draw.randint(1, len(free)))
        }
        for name, factor in factors.items():
            self.given[name] += factor.double() / dist.get_world_size()
        self.model(factors).backward()

    def resume(self) -> None:
        """Another model and exchange continue from a file."""
        import torch

        file = io.BytesIO()
        torch.save(self.exchange.state_dict(), file)
        self.collect()
        self.model, self.exchange = self.made()
        self.exchange.load_state_dict(torch.load(io.BytesIO(file.getvalue()), weights_only=True))

    def owed(self, name: str) -> Any:
        """This rank's residual of a parameter, in its shape."""
        import torch

        ((places, *_),) = self.exchange.state_dict().values()
        whole = torch.zeros(self.given[name].shape).double()
        _, residual = places.get(name, (0, torch.empty(0)))
        if residual.numel() == 0:
            return whole
        dim = self.placement(whole).dim
        return torch.cat(list(residual.double()), dim).narrow(dim, 0, whole.shape[dim])


def test_experts_that_take_turns_do_not_mix(ranks: Any) -> None:
    """One expert's gradient is zero: nothing of the other one arrives at it, whatever their names."""
    for mixed, names in ranks(2, taking_turns):
        assert mixed == [0.0] * 4
        assert names == ["blocks.p.a", "blocks.p.b"]


def taking_turns() -> tuple[list[float], list[str]]:
    """What arrived at the expert without a gradient, and the names in the state of a wrapped model."""
    import torch
    import torch.distributed as dist
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
    from torch.distributed.fsdp import fully_shard

    from thinwire.torch.fsdp import fsdp
    from torch_models import Experts

    dist.init_process_group("gloo")
    mixed = []
    for codec in ("none", "int4", "onebit", "topk:0.05"):
        experts = Experts({"a": (64, 64), "b": (64, 64)})
        model = Experts({}, {"p": checkpoint_wrapper(experts)})
        for unit in (experts, model):
            fully_shard(unit)
        exchange = fsdp(model, codec=codec)
        factors = torch.randn(64, 64), torch.zeros(64, 64)
        for step in range(10):
            model.zero_grad()
            model({f"blocks.p.{'ab'[step % 2]}": factors[step % 2]}).backward()
        mixed.append(experts.b.grad.full_tensor().abs().sum().item())
    ((places, *_),) = exchange.state_dict().values()
    return mixed, sorted(places)


def test_ranks_with_other_experts_end_with_an_error(ranks: Any) -> None:
    """Sums over gradients of two parameters would be wrong, and waiting for each other no better."""
    for took in ranks(2, divided):
        assert took < NOTICED_WITHIN_S


def divided() -> float:
    """Seconds until a rank notices that the other one has used another expert."""
    import torch
    import torch.distributed as dist
    from torch.distributed.fsdp import fully_shard

    from thinwire._core import PeerError
    from thinwire.torch.fsdp import fsdp
    from torch_models import Experts

    dist.init_process_group("gloo")
    model = fully_shard(Experts({"a": (8, 6), "b": (8, 6)}))
    fsdp(model, codec="int4")
    model({"a": torch.ones(8, 6)}).backward()
    loss = model({"ab"[dist.get_rank()]: torch.ones(8, 6)})
    started = time.monotonic()
    with pytest.raises(PeerError, match="calls differ"):
        loss.backward()
    return time.monotonic() - started
