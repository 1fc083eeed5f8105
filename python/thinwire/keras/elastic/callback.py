"""The callbacks of an elastic job: end its steps, its passes and its training in `Model.fit`."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

import keras

from thinwire._core import InvalidError

from ..callbacks import Broadcast, MetricAverage, Residuals
from .dataset import Dataset


class Job(Protocol):
    """The part of a job that the callbacks use."""

    model: keras.Model

    @property
    def initial_epoch(self) -> int:
        """The pass over the data in which the job is."""

    def begin(self) -> None:
        """Begins the training; refuses another one after the end."""

    def begin_pass(self) -> None:
        """Undoes what callbacks have done to the learning rate at the beginning of a pass, if this rank
        begins in the middle of the pass."""

    def end_step(self) -> None:
        """Ends a step of `fit`, and enters the job's next epoch if that is due."""

    def end_pass(self, number: int, stops: bool, epochs: int) -> bool:
        """Ends a pass as rank 0 decides; returns whether the training stops."""

    def end(self) -> None:
        """Waits for all ranks at the end of the training, after which the job is over."""


class ElasticCallback(keras.callbacks.Callback):
    """Ends each step of `fit` together with the other ranks. Callbacks later in the list see the step
    after that. Made by `Elastic.callback`."""

    def __init__(self, job: Job) -> None:
        super().__init__()
        self._job = job
        self._batches: Any = None

    def on_train_begin(self, logs: Any = None) -> None:
        """Refuses a training that would not be elastic.

        # Errors

        InvalidError for another model than the job's, for several steps in one call, for data beside
        the job's, for callbacks that restore a state, and for a second training.
        """
        if self.model is not self._job.model:
            raise InvalidError(
                f"fit trains {self.model.name}, expected {self._job.model.name}, the model of the job"
            )
        if self.model.steps_per_execution != 1:
            raise InvalidError(
                f"steps_per_execution is {self.model.steps_per_execution}, expected 1 in an elastic job"
            )
        fit = variables_of_fit()
        refuse_other_data(fit)
        callbacks = fit["callbacks"].callbacks
        refuse_callbacks(callbacks)
        self._job.begin()
        ending = Ending(self._job, fit["epochs"])
        ending.set_model(self.model)
        # A CallbackList that the caller made still has the `Ending` of an interrupted training.
        callbacks[:] = [each for each in callbacks if not isinstance(each, Ending)] + [ending]
        self._batches = fit["epoch_iterator"]
        # On a GPU, JAX would fetch one batch ahead, and find the end of a pass before the last step is
        # made, which may have to be repeated.
        self._batches._one_batch_ahead_iterator = iter
        # Keras does not know the number of steps in a pass, and would warn at the end of the first one.
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
        # Keras would end later passes after as many batches as the first one had.
        self._batches.reset()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Waits until the step has run, by reading its logs, and ends it."""
        for value in (logs or {}).values():
            keras.ops.convert_to_numpy(value)
        self._job.end_step()


class Ending(keras.callbacks.Callback):
    """Ends each pass, and the training, together with the other ranks, after other callbacks have decided
    whether to stop."""

    def __init__(self, job: Job, epochs: int) -> None:
        super().__init__()
        self._job = job
        self._epochs = epochs

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Keeps the learning rate of a pass that others have begun."""
        self._job.begin_pass()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Stops or goes on as rank 0 does.

        # Errors

        InvalidError if steps of the pass are left.
        """
        if self._job.initial_epoch <= epoch:
            what = (
                "a callback has stopped the training, expected it to do so in on_epoch_end"
                if self.model.stop_training
                else "expected a fit without steps_per_epoch"
            )
            raise InvalidError(
                f"epoch {epoch} has ended before all steps of its pass were made: {what}"
            )
        stops = bool(self.model.stop_training)
        self.model.stop_training = self._job.end_pass(epoch, stops, self._epochs)

    def on_train_end(self, logs: Any = None) -> None:
        """Waits for all ranks."""
        self._job.end()


def variables_of_fit() -> dict[str, Any]:
    """Returns the local variables of the `fit` that called a callback, which Keras does not pass on.

    # Errors

    InvalidError if no caller has the variables that `fit` has in Keras 3.15.
    """
    frame: Any = sys._getframe(1)
    while frame is not None:
        found: dict[str, Any] = frame.f_locals
        if {"class_weight", "epoch_iterator", "callbacks"} <= found.keys():
            return found
        frame = frame.f_back
    raise InvalidError(
        f"fit of Keras {keras.__version__} is unknown, expected one with an epoch_iterator (hint: pip "
        "install keras==3.15.1)"
    )


def refuse_callbacks(callbacks: Iterable[Any]) -> None:
    """Refuses callbacks that replace weights while others train with them, and those of
    `thinwire.keras.distributed`.

    # Errors

    InvalidError that names the first of them.
    """
    for each in callbacks:
        if isinstance(each, keras.callbacks.BackupAndRestore):
            raise InvalidError(
                "fit has the callback BackupAndRestore, expected none that replaces the job's state (hint: "
                "a rank that is started again gets its state from the others)"
            )
        if isinstance(each, (Broadcast, MetricAverage, Residuals)):
            raise InvalidError(
                f"fit has the callback {type(each).__name__}, expected none of "
                "thinwire.keras.distributed: the optimizer belongs to an elastic job"
            )
        if isinstance(each, keras.callbacks.SwapEMAWeights) and each.swap_on_epoch:
            raise InvalidError(
                "fit has the callback SwapEMAWeights(swap_on_epoch=True), expected swap_on_epoch=False: a "
                "rank that joins between two passes would not swap the weights back"
            )


def refuse_other_data(fit: Mapping[str, Any]) -> None:
    """Refuses data other than the job's, and arguments of `fit` that Keras silently ignores beside a
    data adapter.

    # Errors

    InvalidError that names the first of them.
    """
    for name in ("y", "sample_weight", "class_weight", "batch_size"):
        if fit.get(name) is not None:
            raise InvalidError(
                f"fit has the argument {name}, expected elastic.dataset(...) as its only data (hint: "
                "elastic.dataset((inputs, labels, weights)), and Elastic(model, batch))"
            )
    data = fit["epoch_iterator"].data_adapter
    if not isinstance(data, Dataset):
        raise InvalidError("fit has other data than the job's, expected elastic.dataset(...)")
    if not fit.get("shuffle", True) and data.stream.shuffle:
        raise InvalidError(
            "fit has shuffle=False, expected it in elastic.dataset(..., shuffle=False)"
        )
