"""One rank of an elastic job with a model of Keras."""

from __future__ import annotations

import functools
import hashlib
import re
import sys
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from thinwire import arguments
from thinwire._core import Epoch, EpochEntry, InvalidError, Membership, __version__, measure_codecs
from thinwire.arguments import Seconds
from thinwire.elastic import hand_over
from thinwire.elastic.comparison import digest
from thinwire.elastic.job import Job
from thinwire.elastic.members import Members, check
from thinwire.elastic.stream import Stream

from ..callbacks import built_variables
from ..exchange import expected_backend
from ..optimizer import Distributed
from .callback import ElasticCallback
from .dataset import HAS_ADAPTERS, Dataset, arrays_of
from .decision import Decision, learning_rate_of, newest
from .exchange import Exchange, Outcome
from .optimizer import make_elastic

OVER = "the job is over, since a training has ended (hint: one fit for all epochs)"
MEANS = "sum_over_batch_size", "mean"
"""Keras' names for a loss that is the mean over the samples of a batch."""


class Elastic(Job):
    """A compiled model in an elastic job. Creating one joins the job and takes over its state.

        model.compile("adam", loss)
        elastic = thinwire.keras.Elastic(model, batch=512, codec="auto")
        data = elastic.dataset((inputs, labels), seed=0)
        model.fit(
            data, epochs=10, initial_epoch=elastic.initial_epoch, callbacks=[elastic.callback()]
        )

    Args:
        model: a model that is built and compiled, created in the same way on every rank. Its weights
            and its optimizer's state are replaced by those of the ranks already in the job, or by
            rank 0's. Its optimizer averages gradients from then on; it is saved under its own class.
        batch: samples of a step, over all ranks.
        codec: how gradients travel, as in `distributed`.
        coordinator, token: where the job's coordinator is, as host:port or etcd://HOST:PORT/JOB, and the
            job's secret; by default from the launcher, in THINWIRE_COORDINATOR and THINWIRE_TOKEN.
        timeout_s: how long to wait for the coordinator and the other ranks, in seconds.
        members: a membership to use instead of joining a job, for tests.
        compare_every: the number of steps after which ranks compare checksums of trainable weights and
            the optimizer's state, and log what differs. They also do so in the first step of an epoch.
            With 0 they compare only the settings of the dataset, in that step.
        options: `bucket_bytes`, `seed`, `algorithm`, `error_budget`, `feedback`, `momentum_correction`,
            `warmup_steps` and `unchecked`, as in `distributed`.

    # Errors

    InvalidError if the process belongs to no elastic job; if model, optimizer or options differ from the
    job's; if the model is not built or not compiled, or has a distributed optimizer or a loss that is
    not a mean; and for an unsuitable launcher.
    """

    def __init__(
        self,
        model: keras.Model,
        batch: int,
        codec: str = "auto",
        *,
        coordinator: str | None = None,
        token: str | None = None,
        timeout_s: Seconds = 60.0,
        members: Members | None = None,
        compare_every: int = 100,
        **options: Any,
    ) -> None:
        """Joins the job; returns in the first epoch, with the job's state."""
        options = {"codec": codec, "warmup_steps": None, **options}
        timeout_s = check(options, batch, compare_every, coordinator, token, timeout_s)
        expect_plain(model)
        self.model = model
        self._dataset: Dataset | None = None
        self._decision = Decision()
        self._begun_rate: float | None = None
        variables, trained = built_variables(model), model.trainable_variables
        self._alike = [*trained, *model.optimizer.variables]
        self._own = model.non_trainable_weights
        measure_codecs(codec, max(int(np.prod(each.shape)) for each in trained))
        about = facts(variables, model, {"batch": batch, "compare_every": compare_every, **options})
        members = members or Membership(about, coordinator, token, timeout_s=timeout_s)
        self._averager = Exchange(trained, options, members.wants_end)
        super().__init__(batch, members, self._averager, compare_every)
        self._enter()
        # The other ranks may be at the end of a pass, before they have decided.
        self.end_pass(self.initial_epoch - 1)
        self._averager.begins = self._take
        make_elastic(model.optimizer, self._averager)
        model.train_function = None  # if it was compiled before

    @property
    def initial_epoch(self) -> int:
        """The pass over the data in which the job is, for `fit`: a rank that joins in pass 3 begins
        with 3. After a stop it is larger than any number of epochs."""
        if self._decision.stops:
            return sys.maxsize
        positions = self._current_positions()
        return positions[0].number if positions else 0

    def dataset(
        self, data: Any, *, seed: int = 1, shuffle: bool = True, drop_last: bool = False
    ) -> Dataset:
        """Batches of `data` for this rank, from the job's current position: (inputs, labels) or
        (inputs, labels, weights), arrays or trees of arrays with a row for each sample.

        Every rank passes equal data and the same seed. `fit` takes the batches as its only data.

        # Errors

        InvalidError for anything but arrays with rows; for a number of rows, seed, shuffle or drop_last
        other than the job's; and for a second dataset.
        """
        if self._dataset is not None:
            raise InvalidError("the job has a dataset already, expected one dataset for one fit")
        arrays, rows = arrays_of(data)
        dataset = Dataset(self, arrays, Stream(rows, self.batch, seed, shuffle, drop_last))
        self._add_source(dataset)
        self._dataset = dataset
        return dataset

    def callback(self) -> ElasticCallback:
        """The callback for `fit`; put it before callbacks that save the model."""
        return ElasticCallback(self)

    def end_step(self) -> None:
        """Ends a step of `fit`. Enters the job's next epoch if the step was void, or if ranks join or
        leave after it. The callback calls it."""
        if self._averager.end() is Outcome.APPLIED:
            self._stepped()
            self._compare()
        self.settle()

    def begin(self) -> None:
        """Begins the job's training. The callback calls it.

        # Errors

        InvalidError once all ranks have met at the end of a training.
        """
        if self._is_over:
            raise InvalidError(OVER)
        self.count_interrupted()
        self._averager.open()
        positions = self._current_positions()
        is_begun = bool(positions) and positions[0].begun
        self._begun_rate = learning_rate_of(self.model.optimizer) if is_begun else None

    def begin_pass(self) -> None:
        """Undoes what callbacks have done to the learning rate at the beginning of a pass, if this rank
        begins in the middle of the pass: the rate that was handed over contains it already. The callback
        calls it."""
        rate, self._begun_rate = self._begun_rate, None
        self._set_learning_rate(rate)

    def end_pass(self, number: int, stops: bool = False, epochs: int | None = None) -> bool:
        """Ends a pass as rank 0 decides; returns whether the training stops. `stops` is what this rank
        decides if it is rank 0, and `epochs` the argument of `fit`. The callback calls it.

        # Errors

        InvalidError if rank 0 trains for another number of epochs.
        """
        while self._decision.passes <= number and not self._decision.stops:
            mine = Decision(number + 1, stops, learning_rate_of(self.model.optimizer), epochs)
            if not self._exchange.attempt(functools.partial(self._decide, mine)):
                self.settle()
        return self._decision.stops

    def end(self) -> None:
        """Waits for all ranks at the end of the training, after which the job is over and all have
        rank 0's weights."""
        while not (self._follow_weights() and self.meet()):
            pass  # a rank that was lost on the way is no longer waited for
        self._averager.close(OVER)
        self.model.train_function = None

    def count_interrupted(self) -> None:
        """Counts a step that was applied by a `fit` that was interrupted before it could count it. The
        dataset calls it before it deals that step's batch again."""
        if self._averager.take_applied():
            self._stepped()

    def _take(self) -> bool:
        """Begins a step with the batch that `fit` computes; returns false if the batch is stale."""
        if self._dataset is None:
            raise InvalidError("fit has other data than the job's, expected elastic.dataset(...)")
        deal = self._dataset.take()
        if deal is None:
            return False
        self._weigh(deal)
        self._exchange.steps.begin_step()
        return True

    def _arrays(self, variables: Sequence[Any]) -> list[np.ndarray[Any, Any]]:
        """Copies of the values of variables."""
        if keras.backend.backend() == "jax":
            self.model.jax_state_sync()  # within fit, its program has the values
        return [np.array(keras.ops.convert_to_numpy(each), order="C") for each in variables]

    def _entries(self) -> dict[str, Any]:
        names = (f"{number}: {plain_name(each)}" for number, each in enumerate(self._alike))
        return dict(zip(names, self._arrays(self._alike)))

    def _remember(self) -> None:
        """Does nothing, since a void step changes no weight."""

    def _restore(self) -> None:
        """Does nothing, since a void step has changed no weight."""

    def _heard(self, epoch: Epoch) -> dict[str, Any]:
        found: dict[str, Any] = hand_over.plain_of_oldest(epoch, self._notice())
        return found

    def _receive(self, epoch: Epoch, entry: EpochEntry, said: dict[str, Any]) -> None:
        self._epoch = epoch
        # This comes before the hand-over: a state source that has missed the newest decision would hand
        # over the old learning rate.
        self._decide(self._decision)
        if entry.hand_over:
            self._hand_over(epoch, entry.hand_over)
        if entry.takes_over:
            self._follow_notice(said)

    def _decide(self, mine: Decision) -> None:
        """Follows the newest decision of all ranks; a collective call.

        # Errors

        PeerError if a rank is lost; InvalidError if rank 0 trains for another number of epochs.
        """
        found = newest(self._exchange.gather(mine.encoded()))
        if mine.epochs != found.epochs and None not in (mine.epochs, found.epochs):
            raise InvalidError(
                f"fit has epochs={mine.epochs}, on rank 0 it has {found.epochs}, expected the same on all "
                "ranks"
            )
        is_new = found.passes > self._decision.passes
        self._decision = found
        if is_new:
            self._set_learning_rate(found.learning_rate)

    def _set_learning_rate(self, rate: float | None) -> None:
        """Sets the optimizer's learning rate, unless `rate` is None."""
        optimizer: Any = self.model.optimizer
        if rate not in (None, learning_rate_of(optimizer)):
            optimizer.learning_rate = rate

    def _follow_weights(self) -> bool:
        """Gives all ranks the weights of rank 0 if any weight differs. Statistics of normalization layers
        differ between ranks, and so may weights that a callback such as EarlyStopping has restored.
        Returns false if a rank was lost; this rank is then in the next epoch."""
        if self._exchange.attempt(self._take_weights):
            return True
        self.settle()
        return False

    def _take_weights(self) -> None:
        arrays = self._arrays(self.model.weights)
        mine = digest(hand_over.packed(arrays)).encode()
        if len(set(self._exchange.gather(mine))) > 1:
            theirs = hand_over.arrays_of_oldest(self._epoch, arrays)
            if self.rank > 0:
                assign(self.model.weights, arrays, theirs)

    def _hand_over(self, epoch: Epoch, state_sources: int) -> None:
        """Copies the state of the first `state_sources` ranks to the others. Statistics of normalization
        layers differ between ranks: those of rank 0 are taken."""
        alike, own = self._arrays(self._alike), self._arrays(self._own)
        theirs = hand_over.state(epoch, state_sources, self._averager.sync, alike)
        theirs += hand_over.arrays_of_oldest(epoch, own)
        if epoch.rank >= state_sources:
            assign([*self._alike, *self._own], [*alike, *own], theirs)


def assign(
    variables: Sequence[Any],
    arrays: Sequence[np.ndarray[Any, Any]],
    found: Sequence[np.ndarray[Any, Any]],
) -> None:
    """Assigns bytes to variables; `arrays` are their values before."""
    for variable, array, value in zip(variables, arrays, found):
        variable.assign(value.copy().view(array.dtype).reshape(array.shape))


def expect_plain(model: keras.Model) -> None:
    """Refuses an unsupported backend or version of Keras, and a model that is not compiled, has a
    distributed optimizer, or has a loss that is not a mean over samples.

    # Errors

    InvalidError that says what is expected.
    """
    arguments.instance("model", model, keras.Model)
    if not HAS_ADAPTERS:
        raise InvalidError(
            f"Keras {keras.__version__} has no data adapters, expected a version that has them (hint: "
            "pip install keras==3.15.1)"
        )
    expected_backend()
    optimizer: Any = getattr(model, "optimizer", None)
    if optimizer is None:
        raise InvalidError(
            f"{model.name} is not compiled, expected model.compile(optimizer, loss) before Elastic"
        )
    if isinstance(optimizer, Distributed):
        raise InvalidError(
            f"the optimizer {vars(optimizer)['name']} is distributed, expected an optimizer of Keras: "
            "Elastic averages the gradients itself"
        )
    for loss in keras.tree.flatten(model.loss):
        reduction = getattr(loss, "reduction", MEANS[0])
        if reduction not in MEANS:
            raise InvalidError(
                f"the loss {loss.name} has reduction={reduction!r}, expected {MEANS[0]!r}: each rank "
                "computes a part of a batch, and counts by its number of samples"
            )


def plain_name(variable: Any) -> str:
    """Returns the name of a variable without numbers of models and layers, such as `sequential_1`, which
    count up in a process."""
    return re.sub(r"_\d+", "", variable.name)


def facts(
    state: Sequence[Any], model: keras.Model, options: dict[str, Any]
) -> list[tuple[str, str]]:
    """Returns the facts that all members must have in common, as pairs of name and value."""
    lines = [
        f"{plain_name(each)} {each.dtype} {list(each.shape)} {each.trainable}" for each in state
    ]
    digest = hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]
    return [
        ("thinwire", __version__),
        ("keras", f"{keras.__version__} on {keras.backend.backend()}"),
        ("model", f"{len(lines)} variables, {digest}"),
        ("optimizer", type(model.optimizer).__name__),
        *((name, str(value)) for name, value in options.items()),
    ]
