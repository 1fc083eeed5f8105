"""A gradient tape whose gradients are averages over all ranks, like Horovod's.

    with tf.GradientTape() as tape:
        loss = ...
    tape = thinwire.tensorflow.DistributedGradientTape(tape, codec="int8")
    gradients = tape.gradient(loss, model.trainable_variables)

A program makes a new tape in every step, or in every trace. The state of an exchange (residuals,
the plan) is kept for the list of variables and the options. So the tapes of all steps continue the
same exchange.
"""

from __future__ import annotations

import weakref
from typing import Any

import tensorflow as tf

from thinwire._core import InvalidError
from thinwire.gradients import Gradients
from thinwire.group import Group
from thinwire.meeting import group_or_default

from .calls import traced
from .exchange import Exchange

_exchanges: weakref.WeakKeyDictionary[Group, dict[Any, Kept]] = weakref.WeakKeyDictionary()


class Kept:
    """The exchange of a list of sources, for as long as they exist."""

    def __init__(self, sources: list[Any], exchange: Exchange) -> None:
        self.exchange = exchange
        self.sources = [weakref.ref(each) for each in sources]

    def is_of(self, sources: list[Any]) -> bool:
        """Whether these are the same sources, not later objects at the same addresses."""
        return all(kept() is source for kept, source in zip(self.sources, sources))


class DistributedGradientTape:
    """A finished `tf.GradientTape`, persistent or not; everything but `gradient` is forwarded to the tape.

    codec, group, sparse_as_dense, options: as in `thinwire.tensorflow.exchange`. A program may have
    several such tapes, as for the two networks of a GAN: each list of sources has its own exchange.
    All ranks make the same number of calls of `gradient`, in the same order.
    """

    @traced
    def __init__(
        self,
        tape: tf.GradientTape,
        codec: str = "auto",
        group: Group | None = None,
        *,
        sparse_as_dense: bool = False,
        **options: Any,
    ) -> None:
        if isinstance(tape, DistributedGradientTape):
            raise InvalidError(
                "tape is a DistributedGradientTape, expected a tf.GradientTape: wrap it once"
            )
        if not isinstance(tape, tf.GradientTape):
            raise InvalidError(f"tape is {type(tape).__name__}, expected a tf.GradientTape")
        self._tape = tape
        self._group = group_or_default(group)
        self._options = {"codec": codec, "sparse_as_dense": sparse_as_dense, **options}
        self.exchange: Exchange | None = None
        """The exchange of the last call of `gradient`."""

    @traced
    def gradient(self, target: Any, sources: Any, *rest: Any, **named: Any) -> Any:
        """The averages over all ranks of the tape's gradients, in the structure of `sources`.

        # Errors

        The errors of `thinwire.tensorflow.exchange`, and those of a call of its result.
        """
        found = self._tape.gradient(target, sources, *rest, **named)
        flat = tf.nest.flatten(sources)
        self.exchange = exchange_of(flat, self._group, self._options)
        return tf.nest.pack_sequence_as(sources, self.exchange(tf.nest.flatten(found)))

    @property
    def gradients(self) -> Gradients:
        """The gradients of the last exchange."""
        if self.exchange is None:
            raise InvalidError("there is no exchange before the first call of gradient")
        return self.exchange.gradients

    def __enter__(self) -> DistributedGradientTape:
        """Begins to record."""
        self._tape.__enter__()
        return self

    def __exit__(self, *raised: Any) -> None:
        """Ends recording."""
        self._tape.__exit__(*raised)

    def __getattr__(self, name: str) -> Any:
        """Returns the attribute of the tape."""
        return getattr(self._tape, name)


def exchange_of(sources: list[Any], group: Group, options: dict[str, Any]) -> Exchange:
    """Returns the exchange of these sources with these options; makes it if it does not exist yet.

    # Errors

    InvalidError for a source that is a tensor: it is a new object in each step, so residuals cannot
    be kept for it.
    """
    for source in sources:
        if not hasattr(source, "assign"):
            raise InvalidError(
                f"a source of the tape is {type(source).__name__}, expected a variable (hint: "
                "exchange gradients of tensors with one thinwire.tensorflow.exchange for all steps)"
            )
    key = (tuple(sorted(options.items(), key=str)), tuple(map(id, sources)))
    found = _exchanges.setdefault(group, {})
    kept = found.get(key)
    if kept is None or not kept.is_of(sources):
        kept = found[key] = Kept(sources, Exchange(sources, group=group, **options))
    return kept.exchange
