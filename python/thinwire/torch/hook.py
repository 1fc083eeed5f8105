"""A communication hook for DDP, with which Thinwire averages its gradients.

    model = DistributedDataParallel(model)
    thinwire.torch.attach(model, codec="auto")

DDP calls the hook once for each bucket, in the same order on all ranks, while backward continues.
Each bucket is sent at once; the core averages on its own thread, and completes the futures of all
buckets when the last average has arrived: only then is it known whether any rank had a gradient
that is not finite. After such a step all gradients are NaN on all ranks, so that every GradScaler skips it.

Backward waits for the averages in a callback at its end, before DDP would wait. In this callback Ctrl-C
works, an error keeps its type and its text, and two models in one backward do not wait for each other.
Reentrant checkpoints run a backward inside backward, which ends separately. As in DDP, the wait is at the
end of the backward in which the last bucket comes.
"""

# Annotations are no strings here: DDP reads those of its hook.

import contextlib
import functools
import json
import threading
import warnings
import weakref
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch.autograd import Variable
from torch.nn.parallel import DistributedDataParallel

from thinwire import arguments, cuda, deprecated
from thinwire._core import Group, InvalidError, PeerError
from thinwire.agreement import together
from thinwire.arguments import Codecs, Seconds
from thinwire.torch import ddp, hosts, skipped, state
from thinwire.torch import group as groups
from thinwire.torch.alone import Alone
from thinwire.torch.averager import Averager
from thinwire.torch.averages import Averages
from thinwire.torch.layout import dtype, given_names, said
from thinwire.torch.parts import Parts
from thinwire.torch.step import Step, completed

Future = torch.futures.Future
LOOK_S = 1.0
"""The time for which a step waits before it checks whether other ranks wait for this rank in
another call, in seconds."""


def hook(
    codec: Codecs = "auto",
    group: Any = None,
    *,
    bucket_bytes: int = 1 << 20,
    seed: int = 1,
    algorithm: str | None = None,
    error_budget: float | None = None,
    feedback: str = "classic",
    momentum_correction: float | None = None,
    warmup_steps: int | None = None,
    unchecked: bool = False,
    named_parameters: Iterable[tuple[str, torch.Tensor]] = (),
    timeout_s: Seconds | None = None,
    heartbeat_timeout_s: Seconds | None = None,
    device: str | None = None,
    within: Any = None,
) -> tuple["Hook", Callable[..., Future[torch.Tensor]]]:
    """State and function for `DistributedDataParallel.register_comm_hook`. All ranks call it with
    the same arguments.

    `thinwire.torch.attach` takes the same arguments, and gets group and names from the model. A
    hook over ranks other than those of its model is refused at the first bucket.

    Args:
        codec: how gradients travel: "none", "f16", "bf16", "int8", "int4", "int3", one of these three
            as "int8:stochastic", "topk:0.01", "powersgd:4", a file "./mine.codec", or "auto", which
            measures the network and chooses for each bucket; "auto:int8+onebit" chooses only from
            these and raw. f16 and bf16 gradients travel in their own dtype under "none". A mapping
            gives codecs by the names of parameters, {"*.embed.*": "none", "*": "int4"}: the first
            pattern that matches counts, as in `fnmatch`, and every name must match one. A function
            from a parameter's name to a codec works, too. Each bucket then has parameters of a
            single codec, which cannot be "auto".
        group: the ranks: a `thinwire.Group`, a process group of PyTorch, or None for its default one.
        bucket_bytes: DDP's buckets are cut into exchanges of about this many bytes.
        seed: for stochastic rounding and low rank; the same on all ranks.
        algorithm: the algorithm of the exchange; None chooses one.
        error_budget: the largest weighted error (the larger of the relative squared and absolute errors,
            plus twice the excess of energy) that "auto" allows for one encoding of a bucket, measured on
            its gradients; a third of the error counts for a gather. None means 0.02.
        feedback: the kind of error feedback, "classic", "ef21", "average:0.9" or "decay:0.95"; refused
            for a codec that leaves no residual.
        momentum_correction: a factor from 0 to below 1, such as 0.9: each rank applies momentum to
            its own gradients before they are encoded, and clears it where everything was sent. The
            optimizer must then have no momentum: `torch.optim.SGD(..., momentum=0)`, Adam with a
            first beta of 0. Several backward passes of a step are refused, unless all but the
            last are in `model.no_sync()`.
        warmup_steps: the number of first steps that travel raw before the codec begins; skipped steps do
            not count. None takes the recommended number for the codec; "auto" has no warm-up.
        unchecked: train with a codec from a file even if it breaks laws that `thinwire codec check` checks.
        named_parameters: those of the model, for names in messages and states; without them, a
            parameter is called by its position.
        timeout_s: how long a rank waits for the others, in seconds or as a timedelta; None means
            1,800, or the timeout of a `thinwire.Group`, which cannot be overridden.
        heartbeat_timeout_s: the seconds of silence after which a rank counts as lost, at most
            `timeout_s`; None takes THINWIRE_HEARTBEAT_TIMEOUT_S, otherwise 10, or the value of a
            `thinwire.Group`.
        device: None encodes gradients on their own device, CPU or GPU; "host" copies gradients from
            a GPU to host memory and encodes them there.
        within: "host", or the process group of this host's ranks: these ranks average gradients
            over their own process group, of the same backend (NCCL, gloo), and each rank exchanges
            a part of the average with the ranks at the same place on the other hosts. Each rank
            keeps residuals for its part only. None exchanges between all ranks.
            `thinwire.torch.hosts` says which ranks share a host. With one rank on each host it
            changes nothing; on a single host no codec is used.

    # Errors

    InvalidError immediately for an argument of the wrong type, an unknown codec or algorithm, or a
    number out of range. The hook, and so backward, raises InvalidError for gradients that are not
    f32, f16 or bf16 (or complex), or not on the CPU or a GPU, and PeerError if a rank is lost, has
    raised or has another model; all ranks fail. InvalidError on all ranks for hosts of unequal
    numbers of ranks, if the process groups `within` do not partition the ranks, or if a function as
    `codec` raises on another rank.
    """
    given = given_names(named_parameters)
    options = {
        "codec": codec if callable(codec) else arguments.codec(codec),
        "bucket_bytes": bucket_bytes,
        "seed": seed,
        "algorithm": algorithm,
        "error_budget": error_budget,
        "feedback": feedback,
        "momentum_correction": momentum_correction,
        "warmup_steps": warmup_steps,
        "unchecked": unchecked,
    }
    timeouts = {"timeout_s": timeout_s, "heartbeat_timeout_s": heartbeat_timeout_s}
    checked = {**options, "group": group, **timeouts, "device": device, "within": within}
    made = Hook(options, given, group, *check(checked), device, within)
    if group is not None or (dist.is_available() and dist.is_initialized()):
        made.connect()
    return made, average


def check(given: Mapping[str, Any]) -> tuple[float | None, float | None]:
    """Refuses wrong arguments of `hook` before this rank meets others. `given` has the arguments by
    name. Returns the timeouts in seconds."""
    options = dict(given)
    given_names(options.pop("named_parameters", ()))
    cuda.check(options.pop("device", None))
    hosts.check(options.pop("within", None), options.get("group"), options.get("algorithm"))
    names = ("group", "timeout_s", "heartbeat_timeout_s")
    timeouts_s = groups.check(*(options.pop(name, None) for name in names))
    # A function of names is asked once all ranks have met, since it may raise on one of them alone.
    if not callable(options.get("codec")):
        arguments.options(**{**options, "codec": arguments.codec(options.get("codec"))})
    return timeouts_s


def average(state: "Hook", bucket: dist.GradBucket) -> Future[torch.Tensor]:
    """The function that DDP calls for each bucket; returns a future of the bucket's average over
    all ranks."""
    if isinstance(bucket, tuple):  # a gradient and its parameter, from DDP's reducer in Python
        raise InvalidError(ddp.PYTHON_REDUCER)
    return state.take(bucket)


class Hook:
    """The state of the hook of one model. Created by `attach` or `hook`.

    A copy, including a pickled one, has only the options. At its first use, it connects over the
    default process group.
    """

    def __init__(
        self,
        options: dict[str, Any],
        given: dict[int, str],
        group: Any,
        timeout_s: float | None = None,
        heartbeat_timeout_s: float | None = None,
        device: str | None = None,
        within: Any = None,
    ) -> None:
        """`given` has names of parameters by their identity."""
        self._options = options
        self._given = given
        self._group = group
        self._timeouts_s = timeout_s, heartbeat_timeout_s
        self._device = device
        self._within = within
        self._host: hosts.Host | None = None
        self._parts: Parts | None = None
        self._connection: groups.Connection | None = None
        self._averager: Averager | Alone | None = None
        self._thread: ThreadPoolExecutor | None = None
        self._step = Step()
        self._step.complete = True
        self._steps = 0
        self._model: Callable[[], DistributedDataParallel | None] | None = None
        self._home = threading.get_ident()
        corrects = options.get("momentum_correction") is not None
        self._averages = Averages(self._refuse) if corrects else None
        self._warned = False
        self._staged = False

    def __getstate__(self) -> dict[str, Any]:
        """Returns the options, from which a copy is made."""
        is_default = self._group is None or self._group is dist.group.WORLD
        group = None if is_default else groups.Lost()
        return {
            "options": {**self._options, "codec": self._codec()},
            "group": group,
            "timeouts_s": self._timeouts_s,
            "device": self._device,
            "within": self._within if self._within in (None, hosts.HOST) else groups.Lost(),
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Makes a copy, which is not connected."""
        rest = *state["timeouts_s"], state["device"], state.get("within")
        Hook.__init__(self, state["options"], {}, state["group"], *rest)

    def __repr__(self) -> str:
        """The codec, and the rank if the hook is connected."""
        group = self._connection and self._connection.group
        where = f"rank {group.rank} of {group.world}" if group else "not connected"
        return f"thinwire.torch.Hook(codec={self._options['codec']!r}, {where})"

    def connect(self) -> groups.Connection:
        """Forms the group, unless it exists. A collective call, which is made at the first bucket
        at the latest."""
        if self._connection is None:
            connection = groups.of(self._group, *self._timeouts_s)
            group = connection.group
            host = hosts.find(self._within, connection, self._group, self._timeouts_s[0])
            peers = group.world if host is None else len(host.peers)
            if callable(self._options["codec"]):
                # The user's function may raise on one rank alone.
                self._options = together(group, lambda: self._among(peers))
            else:
                arguments.options(**self._options, world=peers)
            if peers > 1 or self._options["momentum_correction"] is not None:
                self._averager = Averager(group, self._options, self._given, host)
            else:
                alone = group if host is None else Group.join(rank=0, world=1)
                self._averager = Alone(alone, self._options, self._given)
            self._host, self._parts = host, None if host is None else Parts(host)
            self._connection = connection
        return self._connection

    def _codec(self) -> Any:
        """Returns the codec in the core's form. A codec function is called with the name of each
        parameter."""
        return arguments.codec(self._options["codec"], self._given.values())

    def _among(self, peers: int) -> dict[str, Any]:
        """Returns the options in the core's form for this number of ranks; refuses options that the
        core would refuse."""
        options = {**self._options, "codec": self._codec()}
        arguments.options(**options, world=peers)
        return options

    @property
    def group(self) -> Group:
        """The ranks; the first use is a collective call."""
        return self.connect().group

    @property
    def _made(self) -> Averager | Alone:
        """The averager of a hook that is connected."""
        assert self._averager is not None
        return self._averager

    def follow(self, model: DistributedDataParallel) -> None:
        """Records the model of this hook, which then need not be searched for."""
        self._model = weakref.ref(model)

    def take(self, bucket: dist.GradBucket) -> Future[torch.Tensor]:
        """Takes a bucket of the current step and returns the future of its average."""
        self.connect()
        try:
            self._look_up()
            if self._comes_late(bucket):
                return completed(self._average_now(self._weighed(bucket, self._weight())))
            index, step = bucket.index(), self._step_of(bucket.index())
            buffer = self._weighed(bucket, step.weight)
            first = next(iter(bucket.parameters()), None)
            dtype(buffer, "" if first is None else f" of {said(first, self._given)}")
            future = step.add(bucket.parameters(), buffer, bucket.is_last())
        except InvalidError as error:
            self._refuse(error)
        if self._averages is not None:
            self._averages.add(bucket.parameters())
        self._wait_at_end(step, index)
        if step.is_elsewhere:
            self._thread = self._thread or ThreadPoolExecutor(1, "thinwire-staging")
            self._thread.submit(self._send, step, index)
        else:
            self._send(step, index)
        return future

    def exchange_plan(self) -> dict[str, Any]:
        """The plan of each bucket: codec, algorithm, partitions; empty before the first step.

        On rank 0 `line` says what `auto` has chosen and why.
        """
        sync = self._averager and self._averager.sync
        return json.loads(sync.plan()) if sync else {}

    plan = deprecated.method("plan", exchange_plan)

    def record(self) -> dict[str, Any]:
        """The breakdown of the last step's time; empty before the first step.

        On rank 0 `planning` is the last planning of `auto`.
        """
        sync = self._averager and self._averager.sync
        return json.loads(sync.record()) if sync else {}

    def state_dict(self) -> dict[str, Any]:
        """Returns residuals, momenta, factors and plan of this rank, with which a resumed run continues."""
        group = self.connect().group
        return state.of_rank(group, self._made.saved())

    def state_of_all(self) -> dict[str, Any]:
        """The states of all ranks on rank 0, none on the others; a collective call between steps.

        # Errors

        PeerError on all ranks if one of them is in the middle of a step, because that step would wait for
        the ranks that are in this call.
        """
        return state.on_rank_0(self.group, self.state_dict(), self._steps)

    def load_state_dict(self, entries: dict[str, Any]) -> None:
        """Loads what `state_dict` returned on this rank; a collective call.

        If a different number of ranks saved the state, `entries` are those of all of them.

        # Errors

        InvalidError on all ranks, if the state of any rank is missing, belongs to another rank, is
        from a different step than those of other ranks, or has a different codec, feedback or
        momentum correction. A state of a different model is refused in the next step at the latest.
        """
        group = self.connect().group
        part = None if self._host is None else hosts.part_of(self._host)
        saved = state.for_ranks(group, entries, self._options, part)
        self._made.load(saved)

    def _step_of(self, index: int) -> Step:
        """Returns the step to which bucket `index` belongs: a new step for bucket 0, and otherwise
        the current one."""
        if index == 0 and self._step.complete:
            self._step = Step(self._weight(), self._device == cuda.HOST, self._parts)
            self._steps += 1
        elif index != len(self._step.flats):
            raise missing(len(self._step.flats), f"bucket {index} came instead")
        return self._step

    def _send(self, step: Step, index: int) -> None:
        """Sends a bucket; with the last bucket, ends the step."""
        if step.error is not None:
            return
        try:
            step.arrived(index)
            step.given.append(self._made.give(index, step.flats[index]))
            if step.complete and index + 1 == len(step.flats):
                done = functools.partial(self._ended, step)
                self._made.finish(step.flats, step.given, done)
        except Exception as error:
            self._made.abort(str(error))
            self._ended(step, error)
            raise

    def _ended(
        self, step: Step, error: BaseException | None = None, averaged: bool = False
    ) -> None:
        """Ends a step; the core calls it, from a thread of its own, when the step is over.

        A step that was skipped is over, too: its gradients are NaN. After an error, this function
        ends the group, because other ranks of the host may wait for this rank.
        """
        step.averaged = averaged
        step.end(error)
        if step.error is not None and self._host is not None:
            self.group.abort(str(step.error))

    def _refuse(self, error: InvalidError) -> NoReturn:
        """Makes all ranks fail with an error, and raises it."""
        self.connect().group.abort(str(error))
        raise error

    def _look_up(self) -> None:
        """Finds the model at the first bucket, and refuses one whose gradients this hook would
        average wrongly."""
        if self._model is None:
            found = ddp.models_of(self)
            self._model = weakref.ref(found[-1]) if found else lambda: None
            for model in found:
                ddp.refuse(model, self._group)

    def _weight(self) -> float:
        """Returns the factor of this step's gradients with which their mean over all ranks equals
        DDP's result.

        Within `join`, DDP may divide by the number of ranks that still have inputs. The ranks
        without inputs call the hook outside of backward.
        """
        model, group = self._model and self._model(), self.connect().group
        if model is None or not ddp.divides_by_active(model) or group.world == 1:
            return 1.0
        active = torch.tensor([float(in_backward())])
        group.all_reduce(active.data_ptr(), 1, "f32")
        return group.world / max(active.item(), 1.0)

    def _weighed(self, bucket: dist.GradBucket, weight: float) -> torch.Tensor:
        """Multiplies the gradients of a bucket in place, and returns them."""
        buffer = bucket.buffer()
        return buffer if weight == 1.0 else buffer.mul_(weight)

    def _wait_at_end(self, step: Step, index: int) -> None:
        """Makes the end of the running backward wait for the averages, if it may be the backward in
        which the last bucket comes.

        The first bucket and the last one may come in different backward passes, one inside the other.
        """
        if in_backward() and (index == 0 or step.complete):
            Variable._execution_engine.queue_callback(lambda: self._wait(step))

    def _wait(self, step: Step) -> None:
        """Waits for the averages. Before the last bucket has come, only checks that it can still
        come."""
        if not step.complete:
            return self._expect_more(step)
        while not step.over.wait(LOOK_S):
            self._expect_no_saving()
        if step.error is not None:
            raise step.error
        if not step.averaged and not self._warned:
            sync = self._made.sync
            fault = sync.fault() if sync is not None else None
            if fault is not None and self._host is not None:
                # The core has seen the average of the host's ranks.
                fault = fault.replace("on this rank", "on this host")
            self._warned = fault is not None
            if fault is not None:
                skipped.warn(fault)
        if step.on_device and not self._staged:
            sync = self._made.sync
            staged = sync.staged() if sync is not None else None
            self._staged = bool(staged)
            if staged:
                warnings.warn(staged, stacklevel=2)

    def _expect_no_saving(self) -> None:
        """Ends the group if another rank gathers the states of all ranks instead of making this step."""
        steps = self._steps - 1
        with contextlib.suppress(PeerError):  # the step ends with it, too
            rank = self.group.gatherer(state.gathering(steps))
            if rank is not None:
                self.group.abort(
                    f"calls differ: rank {rank} gathers {state.gathering(steps)}, rank "
                    f"{self.group.rank} is in step {self._steps} (hint: every rank saves a "
                    "checkpoint, not one alone)"
                )

    def _expect_more(self, step: Step) -> None:
        """Raises if backward ends before the last bucket has come.

        Does nothing if this may be the end of a backward inside another one: a thread of the engine
        cannot distinguish these. DDP itself then refuses the next forward.
        """
        is_inner = torch._C._current_autograd_node() is not None
        if not is_inner and threading.get_ident() == self._home:
            self._refuse(missing(len(step.flats), "backward ended"))

    def _comes_late(self, bucket: dist.GradBucket) -> bool:
        """Whether this is DDP's first step with a static graph and several buckets.

        DDP then calls the hook after backward, with number 0 for every bucket and none marked as the
        last.
        """
        return (
            self._made.sync is None
            and bucket.index() == 0
            and not bucket.is_last()
            and in_backward()
            and torch._C._current_autograd_node() is None
        )

    def _average_now(self, buffer: torch.Tensor) -> torch.Tensor:
        """Averages a single bucket without a codec, and waits for the result.

        # Errors

        InvalidError with momentum correction, which would miss this step's gradients.
        """
        if self._averages is not None:
            raise InvalidError(
                "momentum_correction cannot be used with static_graph=True if parameters have "
                "several dtypes: DDP then gives the buckets of the first step out of order (hint: "
                "static_graph=False)"
            )
        host = buffer.cpu()
        address, elements = host.data_ptr(), host.numel()
        self.connect().group.all_reduce(address, elements, dtype(host), average=True)
        return buffer if host is buffer else buffer.copy_(host)


def in_backward() -> bool:
    """Whether a backward is under way in this thread."""
    return torch._C._current_graph_task_id() != -1


def missing(expected: int, instead: str) -> InvalidError:
    """The error text for a missing bucket."""
    return InvalidError(
        f"DDP gave no bucket {expected}, {instead} (hint: DistributedDataParallel(..., "
        "find_unused_parameters=True) if some parameters get no gradient)"
    )
