"""Callbacks of `fit`: the same start on all ranks, averages of metrics, and residuals in files."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy

from thinwire import arguments, interrupts
from thinwire._core import InvalidError
from thinwire.agreement import agree, together
from thinwire.gradients import Gradients, expect_success
from thinwire.group import Group
from thinwire.residuals import file_of, load_residuals, save_residuals

from .optimizer import Distributed


class Broadcast(keras.callbacks.Callback):
    """Gives all ranks the weights and the optimizer's state of rank `root` at the start.

    After the first batch it checks that the optimizer has exchanged gradients once; otherwise,
    ranks would train different models without an error. It also makes `fit` raise Thinwire's
    one-line error in place of a backend's error that contains it.
    """

    def __init__(self, root: int = 0) -> None:
        super().__init__()
        self.root = arguments.whole("root", root)
        self._is_checked = True

    def on_train_begin(self, logs: Any = None) -> None:
        """Copies rank `root`'s variables to all others; a collective call."""
        gradients = gradients_of(self.model)
        group = gradients.group
        arguments.whole("root", self.root, 0, group.world - 1)
        give(together(group.core, lambda: built_variables(self.model)), group, self.root)
        if self.model.train_function is not None:
            self.model.train_function = clear(self.model.train_function, gradients)
        gradients.count()
        self._is_checked = False

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Checks that the optimizer exchanges."""
        gradients = gradients_of(self.model)
        if not self._is_checked:
            self._is_checked = True
            expect_exchanges(self.model, batch + 1)
        expect_success(gradients)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Raises the error of a failed step. On JAX, a step fails after its call, and Keras would
        continue.
        """
        wait_for_steps(self.model)


class MetricAverage(keras.callbacks.Callback):
    """Replaces each metric, at the end of an epoch, by its average over all ranks.

    Callbacks after this one see the averages. Put it before `EarlyStopping` and `ModelCheckpoint`,
    which then make the same decisions on all ranks.
    """

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Averages the numbers in `logs`; a collective call."""
        group = gradients_of(self.model).group
        names = sorted(name for name, value in (logs or {}).items() if numpy.ndim(value) == 0)
        agree([f"metric {name}" for name in names], group.core)
        values = numpy.array([float(logs[name]) for name in names], numpy.float64)
        if names:
            logs.update(zip(names, group.all_reduce(values, average=True).tolist()))


class Residuals(keras.callbacks.Callback):
    """Writes the residuals of codecs to a file per rank after each epoch, and continues from that
    file if it exists.

    path: as in `save_residuals`. Put this callback after `ModelCheckpoint`, so that the file belongs to
    the saved model.
    """

    def __init__(self, path: str) -> None:
        super().__init__()
        self.path = arguments.path("path", path)

    def on_train_begin(self, logs: Any = None) -> None:
        """Reads the files, unless there are none or training has begun; a collective call."""
        gradients = gradients_of(self.model)
        group = gradients.group
        files = [Path(file_of(self.path, rank)) for rank in (0, group.rank)]
        here = numpy.array([any(file.exists() for file in files)], numpy.int64)
        if gradients.synchronizer is None and group.all_reduce(here)[0]:
            load_residuals(self.model.optimizer, self.path)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Writes the file of this rank, once the last step is done."""
        wait_for_steps(self.model)
        if gradients_of(self.model).synchronizer is not None:
            save_residuals(self.model.optimizer, self.path)


def gradients_of(model: keras.Model) -> Gradients:
    """The gradients that the optimizer of a model exchanges.

    # Errors

    InvalidError if the optimizer does not exchange gradients.
    """
    optimizer = model.optimizer
    if not isinstance(optimizer, Distributed):
        raise InvalidError(
            f"the optimizer is {type(optimizer).__name__}, expected a distributed one "
            "(hint: model.compile(thinwire.keras.distributed(optimizer), ...))"
        )
    return optimizer.gradients


def expect_exchanges(model: keras.Model, batches: int) -> None:
    """Refuses a training unless each of its first batches was exchanged exactly once.

    # Errors

    InvalidError if there was no exchange or, in Keras's own training step, a different number than
    batches.
    """
    gradients = gradients_of(model)
    found = gradients.count()
    expect_success(gradients)
    is_own = "train_step" in vars(model) or type(model).train_step is not keras.Model.train_step
    # On JAX programs count for themselves, and a step is seen, but not how many.
    is_exact = not is_own and keras.backend.backend() != "jax"
    if gradients.exchanges and (found == 0 or is_exact and found != batches):
        raise InvalidError(
            f"Keras {keras.__version__} has exchanged {found} times in {batches} batches, expected "
            "one exchange for each batch: otherwise every rank trains alone (hint: does train_step "
            "call optimizer.apply?)"
        )


def wait_for_steps(model: keras.Model) -> None:
    """Waits until all steps are done, and raises the error if one has failed."""
    gradients = gradients_of(model)
    try:
        keras.ops.convert_to_numpy(model.trainable_variables[0])
    except Exception:
        expect_success(gradients)
        raise
    expect_success(gradients)


def built_variables(model: keras.Model) -> list[Any]:
    """All variables of a model and its optimizer.

    # Errors

    InvalidError if the model has none yet.
    """
    weights = variables_of(model)
    if not model.optimizer.built:
        model.optimizer.build(model.trainable_variables)
    return [*weights, *model.optimizer.variables]


def variables_of(model: keras.Model) -> list[Any]:
    """All variables of a model.

    # Errors

    InvalidError if it has none yet.
    """
    if not model.built:
        raise InvalidError("the model has no variables yet (hint: model.build, or call it once)")
    return list(model.weights)


def give(variables: Sequence[Any], group: Group, root: int = 0) -> None:
    """Copies rank `root`'s values of variables to all others; a collective call.

    # Errors

    InvalidError on all ranks where shapes or dtypes differ.
    """
    # Numbers in names count up in a process, and a rank may have made another model before.
    kinds = [f"variable {i} of {each.dtype} {list(each.shape)}" for i, each in enumerate(variables)]
    agree(kinds, group.core)
    for variable in variables:
        array = numpy.array(keras.ops.convert_to_numpy(variable), order="C")
        variable.assign(group.broadcast(array, root))


def clear(function: Callable[..., Any], gradients: Gradients) -> Callable[..., Any]:
    """Returns a step of `fit` that raises the original error of a failed exchange."""
    if getattr(function, "is_clear", False):
        return function

    @functools.wraps(function)
    def called(*given: Any) -> Any:
        interrupts.forget()
        try:
            return function(*given)
        except Exception:
            expect_success(gradients)
            raise

    called.is_clear = True  # type: ignore[attr-defined]
    return called
