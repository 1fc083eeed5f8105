"""Policies under MindSpore: batch, learning rate and number of ranks, adapted while a training runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import mindspore as ms
import numpy as np

import thinwire
from thinwire import _core
from thinwire.adaptation import Adapting, Policy, Rows
from thinwire.meeting import group_or_default

from . import memory


class Adaptation(Adapting):
    """Adapts the global batch, the learning rate and the number of ranks by policies.

        adaptation = thinwire.mindspore.Adaptation(["noise-scale:max=1024"], batch=64, rows=10**6)
        while adaptation.rows_left > 0:
            loss, gradients = gradient_function(*next_rows(adaptation.part))
            ops.assign(optimizer.learning_rate, ms.Tensor(1e-3 * adaptation.rate, ms.float32))
            optimizer(average(gradients))
            adaptation.step(gradients)

    Rank 0 decides by the policies, and its decisions take effect on all ranks after the same step.
    Policies see the gradient noise scale, estimated from each rank's gradients before they are
    averaged, so codecs do not affect it.

    policies: strings as for `--policy` of `thinwire train` ("noise-scale:max=ROWS", "goodput",
    "deadline:SECONDS", "price:FILE,max=PRICE"), or functions of an observation: a dict with "step",
    "ranks", "ranks_asked", "ranks_allowed", "batch", "first_batch", "rows_left", "step_s", "wait_s",
    "elapsed_s" and "noise_scale" (None before it is known), which return None or a dict of "batch", "rate"
    (a factor of the first learning rate), "ranks" and "reason"; batch: rows of the first batch, all ranks
    together; rows: rows of the whole training; group: by default that of the launcher's environment;
    resize: called on rank 0 with the number of ranks that a policy asks for; ranks_allowed: the least and
    the largest number of ranks that may be asked for.
    """

    def __init__(
        self,
        policies: Sequence[Policy],
        batch: int,
        rows: int,
        group: thinwire.Group | None = None,
        *,
        resize: Callable[[int], object] | None = None,
        ranks_allowed: tuple[int, int] | None = None,
    ) -> None:
        self.group = group_or_default(group)
        place = self.group.rank, self.group.world
        super().__init__(policies, batch, rows, place, resize, ranks_allowed)
        self._sketch: list[float] = []

    def step(self, gradients: Sequence[ms.Tensor], wait_s: float = 0.0) -> None:
        """Ends a step; a collective call.

        gradients: this rank's gradients, from before `exchange` averaged them; wait_s: seconds of
        the step in which this rank waited for others, if known.
        """
        if self._is_sketched:
            self._sketch = sketch(gradients, self._steps)
        self._end_step(wait_s)

    def _tell(self, asked: tuple[float, float]) -> Callable[[], Rows]:
        row = np.array([*asked, *self._sketch], np.float32)
        self._sketch = []
        rows: Rows = self.group.all_gather(row).reshape(self.group.world, row.size).tolist()
        return lambda: rows


def sketch(gradients: Sequence[ms.Tensor], step: int) -> list[float]:
    """Returns the squared norm of all gradients together, and their sketch, which is linear in them."""
    made = _core.Sketch(step)
    for number, gradient in enumerate(gradients):
        values = np.ascontiguousarray(memory.view(gradient.astype(ms.float32)))
        made.add(number, memory.address(values), values.size)
    return made.row()
