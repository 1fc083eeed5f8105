"""FSDP2 with compressed communication: Thinwire compresses the reduce-scatter of gradients and, on
request, the all-gather of parameters.

    for layer in model.layers:
        fully_shard(layer)
    fully_shard(model)
    exchange = thinwire.torch.fsdp(model, codec="int8")

The rounding error of a gradient is kept, in f32, and added to the next gradient of the same parameter
(error feedback). On every rank, this residual is as large as the unsharded gradient. A parameter
without a gradient in some step keeps its residual. A gathered parameter is rounded only for the
transfer, and its stored shard stays exact; every rank, including its owner, computes with the same
rounded bits. The exchanges use separate connections, so all ranks must call `fsdp`.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist

from thinwire import arguments, cuda
from thinwire._core import InvalidError, Scatter
from thinwire.agreement import together
from thinwire.arguments import Codecs, Seconds
from thinwire.torch import device as devices
from thinwire.torch import fsdp_hosts, skipped
from thinwire.torch import group as groups
from thinwire.torch import state as states
from thinwire.torch.arguments import expect
from thinwire.torch.device import Resident
from thinwire.torch.fsdp_replicas import AllReduce, Replicas, between
from thinwire.torch.reduction import NATIVE, Reduction
from thinwire.torch.shards import Parameter, number, param_groups, parameters, reduced, sharded
from thinwire.torch.staging import Staging
from thinwire.torch.work import Callbacks, Work

Done = Callable[[BaseException | None], None] | None
WHOLE_ONLY = ("auto", "powersgd", "intsgd")
GATHER_CODECS = ("none", "f16", "bf16", "int8")
Place = tuple[int, torch.Tensor]
"""Number of exchanges of a parameter's gradient, and its residual: one row per rank, in the shape of a
shard with its padding; empty for codecs without a residual."""
State = dict[str, tuple[dict[str, Place], int, str]]
"""For each rank: its `Place` of each parameter, the number of ranks, and the codec."""


def fsdp(
    model: torch.nn.Module,
    codec: Codecs = "int8",
    gather_codec: str | None = None,
    group: Any = None,
    *,
    seed: int = 1,
    unchecked: bool = False,
    timeout_s: Seconds | None = None,
    heartbeat_timeout_s: Seconds | None = None,
    device: str | None = None,
    replicas: Any = None,
) -> Exchange | Replicas:
    """Makes Thinwire exchange the gradients of every module of `model` that `fully_shard` was called on.

    PyTorch continues to exchange for modules under `replicate`.

    Args:
        model: after `fully_shard`, before the first step.
        codec: how gradients travel: "none", "f16", "bf16", "int8", "int4", "int3", one of these three as
            "int8:stochastic", or "topk:0.01". With `replicas` also codecs by the names of parameters, as in
            `thinwire.torch.hook`.
        gather_codec: how parameters travel: "none", "f16", "bf16", "int8"; None leaves it to PyTorch.
        group: the ranks, a `thinwire.Group`; None forms one for each process group that FSDP uses.
        seed: for stochastic rounding; the same on all ranks.
        unchecked: train with a codec from a file even if it breaks laws, as in `thinwire.torch.hook`.
        timeout_s: how long a rank waits for the others, in seconds, as in `thinwire.torch.hook`.
        heartbeat_timeout_s: the seconds of silence after which a rank counts as lost, as in
            `thinwire.torch.hook`.
        device: None encodes gradients on their device, "host" in host memory, as in
            `thinwire.torch.hook`. Parameters are gathered through host memory.
        replicas: a mesh of one dimension or a process group: the ranks that have the same shards as
            this rank, one on each host, if modules are sharded only over the mesh of the host.
            FSDP2 then gathers and reduces on the host, and Thinwire averages gradients of shards
            over the replicas. This happens once for all micro-batches of a step if
            `set_requires_all_reduce(False)`, or `set_requires_gradient_sync(False)`, is called
            before all but the last of them. None exchanges between all ranks of the modules' mesh.

    # Errors

    InvalidError if no module is sharded, if a module already exchanges by Thinwire or has
    parameters on several meshes, or for codecs that FSDP2 cannot use. With `replicas`, InvalidError
    also for a `group`, for a `gather_codec`, for several meshes, and for a mesh that has a
    dimension of replicas, since FSDP2 would then sum gradients over replicas itself. Backward
    raises PeerError if a rank is lost or has gradients of other parameters.
    """
    arguments.instance("model", model, torch.nn.Module)
    by_name = isinstance(codec, Mapping) or callable(codec)
    if by_name and replicas is None:
        raise InvalidError(
            f"codec is {arguments.shown(codec)}, expected the name of one codec: FSDP2 reduces the "
            "gradients of a module together (hint: codecs by name need replicas)"
        )
    codecs = "" if by_name else check_codec(codec, seed)
    if gather_codec is not None and gather_codec not in GATHER_CODECS:
        raise InvalidError(
            f"gather_codec is {arguments.shown(gather_codec)}, expected one of "
            f"{', '.join(GATHER_CODECS)}"
        )
    arguments.flag("unchecked", unchecked)
    timeouts_s = groups.check(group, timeout_s, heartbeat_timeout_s)
    cuda.check(device)
    units = sharded(model)
    if not units:
        raise InvalidError(
            f"{type(model).__name__} has no sharded module "
            "(hint: call fully_shard before thinwire.torch.fsdp)"
        )
    for name, module in units.items():
        check_unit(name, module)
    every = parameters(model, units.values())
    check_alike(units, replicas)
    if replicas is not None:
        for name, given in (("group", group), ("gather_codec", gather_codec)):
            if given is not None:
                raise InvalidError(
                    f"{name} cannot be used with replicas: modules are gathered and reduced on "
                    f"their host (hint: leave {name} out)"
                )
        names = [each.name for each in every.values()]

        def of_core() -> dict[str, Any]:
            """Options of the core; a function of names may raise here."""
            text = check_codec(arguments.codec(codec, names), seed)
            return {"codec": text, "seed": seed, "unchecked": unchecked}

        return between(units, every, replicas, of_core, device == cuda.HOST, *timeouts_s)
    options = Options(codecs, gather_codec, group, seed, unchecked, *timeouts_s, device)
    exchange = Exchange(every, options)
    for name, module in units.items():
        module.set_custom_reduce_scatter(ReduceScatter(exchange, name))
        if gather_codec is not None:
            module.set_custom_all_gather(AllGather(exchange, name))
    exchange.connect(units.values())
    return exchange


def check_alike(units: Mapping[str, Any], replicas: Any) -> None:
    """Refuses `replicas` if it is passed on only some of the ranks that share a module, as its
    shards or as its replicas.

    A collective call. Without this check, these ranks would wait for different ranks.
    """
    call = fsdp_hosts.tell(replicas)
    infos = [group.mesh_info for unit in units.values() for group in param_groups(unit)]
    group = next(
        (info.shard_process_group for info in infos if hasattr(info, "shard_process_group")), None
    )
    if group is None:
        return
    found: list[Any] = [None] * group.size()
    dist.all_gather_object(found, "none" if replicas is None else "given", group=group)
    other = next((place for place, each in enumerate(found) if each != found[0]), None)
    if other is not None:
        first, second = (dist.get_global_rank(group, place) for place in (0, other))
        raise InvalidError(
            f"ranks disagree: replicas is {found[other]} on rank {second}, {found[0]} on rank {first} "
            f"{fsdp_hosts.HINT}"
        )
    fsdp_hosts.refuse_hosts_without(call, replicas)


def check_unit(name: str, unit: Any) -> None:
    """Refuses a sharded module whose communication cannot be replaced."""
    found = param_groups(unit)
    if len(found) > 1:
        raise InvalidError(
            f"module '{name}' has parameters on {len(found)} meshes, but FSDP2 takes one "
            "communication for each module (hint: call fully_shard on submodules, with one mesh "
            "each)"
        )
    hooks = [getattr(group, "_all_reduce_hook", None) for group in found]
    comms = [group._reduce_scatter_comm for group in found]
    if any(isinstance(each, (Communication, AllReduce)) for each in (*hooks, *comms)):
        raise InvalidError(
            f"module '{name}' exchanges by Thinwire already "
            "(hint: call thinwire.torch.fsdp once, on the whole model)"
        )


def check_codec(codec: Any, seed: int) -> str:
    """Returns the codec. Refuses codecs that need more than FSDP provides, before this rank
    connects to others."""
    arguments.text("codec", codec)
    text: str = codec
    for each in text.split(","):
        name = each.rpartition("=")[2]  # of PATTERN=CODEC
        if name.partition(":")[0] in WHOLE_ONLY:
            raise InvalidError(
                f"codec '{name}' needs whole gradients, but FSDP2 has only parts of them: use "
                "int8, int4, int3 or topk:RATIO"
            )
    arguments.options(codec=text, seed=seed)
    return text


@dataclasses.dataclass(frozen=True)
class Options:
    """The arguments of `fsdp` other than the model."""

    codec: str
    gather_codec: str | None
    group: Any
    seed: int
    unchecked: bool
    timeout_s: float | None
    heartbeat_timeout_s: float | None
    device: str | None


class Exchange:
    """The connections and the residuals of one sharded model. Made by `fsdp`."""

    def __init__(self, parameters: dict[Any, Parameter], options: Options) -> None:
        """Creates it for these parameters, without connections."""
        self.codec, self.gather_codec = options.codec, options.gather_codec
        self.on_host = options.device == cuda.HOST
        self.callbacks = Callbacks()
        waits_s = options.timeout_s
        self.timeout_s = groups.TIMEOUT_S if waits_s is None else waits_s
        self._options = options
        self._parameters = parameters
        self._names = {each.key: each for each in parameters.values()}
        self._connections: dict[Any, tuple[groups.Connection, Scatter]] = {}
        self._holders: dict[int, Scatter] = {}
        self._saved: dict[str, Place] = {}
        self._warned = False

    def connect(self, units: Iterable[Any]) -> None:
        """Connects the ranks of all modules, so that a lost rank is noticed before the first exchange."""
        for group in itertools.chain.from_iterable(map(param_groups, units)):
            process_group = getattr(group.mesh_info, "shard_process_group", None)
            if process_group is not None and process_group.size() > 1:
                self.scatter(process_group)

    def scatter(self, process_group: dist.ProcessGroup) -> Scatter:
        """Returns the connections between the ranks of a process group. The first call for a group
        is collective.

        # Errors

        InvalidError if the given group has other ranks.
        """
        given = self._options.group
        key = None if given is not None else process_group
        if key not in self._connections:
            timeouts_s = self._options.timeout_s, self._options.heartbeat_timeout_s
            connection = groups.of(given or process_group, *timeouts_s)
            made = Scatter(
                connection.group, self.codec, self._options.seed, self._options.unchecked
            )
            self._connections[key] = connection, made
        connection, scatter = self._connections[key]
        found = connection.group.rank, connection.group.world
        if found != (process_group.rank(), process_group.size()):
            raise InvalidError(
                f"this process is rank {found[0]} of {found[1]} in the group, but rank "
                f"{process_group.rank()} of {process_group.size()} among the ranks of FSDP2 (hint: "
                "leave group out)"
            )
        return scatter

    def abort(self, reason: str) -> None:
        """Ends all connections: the other ranks fail with `reason`."""
        for connection, _ in self._connections.values():
            connection.group.abort(reason)

    def parts(self, scatter: Scatter, elements: int) -> list[tuple[int, int]]:
        """Returns the key and the number of elements of each parameter that FSDP2 is reducing;
        `elements` is their total per rank.

        After the call, the core has the loaded state of these parameters.

        # Errors

        InvalidError for parameters of another model, and for parameters that were reduced over
        another process group before, which has their residuals.
        """
        known = reduced(self._parameters, elements)
        for each in known:
            if self._holders.setdefault(each.key, scatter) is not scatter:
                raise InvalidError(
                    f"parameter {each.name} was reduced over another process group before, "
                    "and its residual belongs to that group (hint: "
                    "set_separate_reduce_scatter_group before the first step)"
                )
        self._restore(scatter, known)
        return [(each.key, each.elements) for each in known]

    def look_at(self, parts: Sequence[tuple[int, int]], scatter: Scatter) -> None:
        """Warns, only once, if the sums of these parameters are NaN. Either all of them are, or
        none."""
        if self._warned or not scatter.was_skipped:
            return
        self._warned = True
        first, last = (self._names[key].name for key, _ in (parts[0], parts[-1]))
        which = first if len(parts) == 1 else f"{first} … {last} ({len(parts)})"
        fault = (
            f"a gradient of {which} is not finite on a rank, or too large for codec {self.codec}"
        )
        skipped.warn(fault, "their gradients are NaN on all ranks")

    def _restore(self, scatter: Scatter, parameters: Sequence[Parameter]) -> None:
        """Passes the loaded state of some parameters to the core, once for each parameter."""
        loaded = [each for each in parameters if each.name in self._saved]
        if not loaded:
            return
        places = {each.key: self._saved.pop(each.name) for each in loaded}
        scatter.load({key: (count, states.octets(owed)) for key, (count, owed) in places.items()})

    def state_dict(self) -> State:
        """Returns residuals and counts by parameter, with which a resumed run continues bit for bit.

        `torch.save` on every rank, or `torch.distributed.checkpoint`, keeps it.
        """
        places = {}
        for _, scatter in self._connections.values():
            for key, (count, values) in scatter.state().items():
                if self._holders.get(key) is scatter:
                    each = self._names[key]
                    shape = each.shape if values else [0]
                    places[each.name] = count, states.tensor(shape, values)
        # What was loaded and is not with the core yet comes after what the core had before.
        places |= {name: (count, owed.clone()) for name, (count, owed) in self._saved.items()}
        return {f"rank{dist.get_rank()}": (places, dist.get_world_size(), self.codec)}

    def load_state_dict(self, state: State) -> None:
        """Loads what `state_dict` returned on this rank; a collective call.

        # Errors

        InvalidError, on all ranks, if any rank's state is of other ranks, another model or another
        codec; nothing is changed in that case.
        """

        def read() -> dict[str, Place]:
            return self._read(state)

        for connection, _ in self._connections.values():
            read = functools.partial(together, connection.group, read)
        self._saved = read()
        for key, scatter in self._holders.items():
            scatter.load({key: (0, b"")})

    def _read(self, state: State) -> dict[str, Place]:
        """Reads this rank's part of a state; refuses the state of another training."""
        saved, world, codec = self._entry(state)
        hint = "(hint: resume from model and optimizer alone; the residuals are then lost)"
        if world != dist.get_world_size():
            raise InvalidError(
                f"the state is of {world} ranks, this job has {dist.get_world_size()} {hint}"
            )
        if not states.means_same(codec, self.codec):
            raise InvalidError(f"the state is of codec {codec}, expected {self.codec} {hint}")
        for name, place in saved.items():
            self._expect(name, place)
        return {name: (count, owed) for name, (count, owed) in saved.items()}

    def _entry(self, state: State) -> tuple[dict[str, Place], int, str]:
        """Returns this rank's part of a state."""
        name = f"rank{dist.get_rank()}"
        entry = states.entry_of(dist.get_rank(), state)
        if len(entry) == 2:
            raise InvalidError(
                f"the state of {name} has residuals of modules, as earlier versions saved it, "
                "expected residuals of parameters (hint: continue from the model and the optimizer "
                "alone)"
            )
        if len(entry) != 3:
            raise InvalidError(
                f"the state of {name} has {len(entry)} parts, expected parameters, the number of "
                "ranks and the codec"
            )
        places, world, codec = entry
        return dict(places), world, codec

    def _expect(self, name: str, place: Any) -> None:
        """Refuses an entry that does not fit a parameter of this model."""
        if not isinstance(place, (tuple, list)) or len(place) != 2:
            raise InvalidError(
                f"the state of {name} is not a pair, expected a count and a residual"
            )
        expected = self._names.get(number(name))
        if expected is None:
            raise InvalidError(
                f"the state has a residual of {name}, but this model has no sharded parameter of "
                "that name"
            )
        count, residual = place
        if not 0 <= count < 1 << 64:
            raise InvalidError(f"the count of parameter {name} is {count}, expected 0 to 2**64 - 1")
        shape = list(residual.shape)
        if residual.numel() != 0 and shape != expected.shape:
            raise InvalidError(
                f"the residual of parameter {name} has shape {shape}, expected {expected.shape}"
            )
        if not residual.isfinite().all():
            raise InvalidError(f"the residual of parameter {name} is not finite")


class Communication:
    """The interface that FSDP2 expects of a custom communication; `unit` is the name of a module."""

    def __init__(self, exchange: Exchange, unit: str) -> None:
        """Creates the communication of one module."""
        self.exchange, self.unit = exchange, unit

    def allocate(
        self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device
    ) -> torch.Tensor:
        """Allocates memory for an input or output on any device."""
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
        """Reduces each rank's part of the input into that rank's output; dtypes that no codec
        supports are reduced exactly."""
        expect("fsdp", input_tensor, group.size() * output_tensor.numel(), output_tensor)
        dtype = NATIVE.get(input_tensor.dtype)
        if dtype is None:
            return dist.reduce_scatter_tensor(output_tensor, input_tensor, op, group, async_op)
        reduction = Reduction.of(op)
        if reduction.native(input_tensor) is None:
            raise InvalidError(f"fsdp sums and averages gradients, got {op}")
        reduction.scale(input_tensor)
        scatter = self.exchange.scatter(group)
        parts = self.exchange.parts(scatter, output_tensor.numel())
        device = None if self.exchange.on_host else devices.of(input_tensor)
        stage = Resident(device) if device else Staging()
        source, target = stage.read(input_tensor), stage.write(output_tensor)
        core = None if device is None else device.core

        def begin(done: Done = None) -> None:
            addresses = source.data_ptr(), target.data_ptr()
            scatter.reduce_scatter(parts, *addresses, dtype, reduction.average, done, core)

        work = launched(begin, stage, output_tensor, self.exchange, async_op)
        if work is None:
            self.exchange.look_at(parts, scatter)
        return work


class AllGather(Communication):
    """The all-gather of one module's parameters."""

    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: dist.ProcessGroup,
        async_op: bool = False,
    ) -> Any:
        """Gathers the rounded shards of all ranks, one after the other. Shards of mixed dtypes,
        which FSDP2 passes as bytes, are gathered exactly."""
        expect("fsdp", output_tensor, group.size() * input_tensor.numel(), input_tensor)
        dtype = NATIVE.get(input_tensor.dtype)
        if dtype is None:
            return dist.all_gather_into_tensor(output_tensor, input_tensor, group, async_op)
        scatter = self.exchange.scatter(group)
        # No name of a parameter has a slash.
        key = number(f"{self.unit}/")
        codec = self.exchange.gather_codec or "none"
        stage = Staging()
        source, target = stage.read(input_tensor), stage.write(output_tensor)

        def begin(done: Done = None) -> None:
            addresses = source.data_ptr(), target.data_ptr()
            scatter.all_gather(key, *addresses, source.numel(), dtype, codec, done=done)

        return launched(begin, stage, output_tensor, self.exchange, async_op)


def launched(
    begin: Callable[..., None],
    stage: Staging | Resident,
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
