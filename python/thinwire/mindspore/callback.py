"""The exchange as a callback of `Model.train`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import mindspore as ms
from mindspore import nn
from mindspore.train import Callback, RunContext

import thinwire
from thinwire import _core, arguments
from thinwire.meeting import group_or_default

from .broadcast import broadcast_parameters
from .cell import Reducer
from .guard import settle
from .residuals import load_residuals


class GradExchange(Callback):
    """Averages gradients over all ranks in each step of `Model.train`. All ranks start from rank
    0's parameters.

    codec: as in `thinwire.torch.hook`; group: by default that of the launcher's environment; seed:
    for codecs that draw random numbers; residuals: the path given to `save_residuals`, to continue
    from that state; momentum_correction: a factor from 0 to below 1, with which each rank adds up
    momentum of its own gradients before they are encoded. The optimizer must then have no momentum:
    `nn.SGD(..., momentum=0.0)`; warmup_steps: the number of first steps that travel raw before the
    codec begins, None for the recommended number for the codec; unchecked: train with a codec from
    a file even if it breaks laws that `thinwire codec check` checks.

        model = Model(network, loss, optimizer)
        model.train(epochs, data, callbacks=[thinwire.mindspore.GradExchange(codec="auto")])

    Each rank trains on its own part of the data: `num_shards=group.world, shard_id=group.rank`.
    `train` raises InvalidError if ranks disagree on the parameters, or if a gradient is not finite:
    MindSpore's Model cannot skip such a step on the CPU. It raises PeerError if a rank is lost, has fewer
    batches than the others, or has raised an exception.
    """

    def __init__(
        self,
        codec: str = "auto",
        group: thinwire.Group | None = None,
        seed: int = 1,
        residuals: str | None = None,
        momentum_correction: float | None = None,
        warmup_steps: int | None = 0,
        unchecked: bool = False,
    ) -> None:
        super().__init__()
        self.options: Any = {
            "seed": seed,
            "momentum_correction": momentum_correction,
            "warmup_steps": warmup_steps,
            "unchecked": unchecked,
        }
        arguments.options(codec=codec, **self.options)
        self.codec, self.group, self.residuals = codec, group, residuals
        self.reducer: Reducer | None = None
        self.parameters: list[ms.Parameter] = []

    @property
    def synchronizer(self) -> _core.Synchronizer:
        """The synchronizer of the core; InvalidError before the first training."""
        if self.reducer is None:
            raise thinwire.InvalidError("GradExchange has no state before model.train has begun")
        return self.reducer.synchronizer

    def exchange_plan(self) -> dict[str, Any]:
        """The plan of each bucket: codec, algorithm, partitions.

        On rank 0 `line` says what `auto` has chosen and why.
        """
        return json.loads(self.synchronizer.plan())

    def on_train_begin(self, run_context: RunContext) -> None:
        """Installs the reducer in place of MindSpore's own, and gives all ranks the same parameters."""
        cell = run_context.original_args().train_network
        if not hasattr(cell, "grad_reducer"):
            raise thinwire.InvalidError(
                f"{type(cell).__name__} has no grad_reducer (hint: give Model a loss and an "
                "optimizer, or a subclass of nn.TrainOneStepCell)"
            )
        self.group = group_or_default(self.group)
        broadcast_parameters(cell.get_parameters(), self.group)
        self.prepare(cell)
        if cell.grad_reducer is not self.reducer:
            cell.grad_reducer = self.reducer
            forget_graphs(cell)

    def prepare(self, cell: nn.TrainOneStepCell) -> None:
        """Creates the reducer in the first training, and again for the parameters of a different model."""
        parameters = list(cell.optimizer.parameters)
        # Compiling a graph puts the same parameters into another tuple.
        if same(parameters, self.parameters):
            return
        self.reducer = Reducer(parameters, self.codec, self.group, **self.options)
        self.parameters = parameters
        if self.residuals is not None:
            load_residuals(self, self.residuals)
            self.residuals = None

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        if error is not None and self.reducer is not None:
            settle(self.reducer.synchronizer, error)


def same(some: Sequence[Any], others: Sequence[Any]) -> bool:
    """Whether both hold the same objects in the same order."""
    return len(some) == len(others) and all(one is other for one, other in zip(some, others))


def forget_graphs(cell: nn.Cell) -> None:
    """Makes MindSpore recompile a cell that an earlier `train` may have compiled with another reducer."""
    cell.compile_cache.clear()
