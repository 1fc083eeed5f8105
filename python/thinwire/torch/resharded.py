"""Loads a state that a different number of ranks has saved with `torch.distributed.checkpoint`.

`torch.distributed.checkpoint` loads only the entries that an object's state already has, and a
hook's state has only the entry of its own rank. The object that `resharded` returns has the entries
of all old ranks that this rank continues.

    parts = {"model": model, "hook": thinwire.torch.resharded(hook, folder)}
    torch.distributed.checkpoint.load(parts, checkpoint_id=folder)
"""

from __future__ import annotations

import os
import re
from typing import Any, Protocol

from torch.distributed.checkpoint import FileSystemReader, StorageReader

from thinwire._core import Group, InvalidError
from thinwire.torch import state

ENTRY = re.compile(r"(?:^|\.)rank(\d+)$")


class Stateful(Protocol):
    """Anything whose state has an entry per rank, such as a hook."""

    @property
    def group(self) -> Group:
        """The ranks that continue."""

    def state_dict(self) -> dict[str, Any]:
        """This rank's state."""

    def load_state_dict(self, entries: dict[str, Any]) -> None:
        """Continues from the entries of any number of ranks."""


def resharded(stateful: Stateful, checkpoint: str | os.PathLike[str] | StorageReader) -> Resharded:
    """Returns a stand-in for a hook in `torch.distributed.checkpoint.load`. It loads a state that
    any number of ranks has saved in `checkpoint`, which is a folder or a StorageReader.

    # Errors

    InvalidError if the checkpoint has no state of Thinwire.
    """
    reader = checkpoint if isinstance(checkpoint, StorageReader) else FileSystemReader(checkpoint)
    names = map(ENTRY.search, reader.read_metadata().state_dict_metadata)
    ranks = {int(found[1]) for found in names if found}
    if not ranks:
        raise InvalidError(f"no rank has saved a state of Thinwire in {checkpoint}")
    return Resharded(stateful, len(ranks))


class Resharded:
    """The stand-in that `resharded` returns."""

    def __init__(self, stateful: Stateful, world: int) -> None:
        """Creates it for a checkpoint of `world` ranks."""
        self._stateful, self._world = stateful, world

    def state_dict(self) -> dict[str, Any]:
        """The names of the entries to load."""
        own = self._stateful.state_dict()
        shared = {name: value for name, value in own.items() if not state.is_entry(name)}
        ranks = state.followed(self._stateful.group, self._world)
        return shared | {f"rank{rank}": () for rank in ranks}

    def load_state_dict(self, entries: dict[str, Any]) -> None:
        """Continues from what was loaded."""
        self._stateful.load_state_dict(entries)
