"""The exchange of a pytree of gradients, inside compiled programs and outside of them.

    exchange = thinwire.jax.exchange(params, codec="int8")

    @jax.jit
    def step(params, batch):
        gradients = exchange(jax.grad(loss)(params, batch))
        ...

All ranks get the averages over all ranks, bit for bit the same. After a step in which any rank had a NaN
or an infinity they are NaN everywhere, so that all ranks skip it or none.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

import jax

import thinwire
from thinwire import arguments
from thinwire._core import InvalidError, Synchronizer
from thinwire.agreement import agree, together
from thinwire.jax import ending, handlers, state
from thinwire.jax.tree import Tree
from thinwire.lifetime import open_groups
from thinwire.meeting import group_or_default

STRICT = ("jax_debug_nans", "jax_debug_infs")
"""Settings of JAX that run a step a second time, on the rank alone that has seen such a number."""


def exchange(
    params: Any,
    codec: str = "auto",
    group: thinwire.Group | None = None,
    *,
    bucket_bytes: int = 1 << 20,
    seed: int = 0,
    algorithm: str | None = None,
    error_budget: float | None = None,
    feedback: str = "classic",
    momentum_correction: float | None = None,
    warmup_steps: int | None = None,
    unchecked: bool = False,
) -> Exchange:
    """Returns a function that averages gradients of `params` over all ranks. A collective call.

    Args:
        params: a pytree of float32, float16 or bfloat16, alike on all ranks: arrays, or
            `jax.ShapeDtypeStruct`, whose values are then not compared.
        codec: how gradients travel: "none", "f16", "bf16", "int8", "int4", "int3", one of these three
            as "int8:stochastic", "topk:0.01", "powersgd:4", a file "./mine.codec", or "auto", which
            measures the network and chooses for each bucket.
        group: that of the launcher's environment unless given.
        bucket_bytes: gradients are cut into exchanges of about this many bytes.
        seed: of stochastic rounding and low rank; the same on all ranks.
        algorithm, error_budget, feedback, unchecked: as in `thinwire.torch.hook`.
        momentum_correction: a factor from 0 to below 1: each rank adds up momentum of its own gradients
            before they are encoded; the optimizer must then have none.
        warmup_steps: the number of first steps that travel raw. None takes the recommended number for the
            codec.

    # Errors

    InvalidError on all ranks for leaves of other dtypes, and where ranks have other parameters or options;
    at once for an unknown codec or a number out of range. PeerError if a rank is lost.
    """
    options = {
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
    group = group_or_default(group)
    arguments.options(**options, world=group.world)
    return Exchange(params, group, options)


class Exchange:
    """A function from gradients to their averages, made by `exchange`.

    Every rank calls it once in each step, in the same order if there are several. In a program that JAX
    compiles it is a part of it; elsewhere it starts at once, and the averages are there when they are read.
    """

    def __init__(self, params: Any, group: thinwire.Group, options: Mapping[str, Any]) -> None:
        self.group = group
        self._options = dict(options)
        self._tree = together(group.core, lambda: self._described(params))
        agree(
            [*self._tree.lines(), *(f"{name} {each}" for name, each in options.items())], group.core
        )
        agree_on_values(params, self._tree, group)
        self.synchronizer = Synchronizer(group.core, self._tree.core(), **options)
        # A world of one exchanges nothing without momentum.
        self._exchanges = group.world > 1 or options["momentum_correction"] is not None
        self._buckets = self.synchronizer.buckets()
        self._compiled = jax.jit(self._traced)
        ending.follow(self)

    def __call__(self, gradients: Any) -> Any:
        """Returns the averages of a pytree of gradients.

        # Errors

        InvalidError for gradients that are not like the parameters, before anything is sent; outside of
        compiled programs also the error of an earlier step that has failed.
        """
        leaves = self._tree.flat(gradients)
        self._check()
        if any(isinstance(leaf, jax.core.Tracer) for leaf in leaves):
            averages = self._traced(leaves)
        else:
            for leaf, value in zip(self._tree.leaves, leaves):
                expect_one_device(leaf.name, value)
            self.raise_failure()
            averages = self._compiled(leaves)
        return jax.tree_util.tree_unflatten(self._tree.structure, averages)

    def __repr__(self) -> str:
        """The codec and the rank."""
        place = f"rank {self.group.rank} of {self.group.world}"
        return f"thinwire.jax.Exchange(codec={self._options['codec']!r}, {place})"

    def plan(self) -> dict[str, Any]:
        """How each bucket travels: codec, algorithm, partitions.

        On rank 0 `line` says what `auto` has chosen and why. Waits for a step that is under way.
        """
        return json.loads(self.synchronizer.plan())

    def record(self) -> dict[str, Any]:
        """Where the time of the last step went. Waits for a step that is under way."""
        return json.loads(self.synchronizer.record())

    def state_dict(self) -> dict[str, Any]:
        """Returns residuals, momenta, factors and plan of this rank, with which a resumed run continues.

        They are NumPy arrays by name, for safetensors, orbax or numpy.savez. Waits for all steps under way.
        """
        jax.effects_barrier()
        self.raise_failure()
        return state.of_rank(self.group, self.synchronizer)

    def load_state_dict(self, entries: Mapping[str, Any]) -> None:
        """Loads what `state_dict` returned on this rank; a collective call.

        Where another number of ranks has saved, `entries` are those of all of them.

        # Errors

        InvalidError on all ranks, before anything has changed, if the state of any rank is missing or of
        another model, codec, feedback or momentum correction.
        """
        jax.effects_barrier()
        self.raise_failure()
        plan, tensors = together(
            self.group.core, lambda: state.for_rank(self.group, entries, self._options)
        )
        self.synchronizer.load(plan, tensors)

    def failure(self) -> thinwire.Error | None:
        """Why a step has failed, if one has."""
        return self.synchronizer.failure()

    def raise_failure(self) -> None:
        """Raises the error of a step that has failed."""
        failure = self.failure()
        if failure is not None:
            ending.heard(self)
            raise failure

    def _described(self, params: Any) -> Tree:
        if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree_util.tree_leaves(params)):
            raise InvalidError(
                "an exchange is made of traced parameters, expected arrays (hint: make it once, outside "
                "of jax.jit, and call it inside)"
            )
        return Tree(params)

    def _check(self) -> None:
        """Refuses what would fail later, or go on in silence on one rank alone."""
        if self.group not in open_groups or os.getpid() != self.group.process:
            closed = "closed" if os.getpid() == self.group.process else "of the parent process"
            raise InvalidError(f"the group of this exchange is {closed}, expected an open one")
        for name in STRICT:
            if getattr(jax.config, name):
                raise InvalidError(
                    f"{name} is on: it would repeat a step, and its exchange, on one rank alone (hint: "
                    "turn it off; a step that is not finite on any rank is NaN on all)"
                )
        if self._exchanges and jax.default_backend() != "cpu":
            raise InvalidError(
                f"the exchange runs on CPU, not on {jax.default_backend()} (hint: JAX_PLATFORMS=cpu)"
            )

    def _traced(self, leaves: Sequence[Any]) -> list[Any]:
        """The averages, as calls in a program."""
        leaves = handlers.plain.bind(*leaves)
        if not self._exchanges:
            return leaves
        key, places = self.synchronizer.key, self._tree.places
        tokens = [
            handlers.ready(key, number, [leaves[places[index]] for index in bucket])
            for number, bucket in enumerate(self._buckets)
        ]
        structs = [self._tree.leaves[at].struct() for at in places]
        for at, average in zip(places, handlers.finish(key, tokens, structs)):
            leaves[at] = average
        return leaves


def agree_on_values(params: Any, tree: Tree, group: thinwire.Group) -> None:
    """Refuses parameters that would train apart.

    # Errors

    InvalidError on all ranks.
    """
    if group.world == 1:
        return
    try:
        agree(tree.checksums(params), group.core)
    except InvalidError as error:
        raise InvalidError(
            f"{error} (hint: params = thinwire.jax.broadcast(params) gives all ranks those of rank 0)"
        ) from None


def expect_one_device(name: str, value: Any) -> None:
    """Refuses an array on several devices: each would exchange a part, or all of them the whole."""
    sharding = getattr(value, "sharding", None)
    if sharding is not None and len(sharding.device_set) > 1:
        raise InvalidError(
            f"gradient of {name} is on {len(sharding.device_set)} devices, expected one (hint: one process "
            "per device, or jax.device_get)"
        )
