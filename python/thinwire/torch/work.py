"""Work in flight: the objects that c10d returns for a collective, and the queue that keeps
collectives in order."""

from __future__ import annotations

import collections
import functools
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch._C._distributed_c10d import Work as BaseWork

from thinwire._core import PeerError
from thinwire.torch.device import Resident
from thinwire.torch.staging import Staging

Task = Callable[[], None]
CALLBACK_THREADS_MAX = 64
ABORT_S = 2.0
"""The longest time that ending a group may take, in seconds."""


class Work(BaseWork):
    """One collective or message under way; `wait` returns when its tensors hold the result."""

    def __init__(
        self,
        name: str,
        result: list[Any],
        staging: Staging | Resident,
        timeout_s: float,
        group: Any,
        source: int = -1,
    ) -> None:
        """`result` is the value of the future; `group` is ended after `timeout_s` seconds."""
        super().__init__()
        self.name, self.outcome, self.staging, self.source = name, result, staging, source
        self.timeout_s, self.group = timeout_s, group
        self.finished = threading.Event()
        self.error: BaseException | None = None
        self.guard = threading.Lock()
        self.future: Any = None
        self.raised: Any = None

    def finish(self, error: BaseException | None = None) -> None:
        """Delivers the result, or the error, to everybody who waits; called once, from any thread."""
        if error is None:
            try:
                self.staging.deliver()
            except Exception as failure:
                error = failure
        with self.guard:
            self.error = error
            self.finished.set()
            future = self.future
        if future is not None:
            self.group.callbacks.run(functools.partial(self.complete, future))

    def complete(self, future: Any) -> None:
        """Completes the future, on the streams on which results go back."""
        self.staging.follow()
        future.set_result([] if self.error else self.outcome)

    def wait(self, timeout: Any = None) -> bool:
        """Waits for the result. If that takes longer than the timeout, ends the group.

        # Errors

        PeerError if a rank is lost or the timeout has passed, InvalidError if the tensors do not
        fit.
        """
        limit_s = seconds(timeout) or self.timeout_s
        if not self.finished.wait(limit_s):
            reason = f"{self.name} timed out after {limit_s:g} s (hint: is a rank stuck or late?)"
            self.group.abort(reason)
            # After this nobody touches the tensors, and the others know the reason.
            self.finished.wait(ABORT_S)
            raise PeerError(reason)
        if self.error is not None:
            raise self.error
        self.staging.follow()
        return True

    def get_future(self) -> Any:
        """A future of the result's tensors; it fails with a RuntimeError that quotes Thinwire's error."""
        with self.guard:
            first = self.future is None
            if first:
                devices: list[Any] = sorted(self.staging.devices, key=str)
                self.future = torch.futures.Future(devices=devices)
                self.raised = self.future.then(self.opened)
            finished = self.finished.is_set()
        if first and finished:
            self.complete(self.future)
        return self.raised

    def opened(self, _future: Any) -> list[Any]:
        """Returns the result, or raises Thinwire's error. It is a callback, because only a callback
        can give a C++ future an error."""
        if self.error is not None:
            raise self.error
        return self.outcome

    def is_completed(self) -> bool:
        """Whether there is a result or an error."""
        return self.finished.is_set()

    def is_success(self) -> bool:
        """Whether there is a result."""
        return self.finished.is_set() and self.error is None

    def exception(self) -> BaseException | None:
        """The error, if it ended with one."""
        return self.error

    def result(self) -> list[Any]:
        """The tensors."""
        return self.outcome

    def synchronize(self) -> None:
        """Makes the current stream wait for the result. Blocks the caller until the exchange has
        finished."""
        self.wait()

    def block_current_stream(self) -> None:
        """The same."""
        self.wait()

    def source_rank(self) -> int:
        """The rank from which a message comes."""
        return self.source

    _source_rank = source_rank


def done(name: str, group: Any) -> Work:
    """A finished `Work` without tensors."""
    work = Work(name, [], Staging(), group.timeout_s, group)
    work.finish()
    return work


class Together(Work):
    """Several works combined into one."""

    def __init__(self, works: list[Work], group: Any) -> None:
        """Finishes when all of `works`, which belong to one group, have finished."""
        longest = max((work.timeout_s for work in works), default=0.0)
        result = [tensor for work in works for tensor in work.outcome]
        super().__init__("coalesced work", result, Staging(), longest, group)
        self.works, self.left = works, len(works)
        for work in works:
            work.get_future().add_done_callback(self.one_finished)
        if not works:
            self.finish()

    def one_finished(self, _future: Any) -> None:
        """Counts finished works; after the last one, finishes this `Work`."""
        with self.guard:
            self.left -= 1
            last = self.left == 0
        if last:
            errors = [work.error for work in self.works if work.error is not None]
            self.finish(errors[0] if errors else None)

    def wait(self, timeout: Any = None) -> bool:
        """Waits for all of them."""
        return all(work.wait(timeout) for work in self.works)


class Callbacks:
    """Completes futures on threads of its own, not on the thread on which the core reports
    completion.

    A future's callback may wait for another collective, as in PyTorch's PowerSGD hook, so there is
    one thread for each such wait.
    """

    def __init__(self) -> None:
        """Creates it without threads."""
        self.threads: ThreadPoolExecutor | None = None

    def run(self, complete: Task) -> None:
        """Runs `complete` in a thread, or here when the interpreter ends."""
        try:
            if self.threads is None:
                self.threads = ThreadPoolExecutor(CALLBACK_THREADS_MAX, "thinwire-callback")
            self.threads.submit(complete)
        except RuntimeError:
            complete()


class Queue:
    """Runs tasks one after the other, in the order in which they were submitted. Tasks must not
    raise.

    A thread exists only while there are tasks. It is not a daemon, so the interpreter does not exit
    while a task runs.
    """

    def __init__(self) -> None:
        """Creates an empty queue."""
        self.lock = threading.Lock()
        self.waiting: collections.deque[Task] = collections.deque()
        self.busy = False

    def begin(self, start: Task) -> bool:
        """Calls `start`, which must not block, if the queue is empty, and returns whether it did."""
        with self.lock:
            if not self.busy:
                start()
            return not self.busy

    def submit(self, task: Task, here: bool) -> None:
        """Runs `task` after all earlier tasks: in this thread, if it is the first and `here` is true."""
        with self.lock:
            if self.busy:
                self.waiting.append(task)
                return
            self.busy = True
        if here:
            task()
            following = self.next()
            if following is not None:
                self.spawn(following)
        else:
            self.spawn(task)

    def spawn(self, task: Task) -> None:
        """Runs `task`, and all tasks that wait by then, in a new thread."""
        threading.Thread(target=self.drain, args=(task,), name="thinwire").start()

    def drain(self, task: Task) -> None:
        """Runs `task` and everything that waits."""
        following: Task | None = task
        while following is not None:
            following()
            following = self.next()

    def next(self) -> Task | None:
        """Removes and returns the task that has waited longest, or None."""
        with self.lock:
            self.busy = bool(self.waiting)
            return self.waiting.popleft() if self.waiting else None


def seconds(timeout: Any) -> float:
    """Returns a timedelta in seconds; 0 if it is None, or c10d's marker for an unset timeout."""
    return max(0.0, timeout.total_seconds()) if timeout is not None else 0.0
