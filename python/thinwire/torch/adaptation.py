"""Policies: the batch, the learning rate and the number of ranks, adapted while a training runs."""

from __future__ import annotations

import statistics
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from thinwire import _core
from thinwire._core import InvalidError

Observation = dict[str, Any]
Policy = str | Callable[[Observation], dict[str, Any] | None]

COUNTERS = 32
ROW = 1 + COUNTERS
RECENT = 20
# What rank 0 tells beside a sketch: the batch and the factor of the learning rate, 0 for no change.
ASKED = 2


class Adaptation:
    """Adapts the global batch, the learning rate and the number of ranks by policies.

        adaptation = thinwire.torch.Adaptation(model, ["noise-scale:max=1024"], batch=64, rows=10**6)
        while adaptation.rows_left > 0:
            loss(model, next_rows(adaptation.part)).backward()
            for group in optimizer.param_groups:
                group["lr"] = 1e-3 * adaptation.rate
            optimizer.step()
            adaptation.step()

    Policies are decided on rank 0, and in force on all ranks after the same step. They see the gradient
    noise scale, estimated from each rank's gradients before they are averaged: nothing that codecs lose is
    in it.

    Args:
        model: the model that is trained, in DDP or not; gradients are looked at when backward ends them.
        policies: texts as `--policy` of `thinwire train` takes ("noise-scale:max=ROWS", "goodput",
            "deadline:SECONDS", "price:FILE,max=PRICE"), or functions of an observation: a dict with
            "step", "ranks", "ranks_asked", "ranks_allowed", "batch", "first_batch", "rows_left", "step_s",
            "wait_s", "elapsed_s" and "noise_scale" (None before it is known), which return None or a dict
            of "batch", "rate" (a factor of the first learning rate), "ranks" and "reason".
        batch: rows of the first batch, all ranks together.
        rows: rows of the whole training.
        group: the process group of `torch.distributed` whose ranks train together; None is all.
        resize: is called on rank 0 with a number of ranks that a policy asks for.
        ranks_allowed: the least and the largest number of ranks that may be asked for.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        policies: Sequence[Policy],
        batch: int,
        rows: int,
        group: dist.ProcessGroup | None = None,
        *,
        resize: Callable[[int], object] | None = None,
        ranks_allowed: tuple[int, int] | None = None,
    ) -> None:
        """Looks at the gradients of the model from now on."""
        self._group = group
        self._ranks, self._rank = dist.get_world_size(group), dist.get_rank(group)
        texts = [each for each in policies if isinstance(each, str)]
        self._functions = [each for each in policies if callable(each)]
        if len(texts) + len(self._functions) < len(policies):
            raise InvalidError("a policy that is neither a text nor a function")
        self._core = _core.Policies(texts)
        if self._core.needs_ranks() and (resize is None or ranks_allowed is None):
            raise InvalidError(
                f"policies {', '.join(texts)} without resize= and ranks_allowed=, by which the number of "
                "ranks changes"
            )
        for name, value, least in (("batch", batch, self._ranks), ("rows", rows, 1)):
            if value < least:
                raise InvalidError(f"{name} of {value}, expected {least} or more")
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
        self._under_way: tuple[Any, list[torch.Tensor], list[int]] | None = None
        self._sketches: dict[int, torch.Tensor] = {}
        self._hooks = []
        device = torch.device("cpu")
        for number, parameter in enumerate(model.parameters()):
            if parameter.requires_grad:
                device = parameter.device
                look = self._look(number)
                self._hooks.append(parameter.register_post_accumulate_grad_hook(look))
        self._device = device

    @property
    def part(self) -> int:
        """This rank's rows of the next batch."""
        return self._parts()[self._rank]

    @property
    def noise_scale(self) -> float | None:
        """The gradient noise scale in rows; None in the first steps, infinite where all is noise."""
        noise = self._core.noise()
        if noise is None:
            return None
        signal, variance = noise
        return variance / signal if signal > 0 else float("inf")

    def step(self, wait_s: float = 0.0) -> None:
        """Ends a step, after `backward`: collective. What ranks tell each other travels while the next step
        computes.

        Args:
            wait_s: seconds of the step in which this rank waited for others, where it is known.
        """
        # What is taken below is for the next step.
        batch, parts = self.batch, self._parts()
        self._take()
        now = time.monotonic()
        self._recent.append((now - self._at, wait_s))
        self._at = now
        row = torch.tensor(self._asked, device=self._device)
        if _core.Sketch.is_due(self._steps):
            sketch = sum(self._sketches.values(), torch.zeros(ROW, device=self._device))
            row = torch.cat([row, sketch])
        self._sketches.clear()
        self._asked = (0.0, 0.0)
        rows = [torch.empty_like(row) for _ in range(self._ranks)]
        work = dist.all_gather(rows, row, group=self._group, async_op=True)
        self._under_way = (work, rows, parts)
        self.rows_left = max(0, self.rows_left - batch)
        self._steps += 1
        if self._rank == 0 and self.rows_left > 0:
            self._decide()

    def close(self) -> None:
        """Looks at gradients no longer; collective."""
        self._take()
        for hook in self._hooks:
            hook.remove()

    def _expect_even(self, batch: int) -> None:
        """Refuses a batch of unequal parts: DDP's mean is that of ranks, not of rows."""
        if batch % self._ranks != 0:
            raise InvalidError(
                f"a batch of {batch} rows on {self._ranks} ranks, expected a multiple of {self._ranks}"
            )

    def _parts(self) -> list[int]:
        return [self.batch // self._ranks] * self._ranks

    def _look(self, number: int) -> Callable[[torch.Tensor], None]:
        def look(parameter: torch.Tensor) -> None:
            # The last backward of a step has the gradient of all its micro-batches.
            if _core.Sketch.is_due(self._steps):
                self._sketches[number] = sketch(parameter.grad, number, self._steps)

        return look

    def _take(self) -> None:
        """Takes what ranks have told each other with the step before."""
        if self._under_way is None:
            return
        work, rows, parts = self._under_way
        self._under_way = None
        work.wait()
        told = [row.tolist() for row in rows]
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
                f"a policy has asked for {answer}, expected batch, rate, ranks or reason, none negative"
            )
        self._expect_even(batch)
        kinds = ("batch", "rate", "reason")
        changed: dict[str, Any] = {name: answer[name] for name in kinds if name in answer}
        if self._asked == (0.0, 0.0):
            self._asked = (float(batch), float(rate))
        ranks = answer.get("ranks")
        if ranks is not None and ranks != self._ranks_asked:
            if self._resize is None:
                raise InvalidError(f"a policy has asked for {ranks} ranks without resize=")
            self._ranks_asked = ranks
            self._resize(ranks)
            changed["ranks"] = ranks
        self.changes.append({"step": self._steps, **changed})


def sketch(gradient: torch.Tensor | None, number: int, step: int) -> torch.Tensor:
    """Returns the squared norm of a gradient and its sketch, which is linear in it: 33 numbers.

    The signs of devices are not those of host memory: all ranks have gradients on one kind of device.
    """
    if gradient is None:
        return torch.zeros(ROW)
    values = gradient.detach().to_dense() if gradient.is_sparse else gradient.detach()
    values = values.float().contiguous().reshape(-1)
    if values.device.type == "cpu":
        made = _core.Sketch(step)
        made.add(number, values.data_ptr(), values.numel())
        return torch.tensor(made.row())
    return of_device(values, number, step)


def of_device(values: torch.Tensor, number: int, step: int) -> torch.Tensor:
    """Returns the sketch of f32 on a device, where it is made without waiting for it."""
    generator = torch.Generator(values.device).manual_seed((step << 24) + number)
    bits = torch.randint(
        0, 2, values.shape, generator=generator, device=values.device, dtype=torch.int8
    )
    signed = torch.where(bits == 1, values, -values)
    missing = -values.numel() % COUNTERS
    counters = torch.nn.functional.pad(signed, (0, missing)).view(-1, COUNTERS).sum(0)
    return torch.cat([values.square().sum().view(1), counters])
