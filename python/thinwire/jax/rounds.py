"""Rounds in the modes of the core: local SGD, streaming DiLoCo, model averaging and pair averaging.

Each rank trains its own copy of the parameters, and the copies exchange them every few steps. The data of
a round is sent while the next steps compute.

    rounds = thinwire.jax.Rounds(params, "diloco:30,fragments=4,delay=5", codec="int4")
    for batch in batches:
        params, state = step(params, state, batch)
        params = rounds.step(params)
    params = rounds.finish(params)

The modes are those of `thinwire train --mode`. The exchanged values are kept as f32 in host memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import jax
import numpy as np

import thinwire
from thinwire._core import InvalidError
from thinwire.agreement import agree, together
from thinwire.jax import state
from thinwire.jax.broadcast import like
from thinwire.jax.exchange import agree_on_values
from thinwire.jax.tree import Tree
from thinwire.meeting import group_or_default
from thinwire.residuals import Tensors
from thinwire.rounds import Arrays, Copy, options_of

T = TypeVar("T")


class Rounds:
    """Exchanges the parameters of ranks that each train their own copy of a pytree.

    Creating one is a collective call, outside of `jax.jit`, like all of its methods. All ranks
    begin with the same parameters: `params = thinwire.jax.broadcast(params)`.

    Args:
        params: a pytree of arrays of float32, float16 or bfloat16.
        mode: "local:STEPS", "diloco:STEPS,fragments=N,delay=STEPS,alpha=PART,lr=RATE", "sma:PULL" or
            "pair:STEPS".
        codec: the codec for changes of parameters, as in `thinwire.jax.exchange` except "auto";
            None means "int8", and "none" for pairs.
        group: by default that of the launcher's environment.
        bucket_bytes, seed, algorithm, feedback, unchecked: as in `thinwire.jax.exchange`.

    # Errors

    InvalidError for leaves of other dtypes and for an invalid mode or options, and on all ranks if
    these or the values of parameters differ; PeerError if a rank is lost.
    """

    def __init__(
        self,
        params: Any,
        mode: str,
        codec: str | None = None,
        group: thinwire.Group | None = None,
        *,
        bucket_bytes: int = 1 << 20,
        seed: int = 1,
        algorithm: str | None = None,
        feedback: str = "classic",
        unchecked: bool = False,
    ) -> None:
        options = options_of(
            mode,
            codec,
            bucket_bytes=bucket_bytes,
            seed=seed,
            algorithm=algorithm,
            feedback=feedback,
            unchecked=unchecked,
        )
        self.mode = mode
        self.group = group_or_default(group)
        core = self.group.core
        self._leaves: list[Any] = []
        self._record: dict[str, float] = {}
        self._tree = together(core, lambda: of_arrays(params))
        self._exchanged = [part.at for part in self._tree.parts]
        lines = [f"mode {mode}", *(f"{name} {each}" for name, each in options.items())]
        agree([*lines, *self._tree.lines()], core)
        agree_on_values(params, self._tree, self.group)
        leaves = self._tree.leaves
        names = [leaves[at].name for at in self._exchanged if leaves[at].dtype != "float32"]
        self._copy: Copy
        self._with(params, lambda: self._begin(names, options))

    def step(self, params: Any) -> Any:
        """Ends a step with these parameters, and returns the parameters with which the next step begins.

        They are unchanged unless a round has ended. If no round is due, nothing waits for the
        device. After a round that was skipped because some rank's parameters were not finite, all
        ranks return to the last parameters that they had in common.

        # Errors

        InvalidError for parameters of other shapes or dtypes; PeerError if a rank is lost.
        """
        params, self._record = self._with(params, lambda: self._copy.step())
        return params

    def finish(self, params: Any) -> Any:
        """Makes a last round at the end of training, and returns the same parameters on all ranks;
        collective."""
        params, self._record = self._with(params, lambda: self._copy.finish())
        return params

    def record(self) -> dict[str, float]:
        """The numbers of rounds that the last step has "begun", "ended" and "skipped", with "wait_s" and
        "sent_bytes"."""
        return self._record

    def state_dict(self, params: Any) -> tuple[Any, dict[str, np.ndarray[Any, Any]]]:
        """Returns the parameters, and the other state that this rank continues from; a collective
        call, since rounds under way are ended first.

        The state is a dict of NumPy arrays, for safetensors, orbax or numpy.savez. Each rank has
        its own parameters: save both on every rank.
        """
        params, (progress, tensors, exact) = self._with(params, lambda: self._copy.state())
        return params, state.of_rounds(self.group, self.mode, progress, tensors, exact)

    def load_state_dict(self, params: Any, entries: Mapping[str, Any]) -> Any:
        """Continues from what `state_dict` returned on this rank, before the first step; a collective call.
        Returns the parameters of the state, as arrays like `params`.

        # Errors

        InvalidError on all ranks if the state of any rank is of a different mode, model or number of ranks.
        """

        def checked() -> tuple[str, Tensors, Arrays]:
            self._tree.flat(params, "parameters")
            progress, tensors, exact = state.for_rounds(self.group, self.mode, entries)
            self._copy.check(progress, exact)
            return progress, tensors, exact

        found = together(self.group.core, checked)
        params, _ = self._with(params, lambda: self._copy.load(*found))
        return params

    def _begin(self, rounded: list[str], options: Mapping[str, Any]) -> None:
        self._copy = Copy(self.group.core, self._read, self._write, rounded, self.mode, **options)

    def _with(self, params: Any, action: Callable[[], T]) -> tuple[Any, T]:
        """Calls a function that may read and write the parameters. Returns the parameters after the
        call, and the function's result."""
        leaves = self._tree.flat(params, "parameters")
        expect_arrays(leaves)
        self._leaves = leaves
        try:
            found = action()
            return jax.tree_util.tree_unflatten(self._tree.structure, self._leaves), found
        finally:
            self._leaves = []

    def _read(self) -> Arrays:
        """Returns the parameters as arrays of f32, except leaves without elements."""
        pairs = [(self._tree.leaves[at].name, self._leaves[at]) for at in self._exchanged]
        return {name: np.asarray(leaf).astype(np.float32, copy=False) for name, leaf in pairs}

    def _write(self, values: Arrays) -> None:
        """Makes arrays of these values on the devices of the present arrays."""
        for at in self._exchanged:
            # A copy, whatever the dtype: JAX may use the memory of an array of NumPy as its own.
            value = values[self._tree.leaves[at].name].astype(self._leaves[at].dtype)
            self._leaves[at] = like(self._leaves[at], value)


def of_arrays(params: Any) -> Tree:
    """The structure of a pytree of arrays.

    # Errors

    InvalidError for other leaves.
    """
    tree = Tree(params)
    expect_arrays(jax.tree_util.tree_leaves(params))
    return tree


def expect_arrays(leaves: list[Any]) -> None:
    """Refuses leaves without values."""
    for leaf in leaves:
        if isinstance(leaf, (jax.core.Tracer, jax.ShapeDtypeStruct)):
            raise InvalidError(
                f"parameters are {type(leaf).__name__}, expected arrays (hint: call Rounds and its methods "
                "outside of jax.jit)"
            )
