"""A step of an elastic job: gradients averaged over the ranks of an epoch, or a void step.

A step in which a rank is lost ends like any other, but is void: the optimizer does nothing, and the
same samples are handed out again. The core gets the list of all parameters before the first step,
from the last to the first of the model. So the exchange does not depend on the order in which a
framework computes gradients.

One more number is summed with the gradients. The sum is above zero if some rank wants the epoch to
end after this step. All ranks read the same sum, so they agree on the step without another message.
"""

from __future__ import annotations

import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from thinwire._core import ElasticSteps, Epoch, EpochEntry, InvalidError, PeerError, Synchronizer

Described = tuple[str, list[int], str, int]
"""Name, shape, dtype and bucket of a parameter, as the core takes them."""


class Exchange:
    """Averages the gradients of parameters; `options` are a Synchronizer's."""

    def __init__(
        self,
        described: Sequence[Described],
        options: Mapping[str, Any],
        wants_end: Callable[[], bool],
    ) -> None:
        """`wants_end` says whether this rank wants the epoch to end."""
        self._flag = array.array("f", [0.0])
        # In a bucket of its own, the flag is sent before the first gradient is ready.
        bucket = 1 + max(each[-1] for each in described)
        self._described = [*described, ("thinwire.ends", [1], "f32", bucket)]
        self._options = options
        self._wants_end = wants_end
        self._epoch: Epoch | None = None
        self._sync: Synchronizer | None = None
        self.share = 1.0
        """Fraction of the global batch that this rank computes."""
        self.count = 0
        """Number of completed exchanges, which is the same on all ranks."""
        self.steps = ElasticSteps()
        """The steps of this rank, and the decision about what follows each of them."""

    @property
    def sync(self) -> Synchronizer:
        """The synchronizer of the epoch.

        # Errors

        InvalidError before the first epoch.
        """
        if self._sync is None:
            raise InvalidError("no epoch has begun")
        return self._sync

    @property
    def flag(self) -> tuple[int, int, int]:
        """Number, address and length of the flag that ends an epoch; the core treats the flag as
        one more gradient."""
        return len(self._described) - 1, self._flag.buffer_info()[0], 1

    def start(self, epoch: Epoch, count: int, entry: EpochEntry) -> None:
        """Continues in an epoch, as `entry` prescribes; all ranks of the epoch call it."""
        if entry.residuals == "dropped":
            self._sync = Synchronizer(epoch, self._described, **self._options)
        else:
            self.sync.reform(epoch, entry.residuals == "of lost step")
        self._epoch, self.count = epoch, count

    def begin(self) -> None:
        """Begins a step, before its first gradient."""
        self._flag[0] = float(self._wants_end())
        self.sync.begin(self.count)
        self.sync.set_share(self.share)
        self.sync.ready(*self.flag)

    def average_into(
        self,
        gradients: Iterable[np.ndarray[Any, Any]],
        averages: Sequence[np.ndarray[Any, Any]],
    ) -> None:
        """Makes a whole step: writes the averages of gradients to arrays of the same dtypes, both in the
        core's order. The averages are NaN if a gradient of some rank was not finite.

        # Errors

        PeerError if a rank is lost.
        """
        self.begin()
        for number, gradient in enumerate(gradients):
            array = np.ascontiguousarray(gradient)
            self.sync.ready(number, array.ctypes.data, array.size)
        self.sync.finish()
        for number, average in enumerate(averages):
            self.sync.write(number, average.ctypes.data, average.size)
        self.sync.write(*self.flag)

    def complete(self) -> None:
        """Ends a step whose averages, including the flag's, have arrived."""
        self.count += 1
        self.steps.agreed(self._flag[0] > 0)

    def attempt(self, action: Callable[[], None]) -> bool:
        """Calls `action` unless the step is void. A PeerError of `action` makes the step void. Returns
        whether the step is still valid."""
        if not self.steps.is_void:
            try:
                action()
            except PeerError:
                self.steps.lost()
        return not self.steps.is_void

    def gather(self, mine: bytes) -> list[bytes]:
        """Returns the bytes of every rank of the epoch, in rank order."""
        return [] if self._epoch is None else self._epoch.gather(mine)

    def meet(self) -> None:
        """Waits for all ranks of the epoch, between steps.

        # Errors

        PeerError if a rank is lost.
        """
        self.gather(b"")

    def part(self, successors: Callable[[], Iterable[tuple[int, int]]]) -> None:
        """Ends the epoch in good order: each leaver sends its residuals to its successor, and then
        all ranks disconnect. `successors` returns pairs of leaver and successor."""
        try:
            for leaver, successor in successors():
                self._hand_on(leaver, successor)
        except PeerError:
            return  # the residuals of a lost rank are lost with it
        self.sync.release()
        if self._epoch is not None:
            self._epoch.close()

    def _hand_on(self, leaver: int, successor: int) -> None:
        epoch = self._epoch
        if epoch is None or epoch.rank not in (leaver, successor):
            return
        owed = epoch.pass_on(leaver, successor, self.sync.owed() if epoch.rank == leaver else b"")
        if epoch.rank == successor:
            self.sync.take_on(owed)

    def abort(self, reason: str) -> None:
        """Makes all ranks fail with `reason`."""
        self.sync.abort(reason)
