"""The callback of an elastic job: ends its steps in `Model.fit`."""

from __future__ import annotations

import sys
import warnings
from typing import Any, Protocol

import keras

from thinwire._core import InvalidError


class Job(Protocol):
    """The part of a job that the callback uses."""

    model: keras.Model

    @property
    def initial_epoch(self) -> int:
        """The pass over the data in which the job is."""

    def end_step(self) -> None:
        """Ends a step, and enters the next epoch if it was void."""

    def end(self) -> None:
        """Waits for all ranks at the end of the training, after which the job is over."""

    def refuse_ended(self) -> None:
        """Refuses another training after the end."""


class ElasticCallback(keras.callbacks.Callback):
    """Ends each step of `fit` together with the other ranks. Made by `Elastic.callback`."""

    def __init__(self, job: Job) -> None:
        super().__init__()
        self._job = job

    def on_train_begin(self, logs: Any = None) -> None:
        """Refuses a training that would not be elastic.

        # Errors

        InvalidError for another model than the job's, for several steps in one call, for data beside
        the job's, and for a second training.
        """
        self._job.refuse_ended()
        if self.model is not self._job.model:
            raise InvalidError(
                f"fit trains {self.model.name}, expected {self._job.model.name}, the model of the job"
            )
        if self.model.steps_per_execution != 1:
            raise InvalidError(
                f"steps_per_execution is {self.model.steps_per_execution}, expected 1 in an elastic job"
            )
        refuse_other_data()
        # The number of steps in a pass is unknown, and Keras takes its end for an accident.
        warnings.filterwarnings("ignore", "Your input ran out of data")

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Refuses an epoch of Keras other than the job's pass.

        # Errors

        InvalidError with both numbers.
        """
        if epoch != self._job.initial_epoch:
            raise InvalidError(
                f"fit begins with epoch {epoch}, the job is in pass {self._job.initial_epoch} "
                "(hint: fit(..., initial_epoch=elastic.initial_epoch))"
            )

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Ends a step once it is done."""
        for value in (logs or {}).values():
            keras.ops.convert_to_numpy(value)
        self._job.end_step()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Refuses a pass of which steps are left.

        # Errors

        InvalidError if Keras has ended the pass too early.
        """
        if self._job.initial_epoch <= epoch and not self.model.stop_training:
            raise InvalidError(
                f"epoch {epoch} has ended before all steps of its pass were made, expected a fit without "
                "steps_per_epoch"
            )

    def on_train_end(self, logs: Any = None) -> None:
        """Waits for all ranks."""
        self._job.end()


def refuse_other_data() -> None:
    """Refuses arguments of `fit` that Keras silently ignores beside a data adapter.

    # Errors

    InvalidError that names the first of them.
    """
    frame: Any = sys._getframe(1)
    while frame is not None and "class_weight" not in frame.f_locals:
        frame = frame.f_back
    given = {} if frame is None else frame.f_locals
    for name in ("y", "sample_weight", "class_weight", "batch_size"):
        if given.get(name) is not None:
            raise InvalidError(
                f"fit has the argument {name}, expected elastic.dataset(...) as its only data (hint: "
                "elastic.dataset((inputs, labels, weights)))"
            )
