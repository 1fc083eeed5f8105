"""One rank of an elastic job with a network, an optimizer and datasets of MindSpore."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import nn

from thinwire._core import Epoch, EpochEntry, InvalidError, Membership, __version__, measure_codecs
from thinwire.arguments import Seconds
from thinwire.elastic import hand_over
from thinwire.elastic.job import Job
from thinwire.elastic.members import Members, check
from thinwire.elastic.stream import Stream

from ..operator import require_cpu
from . import state
from .callback import ElasticCallback
from .dataset import Dataset, refuse_source
from .exchange import Exchange, Outcome
from .optimizer import ElasticOptimizer


class Elastic(Job):
    """A network and its optimizer in an elastic job. Creating one joins the job and takes over its state.

        elastic = thinwire.mindspore.Elastic(network, optimizer, batch=512, codec="auto")
        data = elastic.dataset(source, seed=0)
        model = Model(network, loss, elastic.optimizer)
        model.train(epochs, data, callbacks=[elastic.callback()])

    Args:
        network: the network, created in the same way on every rank; its state is replaced by the
            state of the ranks already in the job, or by rank 0's.
        optimizer: the optimizer of this network's parameters.
        batch: samples of a step, over all ranks.
        codec: how gradients travel, as in `GradExchange`.
        coordinator, token: where the job's coordinator is, as host:port or etcd://HOST:PORT/JOB, and the
            job's secret; by default from the launcher, in THINWIRE_COORDINATOR and THINWIRE_TOKEN.
        timeout_s: how long to wait for the coordinator and the other ranks, in seconds.
        members: a membership to use instead of joining a job, for tests.
        compare_every: the number of steps after which ranks compare checksums of their parameters and the
            optimizer's state, and log what differs; 0 never does.
        options: `seed`, `momentum_correction`, `warmup_steps` and `unchecked`, as in `GradExchange`.

    # Errors

    InvalidError if the process belongs to no elastic job, its network or options are not the job's, or
    MindSpore does not run on the CPU.
    """

    optimizer: nn.Optimizer
    """The optimizer for `Model`; it does nothing in a void step."""

    def __init__(
        self,
        network: nn.Cell,
        optimizer: nn.Optimizer,
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
        options = {"codec": codec, "warmup_steps": 0, **options}
        timeout_s = check(options, batch, compare_every, coordinator, token, timeout_s)
        require_cpu()
        self._state = state.State(network, optimizer)
        self._kept: list[np.ndarray[Any, Any]] = []
        self._random: ms.Tensor | None = None
        measure_codecs(codec, max(each.size for each in optimizer.parameters))
        about = facts(
            network, optimizer, {"batch": batch, "compare_every": compare_every, **options}
        )
        members = members or Membership(about, coordinator, token, timeout_s=timeout_s)
        self._averager = Exchange(list(optimizer.parameters), options, members.wants_end)
        super().__init__(batch, members, self._averager, compare_every)
        self._averager.before_update = self._comparison.wait
        self._enter()
        self.optimizer = ElasticOptimizer(optimizer, self._averager)

    def dataset(
        self,
        source: Any,
        *,
        seed: int = 1,
        shuffle: bool = True,
        drop_last: bool = False,
        collate: Callable[[Sequence[Any]], Any] | None = None,
        workers: int = 0,
    ) -> Dataset:
        """Batches of `source` for this rank, from the job's current position.

        Every rank makes its datasets in the same order, with equal sources and seeds.

        Args:
            source: samples by number, with `__getitem__` and `__len__`, as GeneratorDataset takes them. A
                sample is a tuple with a value for each column.
            collate: makes the columns of a batch, as arrays, from a list of samples; by default the values
                of each column are stacked.
            workers: threads that load ahead and call the source concurrently.

        # Errors

        InvalidError for a source without `__getitem__` or `__len__`, data that differ from the
        job's, or a position of the job that the source does not have.
        """
        refuse_source(source)
        stream = Stream(len(source), self.batch, seed, shuffle, drop_last)
        dataset = Dataset(self, source, stream, collate, workers)
        self._add_source(dataset)
        return dataset

    def callback(self) -> ElasticCallback:
        """The callback for `Model.train`; put it before callbacks that use the number of steps."""
        return ElasticCallback(self)

    def begin_step(self) -> None:
        """Begins a step whose batch has arrived. The callback calls it."""
        self._averager.prepare()

    def end_step(self) -> Outcome:
        """Ends a step, and returns its outcome. The callback calls it."""
        outcome = self._averager.outcome()
        if outcome is Outcome.APPLIED:
            self._stepped()
        return outcome

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
                "the job is over, since a training has ended (hint: one model.train for all epochs)"
            )

    def _entries(self) -> dict[str, Any]:
        alike = self._state.alike
        return dict(zip((each.name for each in alike), state.arrays(alike)))

    def _remember(self) -> None:
        self._kept = [each.copy() for each in state.arrays(self._state.changing)]
        self._random = ms.get_rng_state()

    def _restore(self) -> None:
        state.store(self._state.changing, self._kept)
        ms.set_rng_state(self._random)

    def _heard(self, epoch: Epoch) -> dict[str, Any]:
        mine = {**self._notice(), "random": ms.get_rng_state().asnumpy().tolist()}
        found: dict[str, Any] = hand_over.plain_of_oldest(epoch, mine)
        return found

    def _receive(self, epoch: Epoch, entry: EpochEntry, said: dict[str, Any]) -> None:
        if entry.hand_over:
            self._hand_over(epoch, entry.hand_over)
        if self._state.own:
            own = hand_over.arrays_of_oldest(epoch, state.arrays(self._state.own))
            state.store(self._state.own, own)
        if entry.takes_over:
            self._follow_notice(said)
            ms.set_rng_state(ms.Tensor(said["random"], ms.uint8))

    def _hand_over(self, epoch: Epoch, state_sources: int) -> None:
        """Copies the state that is equal on the first `state_sources` ranks to the others."""
        alike = state.arrays(self._state.alike)
        theirs = hand_over.state(epoch, state_sources, self._averager.sync, alike)
        if epoch.rank >= state_sources:
            state.store(self._state.alike, theirs)


def facts(
    network: nn.Cell, optimizer: nn.Optimizer, options: Mapping[str, Any]
) -> list[tuple[str, str]]:
    """Returns the facts that all members must have in common, as pairs of name and value."""
    parameters = [
        f"{each.name} {each.dtype} {list(each.shape)} {each.requires_grad}"
        for each in network.get_parameters()
    ]
    digest = hashlib.sha256("\n".join(parameters).encode()).hexdigest()[:16]
    return [
        ("thinwire", __version__),
        ("mindspore", ms.__version__),
        ("model", f"{type(network).__name__} of {len(parameters)} parameters, {digest}"),
        ("optimizer", type(optimizer).__name__),
        *((name, str(value)) for name, value in options.items()),
    ]
