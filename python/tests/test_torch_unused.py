"""Parameters without a gradient: codecs keep what they owe of them until there is one."""

import pytest

import launch

pytestmark = pytest.mark.needs("torch")

CODECS = ["none", "int4", "onebit", "topk:0.05", "powersgd:2", "powersgd:2:alternate"]
WAYS = ["none", "zeros", "stale", "stale views", "twice", "momentum"]


class Turns:
    """Two networks in one DDP, of which each step trains one."""

    def __init__(self, codec, way, **hook):
        """`way` is how gradients of earlier steps are dealt with."""
        import torch
        from torch.nn.parallel import DistributedDataParallel

        import thinwire.torch

        class Two(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.g = torch.nn.Parameter(torch.zeros(60, 50))
                self.d = torch.nn.Parameter(torch.zeros(64, 50))

            def forward(self, turn, by):
                network = getattr(self, turn)
                return (network * by[: len(network)]).sum()

        self.way = way
        self.model = DistributedDataParallel(
            Two(), find_unused_parameters=True, gradient_as_bucket_view="views" in way
        )
        if way == "momentum":
            hook["momentum_correction"] = 0.5
        named = self.model.module.named_parameters()
        made = thinwire.torch.hook(codec, warmup_steps=0, named_parameters=named, **hook)
        self.model.register_comm_hook(*made)
        self.hook = made[0]

    def step(self, turn, by):
        """Trains one network; its gradient."""
        network = getattr(self.model.module, turn)
        if "stale" in self.way:
            network.grad = None
        else:
            self.model.zero_grad(set_to_none=self.way != "zeros")
        if self.way == "twice":
            with self.model.no_sync():
                self.model(turn, by).backward()
        self.model(turn, by).backward()
        return network.grad.clone()

    def owed(self, turn):
        """Residual, momentum and factors of a network."""
        (entry,) = self.hook.state_dict().values()
        tensors = next(part for part in entry if isinstance(part, dict)) if entry else {}
        return {name: each for name, each in tensors.items() if name.endswith(f".{turn}")}


def in_turns(codec, way, **hook):
    """g's gradients with turns of d in between and without, and what a turn of d has changed of g."""
    import torch
    import torch.distributed as dist

    seeds = torch.Generator().manual_seed(dist.get_rank())
    given = [torch.randn(64, 50, generator=seeds) for _ in range(8)]
    mixed, alone = (Turns(codec, way, **hook) for _ in range(2))
    changed, same = [], []
    for by in given:
        same.append(torch.equal(mixed.step("g", by), alone.step("g", by)))
        before, gradient = mixed.owed("g"), mixed.model.module.g.grad
        kept = None if gradient is None else gradient.clone()
        mixed.step("d", by)
        after = mixed.owed("g")
        changed += [name for name in before if not torch.equal(before[name], after[name])]
        if "stale" in way and not torch.equal(mixed.model.module.g.grad, kept):
            changed.append("grad")
    return all(same), changed, sorted(before)


def accumulated(codec):
    """Gradients of g from a backward without exchange, in a step whose last backward is of d alone."""
    import torch

    turns, both = Turns(codec, "none", bucket_bytes=1), []
    by = torch.ones(64, 50)
    for _ in range(3):
        turns.model.zero_grad()
        with turns.model.no_sync():
            turns.model("g", by).backward()
        turns.model("d", by).backward()
        both += [turns.model.module.g.grad.mean().item(), turns.model.module.d.grad.mean().item()]
    return both


def frozen(codec, **hook):
    """The error of all averages of networks that are frozen in turns, from the first step on, as owed."""
    import torch
    import torch.distributed as dist

    turns, worst = Turns(codec, "none", **hook), 0.0
    lost = {turn: torch.zeros(60 if turn == "g" else 64, 50) for turn in "gd"}
    for step in range(6):
        turn, other = "gd"[step % 2], "dg"[step % 2]
        getattr(turns.model.module, other).requires_grad_(False)
        by = torch.full((64, 50), 1.0 + step + dist.get_rank())
        by[::3] *= 0.3
        gradient = turns.step(turn, by)
        getattr(turns.model.module, other).requires_grad_(True)
        mean = by.clone()
        dist.all_reduce(mean)
        lost[turn] += mean[: len(gradient)] / 2 - gradient
    for turn, each in lost.items():
        residual = turns.owed(turn).get(f"residual.{turn}", torch.zeros_like(each)).clone()
        dist.all_reduce(residual)
        worst = max(worst, (each - residual).abs().max().item())
    return worst


def expert(codec):
    """The relative error of all averages of experts that ranks use in turns, in buckets with others."""
    import torch
    import torch.distributed as dist

    turns, rank = Turns(codec, "stale"), dist.get_rank()
    seeds, sums = torch.Generator().manual_seed(7), {"g": [0, 0], "d": [0, 0]}
    for step in range(60):
        mine = ["gd", "gg", "dd"][step % 3]
        by = torch.randn(64, 50, generator=seeds) + 1
        turns.model.zero_grad()
        turns.model(mine[rank], by).backward()
        for turn in sorted(set(mine)):
            network = getattr(turns.model.module, turn)
            sums[turn][0] += network.grad
            sums[turn][1] += by[: len(network)] * mine.count(turn) / 2
    return {turn: ((got - true).norm() / true.norm()).item() for turn, (got, true) in sums.items()}


def cases():
    """All cases in one process group."""
    import copy
    import pickle

    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    turns = {
        (codec, way): in_turns(codec, way, bucket_bytes=1)
        for way in WAYS
        for codec in (CODECS if way in ("none", "stale") else ["int4", "powersgd:2"])
    }
    together = {codec: in_turns(codec, "stale views") for codec in ("int4", "topk:0.05", "auto")}
    sums = {codec: accumulated(codec) for codec in ("none", "int4")}
    experts = {codec: expert(codec) for codec in ("none", "int4", "onebit", "powersgd:2")}
    freezing = [frozen("int4"), frozen("onebit")]
    watched = Turns("int4", "none")
    watched.step("g", torch.ones(64, 50))
    copy.deepcopy(watched.model.module)
    pickle.dumps(watched.model.module.g)
    dist.destroy_process_group()
    return list(turns.items()), together, sums, experts, freezing


def test_turns_of_another_network_change_nothing():
    for turns, together, sums, experts, freezing in launch.results(
        launch.run(2, cases, timeout=120)
    ):
        for case, (same, changed, kept) in turns:
            assert same and changed == [], (case, changed)
            assert (kept != []) == (case[0] != "none" or case[1] == "momentum"), case
        assert max(freezing) < 1e-4, freezing
        for codec, (_, changed, _) in together.items():
            assert changed == [], codec
        for codec, means in sums.items():
            assert means == pytest.approx([1.0] * 6, rel=0.02), codec
        for codec, most in {"none": 1e-6, "int4": 0.02, "onebit": 0.2, "powersgd:2": 0.4}.items():
            assert max(experts[codec].values()) < most, (codec, experts[codec])
