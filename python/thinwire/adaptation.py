"""Policies that adapt a training while it runs, whatever its framework.

A framework passes a sketch of each rank's gradients, taken before they are averaged, and gathers the
reports of all ranks. On rank 0 the policies decide, and their decisions take effect on all ranks after
the same step.
"""

from __future__ import annotations

import statistics
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from thinwire import _core
from thinwire._core import InvalidError

Observation = dict[str, Any]
Policy = str | Callable[[Observation], dict[str, Any] | None]
Rows = list[list[float]]

RECENT = 20
# What rank 0 tells beside a sketch: the batch and the factor of the learning rate, 0 for no change.
ASKED = 2


class Adapting:
    """The part of an adaptation that all frameworks share."""

    def __init__(
        self,
        policies: Sequence[Policy],
        batch: int,
        rows: int,
        place: tuple[int, int],
        resize: Callable[[int], object] | None,
        ranks_allowed: tuple[int, int] | None,
    ) -> None:
        """`place` is this rank and the number of ranks."""
        self._rank, self._ranks = place
        texts = [each for each in policies if isinstance(each, str)]
        self._functions = [each for each in policies if callable(each)]
        if len(texts) + len(self._functions) < len(policies):
            raise InvalidError("a policy is neither a string nor a function, expected one of them")
        self._core = _core.Policies(texts)
        if self._core.needs_ranks() and (resize is None or ranks_allowed is None):
            raise InvalidError(
                f"policies {', '.join(texts)} need resize= and ranks_allowed=, by which they "
                "change the number of ranks"
            )
        for name, value, least in (("batch", batch, self._ranks), ("rows", rows, 1)):
            if value < least:
                raise InvalidError(f"{name} is {value}, expected {least} or more")
        self._expect_even(batch)
        self._resize, self._allowed = resize, ranks_allowed
        self._first_batch = batch
        self.batch = batch
        """Rows of the next batch, all ranks together."""
        self.rate = 1.0
        """Factor of the first learning rate."""
        self.rows_left = rows
        """Rows that are left of the training."""
        self.changes: list[dict[str, Any]] = []
        """Requests of policies, with "step" and "reason"; on rank 0."""
        self._steps, self._asked = 0, (0.0, 0.0)
        self._ranks_asked = self._ranks
        self._begun = self._at = time.monotonic()
        self._recent: deque[tuple[float, float]] = deque(maxlen=RECENT)
        self._under_way: tuple[Callable[[], Rows], list[int]] | None = None

    @property
    def part(self) -> int:
        """This rank's rows of the next batch."""
        return self._parts()[self._rank]

    @property
    def noise_scale(self) -> float | None:
        """The gradient noise scale in rows: None in the first steps, infinite if gradients are only
        noise.
        """
        noise = self._core.noise()
        if noise is None:
            return None
        signal, variance = noise
        return variance / signal if signal > 0 else float("inf")

    def state_dict(self) -> dict[str, Any]:
        """Returns batch, rate, remaining rows and pending requests; call it between steps. The state of
        rank 0 is for all ranks. The state does not contain the gradient noise and the times of
        steps, which are measured again."""
        told = [0.0, 0.0] if self._under_way is None else self._under_way[0]()[0][:ASKED]
        return {
            "batch": self.batch,
            "first_batch": self._first_batch,
            "rate": self.rate,
            "rows_left": self.rows_left,
            "steps": self._steps,
            "elapsed_s": time.monotonic() - self._begun,
            "told": told,
            "asked": list(self._asked),
        }

    def load_state_dict(self, entries: Mapping[str, Any]) -> None:
        """Continues from what `state_dict` returned on rank 0, before the first step; every rank loads it.

        # Errors

        InvalidError if the batch is not a multiple of the number of ranks.
        """
        self._expect_even(entries["batch"])
        self.batch, self._first_batch = entries["batch"], entries["first_batch"]
        self.rate, self.rows_left = entries["rate"], entries["rows_left"]
        self._steps, self._begun = entries["steps"], time.monotonic() - entries["elapsed_s"]
        batch, rate = entries["asked"]
        self._asked = (batch, rate)
        told = [*entries["told"]]
        self._under_way = (lambda: [told], self._parts())

    @property
    def _is_sketched(self) -> bool:
        """Whether ranks send each other sketches of their gradients in this step."""
        return _core.Sketch.is_due(self._steps)

    def _tell(self, asked: tuple[float, float]) -> Callable[[], Rows]:
        """Begins to send the pending requests and, if it is due, this step's sketch to all ranks.

        Collective. The returned function waits for the rows of all ranks, and returns them.
        """
        raise NotImplementedError

    def _end_step(self, wait_s: float) -> None:
        """Ends a step; collective. The reports of all ranks are used at the end of the next step."""
        # What is taken below is for the next step.
        batch, parts = self.batch, self._parts()
        self._take()
        now = time.monotonic()
        self._recent.append((now - self._at, wait_s))
        self._at = now
        asked, self._asked = self._asked, (0.0, 0.0)
        self._under_way = (self._tell(asked), parts)
        self.rows_left = max(0, self.rows_left - batch)
        self._steps += 1
        if self._rank == 0 and self.rows_left > 0:
            self._decide()

    def _expect_even(self, batch: int) -> None:
        """Refuses a batch of unequal parts, because gradients are averaged over ranks, not over
        rows."""
        if batch % self._ranks != 0:
            raise InvalidError(
                f"a batch of {batch} rows on {self._ranks} ranks, expected a multiple of "
                f"{self._ranks}"
            )

    def _parts(self) -> list[int]:
        return [self.batch // self._ranks] * self._ranks

    def _take(self) -> None:
        """Takes the reports of all ranks on the previous step."""
        if self._under_way is None:
            return
        rows, parts = self._under_way
        self._under_way = None
        told = rows()
        if len(told[0]) > ASKED:
            self._core.take([row[ASKED:] for row in told], parts)
        batch, rate = told[0][:ASKED]
        if batch > 0:
            self.batch = int(batch)
        if rate > 0:
            self.rate = rate

    def _decide(self) -> None:
        """Asks the policies, on rank 0."""
        times = zip(*self._recent)
        step_s, wait_s = (statistics.median(each) for each in times)
        seen: Observation = {
            "step": self._steps,
            "ranks": self._ranks,
            "ranks_asked": self._ranks_asked,
            "ranks_allowed": self._allowed,
            "batch": self.batch,
            "first_batch": self._first_batch,
            "rows_left": self.rows_left,
            "step_s": step_s,
            "wait_s": wait_s,
            "elapsed_s": time.monotonic() - self._begun,
        }
        asked = self._core.ask(**seen)
        seen["noise_scale"] = self.noise_scale
        asked += [answer for each in self._functions if (answer := each(dict(seen))) is not None]
        for answer in asked:
            self._follow(answer)

    def _follow(self, answer: dict[str, Any]) -> None:
        batch, rate = answer.get("batch", 0), answer.get("rate", 0.0)
        unknown = set(answer) - {"batch", "rate", "ranks", "reason"}
        if unknown or batch < 0 or rate < 0:
            raise InvalidError(
                f"a policy has asked for {answer}, expected only batch, rate, ranks and reason, "
                "and no negative number"
            )
        self._expect_even(batch)
        changed: dict[str, Any] = {}
        batch_asked, rate_asked = self._asked
        # The first answer counts. A rate beside a batch is for that batch.
        if (batch_asked if batch else rate_asked) == 0:
            self._asked = (float(batch or batch_asked), float(rate or rate_asked))
            changed = {name: answer[name] for name in ("batch", "rate") if answer.get(name)}
        ranks = answer.get("ranks")
        if ranks is not None and ranks != self._ranks_asked:
            if self._resize is None:
                raise InvalidError(
                    f"a policy has asked for {ranks} ranks, but resize= was not given"
                )
            self._ranks_asked = ranks
            self._resize(ranks)
            changed["ranks"] = ranks
        if changed:
            reason = {"reason": answer["reason"]} if "reason" in answer else {}
            self.changes.append({"step": self._steps, **changed, **reason})
