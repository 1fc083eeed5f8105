"""FSDP2 with compressed communication: the reduce-scatter of gradients, on request the all-gather too.

    for layer in model.layers:
        fully_shard(layer)
    fully_shard(model)
    exchange = thinwire.torch.fsdp(model, codec="int8")

What rounding loses of a gradient is kept, in f32, and added to the next one of the same module: error
feedback. That residual is as large as the gradient before it is sharded, on every rank. A gathered
parameter is rounded on its way and whole again where it is kept; every rank, its owner too, computes
with the same rounded bits. The exchanges go over connections of their own, formed at the first one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from thinwire import arguments
from thinwire._core import InvalidError, Scatter
from thinwire.torch import group as groups
from thinwire.torch import state as states
from thinwire.torch.arguments import expect
from thinwire.torch.reduction import NATIVE, Reduction
from thinwire.torch.staging import Staging
from thinwire.torch.work import Callbacks, Work

Done = Callable[[BaseException | None], None] | None
WHOLE_ONLY = ("auto", "powersgd", "intsgd")
GATHER_CODECS = ("none", "f16", "bf16", "int8")
Place = tuple[int, torch.Tensor]
"""How often a module's gradients were exchanged, and their residual, empty for codecs without."""


def fsdp(
    model: torch.nn.Module,
    codec: str = "int8",
    gather_codec: str | None = None,
    group: Any = None,
    *,
    seed: int = 0,
    timeout_s: float | None = None,
) -> Exchange:
    """Makes every module of `model` that `fully_shard` was called on exchange by Thinwire.

    Args:
        model: after `fully_shard`, before the first step.
        codec: how gradients travel: "none", "f16", "bf16", "int8", "int4", "int3", one of these three as
            "int8:stochastic", or "topk:0.01".
        gather_codec: how parameters travel: "none", "f16", "bf16", "int8"; None leaves it to PyTorch.
        group: the ranks, a `thinwire.Group`; None forms one for each process group that FSDP uses.
        seed: of stochastic rounding; the same on all ranks.
        timeout_s: how long a rank waits for the others, in seconds, as in `thinwire.torch.hook`.

    # Errors

    InvalidError if no module is sharded, or for a codec that cannot travel so; backward raises PeerError
    if a rank is lost.
    """
    check_codecs(codec, gather_codec, seed)
    groups.check(group, timeout_s)
    units = sharded(model)
    if not units:
        raise InvalidError(
            f"{type(model).__name__} has no sharded module "
            "(hint: call fully_shard before thinwire.torch.fsdp)"
        )
    exchange = Exchange(set(units), codec, gather_codec, group, seed, timeout_s)
    for name, module in units.items():
        module.set_custom_reduce_scatter(ReduceScatter(exchange, name))
        if gather_codec is not None:
            module.set_custom_all_gather(AllGather(exchange, name))
    return exchange


def sharded(model: torch.nn.Module) -> dict[str, Any]:
    """Returns the modules that `fully_shard` was called on, by name.

    # Errors

    InvalidError for a PyTorch whose FSDP2 takes no communication of others.
    """
    from torch.distributed import fsdp as torch_fsdp

    FSDPModule = getattr(torch_fsdp, "FSDPModule", None)
    if not hasattr(FSDPModule, "set_custom_reduce_scatter"):
        raise InvalidError(
            f"PyTorch {torch.__version__} has no FSDP2 with custom communication, expected 2.9 or later"
        )
    modules = model.named_modules()
    return {name: module for name, module in modules if isinstance(module, FSDPModule)}


def check_codecs(codec: str, gather_codec: str | None, seed: int) -> None:
    """Refuses codecs that need more than FSDP gives, before anybody is met."""
    arguments.text("codec", codec)
    if codec.partition(":")[0] in WHOLE_ONLY:
        raise InvalidError(
            f"codec '{codec}' plans whole gradients, which FSDP does not give: use int8, int4, int3 or "
            "topk:RATIO"
        )
    arguments.options(codec=codec, seed=seed)
    if gather_codec is not None and gather_codec not in GATHER_CODECS:
        raise InvalidError(
            f"gather_codec is '{gather_codec}', expected one of {', '.join(GATHER_CODECS)}"
        )


class Exchange:
    """The connections of one sharded model and its residuals. Made by `fsdp`."""

    def __init__(
        self,
        units: set[str],
        codec: str,
        gather_codec: str | None,
        group: Any,
        seed: int,
        timeout_s: float | None,
    ) -> None:
        """Of the modules called `units`; connections come with the first exchange."""
        self.codec, self.gather_codec = codec, gather_codec
        self.callbacks = Callbacks()
        self.timeout_s = groups.TIMEOUT_S if timeout_s is None else timeout_s
        self._timeout_s = timeout_s
        self._units = units
        self._group, self._seed = group, seed
        self._connections: dict[Any, tuple[groups.Connection, Scatter]] = {}
        self._names: dict[int, str] = {}
        self._saved: dict[str, Place] = {}

    def scatter(self, process_group: dist.ProcessGroup) -> Scatter:
        """The connections between the ranks of a process group; a collective call at first."""
        key = None if self._group is not None else process_group
        if key not in self._connections:
            connection = groups.of(self._group or process_group, self._timeout_s)
            self._connections[key] = connection, Scatter(connection.group, self.codec, self._seed)
        return self._connections[key][1]

    def abort(self, reason: str) -> None:
        """Ends all connections: the other ranks fail with `reason`."""
        for connection, _ in self._connections.values():
            connection.group.abort(reason)

    def key(self, unit: str, elements: int) -> int:
        """The core's number of one module's gradients, the same on all ranks and in every run.

        A module some of whose parameters got no gradient exchanges less, with a residual of its own.
        """
        name = f"{unit}/{elements}"
        number = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little")
        self._names[number] = name
        return number

    def restore(self, scatter: Scatter, number: int) -> None:
        """Gives the core what was loaded for a module, once."""
        count, residual = self._saved.pop(self._names[number], (None, None))
        if count is not None:
            scatter.load({number: (count, states.octets(residual))})

    def state_dict(self) -> dict[str, tuple[dict[str, Place], int]]:
        """Residuals and counts of this rank by module: what it needs to go on as if never interrupted.

        `torch.save` on every rank, or `torch.distributed.checkpoint`, keeps it.
        """
        places = {
            name: (count, residual.clone()) for name, (count, residual) in self._saved.items()
        }
        for _, scatter in self._connections.values():
            for number, (count, values) in scatter.state().items():
                residual = states.tensor([len(values) // 4], values)
                places[self._names[number]] = (count, residual)
        return {f"rank{dist.get_rank()}": (places, dist.get_world_size())}

    def load_state_dict(self, state: dict[str, tuple[dict[str, Place], int]]) -> None:
        """Goes on from what `state_dict` returned on this rank.

        # Errors

        InvalidError if it is the state of other ranks or of another model; then nothing has changed.
        """
        entry = states.entry_of(dist.get_rank(), state)
        if len(entry) != 2:
            raise InvalidError(
                f"the state of rank{dist.get_rank()} has {len(entry)} parts, expected modules and the "
                "number of ranks"
            )
        saved, world = dict(entry[0]), entry[1]
        if world != dist.get_world_size():
            raise InvalidError(
                f"the state is of {world} ranks, this job has {dist.get_world_size()} (hint: go on from "
                "the model and the optimizer alone; what the codec still owed is lost)"
            )
        for name, place in saved.items():
            self._expect(name, place)
        self._saved = saved
        for _, scatter in self._connections.values():
            places = scatter.state().items()
            scatter.load({number: (0, bytes(len(old))) for number, (_, old) in places})

    def _expect(self, name: str, place: Any) -> None:
        """Refuses what is of no module of this model."""
        if not isinstance(place, (tuple, list)) or len(place) != 2:
            raise InvalidError(f"the state of {name} is no pair, expected a count and a residual")
        (unit, _, elements), (count, residual) = name.rpartition("/"), place
        if unit not in self._units:
            raise InvalidError(
                f"the state has a residual of {name}, and this model no sharded module of that name"
            )
        if not 0 <= count < 1 << 64:
            raise InvalidError(f"the count of module '{unit}' is {count}, expected 0 to 2**64 - 1")
        if residual.numel() != 0 and str(residual.numel()) != elements:
            raise InvalidError(
                f"the residual of module '{unit}' has {residual.numel()} elements, expected {elements}"
            )
        if not residual.isfinite().all():
            raise InvalidError(f"the residual of module '{unit}' is not finite")


class Communication:
    """What FSDP2 expects of a custom communication; `unit` is the name of a module."""

    def __init__(self, exchange: Exchange, unit: str) -> None:
        """That of one module."""
        self.exchange, self.unit = exchange, unit

    def allocate(
        self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device
    ) -> torch.Tensor:
        """Memory for an input or output: any will do."""
        return torch.empty(*size, dtype=dtype, device=device)


class ReduceScatter(Communication):
    """The reduce-scatter of one module's gradients."""

    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: dist.ProcessGroup,
        op: Any,
        async_op: bool = False,
    ) -> Any:
        """Reduces rank r's part of the input into its output; of dtypes that no codec knows, exactly."""
        expect("fsdp", input_tensor, group.size() * output_tensor.numel(), output_tensor)
        dtype = NATIVE.get(input_tensor.dtype)
        if dtype is None:
            return dist.reduce_scatter_tensor(output_tensor, input_tensor, op, group, async_op)
        reduction = Reduction.of(op)
        if reduction.native(input_tensor) is None:
            raise InvalidError(f"fsdp sums and averages gradients, got {op}")
        reduction.scale(input_tensor)
        scatter = self.exchange.scatter(group)
        key = self.exchange.key(self.unit, input_tensor.numel())
        self.exchange.restore(scatter, key)
        stage = Staging()
        source, target = stage.read(input_tensor), stage.write(output_tensor)

        def begin(done: Done = None) -> None:
            addresses = source.data_ptr(), target.data_ptr()
            elements, average = target.numel(), reduction.average
            scatter.reduce_scatter(key, *addresses, elements, dtype, average, done=done)

        return launched(begin, stage, output_tensor, self.exchange, async_op)


class AllGather(Communication):
    """The all-gather of one module's parameters."""

    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: dist.ProcessGroup,
        async_op: bool = False,
    ) -> Any:
        """Every rank's shard, rounded, one after the other; mixed dtypes, which come as bytes, exactly."""
        expect("fsdp", output_tensor, group.size() * input_tensor.numel(), input_tensor)
        dtype = NATIVE.get(input_tensor.dtype)
        if dtype is None:
            return dist.all_gather_into_tensor(output_tensor, input_tensor, group, async_op)
        scatter = self.exchange.scatter(group)
        key = self.exchange.key(self.unit, output_tensor.numel())
        self.exchange.restore(scatter, key)
        codec = self.exchange.gather_codec
        stage = Staging()
        source, target = stage.read(input_tensor), stage.write(output_tensor)

        def begin(done: Done = None) -> None:
            addresses = source.data_ptr(), target.data_ptr()
            scatter.all_gather(key, *addresses, source.numel(), dtype, codec, done=done)

        return launched(begin, stage, output_tensor, self.exchange, async_op)


def launched(
    begin: Callable[..., None],
    stage: Staging,
    output: torch.Tensor,
    owner: Exchange,
    async_op: bool,
) -> Work | None:
    """Begins an exchange, and waits for it unless it is `async_op`."""
    stage.depart()
    stage.arrive()
    if async_op:
        work = Work("fsdp", [output], stage, owner.timeout_s, owner)
        begin(work.finish)
        return work
    begin()
    stage.deliver()
    stage.follow()
    return None
