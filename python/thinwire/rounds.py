"""The copy of a model that a rank trains on its own, as arrays that the core exchanges in rounds.

A framework passes its parameters as f32 and gets them back. If its dtype has less precision, it
rounds them. This module keeps the exact values, and adds to them the changes that training makes to
the rounded parameters. Otherwise rounding would lose progress that is smaller than the dtype's
resolution.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy

import thinwire
from thinwire import arguments
from thinwire._core import Averager, Group, InvalidError
from thinwire.agreement import together
from thinwire.arguments import shown

Arrays = Mapping[str, numpy.ndarray[Any, Any]]


def options_of(mode: str, codec: str | None, **others: Any) -> dict[str, Any]:
    """Returns the options of the exchange after checking them. The default codec is "int8", or
    "none" for pairs, which send parameters.

    # Errors

    InvalidError for options that the core would refuse before ranks meet.
    """
    arguments.text("mode", mode)
    if codec is None:
        codec = "none" if mode.startswith("pair") else "int8"
    options = {"codec": codec, **others}
    arguments.options(**options)
    return options


class Copy:
    """The parameters of one rank, and their rounds.

    `read` returns the parameters as f32, and `write` writes values to the model. `rounded` are the
    names of the parameters that `write` rounds. All ranks must begin with the same values. Creating
    one is a collective call.
    """

    def __init__(
        self,
        group: Group,
        read: Callable[[], Arrays],
        write: Callable[[Arrays], None],
        rounded: Collection[str],
        mode: str,
        **options: Any,
    ) -> None:
        self._read, self._write, self._rounded = read, write, rounded
        self._exact = as_arrays(read())
        self._given = {name: self._exact[name].copy() for name in rounded}
        described = [(name, list(each.shape), "f32", 0) for name, each in self._exact.items()]
        self._core = Averager(group, described, self._addresses(), mode, **options)

    @property
    def is_due(self) -> bool:
        """Whether the end of the next step reads or changes parameters."""
        return self._core.is_due()

    def steps(self) -> int:
        """Steps so far."""
        return self._core.steps()

    def step(self) -> dict[str, float]:
        """Ends a step of this rank: begins and ends the rounds that are due."""
        if not self.is_due:
            return self._core.step(self._addresses())
        self._follow()
        record = self._core.step(self._addresses())
        if record["ended"]:
            self._take_up()
        return record

    def finish(self) -> dict[str, float]:
        """Gives all ranks the same parameters by a last round; a collective call."""
        self._follow()
        record = self._core.finish(self._addresses())
        self._take_up()
        return record

    def expect_as_begun(self) -> None:
        """Refuses parameters that have changed since the common start, before any step has.

        # Errors

        InvalidError for weights that were loaded too late. Their difference from the common start
        would count as progress of this rank: rounds would encode it, and an outer optimizer would
        amplify it.
        """
        for name, now in self._read().items() if not self.steps() else ():
            if not numpy.array_equal(now, self._given.get(name, self._exact[name]), equal_nan=True):
                raise InvalidError(
                    f"{name} has changed between the common start of ranks and the first step, expected "
                    "equal values (hint: load weights first, then make Rounds)"
                )

    def state(self) -> tuple[str, dict[str, tuple[list[int], bytes]], Arrays]:
        """Progress, tensors and exact parameters for a restart; all rounds are ended first. Collective."""
        self._follow()
        self._core.settle(self._addresses())
        self._take_up()
        exact = {name: each.copy() for name, each in self._exact.items()}
        return *self._core.state(), exact

    def check(self, progress: Any, exact: Arrays) -> None:
        """Refuses a state of a different model.

        # Errors

        InvalidError if the state is of a different model.
        """
        arguments.text("the progress in the state", progress)
        for name, value in self._exact.items():
            found = exact.get(name)
            if found is None or tuple(found.shape) != value.shape:
                said = "no value" if found is None else f"shape {list(found.shape)}"
                raise InvalidError(
                    f"the state has {said} of {name}, expected shape {list(value.shape)}"
                )
            if not numpy.isfinite(found).all():
                raise InvalidError(f"{name} in the state is not finite: {shown(found)}")

    def load(self, progress: str, tensors: Any, exact: Arrays) -> None:
        """Continues from a state that was checked; a collective call before the first step."""
        loaded = as_arrays({name: exact[name] for name in self._exact})
        self._core.load(progress, tensors, addresses(loaded))
        for name, value in self._exact.items():
            value[...] = loaded[name]
        self._take_up()

    def _addresses(self) -> list[int]:
        return addresses(self._exact)

    def _follow(self) -> None:
        """Updates the exchanged parameters with the model's changes."""
        for name, now in self._read().items():
            if name in self._given:
                exact = self._exact[name] + (now - self._given[name])
                # What was not finite has no rest, and the program may have replaced it since.
                self._exact[name][...] = numpy.where(numpy.isfinite(exact), exact, now)
                self._given[name] = numpy.array(now)
            else:
                self._exact[name][...] = now

    def _take_up(self) -> None:
        """Writes the exchanged parameters to the model."""
        self._write(self._exact)
        if self._rounded:
            now = self._read()
            self._given = {name: numpy.array(now[name]) for name in self._rounded}


def as_arrays(found: Arrays) -> dict[str, numpy.ndarray[Any, Any]]:
    """Returns f32 copies in the order of dimensions, in which the core exchanges and keeps them: the
    order in memory may differ between ranks, or when a state is loaded."""
    return {name: numpy.array(each, numpy.float32, order="C") for name, each in found.items()}


def addresses(arrays: Arrays) -> list[int]:
    """Returns the addresses of arrays, which do not change."""
    return [each.ctypes.data for each in arrays.values()]


class InPlace:
    """The common part of `Rounds` in frameworks whose parameters change in place."""

    mode: str
    group: thinwire.Group
    copy: Copy

    def step(self) -> dict[str, float]:
        """Ends a step: begins and ends the rounds that are due.

        Returns a dict with the numbers of rounds that have "begun" and "ended", and that were "skipped"
        because some rank's parameters were not finite, and with "wait_s" and "sent_bytes".
        """
        return self.copy.step()

    def finish(self) -> dict[str, float]:
        """Gives all ranks the same parameters by a last round, at the end of training; collective."""
        return self.copy.finish()

    def _expect_as_begun(self) -> None:
        """Refuses weights that were loaded after the common start; collective before the first step."""
        if not self.copy.steps():
            together(self.group.core, self.copy.expect_as_begun)

    def state(self) -> dict[str, Any]:
        """The state that this rank continues from in addition to the parameters, as text and NumPy
        arrays; a collective call, since rounds under way are ended first."""
        progress, tensors, exact = self.copy.state()
        return {"mode": self.mode, "progress": progress, "tensors": tensors, "exact": exact}

    def load(self, state: dict[str, Any]) -> None:
        """Continues from what `state` returned on this rank, before the first step; a collective call.

        Raises InvalidError on all ranks if the state of any rank is of a different mode or model."""

        def check() -> None:
            if state.get("mode") != self.mode:
                raise InvalidError(
                    f"the state is of mode {state.get('mode')}, this training is of mode {self.mode}"
                )
            self.copy.check(state["progress"], state["exact"])

        together(self.group.core, check)
        self.copy.load(state["progress"], state["tensors"], state["exact"])
