"""One rank of an elastic job with a state that is a pytree.

A step computes gradients from the state, averages them, and makes the next state from the state and
the averages. A void step ends before the next state is made, so the state is unchanged and need not
be restored.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax
import numpy as np

from thinwire import arguments
from thinwire._core import Epoch, EpochEntry, InvalidError, Membership, __version__, measure_codecs
from thinwire.arguments import Seconds, shown
from thinwire.elastic import hand_over
from thinwire.elastic.deal import Deal
from thinwire.elastic.job import Job
from thinwire.elastic.members import Members, check
from thinwire.elastic.stream import Stream
from thinwire.jax.broadcast import copied, like
from thinwire.jax.elastic.exchange import Exchange
from thinwire.jax.elastic.loader import Loader, host, pieces, rows_of
from thinwire.jax.exchange import described
from thinwire.jax.tree import names, values

PIECES = 8
"""The number of pieces into which a whole batch is cut, unless the program sets their number of
rows."""


class Elastic(Job):
    """A pytree of state in an elastic job. Creating one joins the job and takes over its state.

        elastic = thinwire.jax.Elastic(state, state["params"], batch=512, codec="auto")
        loader = elastic.loader((inputs, labels), seed=0)
        for number in loader.passes(10):
            for batch in loader:
                loss = elastic.step(gradient, update, *batch)

    Args:
        state: parameters, the optimizer's state, random keys, and whatever else a step changes:
            arrays of any dtype, typed keys included, and Python's numbers. Create it in the same
            way on every rank. It is replaced by the state of the ranks already in the job, or by
            rank 0's.
        params: a pytree of the same structure as the gradients: float32, float16 or bfloat16, arrays or
            `jax.ShapeDtypeStruct`.
        batch: samples of a step, over all ranks.
        codec: how gradients travel, as in `thinwire.jax.exchange`.
        rows: samples in one call of the gradient function, which is compiled for this number; by
            default an eighth of the batch. A rank calls it as often as its part of the batch needs.
        coordinator, token: where the job's coordinator is, as host:port or etcd://HOST:PORT/JOB, and the
            job's secret; by default from the launcher, in THINWIRE_COORDINATOR and THINWIRE_TOKEN.
        timeout_s: how long to wait for the coordinator and the other ranks, in seconds.
        members: a membership to use instead of joining a job, for tests.
        compare_every: the number of steps after which ranks compare checksums of their state, and log what
            differs; 0 never does.
        options: those of `thinwire.jax.exchange` that are about codecs, from `bucket_bytes` to `unchecked`.

    # Errors

    InvalidError if the process belongs to no elastic job, or its state or options are not the job's.
    """

    state: Any
    """The state after the last step that was not void. A program may replace it between steps, in
    the same way on all ranks."""

    def __init__(
        self,
        state: Any,
        params: Any,
        batch: int,
        codec: str = "auto",
        *,
        rows: int | None = None,
        coordinator: str | None = None,
        token: str | None = None,
        timeout_s: Seconds = 60.0,
        members: Members | None = None,
        compare_every: int = 100,
        **options: Any,
    ) -> None:
        """Joins the job; returns in the first epoch, with the job's state."""
        options = {"codec": codec, "warmup_steps": None, **options}
        timeout_s = check(options, batch, compare_every, coordinator, token, timeout_s)
        self._rows = arguments.whole("rows is", -(-batch // PIECES) if rows is None else rows, 1)
        self.state = state
        self._kept: Any = None
        self._deal: Deal | None = None
        self._add = jax.jit(
            functools.partial(jax.tree_util.tree_map, lambda one, other: one + other)
        )
        tree = described(params, ())
        measure_codecs(codec, max(part.leaf.size for part in tree.parts))
        given = {"batch": batch, "compare_every": compare_every, **options}
        about = facts(self._arrays(), tree.lines(), given)
        members = members or Membership(about, coordinator, token, timeout_s=timeout_s)
        self._averager = Exchange(tree, options, members.wants_end)
        super().__init__(batch, members, self._averager, compare_every)
        self._enter()

    def loader(
        self, data: Any, *, seed: int = 1, shuffle: bool = True, drop_last: bool = False
    ) -> Loader:
        """Batches of `data` for this rank, from the job's current position: a pytree of arrays with
        a row for each
        sample, as `(inputs, labels)`.

        Every rank makes its loaders in the same order, with equal data and seeds.

        # Errors

        InvalidError for anything but a pytree of arrays with rows, and for data that differ from
        the job's.
        """
        arrays = host(data)
        loader = Loader(self, arrays, Stream(rows_of(arrays), self.batch, seed, shuffle, drop_last))
        self._add_source(loader)
        return loader

    def step(
        self, gradient: Callable[..., Any], update: Callable[[Any, Any], Any], *data: Any
    ) -> Any:
        """Makes a step with this rank's part of a batch, as the loader returned it. Returns the
        mean of the values of `gradient` over this part, or None after a void step, which the
        loader's next batch repeats.

        Args:
            gradient: a function of the state, data of `rows` rows, and the weights of these rows,
                f32 that add up to 1 over the calls of a step. It returns a value and gradients,
                like `jax.value_and_grad` of a weighted sum over rows.
            update: a function from the state and the averages of gradients over all ranks to the next
                state.

        Both may be compiled; each is compiled only once, even when ranks come and go. `update` may
        donate the state; `gradient` may not, since a void step needs it.

            @jax.jit
            def gradient(state, inputs, labels, weights):
                loss = lambda params: weights @ losses(params, inputs, labels)
                return jax.value_and_grad(loss)(state["params"])

        # Errors

        InvalidError if the loader has returned no new batch, for data with a different number of
        rows, for gradients whose structure, shapes or dtypes differ from those of `params`, and for
        a next state that is a different pytree.
        """
        steps = self._exchange.steps
        if not steps.is_under_way:
            raise InvalidError(
                "this step has no batch, expected one batch of elastic.loader for each step"
            )
        value, gradients = self._computed(gradient, data)
        averages = self._averager.average(gradients)
        if not averages or not self._may_step():
            return None
        before = jax.tree_util.tree_structure(self.state)
        state = update(self.state, averages[0])
        found = jax.tree_util.tree_structure(state)
        if found != before:
            raise InvalidError(
                f"update has returned a state of {found.num_leaves} leaves, structured "
                f"differently from the given state of {before.num_leaves}"
            )
        self.state = state
        self._stepped()
        return value

    def state_dict(self) -> dict[str, Any]:
        """The state, with steps and positions as plain numbers. It is the same on all ranks, so
        rank 0 can save it for all. The residuals of codecs are not in it."""
        if self._is_kept:
            self.keep()
        return {"state": self.state, **self._notice()}

    def load_state_dict(self, whole: Mapping[str, Any]) -> None:
        """Continues from what `state_dict` returned, between steps; a collective call."""
        self.state = whole["state"]
        self._follow_notice({**whole, "streams": []})
        self._exchange.steps.synced(whole["steps"])
        self._members.applied(self.steps)

    def compute(self, deal: Deal) -> None:
        """Records the part of a batch that comes next. The loader calls it.

        # Errors

        InvalidError if there was no step with the previous batch: its samples would be skipped.
        """
        if self._exchange.steps.is_under_way:
            raise InvalidError(
                "a new batch was requested before a step with the last one, expected elastic.step "
                "with each batch"
            )
        super().compute(deal)
        self._deal = deal

    def _computed(
        self, gradient: Callable[..., Any], data: tuple[Any, ...]
    ) -> tuple[Any, list[Any]]:
        """The value and the leaves of gradients of this rank's part of the batch."""
        arrays = host(data)
        found, expected = rows_of(arrays), len(self._deal.computed) if self._deal else 0
        if found != expected:
            raise InvalidError(
                f"data of {found} rows, expected the {expected} of the loader's batch"
            )
        total: Any = None
        for piece, weights in pieces(arrays, self._rows):
            pair = gradient(self.state, *piece, weights)
            if not isinstance(pair, tuple) or len(pair) != 2:
                raise InvalidError(
                    f"gradient has returned {shown(pair)}, expected a value and gradients, as from "
                    "jax.value_and_grad"
                )
            self._expect_kept()
            mine = pair[0], self._averager.leaves(pair[1])
            total = mine if total is None else self._add(total, mine)
        return total

    def _expect_kept(self) -> None:
        """Refuses a `gradient` function that has donated the memory of the state."""
        for leaf in jax.tree_util.tree_leaves(self.state):
            if isinstance(leaf, jax.Array) and leaf.is_deleted():
                raise InvalidError(
                    "gradient has donated the state, which is needed again if the step is void "
                    "(hint: give donate_argnums only to the jit of update)"
                )

    def _arrays(self) -> dict[str, np.ndarray[Any, Any]]:
        """Copies of the state by name, in host memory."""
        return {name: copied(name, leaf) for name, leaf in self._named()}

    def _named(self) -> Iterable[tuple[str, Any]]:
        named, _ = jax.tree_util.tree_flatten_with_path(self.state)
        return zip(names(named), values(named))

    def _entries(self) -> dict[str, Any]:
        return {name: functools.partial(copied, name, leaf) for name, leaf in self._named()}

    def _remember(self) -> None:
        self._kept = jax.tree_util.tree_flatten(self.state)

    def _restore(self) -> None:
        leaves, structure = self._kept
        self.state = jax.tree_util.tree_unflatten(structure, leaves)

    def _heard(self, epoch: Epoch) -> dict[str, Any]:
        found: dict[str, Any] = hand_over.plain_of_oldest(epoch, self._notice())
        return found

    def _receive(self, epoch: Epoch, entry: EpochEntry, said: dict[str, Any]) -> None:
        if entry.hand_over:
            self._hand_over(epoch, entry.hand_over)
        if entry.takes_over:
            self._follow_notice(said)

    def _hand_over(self, epoch: Epoch, state_sources: int) -> None:
        """Copies the state of the first `state_sources` ranks to the others."""
        mine = list(self._arrays().values())
        theirs = hand_over.state(epoch, state_sources, self._averager.sync, mine)
        if epoch.rank < state_sources:
            return
        leaves, structure = jax.tree_util.tree_flatten(self.state)
        taken = [
            like(leaf, value.copy().view(array.dtype).reshape(array.shape))
            for leaf, array, value in zip(leaves, mine, theirs)
        ]
        self.state = jax.tree_util.tree_unflatten(structure, taken)


def facts(
    state: Mapping[str, np.ndarray[Any, Any]], parameters: Iterable[str], options: Mapping[str, Any]
) -> list[tuple[str, str]]:
    """Returns the facts that all members must have in common, as pairs of name and value."""
    leaves = [f"{name} {each.dtype} {list(each.shape)}" for name, each in state.items()]
    lines = "\n".join([*leaves, *parameters])
    digest = hashlib.sha256(lines.encode()).hexdigest()[:16]
    return [
        ("thinwire", __version__),
        ("jax", jax.__version__),
        ("model", f"a state of {len(leaves)} leaves, {digest}"),
        *((name, str(value)) for name, value in options.items()),
    ]
