"""Gradients of a list of variables as arrays in host memory, averaged over all ranks in each step.

Frameworks whose graphs call Python (TensorFlow, Keras) share this module: the call per bucket, and
the call at the end. Buckets are addressed by number and begin with the last variables, whose
gradients backward computes first.

At the first call, ranks agree on the shapes and dtypes of the variables and on the kind of each
gradient. A framework knows these when it traces a step. Law: either all ranks raise InvalidError
there, before any part of a gradient is sent, or none.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import numpy

from thinwire import _core, arguments, interrupts
from thinwire.agreement import agree, checksum, from_rank_0, together
from thinwire.group import Group
from thinwire.lifetime import ended, open_groups, raised
from thinwire.meeting import group_or_default

Array = numpy.ndarray[Any, Any]
Kind = Literal["none", "dense", "sparse"]
Target = tuple[int, int, int]
KINDS: tuple[Kind, ...] = ("none", "sparse", "dense")
"""Kinds of gradients. If ranks have different kinds of a gradient, all use the kind that comes last
in this list."""
DTYPES = {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}
"""The dtypes of gradients, by the names that all frameworks give them."""


@dataclasses.dataclass(frozen=True)
class Gradient:
    """The properties of a variable's gradient that are known before it is computed."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    kind: Kind


LOOK_S = 0.2
"""The time for which a step waits before it checks for Ctrl-C, in seconds."""
_alive: weakref.WeakSet[Gradients] = weakref.WeakSet()


class Gradients:
    """The gradients of one list of variables on this rank; a step calls `ready` for each bucket,
    then `finish`.

    codec and options: as in `thinwire.torch.hook`. `group` is by default that of the launcher's
    environment.
    """

    def __init__(self, codec: str, group: Group | None, **options: Any) -> None:
        arguments.options(codec=codec, **options)
        self.group = group_or_default(group)
        arguments.options(codec=codec, **options, world=self.group.world)
        self.options = {"codec": codec, **options}
        # A world of one exchanges nothing without momentum, and leaves a NaN where it is.
        momentum = options.get("momentum_correction")
        self.exchanges = self.group.world > 1 or momentum is not None
        self.synchronizer: _core.Synchronizer | None = None
        self._failure: _core.Error | None = None
        self.interrupted = False
        """Whether Ctrl-C has ended a step in a thread of the framework."""
        self._steps = 0
        """The number of steps since the last call of `count`."""
        self.all: list[Gradient] = []
        self.dense: list[int] = []
        """Indices of the variables with dense gradients, in the core's order: the last ones first."""
        self.buckets: list[list[int]] = []
        """For each bucket, the indices of its gradients in `dense`, in the order in which they
        become ready."""
        self._begun = False
        self._lock = threading.Lock()
        _alive.add(self)
        self._state: tuple[str, Any] | None = None

    def failure(self) -> _core.Error | None:
        """The reason why a step has failed, if one has."""
        return self._failure

    def heard(self) -> None:
        """Notes that the program has received this failure."""

    def count(self) -> int:
        """The number of steps whose averages have arrived since the last call."""
        found, self._steps = self._steps, 0
        return found

    def meet(
        self, describe: Callable[[], list[Gradient]], read: Callable[[], list[Array | None]]
    ) -> None:
        """Agrees with all ranks on the gradients that `describe` returns. The first call is
        collective; later calls only check the gradients.

        The first call uses `read`, which returns the values of the variables, or None for values
        that cannot be read.

        # Errors

        InvalidError on all ranks if variables of any rank cannot be exchanged or differ from rank
        0's. Later calls raise it on this rank only, for gradients that differ from those of the
        first call, and for a closed group.
        """
        expect_success(self)
        if which := ended(self.group):
            raise _core.InvalidError(
                f"the group of rank {self.group.rank} is {which}, expected an open one "
                "(hint: thinwire.init joins again)"
            )
        interrupts.follow()
        interrupts.forget()
        if self.all:
            self._expect_same(describe())
        else:
            self._begin(describe, read)

    def ready(self, bucket: int, *arrays: Array) -> None:
        """Takes the gradients of a bucket, copies them, and sends them at once."""
        with self._noted():
            places = self.buckets[bucket]
            for place, array in zip(places, arrays):
                self._expect(place, array)
            synchronizer = self._started
            with self._lock:
                if not self._begun:
                    synchronizer.begin()
                    self._begun = True
            for place, array in zip(places, arrays):
                whole = numpy.ascontiguousarray(array)
                synchronizer.ready(place, whole.ctypes.data, whole.size)

    def finish(self) -> list[Array]:
        """Waits for the averages of all buckets, and returns them in the order of the variables.

        If a gradient of any rank was not finite, all averages are NaN on all ranks.
        """
        with self._noted():
            self._begun = False
            # The core leaves alone what is zero on all ranks.
            averages = [
                numpy.zeros(self.all[index].shape, self._dtype(index)) for index in self.dense
            ]
            targets = [(place, each.ctypes.data, each.size) for place, each in enumerate(averages)]
            self._wait(targets, averages)
            self._steps += 1
            return averages[::-1]

    def step(self, arrays: Sequence[Array]) -> list[Array]:
        """Makes a whole step in one call: returns the averages of all dense gradients, in the order
        of the variables."""
        backward = list(arrays)[::-1]
        for number, places in enumerate(self.buckets):
            self.ready(number, *(backward[place] for place in places))
        return self.finish()

    def gather(self, index: int, values: Array, rows: Array) -> tuple[Array, Array]:
        """Returns the values and row numbers of all ranks' sparse gradients of a variable, in rank
        order."""
        with self._noted():
            name = self.all[index].name
            found = gathered(self.group, values, name), gathered(self.group, rows, name)
            sparse = [at for at, each in enumerate(self.all) if each.kind == "sparse"]
            # Where all gradients are sparse, the first one stands for the step.
            if not self.dense and index == sparse[0]:
                self._steps += 1
            return found

    @property
    def _started(self) -> _core.Synchronizer:
        """The synchronizer, after the first call."""
        assert self.synchronizer is not None
        return self.synchronizer

    def exchange_plan(self) -> dict[str, Any]:
        """Codec, algorithm and partitions of each exchange; empty before the first step."""
        return {} if self.synchronizer is None else json.loads(self.synchronizer.plan())

    def record(self) -> dict[str, Any]:
        """Breakdown of the last step's time; empty before the first step."""
        return {} if self.synchronizer is None else json.loads(self.synchronizer.record())

    def state(self) -> tuple[str, Any]:
        """Returns the plan and the tensors of this rank, with which a resumed run continues."""
        if self.synchronizer is None:
            raise _core.InvalidError("there is no state before the first step")
        return self.synchronizer.state()

    def load(self, plan: str, tensors: Any) -> None:
        """Continues from a state; a collective call. Before the first step, the state is kept until
        that step."""
        _core.check_state(plan, **self.options)
        if self.synchronizer is None:
            self._state = plan, tensors
        else:
            self.synchronizer.load(plan, tensors)

    def abort(self, reason: str) -> None:
        """Makes every rank fail with `reason`."""
        self.group.abort(reason)

    def _begin(
        self, describe: Callable[[], list[Gradient]], read: Callable[[], list[Array | None]]
    ) -> None:
        """Makes the synchronizer, with all other ranks."""
        core = self.group.core
        found = together(core, lambda: expect_exchangeable(describe()))
        # Names count up in a process, and a rank may have made another model before: rank 0's are taken.
        names = unique(from_rank_0([each.name for each in found], core))
        named = [*names, *(each.name for each in found[len(names) :])]
        found = [dataclasses.replace(each, name=name) for each, name in zip(found, named)]
        agree([f"{each.name} {each.dtype} {list(each.shape)}" for each in found], core)
        expect_same_values(found, read, self.group)
        kinds = merged([each.kind for each in found], self.group)
        found = [dataclasses.replace(each, kind=kind) for each, kind in zip(found, kinds)]
        dense = [index for index, each in enumerate(found) if each.kind == "dense"][::-1]
        if dense:
            members = [found[index] for index in dense]
            options = {"bucket_bytes": bucket_bytes(found), "warmup_steps": None, **self.options}
            self.synchronizer = self._made(members, options)
            self.buckets = self.synchronizer.buckets()
            if self._state is not None:
                self.synchronizer.load(*self._state)
                self._state = None
        self.all, self.dense = found, dense

    def _made(self, dense: list[Gradient], options: dict[str, Any]) -> _core.Synchronizer:
        """The synchronizer of dense gradients, in the core's order."""
        described = [(each.name, list(each.shape), DTYPES[each.dtype], 0) for each in dense]
        return _core.Synchronizer(self.group.core, described, **options)

    def _wait(self, targets: list[Target], owner: Any) -> None:
        """Waits until averages are written to `targets`, whose memory `owner` keeps alive until
        then."""
        over, found = threading.Event(), []

        def done(error: BaseException | None, averaged: bool = False) -> None:
            found.append((error, owner))
            over.set()

        self._started.finish_into(targets, done)
        try:
            while not over.wait(LOOK_S):
                if interrupts.pressed():
                    raise KeyboardInterrupt
        except KeyboardInterrupt as error:
            self.abort(raised(self.group.rank, error))
            if threading.current_thread() is threading.main_thread():
                raise
            # Python's first thread has an interrupt of its own, which a framework may make another error.
            self.interrupted = True
            over.wait()
        failure, _ = found[0]
        if failure is not None:
            raise failure

    def _expect_same(self, found: Sequence[Gradient]) -> None:
        """Refuses gradients that differ from those of the first call. A gradient that is missing
        now counts as zeros."""
        if len(found) != len(self.all):
            raise _core.InvalidError(
                f"{len(found)} gradients, expected {len(self.all)} as in the first step (hint: a "
                "variable that is added later needs a new exchange, or a new optimizer)"
            )
        for now, first in zip(found, self.all):
            if (now.shape, now.dtype) != (first.shape, first.dtype):
                raise _core.InvalidError(
                    f"the gradient of {first.name} is {now.dtype} {list(now.shape)}, expected "
                    f"{first.dtype} {list(first.shape)} as in the first step"
                )
            if KINDS.index(now.kind) > KINDS.index(first.kind):
                raise _core.InvalidError(
                    f"the gradient of {first.name} is {now.kind}, in the first step it was "
                    f"{first.kind} on all ranks (hint: create one exchange for each set of "
                    "variables that are trained together)"
                )

    def _expect(self, place: int, array: Array) -> None:
        """Refuses an array that is not this gradient, because the core does not check addresses."""
        expected = self.all[self.dense[place]]
        if array.shape != expected.shape or array.dtype != self._dtype(self.dense[place]):
            raise _core.InvalidError(
                f"the gradient of {expected.name} is {array.dtype} {list(array.shape)}, expected "
                f"{expected.dtype} {list(expected.shape)}"
            )

    def _dtype(self, index: int) -> numpy.dtype[Any]:
        return dtype_of(self.all[index].dtype)

    @contextlib.contextmanager
    def _noted(self) -> Iterator[None]:
        """Keeps the error of a step, because a framework may replace it by a text of its own."""
        try:
            yield
        except _core.InvalidError as error:
            self._failure = error
            # The others wait for this rank.
            with contextlib.suppress(_core.Error):
                self.abort(f"rank {self.group.rank}: {error}")
            raise
        except _core.Error as error:
            self._failure = error
            raise


@contextlib.contextmanager
def guard(exchanging: Any = None) -> Iterator[None]:
    """Context for training steps: raises the original error of a failed exchange, and reports other
    errors to the peers.

    A graph reports an error of a step as a text of many lines. This context raises Thinwire's own error
    in its place, of one line: a PeerError that names a rank, or an InvalidError. Any other exception is
    raised unchanged, and every rank that waits for this rank raises PeerError with the text of that
    exception. `exchanging` is an exchange of `thinwire.tensorflow` or an optimizer of `thinwire.keras`;
    None stands for all exchanges of this process whose groups are open, such as those of tapes.
    """
    guarded(exchanging)  # an argument that cannot be guarded is refused before the steps
    interrupts.forget()
    try:
        yield
    except BaseException as error:
        found = guarded(exchanging)
        if not isinstance(error, (_core.Error, KeyboardInterrupt)):
            for each in found:
                expect_success(each)
        for group in {each.group for each in found}:
            group.abort(raised(group.rank, error))
        raise
    for each in guarded(exchanging):
        expect_success(each)


def guarded(exchanging: Any) -> list[Gradients]:
    """Returns the gradients of an exchange, or those of all open groups."""
    if exchanging is not None:
        return [exchanging.gradients]
    return [each for each in list(_alive) if each.group in open_groups]


def expect_success(gradients: Gradients) -> None:
    """Raises the error of a step that has failed, if one has; KeyboardInterrupt after Ctrl-C in a graph."""
    if gradients.interrupted or gradients.group in interrupts.ended:
        raise KeyboardInterrupt from None
    failure = gradients.failure()
    if failure is not None:
        gradients.heard()
        raise failure from None


def dtype_of(name: str) -> numpy.dtype[Any]:
    """NumPy's dtype by its name; bfloat16 comes from `ml_dtypes`, which the frameworks install."""
    if name == "bfloat16":
        import ml_dtypes

        return numpy.dtype(ml_dtypes.bfloat16)
    return numpy.dtype(name)


def expect_exchangeable(found: list[Gradient]) -> list[Gradient]:
    """Returns gradients after checking that there is at least one, and that all have supported
    dtypes.

    # Errors

    InvalidError that names the first of them.
    """
    for each in found:
        if each.kind != "none" and each.dtype not in DTYPES:
            raise _core.InvalidError(
                f"the gradient of {each.name} is {each.dtype}, expected {', '.join(DTYPES)} "
                "(hint: leave this gradient out of the exchange)"
            )
    if all(each.kind == "none" for each in found):
        raise _core.InvalidError(
            f"none of {len(found)} variables has a gradient, expected at least one (hint: does the "
            "loss depend on them?)"
        )
    return found


def expect_same_values(
    found: Sequence[Gradient], read: Callable[[], list[Array | None]], group: Group
) -> None:
    """Refuses variables whose values differ from rank 0's, because such ranks would train different
    models; a collective call.

    # Errors

    InvalidError on all ranks.
    """
    if group.world == 1:
        return
    lines = [f"{each.name} of {checksum(values)}" for each, values in zip(found, read())]
    try:
        agree(lines, group.core)
    except _core.InvalidError as error:
        raise _core.InvalidError(
            f"{error} (hint: thinwire.tensorflow.broadcast_variables before the first step, or the "
            "callback thinwire.keras.Broadcast, gives all ranks the variables of rank 0)"
        ) from None


def merged(kinds: Sequence[Kind], group: Group) -> list[Kind]:
    """Returns the kind of each gradient, agreed on by all ranks; a collective call."""
    mine = numpy.array([KINDS.index(kind) for kind in kinds], numpy.uint8)
    theirs = group.all_gather(mine).reshape(group.world, len(mine))
    return [KINDS[number] for number in theirs.max(axis=0)]


def gathered(group: Group, rows: Array, name: str) -> Array:
    """Returns the rows of all ranks in rank order; a collective call. Ranks may have different
    numbers of rows."""
    counts = group.all_gather(numpy.array([len(rows)], numpy.int64))
    padded = numpy.zeros((counts.max(), *rows.shape[1:]), rows.dtype)
    padded[: len(rows)] = rows
    stacked = numpy.empty((group.world, *padded.shape), rows.dtype)
    call = f"all_gather of {rows.dtype}{list(rows.shape[1:])} of {name}"
    group.core.all_gather(padded.ctypes.data, stacked.ctypes.data, padded.nbytes, call=call)
    return numpy.concatenate([each[:count] for each, count in zip(stacked, counts)])


def bucket_bytes(found: Sequence[Gradient]) -> int:
    """Returns the approximate size of a bucket of gradients, in bytes.

    Buckets are so small that the last one, whose exchange does not overlap with backward, is a
    small part of all gradients, and large enough to be worth a message and a call of Python.
    """
    elements = sum(int(numpy.prod(each.shape)) for each in found if each.kind == "dense")
    return min(max(4 * elements // 16, 64 << 10), 4 << 20)


def unique(names: Sequence[str]) -> list[str]:
    """Returns unique names: the position is appended to a name that has occurred before."""
    seen: set[str] = set()
    found = []
    for place, name in enumerate(names):
        found.append(f"{name} ({place})" if name in seen else name)
        seen.add(name)
    return found
