"""The averager: a synchronizer of the core that follows the buckets of DDP.

The core needs parameters and buckets before the first step, but DDP passes its buckets one by one,
and forms new ones after the first step. So the first step's buckets are collected, and the
synchronizer is created from them. A step with other buckets is exchanged under the old layout,
parameter by parameter; the next step begins with the new one. Residuals belong to parameters, and
move to the new buckets with them.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from thinwire._core import Group, Synchronizer
from thinwire.torch import state
from thinwire.torch.device import Device
from thinwire.torch.hosts import Host, part_of
from thinwire.torch.layout import (
    Flat,
    Layout,
    Target,
    memory_order,
    names,
    of_memory,
    real_shape,
    same_model,
    to_memory,
)
from thinwire.torch.marks import Marks
from thinwire.torch.parts import part_shape
from thinwire.torch.state import Saved, Tensors

Done = Callable[[BaseException | None, bool], None]
ELEMENTWISE = ("residual", "shift", "mean", "momentum")
"""Kinds of tensors in a state that have one number for each element of a parameter."""


class Averager:
    """Averages the buckets of each step over the ranks of `group`; with a `host`, parts of them over peers.

    `options` are those of the core's Synchronizer. `given` has the names of parameters, by the
    identity of each parameter.
    """

    def __init__(
        self,
        group: Group,
        options: Mapping[str, Any],
        given: Mapping[int, str],
        host: Host | None = None,
    ) -> None:
        self.sync: Synchronizer | None = None
        self._group = group
        # A model may have parameters without gradients.
        self._options = {**options, "named": list(given.values())}
        self._part: torch.Tensor | None = None
        self._shape = real_shape
        if host is not None:
            self._options |= {"peers": host.peers, "beside": host.ranks}
            self._part = part_of(host)
            self._shape = functools.partial(part_shape, ranks=len(host.ranks))
        self._given = given
        self._names: dict[int, str] = {}
        self._layout = Layout((), ())
        self._following: Layout | None = None
        self._saved: Saved | None = None
        self._resumed = False
        self._begun = False
        self._marks = Marks()

    def give(self, index: int, flat: Flat) -> bool:
        """Takes bucket `index` of a step if it comes in the expected order; otherwise `finish` takes it."""
        if index == 0:
            self._begun = self._begin(flat)
        if not self._begun or not self._layout.has(index, flat.parameters):
            return False
        self._layout.expect(index, flat.dtype)
        self._leave(index, flat)
        return True

    def finish(self, flats: Sequence[Flat], given: Sequence[bool], done: Done) -> None:
        """Averages all buckets of a step in place, then calls `done` from another thread.

        `given` says which of them `give` took. A collective call if it is the first.
        """
        layout = Layout.of(flats)
        if self.sync is None:
            self._start(layout, next((flat.device for flat in flats if flat.device), None))
        if not self._begun:
            self._made.begin()
        if self._layout.same(layout):
            self._finish_buckets(flats, given, done)
        else:
            self._finish_parameters(flats, given, done)
            self._following = None if self._resumed else layout
        self._resumed = False
        self._marks.clear()

    @property
    def _made(self) -> Synchronizer:
        """The synchronizer, after the first step's backward."""
        assert self.sync is not None
        return self.sync

    def saved(self) -> Saved | None:
        """The state for a restart; None before the first step."""
        if self.sync is None:
            return self._saved
        following = None if self._following is None else self._following.named(self._names)
        plan, tensors = state.read(self.sync)
        tensors = self._reordered(tensors, of_memory)
        if self._part is not None:
            tensors[state.PART] = self._part.clone()
        return Saved(plan, tensors, self._layout.named(self._names), following)

    def load(self, saved: Saved | None) -> None:
        """Continues from `saved`, between steps; a collective call if steps have been made."""
        self._saved = saved
        if self.sync is not None and saved is not None:
            self._following = self._layout.arranged(saved.buckets, self._names)
            self._follow()
            self._resume(saved)

    def abort(self, reason: str) -> None:
        """Makes all ranks fail with `reason`."""
        (self.sync or self._group).abort(reason)

    def _begin(self, first: Flat) -> bool:
        """Begins a step at its first bucket if the bucket is the same as in the layout; returns
        whether it is."""
        self._follow()
        if self.sync is None or not self._layout.has(0, first.parameters):
            return False
        self.sync.begin()
        return True

    def _follow(self) -> None:
        """Takes over the layout that the last step had."""
        if self._following is not None and not self._layout.same(self._following):
            self._made.relayout(self._following.described(self._names, self._shape))
            self._layout = self._following
        self._following = None

    def _start(self, layout: Layout, device: Device | None) -> None:
        """Makes the synchronizer at the end of the first step's backward. If a state was loaded, it
        gets the buckets of the state."""
        self._names = names(layout, self._given)
        saved, self._saved = self._saved, None
        self._layout = layout.arranged(saved.buckets, self._names) if saved else layout
        described = self._layout.described(self._names, self._shape)
        core = None if device is None else device.core
        self.sync = Synchronizer(self._group, described, **self._options, device=core)
        if self.sync.keeps():
            self._marks.watch(self._layout.parameters)
        if saved:
            self._resume(saved)

    def _resume(self, saved: Saved) -> None:
        """Continues from a state. The next step uses the state's layout, because DDP may not have
        made its new buckets yet."""
        tensors = {key: values for key, values in saved.tensors.items() if key != state.PART}
        state.write(self._made, saved.plan, self._reordered(tensors, to_memory))
        if saved.following is not None:
            self._following = self._layout.arranged(saved.following, self._names)
            self._follow()
        self._resumed, self._saved = True, None

    def _reordered(self, tensors: Tensors, reorder: Callable[..., torch.Tensor]) -> Tensors:
        """Returns the tensors of a state with elements in the order of dimensions, or in the order
        of memory, which may differ between ranks.

        Parts stay in the order of memory.
        """
        if self._part is not None:
            return dict(tensors)
        named = {self._names[id(each)]: each for each in self._layout.parameters}
        orders = {name: memory_order(each) for name, each in named.items()}
        found = dict(tensors)
        for key, values in tensors.items():
            kind, _, name = key.partition(".")
            order = orders.get(name) if kind in ELEMENTWISE else None
            if order is not None and list(values.shape) == real_shape(named[name]):
                found[key] = reorder(values, order)
        return found

    def _finish_buckets(self, flats: Sequence[Flat], given: Sequence[bool], done: Done) -> None:
        """Ends a step whose buckets are those of the layout."""
        for index, flat in enumerate(flats):
            if not given[index]:
                self._leave(index, flat)
        targets = [flat.target(index) for index, flat in enumerate(flats)]
        self._made.finish_buckets(targets, done)

    def _finish_parameters(self, flats: Sequence[Flat], given: Sequence[bool], done: Done) -> None:
        """Ends a step whose buckets differ from those of the layout."""
        places = self._places(flats)
        taken = {
            id(parameter)
            for flat, was_given in zip(flats, given)
            for parameter in flat.parameters
            if was_given
        }
        targets: list[Target] = []
        self._made.absent(self._marks.without(self._layout.parameters))
        for number, parameter in enumerate(self._layout.parameters):
            flat, start = places[id(parameter)]
            target = flat.target(number, start, math.prod(self._shape(parameter)))
            if id(parameter) not in taken:
                self._made.ready(*target)
            targets.append(target)
        self._made.finish_into(targets, done)

    def _leave(self, index: int, flat: Flat) -> None:
        """Gives bucket `index` of the layout to the core."""
        first = sum(len(bucket) for bucket in self._layout.buckets[:index])
        missing = self._marks.without(flat.parameters)
        if missing:
            self._made.absent([first + place for place in missing])
        self._made.ready_bucket(*flat.target(index))

    def _places(self, flats: Sequence[Flat]) -> dict[int, tuple[Flat, int]]:
        """Returns for each parameter, by its identity, the bucket of its gradient and the
        gradient's start in that bucket."""
        places = {}
        for flat in flats:
            start = 0
            for parameter in flat.parameters:
                places[id(parameter)] = flat, start
                start += math.prod(self._shape(parameter))
        same_model(places, self._names)
        return places
