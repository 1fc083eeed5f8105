"""One rank of an elastic job with a model of Keras."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from thinwire import arguments
from thinwire._core import Epoch, EpochEntry, InvalidError, Membership, __version__, measure_codecs
from thinwire.arguments import Seconds
from thinwire.elastic import hand_over
from thinwire.elastic.job import Job
from thinwire.elastic.members import Members, check
from thinwire.elastic.stream import Stream

from ..callbacks import built_variables
from ..exchange import expected_backend
from ..optimizer import Distributed
from .callback import ElasticCallback
from .dataset import HAS_ADAPTERS, Dataset, arrays_of
from .exchange import Exchange, Outcome
from .optimizer import make_elastic


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
        compare_every: the number of steps after which ranks compare checksums of their weights and the
            optimizer's state, and log what differs; 0 never does.
        options: those of `distributed` that are about codecs, from `bucket_bytes` to `unchecked`.

    # Errors

    InvalidError if the process belongs to no elastic job, its model or options are not the job's, or the
    model is not compiled.
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
        variables, trained = built_variables(model), model.trainable_variables
        self._alike = [*trained, *model.optimizer.variables]
        self._own = model.non_trainable_weights
        measure_codecs(codec, max(int(np.prod(each.shape)) for each in trained))
        about = facts(variables, model, {"batch": batch, "compare_every": compare_every, **options})
        members = members or Membership(about, coordinator, token, timeout_s=timeout_s)
        self._averager = Exchange(trained, options, members.wants_end)
        super().__init__(batch, members, self._averager, compare_every)
        self._enter()
        self._averager.begins = self._take
        make_elastic(model.optimizer, self._averager)
        model.train_function = None  # if it was compiled before

    @property
    def initial_epoch(self) -> int:
        """The pass over the data in which the job is, for `fit`: a rank that joins in pass 3 begins
        with 3."""
        positions = self._current_positions()
        return positions[0].number if positions else 0

    def dataset(
        self, data: Any, *, seed: int = 1, shuffle: bool = True, drop_last: bool = False
    ) -> Dataset:
        """Batches of `data` for this rank, from the job's current position: (inputs, labels) or
        (inputs, labels, weights), arrays or trees of arrays with a row for each sample.

        Every rank passes equal data and the same seed. `fit` takes the batches as its only data.

        # Errors

        InvalidError for anything but arrays with rows, for data that differ from the job's, and for a
        second dataset.
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
        """Ends a step, and enters the next epoch if it was void. The callback calls it."""
        if self._averager.end() is Outcome.APPLIED:
            self._stepped()
            self._compare()
        self.settle()

    def end(self) -> None:
        """Waits for all ranks at the end of the training, after which the job is over."""
        while not self.meet():
            pass  # a rank that was lost on the way is no longer waited for

    def refuse_ended(self) -> None:
        """Refuses another training after the end.

        # Errors

        InvalidError once all ranks have met at the end of a training.
        """
        if self._is_over:
            raise InvalidError(
                "the job is over, since a training has ended (hint: one fit for all epochs)"
            )

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
        names = (f"{number}: {each.name}" for number, each in enumerate(self._alike))
        return dict(zip(names, self._arrays(self._alike)))

    def _remember(self) -> None:
        """Does nothing, since a void step changes no weight."""

    def _restore(self) -> None:
        """Does nothing, since a void step has changed no weight."""

    def _heard(self, epoch: Epoch) -> dict[str, Any]:
        found: dict[str, Any] = hand_over.plain_of_oldest(epoch, self._notice())
        return found

    def _receive(self, epoch: Epoch, entry: EpochEntry, said: dict[str, Any]) -> None:
        if entry.hand_over:
            self._hand_over(epoch, entry.hand_over)
        if entry.takes_over:
            self._follow_notice(said)

    def _hand_over(self, epoch: Epoch, state_sources: int) -> None:
        """Copies the state of the first `state_sources` ranks to the others. Statistics of normalization
        layers differ between ranks: those of rank 0 are taken."""
        alike, own = self._arrays(self._alike), self._arrays(self._own)
        theirs = hand_over.state(epoch, state_sources, self._averager.sync, alike)
        theirs += hand_over.arrays_of_oldest(epoch, own)
        if epoch.rank >= state_sources:
            variables = [*self._alike, *self._own]
            for variable, array, value in zip(variables, [*alike, *own], theirs):
                variable.assign(value.copy().view(array.dtype).reshape(array.shape))


def expect_plain(model: keras.Model) -> None:
    """Refuses a model that is not compiled, or whose optimizer is distributed.

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


def facts(
    state: Sequence[Any], model: keras.Model, options: dict[str, Any]
) -> list[tuple[str, str]]:
    """Returns the facts that all members must have in common, as pairs of name and value."""
    # Numbers in names count up in a process.
    lines = [f"{each.name} {each.dtype} {list(each.shape)} {each.trainable}" for each in state]
    digest = hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]
    return [
        ("thinwire", __version__),
        ("keras", f"{keras.__version__} on {keras.backend.backend()}"),
        ("model", f"{len(lines)} variables, {digest}"),
        ("optimizer", type(model.optimizer).__name__),
        *((name, str(value)) for name, value in options.items()),
    ]
