"""Training that communicates once in many steps: LocalSGD and DiLoCo.

Each rank trains its own copy of the model. Every `every` steps the ranks exchange how far each has come
from the parameters that all had in common, the pseudo-gradient, through a synchronizer with error
feedback; an outer optimizer of PyTorch makes a step with the average, from which all ranks continue.
The common parameters are f32. A model in f16 or bf16 begins each round with them rounded, and progress is
measured from the rounded ones: a round without training has a pseudo-gradient of zero.

    outer = thinwire.torch.DiLoCo(model, every=100)
    for batch in data:
        train_step(batch)
        outer.step()

Law: after a round all ranks have bit-identical parameters and buffers. LocalSGD is the same with an
outer optimizer that takes the average itself ("Local SGD Converges Fast and Communicates Little");
DiLoCo's is SGD with Nesterov momentum ("DiLoCo: Distributed Low-Communication Training", section 2).
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

import torch

from thinwire import arguments
from thinwire._core import Group, InvalidError, Synchronizer
from thinwire.agreement import agree, together
from thinwire.arguments import Seconds, shown, whole
from thinwire.torch import group as groups
from thinwire.torch import state
from thinwire.torch.layout import plain
from thinwire.torch.replica import (
    begin_alike,
    broadcast,
    digest,
    every_steps,
    expect_no_more,
    trainable,
)
from thinwire.torch.signature import options_of
from thinwire.torch.state import Saved

Outer = Callable[[list[torch.Tensor]], torch.optim.Optimizer]
NESTEROV: Outer = functools.partial(torch.optim.SGD, lr=0.7, momentum=0.9, nesterov=True)
AVERAGE: Outer = functools.partial(torch.optim.SGD, lr=1.0)


class DiLoCo:
    """Trains copies apart, and every `every` steps moves what they have in common by an outer optimizer.

    Making one is a collective call: all ranks begin with rank 0's parameters and buffers.

    Args:
        model: the model that the inner optimizer trains; its parameters f32, f16 or bf16.
        every: steps between two rounds.
        outer: makes the outer optimizer of the parameters that it is given; they are f32.
        codec: how pseudo-gradients travel, as in `thinwire.torch.hook`.
        group: the ranks, as in `thinwire.torch.hook`.
        bucket_bytes, seed, algorithm, unchecked, timeout_s, heartbeat_timeout_s: as in
            `thinwire.torch.hook`.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        every: int = 100,
        outer: Outer = NESTEROV,
        codec: str = "auto",
        group: Any = None,
        *,
        bucket_bytes: int = 1 << 20,
        seed: int = 1,
        algorithm: str | None = None,
        unchecked: bool = False,
        timeout_s: Seconds | None = None,
        heartbeat_timeout_s: Seconds | None = None,
    ) -> None:
        """Forms the group and gives all ranks the model of rank 0."""
        options: dict[str, Any] = {
            "bucket_bytes": bucket_bytes,
            "seed": seed,
            "algorithm": algorithm,
            "unchecked": unchecked,
        }
        arguments.options(codec=codec, **options)
        self.every = every_steps(every)
        if not callable(outer):
            raise InvalidError(
                f"outer is {shown(outer)}, expected a function that makes an optimizer"
            )
        self._model = model
        self._parameters = trainable(model)
        self._connection = groups.of(group, timeout_s, heartbeat_timeout_s)
        mode = type(self).__name__
        begin_alike(self._connection.group, model, mode=mode, every=every, codec=codec, **options)
        self._common = {
            name: value.detach().float().cpu().clone() for name, value in self._parameters.items()
        }
        self._outer = outer(list(self._common.values()))
        arguments.instance("what outer makes", self._outer, torch.optim.Optimizer)
        self._steps = 0
        self._codec = codec
        self._sync: Synchronizer | None = None
        if self._connection.group.world > 1:
            shapes = [(name, list(each.shape), "f32", 0) for name, each in self._common.items()]
            self._sync = Synchronizer(self._connection.group, shapes, codec=codec, **options)

    @property
    def group(self) -> Group:
        """The ranks."""
        return self._connection.group

    def step(self) -> bool:
        """Counts a step of the inner optimizer. True if a round ended with it: all ranks are alike.

        If some rank's parameters are not finite, all ranks go back to what they had in common.

        # Errors

        InvalidError if a parameter is trained now that was frozen when ranks began alike.
        """
        self._steps += 1
        if self._steps % self.every != 0:
            return False
        expect_no_more(self._connection.group, self._model, self._parameters.values())
        if self._exchange():
            self._outer.step()
        else:
            warnings.warn(
                "a rank diverged: all go back to the parameters of the last round", stacklevel=2
            )
        self._outer.zero_grad()
        self._take_up()
        return True

    def state_dict(self) -> dict[str, Any]:
        """Steps, common parameters, outer optimizer, and this rank's residuals.

        The model is not in it. Between rounds each rank has a model of its own: save it on every rank,
        or save at the end of a round.
        """
        saved = None
        if self._sync is not None:
            saved = Saved(*state.read(self._sync), [list(self._common)])
        group = self._connection.group
        return {
            "steps": self._steps,
            "common": dict(self._common),
            "outer": (self._outer.state_dict(),),
            **state.of_rank(group, saved),
        }

    @torch.no_grad()
    def load_state_dict(self, entries: dict[str, Any]) -> None:
        """Continues from what `state_dict` returned on this rank, or on all ranks of another number; a
        collective call.

        # Errors

        InvalidError on all ranks, before anything has changed, if on any it is of other ranks, codecs or
        steps, or of another model, or if ranks have others.
        """
        group = self._connection.group

        def read() -> tuple[Saved | None, dict[str, torch.Tensor]]:
            saved = state.for_training(group, entries, {"codec": self._codec})
            return saved, self._expect(entries)

        saved, common = together(group, read)
        alike = {
            "steps": entries["steps"],
            "common": digest(common),
            "outer": digest(entries["outer"]),
        }
        alike["residuals"] = "none" if saved is None else "some"
        agree([f"{name} {value} in the state" for name, value in alike.items()], group)
        if self._sync is not None and saved is not None:
            state.write(self._sync, saved.plan, saved.tensors)
        for name, value in self._common.items():
            value.copy_(common[name])
        self._outer.load_state_dict(*entries["outer"])
        self._steps = entries["steps"]

    def _expect(self, entries: dict[str, Any]) -> dict[str, torch.Tensor]:
        """The common parameters in a state, by plain name; refuses those of another model."""
        for name in ("steps", "common", "outer"):
            if name not in entries:
                raise InvalidError(f"the state has no {name}, expected what state_dict gave")
        whole("the state has steps", entries["steps"])
        common = plain(entries["common"].items())
        for name in sorted(common.keys() ^ self._common.keys()):
            raise InvalidError(f"the state is of another model: {name} is in one of them only")
        for name, value in self._common.items():
            if common[name].shape != value.shape:
                found, expected = list(common[name].shape), list(value.shape)
                raise InvalidError(f"the state has {name} of shape {found}, the model {expected}")
            if not common[name].isfinite().all():
                raise InvalidError(f"{name} in the state is not finite")
        try:
            (outer,) = entries["outer"]
            found = [len(group["params"]) for group in outer["param_groups"]]
        except (KeyError, TypeError, ValueError) as error:
            raise InvalidError(
                "the state has no outer optimizer, expected what state_dict gave"
            ) from error
        mine = [len(group["params"]) for group in self._outer.param_groups]
        if found != mine:
            raise InvalidError(
                f"the outer optimizer has groups of {mine} parameters, the state {found}"
            )
        return common

    @torch.no_grad()
    def _exchange(self) -> bool:
        """Averages how far all ranks have come, into the gradients of the outer optimizer."""
        for name, value in self._parameters.items():
            common = self._common[name]
            # What the model was given: otherwise rounding would count as progress, in every round.
            given = common.to(value.dtype).float()
            common.grad = given - value.detach().cpu().float()
        found = (common.grad for common in self._common.values())
        gradients = [gradient for gradient in found if gradient is not None]
        if self._sync is None:
            return all(bool(gradient.isfinite().all()) for gradient in gradients)
        addresses = [gradient.data_ptr() for gradient in gradients]
        return self._sync.exchange(addresses, addresses)

    @torch.no_grad()
    def _take_up(self) -> None:
        """Continues from the common parameters, and from rank 0's buffers."""
        for name, value in self._parameters.items():
            value.copy_(self._common[name])
        broadcast(self._connection.group, list(self._model.buffers()))


class LocalSGD(DiLoCo):
    """Trains copies apart, and every `every` steps gives all ranks the average of their parameters.

    Arguments and methods are those of DiLoCo, the outer optimizer excepted.
    """

    @options_of(DiLoCo.__init__, ("outer",))
    def __init__(
        self,
        model: torch.nn.Module,
        every: int = 8,
        codec: str = "auto",
        group: Any = None,
        **options: Any,
    ) -> None:
        """Forms the group and gives all ranks the model of rank 0."""
        super().__init__(model, every, AVERAGE, codec, group, **options)
