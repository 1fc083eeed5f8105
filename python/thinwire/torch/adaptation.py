"""Policies: the batch, the learning rate and the number of ranks, adapted while a training runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist

from thinwire import _core
from thinwire.adaptation import Adapting, Policy, Rows

COUNTERS = 32
ROW = 1 + COUNTERS


class Adaptation(Adapting):
    """Adapts the global batch, the learning rate and the number of ranks by policies.

        adaptation = thinwire.torch.Adaptation(model, ["noise-scale:max=1024"], batch=64, rows=10**6)
        while adaptation.rows_left > 0:
            optimizer.zero_grad()
            loss(model, next_rows(adaptation.part)).backward()
            for group in optimizer.param_groups:
                group["lr"] = 1e-3 * adaptation.rate
            optimizer.step()
            adaptation.step()

    Rank 0 decides by the policies, and its decisions take effect on all ranks after the same step.
    Policies see the gradient noise scale, estimated from each rank's gradients before they are
    averaged, so codecs do not affect it.

    Args:
        model: the model that is trained, in DDP or not. The adaptation reads each gradient when
            backward has completed it.
        policies: strings as for `--policy` of `thinwire train` ("noise-scale:max=ROWS", "goodput",
            "deadline:SECONDS", "price:FILE,max=PRICE"), or functions of an observation: a dict with
            "step", "ranks", "ranks_asked", "ranks_allowed", "batch", "first_batch", "rows_left", "step_s",
            "wait_s", "elapsed_s" and "noise_scale" (None before it is known), which return None or a dict
            of "batch", "rate" (a factor of the first learning rate), "ranks" and "reason".
        batch: rows of the first batch, all ranks together.
        rows: rows of the whole training.
        group: the process group of `torch.distributed` whose ranks train together; None means all ranks.
        resize: called on rank 0 with the number of ranks that a policy asks for.
        ranks_allowed: the smallest and the largest number of ranks that a policy may ask for.
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
        """Starts to read the gradients of the model."""
        self._group = group
        place = dist.get_rank(group), dist.get_world_size(group)
        super().__init__(policies, batch, rows, place, resize, ranks_allowed)
        self._sketches: dict[int, torch.Tensor] = {}
        self._hooks = []
        device = torch.device("cpu")
        for number, parameter in enumerate(model.parameters()):
            if parameter.requires_grad:
                device = parameter.device
                look = self._look(number)
                self._hooks.append(parameter.register_post_accumulate_grad_hook(look))
        self._device = device

    def step(self, wait_s: float = 0.0) -> None:
        """Ends a step; call it after `backward`. A collective call: ranks exchange their reports
        while the next step computes.

        Args:
            wait_s: seconds of the step in which this rank waited for others, if known.
        """
        self._end_step(wait_s)

    def close(self) -> None:
        """Stops reading gradients; a collective call."""
        self._take()
        for hook in self._hooks:
            hook.remove()

    def _tell(self, asked: tuple[float, float]) -> Callable[[], Rows]:
        row = torch.tensor(asked, device=self._device)
        if self._is_sketched:
            sketch = sum(self._sketches.values(), torch.zeros(ROW, device=self._device))
            row = torch.cat([row, sketch])
        self._sketches.clear()
        rows = [torch.empty_like(row) for _ in range(self._ranks)]
        work = dist.all_gather(rows, row, group=self._group, async_op=True)

        def told() -> Rows:
            work.wait()
            return [row.tolist() for row in rows]

        return told

    def _look(self, number: int) -> Callable[[torch.Tensor], None]:
        def look(parameter: torch.Tensor) -> None:
            # The last backward of a step has the gradient of all its micro-batches.
            if self._is_sketched:
                self._sketches[number] = sketch(parameter.grad, number, self._steps)

        return look


def sketch(gradient: torch.Tensor | None, number: int, step: int) -> torch.Tensor:
    """Returns the squared norm of a gradient and its sketch, which is linear in it: 33 numbers.

    The sketch's random signs are generated differently on a GPU and on the CPU, so all ranks must
    have their gradients on the same kind of device.
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
    """Returns the sketch of f32 values on a device. It is computed there, and this function does
    not wait for it."""
    generator = torch.Generator(values.device).manual_seed((step << 24) + number)
    bits = torch.randint(
        0, 2, values.shape, generator=generator, device=values.device, dtype=torch.int8
    )
    signed = torch.where(bits == 1, values, -values)
    missing = -values.numel() % COUNTERS
    counters = torch.nn.functional.pad(signed, (0, missing)).view(-1, COUNTERS).sum(0)
    return torch.cat([values.square().sum().view(1), counters])
