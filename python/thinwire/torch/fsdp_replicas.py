"""FSDP2 on several hosts: averages the gradients of each shard over its replicas, the ranks with
this shard, one on each host.

    mesh = init_device_mesh("cuda", (hosts, ranks), mesh_dim_names=("replicas", "host"))
    for layer in model.layers:
        fully_shard(layer, mesh=mesh["host"])
    fully_shard(model, mesh=mesh["host"])
    exchange = thinwire.torch.fsdp(model, codec="int8", replicas=mesh["replicas"])

FSDP2 shards, gathers and reduces on the mesh of the host alone. The reduce-scatter averages a
module's gradients over the host; the all-reduce hook then averages them over the replicas. FSDP2
itself sums nothing between hosts. The rounding error of a shard's gradient is kept, in f32, and
added to the shard's next gradient.

Each module is one exchange, which takes effect on all ranks of all hosts or on none: if a gradient
is not finite, all gradients of its module become NaN on all ranks, and the residuals are unchanged.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.autograd import Variable

from thinwire._core import Epoch, Error, InvalidError, Synchronizer
from thinwire.agreement import agree, together
from thinwire.torch import device as devices
from thinwire.torch import fsdp_hosts, hosts, skipped
from thinwire.torch import state as states
from thinwire.torch.device import Resident
from thinwire.torch.layout import Target
from thinwire.torch.reduction import NATIVE
from thinwire.torch.shards import Parameter, param_groups, reduced
from thinwire.torch.staging import Staging

State = dict[str, tuple[dict[str, tuple[str, states.Tensors]], int, list[int], str]]
"""By rank: the plan and the tensors of each module's exchange, the number of exchanges, the place of the
rank (see `Replicas._place`), and the codec."""


class Replicas:
    """The exchange between the replicas of one sharded model. Created by `fsdp` with `replicas`."""

    def __init__(
        self,
        units: Mapping[str, Any],
        parameters: Mapping[Any, Parameter],
        host: hosts.Host,
        options: Mapping[str, Any],
        on_host: bool,
    ) -> None:
        """Creates the exchange with the peers of `host`; `options` are those of the core's
        Synchronizer."""
        self.codec = options["codec"]
        self._host, self._on_host = host, on_host
        named = [each.name for each in parameters.values()]
        self._options = {**options, "peers": host.peers, "beside": host.ranks, "named": named}
        self.parameters = parameters
        self._epoch = Epoch.of(host.group)
        self._count = 0
        self._warned = False
        self._backward = -1
        self._hooks: dict[str, AllReduce] = {}
        for name, unit in units.items():
            for group in param_groups(unit):  # none if all parameters are those of submodules
                self._hooks[name] = AllReduce(self, name, group)
                unit.set_all_reduce_hook(self._hooks[name])

    def abort(self, reason: str) -> None:
        """Ends the exchange: the other ranks fail with `reason`."""
        self._host.group.abort(reason)

    def synchronizer(self, parameters: Sequence[Parameter], dtype: str) -> Synchronizer:
        """Makes an exchange of these parameters' gradients; a collective call of all ranks of all hosts."""
        described = [(each.name, shape_of(each), dtype, 0) for each in parameters]
        # All shards of a module are on one device.
        core = next(
            filter(None, (devices.of(each.sharded.sharded_param) for each in parameters)), None
        )
        device = None if core is None or self._on_host else core.core
        return Synchronizer(self._epoch, described, **self._options, device=device)

    def staging(self, tensor: torch.Tensor) -> Staging | Resident:
        """Returns the staging of a gradient, on its GPU or in host memory, depending on where it is
        encoded."""
        device = None if self._on_host else devices.of(tensor)
        return Staging() if device is None else Resident(device)

    def next(self) -> int:
        """Returns the number of the next exchange; modules exchange one after the other."""
        self._count += 1
        return self._count - 1

    def look_at(self, fault: str | None) -> None:
        """Warns once about a gradient that has made all gradients of a module NaN."""
        if fault is not None and not self._warned:
            self._warned = True
            # The core has seen the average of the host's ranks.
            fault = fault.replace("on this rank", "on this host")
            skipped.warn(fault, "the gradients of its module are NaN on all ranks")

    def look_at_end(self) -> None:
        """Checks at the end of this backward pass that all gradients were exchanged."""
        # Once for each backward pass; -1 outside of any.
        backward = torch._C._current_graph_task_id()
        if backward not in (-1, self._backward):
            self._backward = backward
            Variable._execution_engine.queue_callback(self._expect_nothing)

    def _expect_nothing(self) -> None:
        """Raises InvalidError if a module was used in earlier micro-batches of a step, but not in
        the last one."""
        for name, hook in self._hooks.items():
            hook.expect_nothing(name)

    def state_dict(self) -> State:
        """Returns residuals by module, with which a resumed run continues bit for bit.

        `torch.save` on every rank, or `torch.distributed.checkpoint`, keeps it.
        """
        saved = {name: hook.saved() for name, hook in self._hooks.items()}
        found = {name: each for name, each in saved.items() if each is not None}
        return {f"rank{dist.get_rank()}": (found, self._count, self._place(), self.codec)}

    def load_state_dict(self, state: State) -> None:
        """Loads what `state_dict` returned on this rank; a collective call.

        # Errors

        InvalidError, on all ranks, if any rank has the state of another rank, model, number of replicas or
        codec, or if the states were not saved together.
        """
        group = self._host.group
        modules, count = together(group, functools.partial(self._read, state))
        agree([f"modules {sorted(modules)}", f"{count} exchanges"], group)
        for name, hook in sorted(self._hooks.items()):
            hook.load(states.Saved(*modules[name], buckets=[]) if name in modules else None)
        self._count = count

    def _place(self) -> list[int]:
        """Returns this rank's place on its host, the number of the host's ranks, and the number of
        hosts."""
        host = self._host
        return [host.place, len(host.ranks), len(host.peers)]

    def _read(self, state: State) -> tuple[dict[str, tuple[str, states.Tensors]], int]:
        """Reads this rank's modules and number of exchanges from a state."""
        entry = states.entry_of(dist.get_rank(), state)
        hint = "(hint: resume from model and optimizer alone; the residuals are then lost)"
        if len(entry) != 4:
            raise InvalidError(
                f"the state of rank{dist.get_rank()} has {len(entry)} parts, expected modules, a count, a "
                f"place and the codec, as replicas save it {hint}"
            )
        modules, count, place, codec = entry
        if list(place) != self._place():
            raise InvalidError(
                f"the state is of {said(place)}, this rank is {said(self._place())} {hint}"
            )
        if not states.means_same(codec, self.codec):
            raise InvalidError(f"the state is of codec {codec}, expected {self.codec} {hint}")
        strange = sorted(set(modules) - set(self._hooks))
        if strange:
            raise InvalidError(
                f"the state is of module '{strange[0]}', which this model does not shard {hint}"
            )
        return dict(modules), count


class AllReduce:
    """The all-reduce hook of one module."""

    def __init__(self, owner: Replicas, name: str, param_group: Any) -> None:
        """Creates the hook of a module whose parameters are in FSDP2's `param_group`. It connects
        when the first gradients come."""
        self._owner, self._name, self._param_group = owner, name, param_group
        self._kept: dict[int, torch.Tensor] = {}
        self._sync: Synchronizer | None = None
        self._known: list[Parameter] = []
        self._saved: states.Saved | None = None

    def __call__(self, gradients: torch.Tensor) -> None:
        """Replaces the host's average by the average over all hosts, in place, in a flat tensor of
        f32, f16 or bf16.

        While `set_requires_all_reduce(False)` is in effect, before the last micro-batch of a step,
        it keeps the host's average for later, and FSDP2 gets zeros.

        # Errors

        InvalidError for other dtypes, and if a parameter has a gradient on some replicas only;
        PeerError if a rank is lost.
        """
        owner = self._owner
        parameters = reduced(owner.parameters, gradients.numel())
        parts = gradients.split([each.elements for each in parameters])
        if not self._param_group.all_reduce_grads:
            for each, part in zip(parameters, parts):
                self._keep(each, part)
            gradients.zero_()
            return
        owner.look_at_end()
        for each, part in zip(parameters, parts):
            kept = self._kept.pop(each.key, None)
            if kept is not None:
                part.add_(kept)
        try:
            self._average(parameters, gradients)
        except Error as error:
            with contextlib.suppress(Error):  # the group may have ended already
                owner.abort(str(error))
            raise

    def expect_nothing(self, name: str) -> None:
        """Raises InvalidError if gradients of earlier micro-batches were not exchanged together
        with the last one's."""
        if self._kept:
            names = {each.key: each.name for each in self._owner.parameters.values()}
            first = names[next(iter(self._kept))]
            self._kept.clear()
            error = InvalidError(
                f"parameter {first} of module '{name}' has a gradient in an earlier micro-batch of this "
                "step and none in the last one (hint: model.set_requires_gradient_sync(False) before "
                "the last, in place of set_requires_all_reduce(False))"
            )
            self._owner.abort(str(error))
            raise error

    def saved(self) -> tuple[str, states.Tensors] | None:
        """The plan and the tensors of the exchange; None before the first exchange."""
        if self._sync is None:
            return None if self._saved is None else (self._saved.plan, self._saved.tensors)
        return states.read(self._sync)

    def load(self, saved: states.Saved | None) -> None:
        """Continues from a state, at once or when the first gradients come. If the state is None,
        starts from scratch.

        A collective call.
        """
        self._kept.clear()
        self._saved = saved
        if saved is None:
            self._sync = None
        elif self._sync is not None:
            self._resume()

    def _keep(self, parameter: Parameter, part: torch.Tensor) -> None:
        """Adds a gradient to the sum that is kept for its parameter in this step."""
        kept = self._kept.get(parameter.key)
        if kept is None:
            self._kept[parameter.key] = part.clone()
        else:
            kept.add_(part)

    def _start(self, dtype: str) -> None:
        """Creates the exchange of all parameters that are trained."""
        every = self._owner.parameters
        trained = [
            each for each in self._param_group.fsdp_params if each.sharded_param.requires_grad
        ]
        self._known = [every[each] for each in trained]
        self._sync = self._owner.synchronizer(self._known, dtype)
        self._resume()

    def _resume(self) -> None:
        """Passes a loaded state to the core, once."""
        saved, self._saved = self._saved, None
        if saved is not None and self._sync is not None:
            states.write(self._sync, saved.plan, saved.tensors)

    def _average(self, parameters: Sequence[Parameter], gradients: torch.Tensor) -> None:
        """Averages the gradients of `parameters` over the replicas; the module's other parameters
        have no gradient in this step."""
        dtype = NATIVE.get(gradients.dtype)
        if dtype is None:
            known = ", ".join(map(str, NATIVE))
            raise InvalidError(
                f"gradients of module '{self._name}' are reduced in {gradients.dtype}, expected one of "
                f"{known} (hint: MixedPrecisionPolicy(reduce_dtype=torch.float32))"
            )
        if self._sync is None:
            self._start(dtype)
        numbers = {each.key: number for number, each in enumerate(self._known)}
        strange = [each.name for each in parameters if each.key not in numbers]
        if strange:
            raise InvalidError(
                f"parameter {strange[0]} is trained now and was frozen in the first step, expected the "
                "same parameters (hint: thinwire.torch.fsdp when all that will be trained requires a "
                "gradient)"
            )
        staging = self._owner.staging(gradients)
        values = staging.update(gradients)
        staging.depart()
        staging.arrive()
        found = list(targets(values, parameters, numbers, staging))
        missing = sorted(set(numbers.values()) - {target[0] for target in found})
        zeros = [values.new_zeros(self._known[number].elements) for number in missing]
        absent = [
            target
            for number, each in zip(missing, zeros)
            for target in targets(each, [self._known[number]], numbers, staging)
        ]
        sync = self._sync
        assert sync is not None  # or the exchange was made above
        sync.begin(self._owner.next())
        sync.absent(missing)
        for target in (*found, *absent):
            sync.ready(*target)
        averaged = sync.finish()
        for target in (*found, *absent):
            sync.write(*target)
        staging.deliver()
        staging.follow()
        if not averaged:
            return self._owner.look_at(sync.fault())
        for number, each in zip(missing, zeros):
            if bool(each.any()):
                raise InvalidError(
                    f"parameter {self._known[number].name} has a gradient on another replica and none "
                    "on this one, expected gradients of the same parameters"
                )


def targets(
    values: torch.Tensor,
    parameters: Iterable[Parameter],
    numbers: Mapping[int, int],
    staging: Staging | Resident,
) -> Iterable[Target]:
    """Yields the core's addresses of the gradients of these parameters, which are concatenated in
    `values`."""
    # The core's stream uses `values` after what torch has queued on them.
    if isinstance(staging, Resident):
        staging.device.room(values)
    start = values.data_ptr()
    for each in parameters:
        target = numbers[each.key], start, each.elements
        yield (*target, staging.device.core) if isinstance(staging, Resident) else target
        start += each.elements * values.element_size()


def shape_of(parameter: Parameter) -> list[int]:
    """Returns the shape of a shard for the core. A single row of a matrix remains a matrix."""
    # The core sends vectors raw, so a row becomes two rows of half the length.
    shape = list(parameter.sharded.padded_sharded_param_size)
    whole = parameter.sharded._orig_size
    is_row = sum(size > 1 for size in whole) > 1 >= sum(size > 1 for size in shape)
    elements = math.prod(shape)
    return [2, elements // 2] if is_row and elements % 2 == 0 else shape


def said(place: Sequence[int]) -> str:
    """Describes a place for a message."""
    # A place from a file may have fewer numbers.
    number, ranks, count = (*place, 0, 0, 0)[:3]
    return f"shard {number + 1} of {ranks} on {count} hosts"


def between(
    units: Mapping[str, Any],
    parameters: Mapping[Any, Parameter],
    replicas: Any,
    options: Callable[[], Mapping[str, Any]],
    on_host: bool,
    timeout_s: float | None,
    heartbeat_timeout_s: float | None,
) -> Replicas:
    """Makes the exchange of sharded modules between `replicas`, a mesh or a process group.

    A collective call, which fails on all ranks if `options` raises on any.
    """
    others = fsdp_hosts.process_group_of(replicas)
    shards = fsdp_hosts.shards_of(units)
    fsdp_hosts.refuse_hooked(units)
    host = fsdp_hosts.connected(shards, others, timeout_s, heartbeat_timeout_s)
    # On a single host, its average is the average of all, and nothing is exchanged.
    units = units if others.size() > 1 else {}
    return Replicas(units, parameters, host, together(host.group, options), on_host)
