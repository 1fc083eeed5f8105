"""Small trainings, drawn by number, and what each rank sees of one: gradients, and what the hook keeps.

A number gives networks, ranks, options of DDP or FSDP2, the order in which networks are used, backward
passes per step and a codec. Weights stay as they are: every gradient is a function of the number, the
step, the pass and the rank, so that somebody else can compute it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import random
import zlib
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

WORLD, WIDTH, TIMEOUT_S = 4, 8, 60.0
GROUPS = {
    "world": [[0, 1, 2, 3]],
    "pairs": [[0, 1], [2, 3]],
    "far pairs": [[0, 2], [1, 3]],
    "three": [[0, 1, 2], [3]],
}
KINDS = [
    "one",
    "in turns",
    "experts",
    "two models",
    "dense and experts",
    "join",
    "fsdp",
    "momentum",
]
CODECS = ["int4", "none", "onebit", "powersgd:2", "int8", "topk:0.1", "dgc:0.1", "bf16"]
FSDP_CODECS = ["int4", "none", "topk:0.1", "int8", "bf16"]
PASSES = [(True,), (True,), (False, True), (True, True), (False, False, True)]
PLAIN = "plain"
"""In place of a codec: PyTorch alone, which shows that the reference is right."""

Tensors = dict[str, torch.Tensor]


@dataclasses.dataclass(frozen=True)
class Variant:
    """A training. `passes` are the backward passes of a step, each with whether it exchanges."""

    number: int
    kind: str
    networks: tuple[str, ...]
    groups: tuple[str, ...]
    order: str
    steps: int
    passes: tuple[bool, ...]
    set_to_none: bool
    codec: str
    hook: dict[str, Any]
    wrapper: dict[str, Any]
    divides_by_initial: bool | None = None

    def turn(self, step: int, number: int, rank: int) -> int:
        """Which network a rank uses in one pass."""
        if self.order == "first":
            return 0
        if self.order == "alternate":
            return step
        who = rank if self.order == "ranks" else "all"
        return random.Random(f"{self.number} {step} {number} {who}").randrange(6)

    def batch(self, step: int, number: int, rank: int) -> torch.Tensor:
        """The inputs of a rank in one pass."""
        seed = zlib.crc32(f"{self.number} {step} {number} {rank}".encode())
        generator = torch.Generator().manual_seed(seed)
        return (1 + rank) * torch.randn(5, WIDTH, generator=generator)

    def steps_of(self, rank: int) -> int:
        """How many steps a rank makes: under `join` each its own number, rank 0 most."""
        return self.steps if self.divides_by_initial is None else self.steps - rank

    def models(self) -> list[nn.Module]:
        """The networks, the same on every rank."""
        torch.manual_seed(self.number)
        return [NETWORKS[name]() for name in self.networks]

    def loss(self, models: list[nn.Module], step: int, number: int, rank: int) -> torch.Tensor:
        """The loss of one pass."""
        turn, values = self.turn(step, number, rank), self.batch(step, number, rank)
        values = values.to(next(models[0].parameters()).dtype)
        used = [models[self.turn(step, 0, rank) % 2]] if self.kind == "two models" else models
        for model in used:
            values = model(values, turn)
        return values.square().sum()


def drawn(number: int) -> Variant:
    """The training of this number; kinds and codecs take turns, the rest is drawn."""
    draw = random.Random(number)
    kind = KINDS[number % len(KINDS)]
    codecs = FSDP_CODECS if kind == "fsdp" else CODECS
    codec = codecs[(number + number // len(KINDS)) % len(codecs)]
    networks = {
        "one": draw.choice([("layers",), ("tied",)]),
        "in turns": ("turns",),
        "two models": ("layers", draw.choice(["layers", "tied"])),
        "dense and experts": ("layers", "experts"),
        "momentum": (draw.choice(["layers", "turns", "experts"]),),
    }.get(kind, (draw.choice(["experts", "turns"]),))
    chooses = bool({"turns", "experts"} & set(networks))
    groups = [draw.choice(list(GROUPS)) for _ in networks]
    if kind == "dense and experts":
        groups = ["world", draw.choice(["pairs", "far pairs"])]
    if kind == "two models":
        groups = [groups[0]] * 2
    order = draw.choice(["alternate", "random", "random", "ranks" if kind != "fsdp" else "random"])
    if kind == "two models":
        order = draw.choice(["alternate", "random"])
    passes = draw.choice(PASSES) if kind != "join" else (True,)
    static = chooses and kind not in ("join", "fsdp") and draw.random() < 0.2
    if static:
        order, passes = "first", (True,)
    return Variant(
        number=number,
        kind=kind,
        networks=networks,
        groups=tuple(groups),
        order=order,
        steps=draw.randint(6, 10),
        passes=passes,
        set_to_none=draw.random() < 0.5,
        codec=codec,
        hook={} if kind == "fsdp" else hook_options(draw, kind, codec),
        wrapper=sharding(draw) if kind == "fsdp" else ddp_options(draw, static, chooses),
        divides_by_initial=draw.random() < 0.5 if kind == "join" else None,
    )


def hook_options(draw: random.Random, kind: str, codec: str) -> dict[str, Any]:
    """Options of the hook."""
    options: dict[str, Any] = {"warmup_steps": draw.choice([0, 0, 2])}
    options["bucket_bytes"] = draw.choice([1 << 20, 256])
    if kind == "momentum":
        options["momentum_correction"] = draw.choice([0.5, 0.9])
    elif kind != "join" and codec in ("int8", "int4", "topk:0.1") and draw.random() < 0.35:
        options |= {"feedback": "ef21", "warmup_steps": 0}
    return options


def ddp_options(draw: random.Random, static: bool, chooses: bool) -> dict[str, Any]:
    """Options of DDP for a model that chooses among networks, or does not."""
    return {
        "find_unused_parameters": not static and (chooses or draw.random() < 0.3),
        "static_graph": static,
        "gradient_as_bucket_view": draw.random() < 0.5,
        "bucket_cap_mb": draw.choice([25, 0.0005]),
    }


def sharding(draw: random.Random) -> dict[str, Any]:
    """How FSDP2 shards: each child of the model by itself, or all together."""
    return {"each": draw.random() < 0.5, "reshard_after_forward": draw.random() < 0.5}


class Layers(nn.Module):
    """Layers one after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, 12), nn.Linear(12, WIDTH)

    def forward(self, values: torch.Tensor, turn: int) -> torch.Tensor:
        return self.second(self.first(values).tanh())


class Tied(nn.Module):
    """A layer that is used twice, and one without bias."""

    def __init__(self) -> None:
        super().__init__()
        self.twice, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, values: torch.Tensor, turn: int) -> torch.Tensor:
        return self.last(self.twice(self.twice(values).tanh()).tanh())


class Turns(nn.Module):
    """Two networks of equal size, of which a step uses one."""

    def __init__(self) -> None:
        super().__init__()
        self.networks = nn.ModuleList([Layers(), Layers()])

    def forward(self, values: torch.Tensor, turn: int) -> torch.Tensor:
        return self.networks[turn % 2](values, turn)


class Experts(nn.Module):
    """Three layers of equal size, of which a step uses one, between two that every step uses."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.experts = nn.ModuleList([nn.Linear(WIDTH, WIDTH) for _ in range(3)])

    def forward(self, values: torch.Tensor, turn: int) -> torch.Tensor:
        return self.last(self.experts[turn % 3](self.first(values).tanh()).tanh())


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "layers": Layers,
    "tied": Tied,
    "turns": Turns,
    "experts": Experts,
}


@dataclasses.dataclass
class Wrapped:
    """A model in DDP or FSDP2, and its hook; None for PyTorch alone."""

    model: nn.Module
    bare: nn.Module
    hook: Any

    def gradients(self) -> Tensors:
        """What an optimizer would see."""
        seen = {name: parameter.grad for name, parameter in self.bare.named_parameters()}
        return {
            name: getattr(grad, "full_tensor", lambda grad=grad: grad)().clone()
            for name, grad in seen.items()
            if grad is not None
        }

    def kept(self) -> Tensors:
        """What the hook keeps on this rank, as "residual.NAME" and the like."""
        entries = self.hook.state_dict() if self.hook is not None else {}
        tensors = [
            part for entry in entries.values() for part in entry if isinstance(part, Mapping)
        ]
        kept = {}
        for name, values in tensors[0].items() if tensors else ():
            if isinstance(values, tuple):  # of FSDP2: how often it was exchanged, and the residual
                name, values = f"residual.{name}", values[1]
            kept[name] = values.clone()
        return kept

    def quiet(self) -> contextlib.AbstractContextManager[None]:
        """Backward passes that do not exchange."""
        return (
            self.model.no_sync()
            if isinstance(self.model, DistributedDataParallel)
            else silent(self.model)
        )


@contextlib.contextmanager
def silent(model: Any) -> Any:
    """What `no_sync` is for FSDP2."""
    model.set_requires_gradient_sync(False)
    yield
    model.set_requires_gradient_sync(True)


def play(folder: str, numbers: list[int], codec: str | None) -> None:
    """One rank plays some trainings and leaves in `folder` what it saw of each.

    `codec` takes the place of the drawn ones.
    """
    dist.init_process_group("gloo", timeout=timedelta(seconds=TIMEOUT_S))
    for number in numbers:
        variant = drawn(number)
        if codec is not None:
            variant = dataclasses.replace(variant, codec=codec, hook={})
        torch.save(attempt(variant), Path(folder, f"{number}.{dist.get_rank()}"))
        gc.collect()
        dist.barrier()
    dist.destroy_process_group()


def attempt(variant: Variant) -> dict[str, Any]:
    """What a rank sees of one training, or the error that ended it."""
    try:
        return train(variant)
    except Exception as error:
        return {"error": [type(error).__name__, str(error)]}


def train(variant: Variant) -> dict[str, Any]:
    """Per step the gradients, and what hooks keep, by place of the model."""
    rank = dist.get_rank()
    models = [
        wrapped(variant, model, group) for model, group in zip(variant.models(), variant.groups)
    ]
    seen: list[list[Tensors]] = []
    kept: list[list[Tensors]] = []
    joins = variant.divides_by_initial is not None
    options = {"divide_by_initial_world_size": variant.divides_by_initial}
    with models[0].model.join(**options) if joins else contextlib.nullcontext():
        for step in range(variant.steps_of(rank)):
            for each in models:
                each.model.zero_grad(set_to_none=variant.set_to_none)
            for number, exchanges in enumerate(variant.passes):
                with contextlib.ExitStack() as stack:
                    for each in models if not exchanges else ():
                        stack.enter_context(each.quiet())
                    loss = variant.loss([each.model for each in models], step, number, rank)
                    loss.backward()
            seen.append([each.gradients() for each in models])
            kept += [] if joins else [[each.kept() for each in models]]
    return {"seen": seen, "kept": kept or [[each.kept() for each in models]]}


def wrapped(variant: Variant, model: nn.Module, name: str) -> Wrapped:
    """A model in DDP or FSDP2 over the ranks of one of the groups, which are new, with its hook."""
    import thinwire.torch

    options = {"codec": variant.codec, "timeout_s": TIMEOUT_S, **variant.hook}
    group, _ = dist.new_subgroups_by_enumeration(GROUPS[name])
    if variant.kind != "fsdp":
        made = DistributedDataParallel(model, process_group=group, **variant.wrapper)
        if variant.codec == PLAIN:
            return Wrapped(made, model, None)
        named = model.named_parameters()
        hook = thinwire.torch.hook(group=group, named_parameters=named, **options)
        made.register_comm_hook(*hook)
        return Wrapped(made, model, hook[0])
    shard(model, group, **variant.wrapper)
    exchange = None if variant.codec == PLAIN else thinwire.torch.fsdp(model, **options)
    return Wrapped(model, model, exchange)


def shard(model: nn.Module, group: dist.ProcessGroup, each: bool, **options: Any) -> None:
    """Shards a model over the ranks of a group."""
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import fully_shard

    mesh = DeviceMesh.from_group(group, "cpu")
    layers = [layer for layer in model.modules() if isinstance(layer, nn.Linear)]
    for layer in layers if each else ():
        fully_shard(layer, mesh=mesh, **options)
    fully_shard(model, mesh=mesh, **options)
