"""One rank of an elastic job, from epoch to epoch.

In each step the loader hands out a batch, DDP's hook averages gradients, and `optimizer.step` applies them;
only then the step is done. If a rank is lost before that, the step is void: `optimizer.step` does nothing,
and this rank enters the next epoch before the next batch is handed out. There all ranks take over the
newest state, because one may have applied a step that is void on others. If nobody has applied it, the
ranks that are there do it again.
"""

from __future__ import annotations

import functools
import hashlib
import os
import signal
import threading
import types
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import Dataset

from thinwire._core import (
    Epoch,
    InvalidError,
    Membership,
    PeerError,
    __version__,
    check,
    measure_codecs,
)
from thinwire.torch.elastic import hand_over, tree
from thinwire.torch.elastic.deal import Deal, Place
from thinwire.torch.elastic.exchange import Exchange
from thinwire.torch.elastic.loader import Loader
from thinwire.torch.elastic.rollback import Rollback, Stateful
from thinwire.torch.elastic.single import Single
from thinwire.torch.elastic.stream import Position, Stream
from thinwire.torch.elastic.tree import Tensors
from thinwire.torch.hook import Hook, average


class Members(Protocol):
    """Membership of this process in the job: `thinwire._core.Membership`, or a script of tests."""

    def next(self) -> Epoch | None:
        """Waits for the next epoch; none if this process has left. No step is under way."""

    def wants_end(self) -> bool:
        """Whether the epoch is to end after a step that all agree on."""

    def synced(self, steps: int) -> None:
        """The state was taken over, with so many steps."""

    def applied(self, steps: int) -> None:
        """So many steps were applied."""

    def halted(self) -> None:
        """The epoch has ended for this rank, which applies nothing any more."""

    def leave(self) -> None:
        """This process wants to leave."""

    def complete(self) -> None:
        """All steps are done."""


class Elastic:
    """A model and its optimizer in an elastic job. Making one joins the job and takes over its state.

    Args:
        model: the model as every rank makes it; its state is that of the ranks that are there already, or
            rank 0's.
        optimizer: of this model's parameters. Its `step` does nothing after a void step.
        batch: samples of a step, over all ranks.
        codec: how gradients travel, as in `thinwire.torch.hook`.
        coordinator, token: where the job's coordinator is, as host:port, and the job's secret; by default
            as the launcher says in THINWIRE_COORDINATOR and THINWIRE_TOKEN.
        timeout_s: how long the coordinator and the others are waited for, in seconds.
        members: a membership to use instead of joining a job, for tests.
        find_unused_parameters, gradient_as_bucket_view, bucket_cap_mb: as in DDP.
        options: those of `thinwire.torch.hook` that are about codecs.

    # Errors

    InvalidError if the process belongs to no elastic job, or its model or options are not the job's.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        batch: int,
        codec: str = "auto",
        *,
        coordinator: str | None = None,
        token: str | None = None,
        timeout_s: float = 60.0,
        members: Members | None = None,
        find_unused_parameters: bool = False,
        gradient_as_bucket_view: bool = False,
        bucket_cap_mb: float | None = None,
        **options: Any,
    ) -> None:
        """Joins the job; returns in the first epoch, with the job's state."""
        options = {"codec": codec, "warmup_steps": None, **options}
        check(**options)
        refuse_agent(os.environ)
        self.batch = batch
        self.steps = 0
        """Optimizer steps that the job has made."""
        self._module = model
        self._optimizer = optimizer
        measure_codecs(codec, max((each.numel() for each in model.parameters()), default=0))
        about = facts(model, optimizer, {"batch": batch, **options})
        self._members = members or Membership(about, coordinator, token, timeout_s=timeout_s)
        self._is_waiting = False
        self._followed: dict[str, Stateful] = {}
        self._unclaimed: dict[str, dict[str, Any]] = {}
        self._is_between_steps = True
        self._loaders: list[Loader] = []
        self._positions: list[Position] = []
        self._rollback = Rollback(model, optimizer, self._followed)
        self._exchange = Exchange(model.named_parameters(), options, self._members.wants_end)
        leave_when_terminated(self._terminate)
        self._enter()
        self.model = DistributedDataParallel(
            model,
            process_group=Single(self._exchange.add_used),
            find_unused_parameters=find_unused_parameters,
            gradient_as_bucket_view=gradient_as_bucket_view,
            bucket_cap_mb=bucket_cap_mb,
        )
        self.model.register_comm_hook(ElasticHook(self._exchange), average)
        guard(optimizer, self._may_step, self._stepped)

    @property
    def place(self) -> Place:
        """This rank's place in the epoch."""
        return self._place

    @property
    def rank(self) -> int:
        """This process's index in the epoch, from 0. It changes with the epoch."""
        return self._place.rank

    @property
    def world(self) -> int:
        """How many ranks there are in the epoch."""
        return self._place.world

    def loader(
        self,
        data: Dataset[Any],
        *,
        seed: int = 0,
        shuffle: bool = True,
        drop_last: bool = False,
        **options: Any,
    ) -> Loader:
        """Batches of `data` for this rank, from where the job is; `options` are those of a DataLoader.

        Every rank makes its loaders in the same order, with equal data and seeds.

        # Errors

        InvalidError for data without an order, or a position of the job that these data have not.
        """
        stream = Stream(len(data), self.batch, seed, shuffle, drop_last)  # type: ignore[arg-type]
        loader = Loader(self, data, stream, **options)
        number = len(self._loaders)
        if number < len(self._positions):
            loader.seek(self._positions[number])
        self._loaders.append(loader)
        return loader

    def follow(self, **objects: Stateful) -> None:
        """Keeps schedulers, scalers and the like with the job, each under a name: a rank that joins gets
        their state, and a void step leaves no trace in them.

            elastic.follow(scheduler=scheduler, scaler=scaler)
        """
        for name, each in objects.items():
            self._followed[name] = each
            if name in self._unclaimed:
                each.load_state_dict(self._unclaimed.pop(name))

    def settle(self) -> None:
        """Ends the step before, and enters the next epoch if that step was void or the last one of its
        epoch. The loader calls it before each batch."""
        if self._exchange.void is not None or self._exchange.ends:
            self._members.halted()
            self._enter()

    def compute(self, deal: Deal) -> None:
        """Takes note of the part of a batch that comes next. The loader calls it with each batch."""
        self._exchange.share = deal.weight
        if self._is_between_steps:
            self._rollback.remember()
            self._is_between_steps = False

    def meet(self) -> bool:
        """Waits for all ranks at the end of the training; returns whether all have come. If one was lost
        instead, this rank is in the next epoch, and there may be steps left to do."""
        self.settle()
        try:
            self._exchange.meet()
        except PeerError:
            self._members.halted()
            self._enter()
            return False
        self._members.complete()
        return True

    def state_dict(self) -> dict[str, Any]:
        """Model, optimizer, what is followed, steps and positions: the same on all ranks, so that rank 0
        saves it for all. What codecs owe is not in it."""
        rest, tensors = tree.split(self._alike())
        whole: dict[str, Any] = tree.join(rest, tensors)
        whole.update(self._notice(), buffers=dict(self._module.named_buffers()))
        return whole

    def load_state_dict(self, whole: dict[str, Any]) -> None:
        """Goes on from what `state_dict` returned, between steps; all ranks call it alike."""
        self._take_over(whole, whole["count"])
        load_buffers(self._module, whole["buffers"])

    def _enter(self) -> None:
        """Enters the next epoch, and the one after it if a rank is lost on the way."""
        if not self._is_between_steps:
            self._rollback.restore()
            self._is_between_steps = True
        while True:
            self._is_waiting = True
            epoch = self._members.next()
            self._is_waiting = False
            if epoch is None:
                raise SystemExit(0)
            try:
                return self._begin(epoch)
            except PeerError as error:
                epoch.abort(str(error))
                self._members.halted()

    def _begin(self, epoch: Epoch) -> None:
        """Meets the others of an epoch, and takes over the newest state."""
        said = hand_over.notice(epoch, self._notice())
        self._exchange.start(epoch, said["count"], said["steps"] > self.steps)
        holders = max(epoch.holders, 1)
        found = self._handed(epoch, holders) if holders < epoch.world else {}
        buffers = dict(self._module.named_buffers())
        buffers = hand_over.taken(epoch, 1, hand_over.shapes(buffers), buffers)
        if epoch.rank >= holders:
            self._take_over({**found, **said}, said["count"])
        load_buffers(self._module, buffers)
        self._members.synced(self.steps)
        self._place = Place(epoch.number, epoch.rank, epoch.world)
        for loader in self._loaders:
            loader.seek()

    def _handed(self, epoch: Epoch, holders: int) -> dict[str, Any]:
        """What the first `holders` ranks have alike, on all ranks."""
        rest, mine = tree.split(self._alike())
        form = hand_over.notice(epoch, {"rest": rest, "shapes": hand_over.shapes(mine)})
        found: dict[str, Any] = tree.join(
            form["rest"], hand_over.taken(epoch, holders, form["shapes"], mine)
        )
        return found

    def _notice(self) -> dict[str, Any]:
        """Returns the small part of the state: steps, positions, and the states of followed objects."""
        positions = [each.position for each in self._loaders] or self._positions
        return {
            "steps": self.steps,
            "count": self._exchange.count,
            "positions": [(each.number, each.offset) for each in positions],
            "followed": {name: each.state_dict() for name, each in self._followed.items()},
        }

    def _alike(self) -> dict[str, Any]:
        """Returns the part of the state that is equal on all holders."""
        return {
            "model": dict(self._module.named_parameters()),
            "optimizer": self._optimizer.state_dict(),
            "codecs": self._exchange.shared(),
        }

    @torch.no_grad()
    def _take_over(self, whole: dict[str, Any], count: int) -> None:
        """Takes over the state of others."""
        for name, value in self._module.named_parameters():
            value.copy_(whole["model"][name])
        moments, tensors = tree.split(whole["optimizer"])
        tensors = {path: each.clone() for path, each in tensors.items()}
        self._optimizer.load_state_dict(tree.join(moments, tensors))
        self._exchange.load_shared(whole["codecs"])
        self._exchange.count, self.steps = count, whole["steps"]
        self._positions = [Position(*each) for each in whole["positions"]]
        for loader, position in zip(self._loaders, self._positions):
            loader.seek(position)
        self._unclaimed = dict(whole["followed"])
        self.follow(**self._followed)

    def _terminate(self) -> None:
        """Leaves the job after the step under way; between epochs nobody depends on this process."""
        if self._is_waiting:
            raise SystemExit(0)
        self._members.leave()

    def _may_step(self) -> bool:
        return self._exchange.void is None

    def _stepped(self) -> None:
        """Counts an optimizer step, with which the batches since the last one are done."""
        self.steps += 1
        self._is_between_steps = True
        for loader in self._loaders:
            loader.commit()
        self._members.applied(self.steps)


def facts(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer, options: Mapping[str, Any]
) -> list[tuple[str, str]]:
    """Returns what all members must have in common, as pairs of name and value."""
    parameters = [
        f"{name} {value.dtype} {list(value.shape)} {value.requires_grad}"
        for name, value in model.named_parameters()
    ]
    digest = hashlib.sha256("\n".join(parameters).encode()).hexdigest()[:16]
    return [
        ("thinwire", __version__),
        ("torch", str(torch.__version__)),
        ("model", f"{type(model).__name__} of {len(parameters)} parameters, {digest}"),
        ("optimizer", type(optimizer).__name__),
        *((name, str(value)) for name, value in options.items()),
    ]


def refuse_agent(environment: Mapping[str, str]) -> None:
    """Refuses a launcher that ends all ranks, or starts all anew, when one dies.

    # Errors

    InvalidError for a torchrun of several ranks.
    """
    world = environment.get("WORLD_SIZE", "1")
    if "TORCHELASTIC_RUN_ID" in environment and world != "1":
        raise InvalidError(
            f"torchrun ends all its {world} ranks when one dies (hint: a torchrun --nproc-per-node 1 "
            "--max-restarts N for each rank, with THINWIRE_MEMBER=new, or thinwire run --ranks MIN:MAX)"
        )


def leave_when_terminated(leave: Callable[[], None]) -> None:
    """Calls `leave` on SIGTERM, unless the program has a handler of its own."""
    if (
        threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    ):
        signal.signal(signal.SIGTERM, lambda _number, _frame: leave())


class ElasticHook(Hook):
    """The state of DDP's hook, over the ranks of the present epoch."""

    def __init__(self, exchange: Exchange) -> None:
        super().__init__({"codec": "elastic"}, {}, None, 0.0)
        self._averager = exchange  # type: ignore[assignment]

    def connect(self) -> Any:
        """Returns the averager at once: ranks meet when an epoch begins, not in the hook."""
        return types.SimpleNamespace(group=self._averager)


def guard(
    optimizer: torch.optim.Optimizer, may: Callable[[], bool], stepped: Callable[[], None]
) -> None:
    """Makes `optimizer.step` do nothing unless `may` returns true, and call `stepped` afterwards.

    Schedulers know a method that one of them has wrapped by an attribute, which stays.
    """
    inner = optimizer.step

    @functools.wraps(inner)
    def step(self: torch.optim.Optimizer, *args: Any, **options: Any) -> Any:
        if not may():
            self.zero_grad()
            return None
        result = inner(*args, **options)
        stepped()
        return result

    optimizer.step = types.MethodType(step, optimizer)  # type: ignore[method-assign]


@torch.no_grad()
def load_buffers(model: torch.nn.Module, buffers: Tensors) -> None:
    """Replaces the buffers of a model."""
    for name, buffer in model.named_buffers():
        buffer.copy_(buffers[name])
