"""The callback of an elastic job: begins and ends its steps in `Model.train`."""

from __future__ import annotations

from typing import Protocol

from mindspore import nn
from mindspore.train import Callback, RunContext

from thinwire._core import InvalidError

from ..finite import refuse
from .dataset import Dataset
from .exchange import Outcome


class Job(Protocol):
    """The part of a job that the callback uses."""

    optimizer: nn.Optimizer

    @property
    def steps(self) -> int:
        """Optimizer steps that the job has made."""

    def begin_step(self) -> None:
        """Begins a step whose batch has arrived."""

    def end_step(self) -> Outcome:
        """Ends a step, and returns its outcome."""

    def end(self) -> None:
        """Waits for all ranks at the end of the training, after which the job is over."""

    def refuse_ended(self) -> None:
        """Refuses another training after the end."""


class ElasticCallback(Callback):
    """Sets MindSpore's number of steps to the job's, so that later callbacks see the same numbers
    on all ranks.

    `Model.train` itself also counts void steps, and counts from 0 on a rank that joins.
    """

    def __init__(self, job: Job) -> None:
        super().__init__()
        self._job = job

    def on_train_begin(self, run_context: RunContext) -> None:
        """Refuses a training that would not be elastic.

        # Errors

        InvalidError for an optimizer or dataset that is not the job's, or a second training.
        """
        self._job.refuse_ended()
        told = run_context.original_args()
        if getattr(told.train_network, "optimizer", None) is not self._job.optimizer:
            raise InvalidError("the model was not made with elastic.optimizer")
        if not isinstance(told.train_dataset, Dataset):
            kind = type(told.train_dataset).__name__
            raise InvalidError(
                f"the training has a {kind} as its data, expected elastic.dataset(...)"
            )

    def on_train_epoch_begin(self, run_context: RunContext) -> None:
        """Begins a pass over the data. The pass is empty if the job has completed it already."""
        told = run_context.original_args()
        told.train_dataset.begin_pass(told.cur_epoch_num - 1)

    def on_train_step_begin(self, run_context: RunContext) -> None:
        """Begins a step."""
        run_context.original_args().cur_step_num = self._job.steps + 1
        self._job.begin_step()

    def on_train_step_end(self, run_context: RunContext) -> None:
        """Ends a step, unless it was void.

        # Errors

        InvalidError if a gradient of some rank was not finite.
        """
        if self._job.end_step() is Outcome.NOT_FINITE:
            refuse()
        run_context.original_args().cur_step_num = self._job.steps

    def on_train_end(self, run_context: RunContext) -> None:
        """Waits for all ranks."""
        self._job.end()
