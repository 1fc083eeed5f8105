"""One rank of an elastic job with a model, an optimizer and loaders of PyTorch.

In each step the loader hands out a batch, DDP's hook averages gradients, and `optimizer.step` applies them;
only then is the step done. If a rank is lost before that, the step is void: `optimizer.step` does nothing,
and this rank enters the next epoch before the next batch is handed out. In the next epoch all ranks
take over the newest state, because one rank may have applied a step that is void on others. If no
rank has applied it, the ranks of the new epoch repeat it.
"""

from __future__ import annotations

import functools
import hashlib
import types
from collections.abc import Mapping
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import Dataset

from thinwire import cuda
from thinwire._core import Epoch, EpochEntry, Membership, __version__, measure_codecs
from thinwire.arguments import Seconds
from thinwire.elastic.deal import Deal
from thinwire.elastic.job import Job
from thinwire.elastic.members import Members, check
from thinwire.elastic.stream import Stream
from thinwire.torch import device as devices
from thinwire.torch.attach import register
from thinwire.torch.ddp import unwrapped
from thinwire.torch.elastic import hand_over, tree
from thinwire.torch.elastic.carried import carried, found
from thinwire.torch.elastic.exchange import Exchange
from thinwire.torch.elastic.guard import guard
from thinwire.torch.elastic.loader import Loader
from thinwire.torch.elastic.rollback import (
    Rollback,
    Stateful,
    random_to_hand_over,
    take_random,
)
from thinwire.torch.elastic.single import Single
from thinwire.torch.elastic.tree import Tensors
from thinwire.torch.elastic.weights import Weights
from thinwire.torch.hook import Hook, average, hook
from thinwire.torch.layout import plain, raw_bytes
from thinwire.torch.signature import options_of


class Elastic(Job):
    """A model and its optimizer in an elastic job. Creating one joins the job and takes over its state.

    Args:
        model: the model, created in the same way on every rank; its state becomes that of the ranks
            already in the job, or rank 0's.
        optimizer: the optimizer of this model's parameters. Its `step` does nothing after a void step.
        batch: samples of a step, over all ranks.
        codec: how gradients travel, as in `thinwire.torch.hook`.
        coordinator, token: where the job's coordinator is, as host:port or etcd://HOST:PORT/JOB, and the
            job's secret; by default from the launcher, in THINWIRE_COORDINATOR and THINWIRE_TOKEN.
        timeout_s: how long to wait for the coordinator and the other ranks, in seconds.
        members: a membership to use instead of joining a job, for tests.
        compare_every: the number of steps after which ranks compare checksums of their parameters,
            optimizers and followed objects, and log what differs; 0 never does.
        find_unused_parameters, gradient_as_bucket_view, bucket_cap_mb: as in DDP.
        options: those of `thinwire.torch.hook` that are about codecs, from `bucket_bytes` to
            `unchecked`, and `device`.

    # Errors

    InvalidError if the process belongs to no elastic job, or its model or options are not the job's.
    """

    @options_of(hook, ("group", "named_parameters", "heartbeat_timeout_s", "within"))
    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        batch: int,
        codec: str = "auto",
        *,
        coordinator: str | None = None,
        token: str | None = None,
        timeout_s: Seconds = 60.0,
        members: Members | None = None,
        compare_every: int = 100,
        find_unused_parameters: bool = False,
        gradient_as_bucket_view: bool = False,
        bucket_cap_mb: float | None = None,
        **options: Any,
    ) -> None:
        """Joins the job; returns in the first epoch, with the job's state."""
        options = {"codec": codec, "warmup_steps": None, **options}
        device = options.pop("device", None)
        cuda.check(device)
        timeout_s = check(options, batch, compare_every, coordinator, token, timeout_s)
        self._module = model
        self._optimizer = optimizer
        self._followed: dict[str, Stateful] = {}
        self._unclaimed: dict[str, dict[str, Any]] = {}
        self._rollback = Rollback(model, optimizer, self._followed)
        used = None if device else next(filter(None, map(devices.of, model.parameters())), None)
        core = None if used is None else used.core
        measure_codecs(codec, max((each.numel() for each in model.parameters()), default=0), core)
        about = facts(model, optimizer, {"batch": batch, "compare_every": compare_every, **options})
        members = members or Membership(about, coordinator, token, timeout_s=timeout_s)
        self._averager = Exchange(
            plain(model.named_parameters()).items(), {**options, "device": core}, members.wants_end
        )
        self._weights = Weights(model.parameters())
        super().__init__(batch, members, self._averager, compare_every)
        self._enter()
        self.model = DistributedDataParallel(
            model,
            process_group=Single(self._averager.add_used),
            find_unused_parameters=find_unused_parameters,
            gradient_as_bucket_view=gradient_as_bucket_view,
            bucket_cap_mb=bucket_cap_mb,
        )
        register(self.model, ElasticHook(self._averager, options, device), average)
        guard(optimizer, self._may_step, self._stepped)

    def loader(
        self,
        data: Dataset[Any],
        *,
        seed: int = 1,
        shuffle: bool = True,
        drop_last: bool = False,
        **options: Any,
    ) -> Loader:
        """Batches of `data` for this rank, from the job's current position; `options` are those of
        a DataLoader.

        Every rank makes its loaders in the same order, with equal data and seeds.

        # Errors

        InvalidError for a dataset that is not map-style, or data or options that are not the job's.
        """
        stream = Stream(len(data), self.batch, seed, shuffle, drop_last)  # type: ignore[arg-type]
        loader = Loader(self, data, stream, **options)
        self._add_source(loader)
        return loader

    def follow(self, **objects: Stateful) -> None:
        """Keeps schedulers, scalers and similar objects with the job, each under a name: a rank
        that joins gets their state, and a void step does not change them.

            elastic.follow(scheduler=scheduler, scaler=scaler)

        # Errors

        InvalidError if a state has anything but numbers, text, tensors, NumPy values and containers
        of these. If such a value is added later, the next batch raises the error.
        """
        for name, each in objects.items():
            carried(each.state_dict(), name)
            self._followed[name] = each
            if name in self._unclaimed:
                each.load_state_dict(found(self._unclaimed.pop(name)))
                self._rollback.add(name)

    def state_dict(self) -> dict[str, Any]:
        """Model, optimizer, followed objects, steps and positions. It is the same on all ranks, so
        rank 0 can save it for all. The residuals of codecs are not in it."""
        if self._is_kept:
            self.keep()
        rest, tensors = tree.split(self._alike())
        whole: dict[str, Any] = tree.join(rest, tensors)
        whole.update(self._notice(), buffers=plain(self._module.named_buffers()))
        return whole

    def load_state_dict(self, whole: dict[str, Any]) -> None:
        """Continues from what `state_dict` returned, between steps; a collective call."""
        self._take_over({**whole, "streams": []})
        load_buffers(self._module, plain(whole["buffers"].items()))
        self._exchange.steps.synced(whole["steps"])
        self._members.applied(self.steps)

    def _weigh(self, deal: Deal) -> None:
        self._exchange.share = 1 / deal.place.world
        self._weights.factor = deal.weight * deal.place.world

    def _entries(self) -> dict[str, Any]:
        moments = self._optimizer.state_dict()
        # What may be the cause comes before what follows from it.
        whole = {
            **self._rollback.states,
            "optimizer": {"param_groups": moments.pop("param_groups")},
        }
        whole["optimizer"].update(moments)
        whole["model"] = plain(self._module.named_parameters())
        return {
            path: functools.partial(raw_bytes, each) if isinstance(each, torch.Tensor) else each
            for path, each in tree.leaves(whole)
        }

    def _remember(self) -> None:
        self._rollback.remember()

    def _restore(self) -> None:
        self._rollback.restore()
        self._optimizer.zero_grad()  # averages of a step that is not finished

    def _heard(self, epoch: Epoch) -> dict[str, Any]:
        random = random_to_hand_over(self._module)
        return hand_over.notice(epoch, {**self._notice(), "random": random})

    def _receive(self, epoch: Epoch, entry: EpochEntry, said: dict[str, Any]) -> None:
        handed = self._handed(epoch, entry.hand_over) if entry.hand_over else {}
        buffers = plain(self._module.named_buffers())
        buffers = hand_over.taken(epoch, 1, hand_over.shapes(buffers), buffers)
        if entry.takes_over:
            self._take_over({**handed, **said})
            take_random(said["random"], self._module)
        load_buffers(self._module, buffers)

    def _handed(self, epoch: Epoch, state_sources: int) -> dict[str, Any]:
        """Returns, on all ranks, the part of the state that is equal on the first `state_sources`
        ranks."""
        rest, mine = tree.split(self._alike())
        form = hand_over.notice(epoch, {"rest": rest, "shapes": hand_over.shapes(mine)})
        whole: dict[str, Any] = tree.join(
            form["rest"], hand_over.taken(epoch, state_sources, form["shapes"], mine)
        )
        return whole

    def _notice(self) -> dict[str, Any]:
        followed = {name: carried(each.state_dict(), name) for name, each in self._followed.items()}
        return {**super()._notice(), "followed": followed}

    def _alike(self) -> dict[str, Any]:
        """Returns the part of the state that is equal on all state sources."""
        return {
            "model": plain(self._module.named_parameters()),
            "optimizer": carried(self._optimizer.state_dict(), "optimizer"),
            "codecs": self._averager.shared(),
        }

    @torch.no_grad()
    def _take_over(self, whole: dict[str, Any]) -> None:
        """Takes over the state of the state sources."""
        theirs = plain(whole["model"].items())
        for name, value in plain(self._module.named_parameters()).items():
            value.copy_(theirs[name])
        moments, tensors = tree.split(found(whole["optimizer"]))
        tensors = {path: each.clone() for path, each in tensors.items()}
        self._optimizer.load_state_dict(tree.join(moments, tensors))
        self._averager.load_shared(whole["codecs"])
        self._follow_notice(whole)
        self._unclaimed = dict(whole["followed"])
        self.follow(**self._followed)


def facts(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer, options: Mapping[str, Any]
) -> list[tuple[str, str]]:
    """Returns the facts that all members must have in common, as pairs of name and value."""
    parameters = [
        f"{name} {value.dtype} {list(value.shape)} {value.requires_grad}"
        for name, value in plain(model.named_parameters()).items()
    ]
    digest = hashlib.sha256("\n".join(parameters).encode()).hexdigest()[:16]
    return [
        ("thinwire", __version__),
        ("torch", str(torch.__version__)),
        ("model", f"{type(unwrapped(model)).__name__} of {len(parameters)} parameters, {digest}"),
        ("optimizer", type(optimizer).__name__),
        *((name, str(value)) for name, value in options.items()),
    ]


class ElasticHook(Hook):
    """The state of DDP's hook, for the ranks of the current epoch."""

    def __init__(self, exchange: Exchange, options: dict[str, Any], device: str | None) -> None:
        super().__init__({**options, "codec": "elastic"}, {}, None, 0.0, device=device)
        self._averager = exchange  # type: ignore[assignment]

    def connect(self) -> Any:
        """Returns the averager at once: ranks connect when an epoch begins, not in the hook."""
        return types.SimpleNamespace(group=self._averager)

    def _expect_no_saving(self) -> None:
        """Does nothing: every rank has the whole state, so no rank gathers the states of others."""


@torch.no_grad()
def load_buffers(model: torch.nn.Module, buffers: Tensors) -> None:
    """Replaces the buffers of a model."""
    for name, buffer in plain(model.named_buffers()).items():
        buffer.copy_(buffers[name])
