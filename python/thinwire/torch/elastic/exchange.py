"""The averager of an elastic job: gradients of DDP's buckets, averaged over the ranks of an epoch.

A void step ends like any other, but with gradients of zero.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

from thinwire._core import InvalidError, PeerError
from thinwire.elastic import exchange
from thinwire.elastic.exchange import Described
from thinwire.torch import state
from thinwire.torch.layout import Flat, Target
from thinwire.torch.marks import Marks
from thinwire.torch.reduction import NATIVE

Done = Callable[[BaseException | None, bool], None]


class Exchange(exchange.Exchange):
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
        super().__init__(described(found), options, wants_end)
        self._marks = Marks()
        self._marks.watch(each for _, each in found)

    def give(self, index: int, flat: Flat) -> bool:
        """Takes bucket `index` of a step, in order."""
        return self.attempt(lambda: self._give(index, flat))

    def finish(self, flats: Sequence[Flat], given: Sequence[bool], done: Done) -> None:
        """Averages all buckets of a step in place, then calls `done` from another thread."""

        def ended(error: BaseException | None, averaged: bool = False) -> None:
            if isinstance(error, PeerError):
                self.steps.lost()
                error = None
            if self.steps.is_void:
                # No GradScaler takes zeros for an overflow.
                for flat in flats:
                    flat.zero()
            else:
                self.complete()
            done(error, averaged)

        self._marks.clear()
        targets: list[Target] = [self.flag]
        for flat in flats:
            targets += self._places(flat)
        if not self.attempt(lambda: self.sync.finish_into(targets, ended)):
            ended(None)

    def shared(self) -> dict[str, Any]:
        """The part of the codecs' state that is equal on all ranks."""
        plan, raw = self.sync.shared_state()
        return {"plan": plan, "tensors": state.unpacked(raw)}

    def load_shared(self, found: Mapping[str, Any]) -> None:
        """Loads, between steps, what `shared` returned on another rank."""
        self.sync.load_shared(found["plan"], state.packed(found["tensors"]))

    def add_used(self, used: torch.Tensor) -> None:
        """Adds up over all ranks how often each parameter was used, in place."""
        mine = used.cpu()

        def gather() -> None:
            rows = self.gather(mine.numpy().tobytes())
            counts = [torch.frombuffer(bytearray(row), dtype=mine.dtype) for row in rows]
            used.copy_(torch.stack(counts).sum(0).view_as(used))

        self.attempt(gather)

    def _give(self, index: int, flat: Flat) -> None:
        if index == 0:
            self.begin()
        places = self._places(flat)
        self.sync.absent([places[place][0] for place in self._marks.without(flat.parameters)])
        for place in places:
            self.sync.ready(*place)

    def _places(self, flat: Flat) -> list[Target]:
        """Returns the place of each gradient of a bucket."""
        places, start = [], 0
        for parameter in flat.parameters:
            number = self._numbers.get(id(parameter))
            if number is None:
                raise InvalidError(
                    f"a parameter of shape {list(parameter.shape)} did not exist when the job began"
                )
            places.append(flat.target(number, start, parameter.numel()))
            start += parameter.numel()
        return places


def described(parameters: Sequence[tuple[str, torch.Tensor]]) -> list[Described]:
    """Name, shape, dtype and bucket of each parameter, for the core.

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
    return [
        (name, list(each.shape), NATIVE[each.dtype], kinds.index(each.dtype))
        for name, each in parameters
    ]
