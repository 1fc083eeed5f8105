"""Records of the exchange of gradients, as curves in TensorBoard and in trackers of experiments.

log = thinwire.torch.tensorboard(SummaryWriter())
log(hook)  # after each step, with whatever has `record()`: a hook, an exchange, rounds
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from thinwire import arguments

EVERY = 10
"""Default number of steps between two records that are written."""
SUMS = ("raw_bytes", "sent_bytes", "received_bytes", "encode_s", "decode_s", "wire_s")
"""Figures of buckets, whose sum over all buckets is the step's figure."""


class Recorded(Protocol):
    """Something with a record of its last step, such as `thinwire.torch.Hook`."""

    def record(self) -> Any:
        """Returns the record, as a dict or as JSON."""


class Log:
    """Writes the record of every n-th step. Create a `Log` with `tensorboard` or `tracker`."""

    def __init__(self, write: Callable[[dict[str, float], int], object], every: int) -> None:
        """Writes by `write(figures, step)`."""
        self._write, self._every = write, arguments.whole("every", every, least=1)
        self._steps = 0

    def __call__(self, exchange: Recorded, step: int | None = None) -> None:
        """Call this after every step of the optimizer.

        `step` is the number of the step in the curves, by default that of the record.
        """
        self._steps += 1
        if (self._steps - 1) % self._every:
            return
        record = exchange.record()
        record = json.loads(record) if isinstance(record, str) else record
        # Before the first exchange, and with one rank, there is none.
        if record:
            found = record.get("step", self._steps - 1) if step is None else step
            self._write(figures(record), found)


def tensorboard(writer: Any, every: int = EVERY) -> Log:
    """Returns a log that writes to a `SummaryWriter` of TensorBoard.

    Call it with the hook after every step: every `every` steps it adds the numbers of `record()`, as
    `thinwire/wait_s` and so on, and those of buckets as their sums. Create it on rank 0, or on
    every rank with its own writer.

    # Errors

    InvalidError if `every` is less than 1.
    """

    def write(found: dict[str, float], step: int) -> None:
        for name, value in found.items():
            writer.add_scalar(name, value, step)

    return Log(write, every)


def tracker(run: Any, every: int = EVERY) -> Log:
    """Returns a log that writes to a tracker of experiments, an object with `log(figures, step=)`.

    Examples are a run of Weights & Biases (`wandb.init()`), and `wandb` itself. It writes the same
    values at the same steps as `tensorboard`.

    # Errors

    InvalidError if `every` is less than 1.
    """
    return Log(lambda found, step: run.log(found, step=step), every)


def figures(record: Mapping[str, Any]) -> dict[str, float]:
    """Returns the numbers of a record by their names in curves."""
    buckets = record.get("buckets", [])
    found = {
        name: value
        for name, value in record.items()
        if isinstance(value, (int, float)) and name != "step"
    }
    found |= {name: sum(bucket.get(name, 0) for bucket in buckets) for name in SUMS if buckets}
    if found.get("sent_bytes") and "raw_bytes" in found:
        found["raw_over_sent"] = found["raw_bytes"] / found["sent_bytes"]
    planning = record.get("planning") or {}
    if "iteration_s" in planning:
        found["predicted_step_s"] = planning["iteration_s"]
    return {f"thinwire/{name}": value for name, value in found.items()}
