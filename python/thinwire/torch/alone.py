"""The averager of a world of one rank, whose gradients already are the averages; nothing is
exchanged.

Law: one rank refuses what several ranks refuse, with the same messages. So a program that runs on
one rank also runs on many.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from thinwire._core import Group, Synchronizer
from thinwire.torch import state
from thinwire.torch.layout import Flat, Layout, names, same_model
from thinwire.torch.state import Saved

OWED = ("residual.", "momentum.")
LEFT_OUT = "one rank exchanges nothing: the residuals in the checkpoint are dropped"


class Alone:
    """The counterpart of `Averager` in a world of one rank."""

    sync = None

    def __init__(self, group: Group, options: Mapping[str, Any], given: Mapping[int, str]) -> None:
        """Arguments are those of `Averager`."""
        self._group = group
        self._options = {**options, "named": list(given.values())}
        self._given = given
        self._names: dict[int, str] = {}
        self._layout = Layout((), ())
        self._saved: Saved | None = None

    def give(self, index: int, flat: Flat) -> bool:
        """Checks bucket `index` of a step."""
        if self._layout.has(index, flat.parameters):
            self._layout.expect(index, flat.dtype)
        return True

    def finish(
        self,
        flats: Sequence[Flat],
        given: Sequence[bool],
        done: Callable[[BaseException | None, bool], None],
    ) -> None:
        """Ends a step."""
        layout = Layout.of(flats)
        if not self._names:
            self._names = names(layout, self._given)
            codec = str(self._options["codec"])
            # Codecs by names must have one for each; others refuse nothing here, and auto would measure.
            by_name = codec if "=" in codec else "none"
            named = self._options["named"]
            Synchronizer(self._group, layout.described(self._names), codec=by_name, named=named)
        elif not self._layout.same(layout):
            same_model({id(each) for each in layout.parameters}, self._names)
        self._layout = layout
        if self._saved is not None:
            self.load(self._saved)
        done(None, True)

    def saved(self) -> Saved | None:
        """The state that was loaded before the first step, if any; one rank has no state of its own."""
        return self._saved

    def load(self, saved: Saved | None) -> None:
        """Checks a state as several ranks would, now or in the first step. Warns if the state has
        residuals, which are dropped."""
        if not self._names or saved is None:
            self._saved = saved
            return
        self._saved = None
        described = self._layout.arranged(saved.buckets, self._names).described(self._names)
        sync = Synchronizer(self._group, described, **self._options)
        state.write(sync, saved.plan, saved.tensors)
        if any(name.startswith(OWED) and bool(each.any()) for name, each in saved.tensors.items()):
            warnings.warn(LEFT_OUT, stacklevel=2)

    def abort(self, reason: str) -> None:
        """Ends the group."""
        self._group.abort(reason)
