"""The exchange of a pytree of gradients, inside compiled programs and outside of them.

    exchange = thinwire.jax.exchange(params, codec="int8")

    @jax.jit
    def step(params, batch):
        gradients = exchange(jax.grad(loss)(params, batch))
        ...

All ranks get the averages over all ranks, bit for bit the same. If any rank has a NaN or an infinity, the
averages of the step are NaN on all ranks, so either all ranks skip it or none does.
"""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

import thinwire
from thinwire import arguments, cuda, deprecated
from thinwire._core import InvalidError, Synchronizer
from thinwire.agreement import agree, together
from thinwire.arguments import shown
from thinwire.jax import device as devices
from thinwire.jax import ending, handlers, state
from thinwire.jax.tree import Tree
from thinwire.lifetime import ended
from thinwire.meeting import group_or_default

if TYPE_CHECKING:
    from thinwire.jax.callbacks import OnHost

STRICT = ("jax_debug_nans", "jax_debug_infs")
"""Settings of JAX that repeat a step on the rank that has seen a NaN or an infinity, and on no other
rank."""


def exchange(
    params: Any,
    codec: str = "auto",
    group: thinwire.Group | None = None,
    *,
    bucket_bytes: int = 1 << 20,
    seed: int = 1,
    algorithm: str | None = None,
    error_budget: float | None = None,
    feedback: str = "classic",
    momentum_correction: float | None = None,
    warmup_steps: int | None = None,
    unchecked: bool = False,
    scanned: Sequence[str] = (),
    mesh: jax.sharding.Mesh | None = None,
    device: str | None = None,
) -> Exchange:
    """Returns a function that averages gradients of `params` over all ranks. A collective call.

    Args:
        params: a pytree of float32, float16 or bfloat16, the same on all ranks: arrays, or
            `jax.ShapeDtypeStruct`, for which no values are compared.
        codec: how gradients travel: "none", "f16", "bf16", "int8", "int4", "int3", one of these three
            as "int8:stochastic", "topk:0.01", "powersgd:4", a file "./mine.codec", or "auto", which
            measures the network and chooses for each bucket.
        group: by default that of the launcher's environment.
        bucket_bytes: gradients are cut into exchanges of about this many bytes.
        seed: for stochastic rounding and low rank; the same on all ranks.
        algorithm, error_budget, feedback, unchecked: as in `thinwire.torch.hook`.
        momentum_correction: a factor from 0 to below 1: each rank adds up momentum of its own gradients
            before they are encoded; the optimizer must then have none.
        warmup_steps: the number of first steps that travel raw. None takes the recommended number for the
            codec.
        scanned: names of subtrees, such as "layers", whose leaves have a row for each layer that
            `jax.lax.scan` runs through, and which the scanned function marks: see `Exchange.mark`.
        mesh: the mesh of this process's devices, if it has several: gradients are then replicated
            over them, as XLA leaves them after summing over a sharded batch, and are exchanged once for
            all devices.
        device: None encodes gradients where they are, on the CPU or on a CUDA device; "host" copies
            them to host memory and encodes them there.

    # Errors

    InvalidError on all ranks for leaves of other dtypes, and where ranks differ in parameters or
    options; immediately for an unknown codec or a number out of range. PeerError if a rank is lost.
    """
    options: dict[str, Any] = {
        "codec": codec,
        "bucket_bytes": bucket_bytes,
        "seed": seed,
        "algorithm": algorithm,
        "error_budget": error_budget,
        "feedback": feedback,
        "momentum_correction": momentum_correction,
        "warmup_steps": warmup_steps,
        "unchecked": unchecked,
    }
    arguments.options(**options)
    cuda.check(device)
    group = group_or_default(group)
    arguments.options(**options, world=group.world)
    subtrees = list(arguments.instance("scanned", scanned, list, tuple))
    if arguments.instance("mesh", mesh, jax.sharding.Mesh, type(None)) is not None:
        expect_local(mesh, subtrees)
    return Exchange(params, group, options, subtrees, mesh, device)


class Exchange:
    """A function from gradients to their averages, made by `exchange`.

    Every rank calls it once in each step. In a program that JAX compiles, the call becomes part of the
    program. A program may have one call of each exchange; different exchanges may run in any order.
    Outside of programs, a call starts the exchange at once, and reading the averages waits for
    them. Programs, and calls outside of them, must run in the same order on all ranks.
    """

    def __init__(
        self,
        params: Any,
        group: thinwire.Group,
        options: Mapping[str, Any],
        scanned: Sequence[str] = (),
        mesh: jax.sharding.Mesh | None = None,
        device: str | None = None,
    ) -> None:
        self.group = group
        self._mesh = mesh
        self._options = dict(options)
        self._tree = together(group.core, lambda: described(params, scanned))
        agree(
            [*self._tree.lines(), *(f"{name} {each}" for name, each in options.items())], group.core
        )
        agree_on_values(params, self._tree, group)
        core = None if device == cuda.HOST else devices.of(devices.default(mesh))
        self._on_device = core is not None
        self.synchronizer = Synchronizer(group.core, self._tree.core(), **options, device=core)
        # A world of one exchanges nothing without momentum.
        self._exchanges = group.world > 1 or options["momentum_correction"] is not None
        parts = self._tree.parts
        buckets = [[parts[index] for index in bucket] for bucket in self.synchronizer.buckets()]
        self._buckets = list(enumerate(buckets))
        self._compiled = jax.jit(self._traced)
        self._host: OnHost | None = None
        """The object that programs for which the core has no handlers call."""
        if core is None and jax.default_backend() != "cpu":
            from thinwire.jax.callbacks import OnHost

            self._host = OnHost(group, self.synchronizer, parts, self._options)
        self._marked: set[str] = set()
        """Subtrees in which layers were marked."""
        self._steps = ending.follow(self, self._host or self.synchronizer)

    def __call__(self, gradients: Any) -> Any:
        """Returns the averages of a pytree of gradients.

        # Errors

        InvalidError for gradients whose structure, shapes or dtypes differ from the parameters',
        before anything is sent. Outside of compiled programs, also the error of an earlier step
        that has failed.
        """
        leaves = self._tree.flat(gradients)
        self._check()
        if any(isinstance(leaf, jax.core.Tracer) for leaf in leaves):
            averages = self._traced(leaves)
        else:
            for leaf, value in zip(self._tree.leaves, leaves):
                expect_devices(leaf.name, value, self._mesh)
            self.raise_failure()
            averages = self._compiled(leaves)
        return jax.tree_util.tree_unflatten(self._tree.structure, averages)

    def mark(self, layer: Any, index: Any, subtree: str | None = None) -> Any:
        """Returns a layer's parameters unchanged; backward exchanges their gradients as it reaches them.

        Call it in the function that `jax.lax.scan` calls with each layer; `scan` must not have
        `unroll`. Without marks, stacked gradients are complete only at the end of backward, and
        nothing overlaps.
        index: the layer's number; subtree: a name in `scanned`, needed if there are several.

            def block(hidden, layer):
                number, weights = layer
                weights = exchange.mark(weights, number)
                ...

            hidden, _ = jax.lax.scan(block, hidden, (jnp.arange(count), params["layers"]))

        Gradients of marked layers are sent as backward computes them. So anything that changes
        gradients, such as clipping or accumulation, belongs after the exchange.

        # Errors

        InvalidError for anything but a layer of the subtree.
        """
        scanned = list(self._tree.scanned)
        name = scanned[0] if subtree is None and len(scanned) == 1 else subtree
        if name not in scanned:
            raise InvalidError(f"the marked subtree is {shown(name)}, expected one of {scanned}")
        self._tree.layer(name, layer)
        self._marked.add(name)
        if not self._exchanges:
            return layer
        layers = [self._of_layer(name, number) for number in range(self._tree.layers[name])]
        return handlers.marked(self._started, layers, layer, index)

    def _of_layer(self, name: str, layer: int) -> dict[int, list[int]]:
        """Returns the buckets of a layer, each with the positions of its parameters among the
        layer's leaves."""
        members = self._tree.scanned[name]
        return {
            number: [members.index(part.at) for part in bucket]
            for number, bucket in self._buckets
            if bucket[0].layer == layer and bucket[0].at in members
        }

    def __repr__(self) -> str:
        """The codec and the rank."""
        place = f"rank {self.group.rank} of {self.group.world}"
        return f"thinwire.jax.Exchange(codec={self._options['codec']!r}, {place})"

    def exchange_plan(self) -> dict[str, Any]:
        """The plan of each bucket: codec, algorithm, partitions.

        On rank 0 `line` says what `auto` has chosen and why. Waits for the steps that this thread
        has dispatched.
        """
        ending.settle()
        return json.loads(self.synchronizer.plan())

    plan = deprecated.method("plan", exchange_plan)

    def record(self) -> dict[str, Any]:
        """The breakdown of the last step's time. Waits for the steps that this thread has dispatched."""
        ending.settle()
        return json.loads(self.synchronizer.record())

    def state_dict(self) -> dict[str, Any]:
        """Returns residuals, momenta, factors and plan of this rank, with which a resumed run continues.

        They are NumPy arrays by name, for safetensors, orbax or numpy.savez. Waits for the steps that this
        thread has dispatched.
        """
        ending.settle()
        self.raise_failure()
        return state.of_rank(self.group, self.synchronizer)

    def load_state_dict(self, entries: Mapping[str, Any]) -> None:
        """Loads what `state_dict` returned on this rank; a collective call.

        If a different number of ranks saved the state, `entries` are those of all of them.

        # Errors

        InvalidError on all ranks, before anything has changed, if the state of any rank is missing
        or belongs to a different model, codec, feedback or momentum correction.
        """
        ending.settle()
        self.raise_failure()
        plan, tensors = together(
            self.group.core, lambda: state.for_rank(self.group, entries, self._options)
        )
        self.synchronizer.load(plan, tensors)

    def failure(self) -> thinwire.Error | None:
        """The reason why a step has failed, if one has."""
        return self._steps.source.failure()

    def raise_failure(self, cause: BaseException | None = None) -> None:
        """Raises the error of a step that has failed."""
        failure = self.failure()
        if failure is not None:
            self.heard()
            if isinstance(failure, InvalidError):
                # The others wait for this rank.
                with contextlib.suppress(thinwire.Error):
                    self.group.abort(f"rank {self.group.rank}: {failure}")
            raise failure from cause

    def heard(self) -> None:
        """Notes that the program has received the error of a failed step."""
        self._steps.heard = True

    def _check(self) -> None:
        """Refuses settings that would fail later, or that would continue silently on a single rank."""
        if closed := ended(self.group):
            raise InvalidError(f"the group of this exchange is {closed}, expected an open one")
        for name in STRICT:
            if getattr(jax.config, name):
                raise InvalidError(
                    f"{name} is on: it would repeat a step, and its exchange, on a single rank "
                    "(hint: turn this setting off; gradients that are not finite on one rank are "
                    "NaN on all)"
                )
        unmarked = sorted(self._tree.scanned.keys() - self._marked)
        if unmarked:
            raise InvalidError(
                f"no layer of {unmarked[0]} was marked, expected exchange.mark in the function "
                "that jax.lax.scan calls (hint: without scanned=, the gradients of this layer are "
                "exchanged after backward)"
            )

    def _traced(self, leaves: Sequence[Any]) -> list[Any]:
        """Returns the averages, by calls in a program."""
        handled = devices.PLATFORM if self._on_device else "cpu"
        about = {"platform": None if self._host else handled, "meshed": self._mesh is not None}
        leaves = handlers.plain.bind(*leaves, **about, kept=self._steps)
        if not self._exchanges:
            return list(leaves)
        return (
            self._called(leaves) if self._mesh is None else once(self._mesh, self._called, leaves)
        )

    def _called(self, leaves: Sequence[Any]) -> list[Any]:
        """Returns the averages, by calls on one device."""
        leaves = list(leaves)
        tokens = [
            self._started(number, [leaves[part.at] for part in bucket])
            for number, bucket in self._buckets
            if bucket[0].layer is None
        ]
        # Rows were given in the scan, which is over when the stacked gradients are there.
        stacked = [leaves[at] for members in self._tree.scanned.values() for at in members]
        rows = [leaf for leaf in stacked if leaf.size]
        structs = [part.leaf.struct() for part in self._tree.parts]
        found = self._finished([*tokens, *rows], structs)
        stacks: dict[int, list[Any]] = {}
        for part, average in zip(self._tree.parts, found):
            stacks.setdefault(part.at, []).append(average)
        for at, stack in stacks.items():
            # Layers come from the last to the first.
            is_row = any(at in members for members in self._tree.scanned.values())
            leaves[at] = jnp.stack(stack[::-1]) if is_row else stack[0]
        return leaves

    def _started(self, bucket: int, gradients: Sequence[jax.Array]) -> jax.Array:
        """Starts the exchange of a bucket, and returns its token."""
        if self._host is not None:
            return self._host.start(bucket, gradients)
        if self._on_device:
            gradients = [rounded(each).astype(jnp.float32) for each in gradients]
        return handlers.ready(self.synchronizer.key, bucket, gradients)

    def _finished(
        self, tokens: Sequence[jax.Array], averages: Sequence[jax.ShapeDtypeStruct]
    ) -> list[jax.Array]:
        """Returns the averages; the tokens show that all buckets were started."""
        if self._host is not None:
            return self._host.averages(tokens, averages)
        if not self._on_device:
            return handlers.finish(self.synchronizer.key, tokens, averages)
        wide = [jax.ShapeDtypeStruct(each.shape, jnp.float32) for each in averages]
        found = handlers.finish(self.synchronizer.key, tokens, wide)
        return [rounded(value.astype(each.dtype)) for value, each in zip(found, averages)]


def rounded(value: jax.Array) -> jax.Array:
    """Returns the value as its own dtype represents it, although it is converted to or from
    float32.

    XLA could otherwise leave out the rounding. Ranks with a device would then have other bits than
    ranks without one.
    """
    return jax.lax.optimization_barrier(value)


def described(params: Any, scanned: Sequence[str]) -> Tree:
    """Returns the structure of parameters; refuses traced parameters."""
    if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree_util.tree_leaves(params)):
        raise InvalidError(
            "an exchange is made of traced parameters, expected arrays (hint: make it once, "
            "outside of jax.jit, and call it inside)"
        )
    return Tree(params, scanned)


def agree_on_values(params: Any, tree: Tree, group: thinwire.Group) -> None:
    """Refuses parameters that differ between ranks.

    # Errors

    InvalidError on all ranks.
    """
    if group.world == 1:
        return
    try:
        agree(tree.checksums(params), group.core)
    except InvalidError as error:
        raise InvalidError(
            f"{error} (hint: params = thinwire.jax.broadcast(params) gives all ranks the "
            "parameters of rank 0)"
        ) from None


def once(
    mesh: jax.sharding.Mesh, called: Callable[[Sequence[Any]], list[Any]], leaves: Sequence[Any]
) -> list[Any]:
    """Calls a function on the first device of a mesh, and gives all devices its results."""

    def on_each(leaves: Sequence[Any]) -> list[Any]:
        is_first = jax.lax.axis_index(mesh.axis_names) == 0
        zeros = functools.partial(jax.tree_util.tree_map, jnp.zeros_like)
        return jax.lax.psum(jax.lax.cond(is_first, called, zeros, leaves), mesh.axis_names)

    everywhere = jax.sharding.PartitionSpec()
    specs = {"mesh": mesh, "in_specs": everywhere, "out_specs": everywhere}
    return list(jax.shard_map(on_each, **specs, check_vma=False)(list(leaves)))


def expect_local(mesh: jax.sharding.Mesh, scanned: Sequence[str]) -> None:
    """Refuses a mesh with devices of other processes, over which XLA itself would also sum."""
    if not hasattr(jax, "shard_map"):
        raise InvalidError(
            f"mesh needs jax.shard_map, which JAX {jax.__version__} lacks (hint: JAX 0.6.1)"
        )
    if scanned:
        raise InvalidError("mesh and scanned are given, expected one of them")
    others = [each for each in mesh.devices.flat if each.process_index != jax.process_index()]
    if others:
        raise InvalidError(
            f"the mesh has {len(others)} devices of other processes, expected those of this one "
            "(hint: jax.make_mesh((n,), ('local',), devices=jax.local_devices()))"
        )


def expect_devices(name: str, value: Any, mesh: jax.sharding.Mesh | None) -> None:
    """Refuses an array on several devices without a mesh: each device would exchange it."""
    sharding = getattr(value, "sharding", None)
    if mesh is None and sharding is not None and len(sharding.device_set) > 1:
        raise InvalidError(
            f"gradient of {name} is on {len(sharding.device_set)} devices, expected one (hint: "
            "pass mesh= to thinwire.jax.exchange)"
        )
