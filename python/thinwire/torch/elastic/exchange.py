"""The averager of an elastic job: gradients of DDP's buckets, averaged over the ranks of an epoch.

A step in which a rank is lost ends as any other does, but with gradients of zero, and is void, which
optimizer and loader see. The core is given all parameters before the first step, the last ones of the model
first. It does not depend on DDP's buckets, which change after the first step and so differ for joiners.

One more number is summed with the gradients: above zero if a rank wants the epoch to end after this step.
All ranks read the same sum, so they agree on the step without another message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

from thinwire._core import Epoch, InvalidError, PeerError, Synchronizer
from thinwire.torch import state
from thinwire.torch.layout import Flat, dtype
from thinwire.torch.reduction import NATIVE

Done = Callable[[BaseException | None, bool], None]
FLAG = "thinwire.ends"
"""Name of the number that ends an epoch, in the place of a parameter's."""


class Exchange:
    """Averages the gradients of `parameters`, pairs of name and tensor; `options` are a Synchronizer's."""

    def __init__(
        self,
        parameters: Iterable[tuple[str, torch.Tensor]],
        options: Mapping[str, Any],
        wants_end: Callable[[], bool],
    ) -> None:
        """`wants_end` says whether this rank wants the epoch to end."""
        found = [(name, each) for name, each in parameters if each.requires_grad][::-1]
        self._numbers = {id(each): number for number, (_, each) in enumerate(found)}
        self._described = described(found)
        self._options = options
        self._wants_end = wants_end
        self._flag = torch.zeros(1)
        self._epoch: Epoch | None = None
        self.sync: Synchronizer | None = None
        self.share = 1.0
        """Part of the global batch that this rank computes."""
        self.count = 0
        """Exchanges that were completed; the same on all ranks."""
        self.void: PeerError | None = None
        """Why the step is void, if it is."""
        self.ends = False
        """Whether all ranks know that the epoch ends after this step."""

    def start(self, epoch: Epoch, count: int, applied: bool) -> None:
        """Goes on in an epoch; all its ranks call it. `applied` says that another rank has applied a
        step that is void on this one."""
        if self.sync is None:
            self.sync = Synchronizer(epoch, self._described, **self._options)
        else:
            self.sync.reform(epoch, applied)
        self._epoch, self.count = epoch, count
        self.void, self.ends = None, False

    def give(self, index: int, flat: Flat) -> bool:
        """Takes bucket `index` of a step, in order."""
        dtype(flat.gradients)
        return self._attempt(lambda: self._give(index, flat))

    def finish(self, flats: Sequence[Flat], given: Sequence[bool], done: Done) -> None:
        """Averages all buckets of a step in place, then calls `done` from another thread."""

        def ended(error: BaseException | None, averaged: bool = False) -> None:
            if isinstance(error, PeerError):
                self.void, error = error, None
            if self.void is None:
                self.count += 1
                self.ends = bool(self._flag > 0)
            else:
                blank(flats)
            done(error, averaged)

        targets = [(len(self._numbers), self._flag.data_ptr(), 1)]
        for flat in flats:
            targets += self._places(flat)
        if not self._attempt(lambda: self._sync().finish_into(targets, ended)):
            ended(None)

    def shared(self) -> dict[str, Any]:
        """The part of the codecs' state that is equal on all ranks."""
        if self.sync is None:
            return {}
        plan, raw = self.sync.shared_state()
        return {"plan": plan, "tensors": state.unpacked(raw)}

    def load_shared(self, found: Mapping[str, Any]) -> None:
        """Loads what `shared` has returned on another rank, between steps."""
        if self.sync is not None and found:
            self.sync.load_shared(found["plan"], state.packed(found["tensors"]))

    def add_used(self, used: torch.Tensor) -> None:
        """Adds up over all ranks how often each parameter was used, in place."""
        mine = used.cpu()

        def gather() -> None:
            rows = self._epoch.gather(mine.numpy().tobytes()) if self._epoch else []
            counts = [torch.frombuffer(bytearray(row), dtype=mine.dtype) for row in rows]
            used.copy_(torch.stack(counts).sum(0).view_as(used))

        self._attempt(gather)

    def meet(self) -> None:
        """Waits for all ranks of the epoch, between steps.

        # Errors

        PeerError if one is lost.
        """
        if self._epoch is not None:
            self._epoch.gather(b"")

    def abort(self, reason: str) -> None:
        """Makes all ranks fail with `reason`."""
        self._sync().abort(reason)

    def _give(self, index: int, flat: Flat) -> None:
        sync = self._sync()
        if index == 0:
            self._flag.fill_(float(self._wants_end()))
            sync.begin(self.count)
            sync.set_share(self.share)
            sync.ready(len(self._numbers), self._flag.data_ptr(), 1)
        for place in self._places(flat):
            sync.ready(*place)

    def _attempt(self, action: Callable[[], None]) -> bool:
        """Calls `action` unless the step is void; returns whether it is not."""
        if self.void is None:
            try:
                action()
            except PeerError as error:
                self.void = error
        return self.void is None

    def _places(self, flat: Flat) -> list[tuple[int, int, int]]:
        """Number, address and elements of each gradient in a bucket."""
        places, address = [], flat.gradients.data_ptr()
        for parameter in flat.parameters:
            number = self._numbers.get(id(parameter))
            if number is None:
                raise InvalidError(
                    f"a parameter of shape {list(parameter.shape)} was not there when the job began"
                )
            places.append((number, address, parameter.numel()))
            address += parameter.numel() * flat.gradients.element_size()
        return places

    def _sync(self) -> Synchronizer:
        if self.sync is None:
            raise InvalidError("no epoch has begun")
        return self.sync


def described(parameters: Sequence[tuple[str, torch.Tensor]]) -> list[Any]:
    """Name, shape, dtype and bucket of each parameter, and of the flag, for the core.

    # Errors

    InvalidError for a dtype that the core does not know, or if there are no parameters.
    """
    kinds = list(NATIVE)
    for name, each in parameters:
        if each.dtype not in NATIVE:
            known = ", ".join(map(str, kinds))
            raise InvalidError(f"{name} is {each.dtype}, expected one of {known}")
    if not parameters:
        raise InvalidError("the model has no parameter that requires a gradient")
    found = [
        (name, list(each.shape), NATIVE[each.dtype], kinds.index(each.dtype))
        for name, each in parameters
    ]
    return [*found, (FLAG, [1], "f32", len(kinds))]


def blank(flats: Sequence[Flat]) -> None:
    """Sets gradients to zero, which no GradScaler takes for an overflow."""
    with torch.no_grad():
        for flat in flats:
            flat.gradients.zero_()
