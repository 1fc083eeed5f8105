"""One rank of an elastic job, from epoch to epoch.

In each step a batch is handed out, gradients are averaged, and the optimizer applies them; only
then is the step done. If a rank is lost before that, the step is void: the optimizer does nothing,
and this rank enters the next epoch before the next batch is handed out. In the next epoch all ranks
take over the newest state, because one rank may have applied a step that is void on others. If no
rank has applied it, the ranks of the new epoch repeat it.
"""

from __future__ import annotations

import abc
import dataclasses
import logging
import time
from typing import Any, Protocol

from thinwire._core import Epoch, EpochEntry, InvalidError, PeerError
from thinwire.elastic.comparison import Comparison
from thinwire.elastic.deal import Deal, Place
from thinwire.elastic.exchange import Exchange
from thinwire.elastic.members import Members, leave_when_signalled
from thinwire.elastic.stream import Position, Stream

TELL_EVERY_S = 0.5
"""Interval at which a rank sends its figures to the coordinator."""
STEP_ENDED = "%s; step %d ended %.2f s after the one before"
"""Rank 0's log line about a change of the members: a description, the first step of the epoch, and
the seconds that the change took."""
OF_DATA = "data "
"""Prefix of the names of compared entries that belong to the data."""
IDLE_EPOCHS_MAX = 3
"""Largest number of consecutive epochs of the same ranks without a step."""
DIFFERENT = "hint: each rank must change its model, optimizer and followed objects in the same way"
log = logging.getLogger("thinwire")
"""Logger in which rank 0 logs every change of the members."""


class Source(Protocol):
    """Data that a job divides among its ranks."""

    @property
    def stream(self) -> Stream:
        """The batches of all ranks."""

    @property
    def position(self) -> Position:
        """The position up to which optimizer steps have been made."""

    def commit(self) -> None:
        """Notes that an optimizer step was made with all batches handed out."""

    def seek(self, position: Position | None = None) -> None:
        """Goes back to the last optimizer step, or to another position, for this rank's current place."""


class Job(abc.ABC):
    """Steps, place and data of one rank. A framework's subclass adds the state of the model."""

    def __init__(
        self, batch: int, members: Members, exchange: Exchange, compare_every: int
    ) -> None:
        """Creates the rank outside of any epoch: `_enter` waits for the first one. Ranks compare
        their state in the first step of an epoch, and every `compare_every` steps; 0 compares only
        what describes the data, in the first step of an epoch."""
        self.batch = batch
        self._members = members
        self._exchange = exchange
        self._compare_every = compare_every
        self._comparison = Comparison()
        self._compares = False
        self._is_over = False
        self._is_kept = False
        self._sources: list[Source] = []
        self._positions: list[Position] = []
        self._streams: list[tuple[Any, ...]] = []
        self._ended_s = time.monotonic()
        self._change: str | None = None
        self._told = (0, self._ended_s)
        self._idle = Idle()
        leave_when_signalled(self._terminate)

    @property
    def steps(self) -> int:
        """Number of optimizer steps that the job has made."""
        return self._exchange.steps.done

    @property
    def place(self) -> Place:
        """Rank, world size and number of the epoch."""
        return self._place

    @property
    def rank(self) -> int:
        """This process's index in the epoch, from 0. It changes with the epoch."""
        return self._place.rank

    @property
    def world(self) -> int:
        """Number of ranks in the epoch."""
        return self._place.world

    def settle(self) -> None:
        """Ends the previous step, and enters the next epoch if that step was void or the last one
        of its epoch. Sources call it before each batch."""
        due = self._exchange.steps.due
        if due == "step":
            return
        if due == "change":
            self._exchange.part(self._members.successors)
        self._members.halted()
        self._enter()

    def compute(self, deal: Deal) -> None:
        """Records the part of the batch that comes next. Sources call it with each batch."""
        self.resume()
        self._weigh(deal)
        if not self._exchange.steps.is_under_way:
            self._remember()
            self._compare()
            self._exchange.steps.begin_step()

    def keep(self) -> None:
        """Makes `resume` undo the changes that the program makes until then, because the state that
        was taken over already contains them."""
        self.resume()
        self._remember()
        self._is_kept = True

    def resume(self) -> None:
        """Undoes the program's changes since `keep`, if it was called; later changes remain."""
        if self._is_kept:
            self._restore()
            self._is_kept = False

    def meet(self) -> bool:
        """Waits for all ranks at the end of the training; returns whether all have arrived. If one was lost
        instead, this rank is in the next epoch, and there may be steps left to do."""
        self.settle()
        self.resume()
        try:
            self._exchange.meet()
        except PeerError:
            self._members.halted()
            self._enter()
            return False
        self._members.complete()
        self._is_over = True
        return True

    def _weigh(self, deal: Deal) -> None:
        """Gives the gradients of this rank their weight in the step."""
        self._exchange.share = deal.weight

    @abc.abstractmethod
    def _entries(self) -> dict[str, Any]:
        """Returns the values that must be equal on all ranks, for `Comparison.begin`. Call it after
        `_remember`."""

    @abc.abstractmethod
    def _remember(self) -> None:
        """Copies the state that a void step must not change."""

    @abc.abstractmethod
    def _restore(self) -> None:
        """Puts back the state that `_remember` has copied."""

    @abc.abstractmethod
    def _heard(self, epoch: Epoch) -> dict[str, Any]:
        """Returns, on all ranks, what `_notice` returns on rank 0."""

    @abc.abstractmethod
    def _receive(self, epoch: Epoch, entry: EpochEntry, said: dict[str, Any]) -> None:
        """Sends the state to others or takes it over, as `entry` prescribes; `said` is rank 0's
        `_notice`."""

    def _notice(self) -> dict[str, Any]:
        """Returns the small part of the state that does not depend on the framework: steps and
        positions."""
        return {
            "steps": self.steps,
            "count": self._exchange.count,
            "positions": [dataclasses.astuple(each) for each in self._current_positions()],
            "streams": [dataclasses.astuple(each.stream) for each in self._sources]
            or self._streams,
        }

    def _current_positions(self) -> list[Position]:
        """Returns the position in each source; before there are sources, those of the job."""
        return [each.position for each in self._sources] or self._positions

    def _follow_notice(self, said: dict[str, Any]) -> None:
        """Continues from what `_notice` has returned on another rank."""
        self._exchange.count = said["count"]
        self._positions = [Position(*each) for each in said["positions"]]
        self._streams = said["streams"]
        for source, position in zip(self._sources, self._positions):
            source.seek(position)

    def _add_source(self, source: Source) -> None:
        """Adds a source of data, and continues at the job's current position in it.

        # Errors

        InvalidError if the data differ from the job's.
        """
        number = len(self._sources)
        for theirs in self._streams[number : number + 1]:
            source.stream.check_alike(theirs)
        if number < len(self._positions):
            source.seek(self._positions[number])
        self._sources.append(source)

    def _enter(self) -> None:
        """Enters the next epoch, and the one after it if a rank is lost on the way."""
        self.resume()
        if self._exchange.steps.is_under_way:
            self._restore()
        while True:
            epoch = self._members.next()
            if epoch is None:
                raise SystemExit(0)
            self._idle.expect_progress(epoch, self.steps)
            try:
                return self._begin(epoch)
            except PeerError as error:
                epoch.abort(str(error))
                self._members.halted()

    def _begin(self, epoch: Epoch) -> None:
        """Connects to the other ranks of an epoch, and takes over the newest state."""
        self._comparison.drop()
        self._compares = True
        said = self._heard(epoch)
        # Counts of exchanges differ where a step was skipped by a scaler, so all ranks need rank 0's word.
        entry = self._exchange.steps.begin(epoch, said["steps"])
        self._exchange.start(epoch, said["count"], entry)
        self._receive(epoch, entry, said)
        self._exchange.steps.synced(said["steps"])
        self._members.synced(self.steps)
        self._place = Place(epoch.number, epoch.rank, epoch.world)
        self._change = changed(self._place, epoch.state_sources) if epoch.rank == 0 else None
        for source in self._sources:
            source.seek()
        if entry.takes_over and epoch.state_sources > 0:
            self.keep()
        self._told = (self.steps, time.monotonic())

    def _compare(self) -> None:
        """Ends the comparison that is under way, and begins another one if it is time."""
        if self.world == 1:
            return
        self._exchange.attempt(self._end_comparison)
        is_due = self._compare_every > 0 and self.steps % self._compare_every == 0
        if self._compares or is_due:
            # Of other data there is no right result, so that is never left out.
            entries = self._entries() if self._compare_every else {}
            self._comparison.begin(self.steps, {**self._data(), **entries})
        self._compares = False

    def _data(self) -> dict[str, Any]:
        """Returns the settings of each source's stream, which must be equal on all ranks."""
        return {
            f"{OF_DATA}{number}: {name}": value
            for number, source in enumerate(self._sources)
            for name, value in dataclasses.asdict(source.stream).items()
        }

    def _end_comparison(self) -> None:
        differs = self._comparison.end(self._exchange.gather)
        if differs and differs.path.startswith(OF_DATA):
            raise InvalidError(
                f"{differs.text} (hint: every rank must deal the same data in the same order)"
            )
        if differs and self.rank == 0:
            log.warning("%s (%s)", differs.text, DIFFERENT)

    def _may_step(self) -> bool:
        """Returns whether the optimizer may apply the step."""
        self._comparison.wait()
        return not self._exchange.steps.is_void

    def _stepped(self) -> None:
        """Counts an optimizer step, and commits the batches since the previous one."""
        self._exchange.steps.applied()
        for source in self._sources:
            source.commit()
        self._members.applied(self.steps)
        before, self._ended_s = self._ended_s, time.monotonic()
        if self._change:
            log.info(STEP_ENDED, self._change, self.steps, self._ended_s - before)
            self._change = None
        self._tell()

    def _tell(self) -> None:
        """Reports the figures of the last steps to the coordinator, if it is time."""
        steps, since = self._told
        passed = self._ended_s - since
        if passed < TELL_EVERY_S:
            return
        self._told = (self.steps, self._ended_s)
        step_s = passed / (self.steps - steps)
        self._members.tell(self._exchange.sync.live(self.steps, step_s, self.batch / step_s))

    def _terminate(self, number: int) -> None:
        """Leaves the job after the current step, or at once between epochs, when no other rank
        depends on this process."""
        if self._is_over:
            raise SystemExit(128 + number)
        if not self._members.leave():
            raise SystemExit(0)


class Idle:
    """Counter of successive epochs in which the same ranks have made no step although none is lost:
    the ranks wait for each other in different calls."""

    def __init__(self) -> None:
        self._seen = (0, 0)
        self._epochs = 0

    def expect_progress(self, epoch: Epoch, steps: int) -> None:
        """Records the next epoch, after this number of steps.

        # Errors

        InvalidError on all ranks if there were too many epochs without a step.
        """
        seen = (epoch.world, steps)
        is_idle = seen == self._seen and epoch.state_sources == epoch.world
        self._epochs = self._epochs + 1 if is_idle else 0
        self._seen = seen
        if self._epochs >= IDLE_EPOCHS_MAX:
            raise InvalidError(
                f"{epoch.world} ranks have made no step in {self._epochs} epochs and none of them is lost, "
                f"expected a step after step {steps} (hint: every rank must make the same number "
                "of steps and passes, "
                "and call the same functions in the same order)"
            )


def changed(place: Place, state_sources: int) -> str:
    """Describes the beginning of an epoch in words."""
    joined = place.world - state_sources if state_sources else 0
    ranks = f"{place.world} rank{'s' * (place.world > 1)}"
    return f"epoch {place.epoch}: {ranks}" + f", {joined} of them new" * (joined > 0)
