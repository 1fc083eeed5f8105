"""A state that a different number of ranks has saved, through `torch.distributed.checkpoint`.

A checkpoint is asked for what the state of an object has now, and a hook's state has the entry of its own
rank. Here it has the entries of the old ranks that this one continues.

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
    """What has a state with an entry per rank: a hook."""

    @property
    def group(self) -> Group:
        """The ranks that continue."""

    def state_dict(self) -> dict[str, Any]:
        """This rank's state."""

    def load_state_dict(self, entries: dict[str, Any]) -> None:
        """Continues from the entries of any number of ranks."""


def resharded(stateful: Stateful, checkpoint: str | os.PathLike[str] | StorageReader) -> Resharded:
    """What `torch.distributed.checkpoint.load` takes in place of a hook, to load what any number of ranks
    has saved in `checkpoint`: a folder, or whatever reads another storage.

    # Errors

    InvalidError if nobody has saved a state of Thinwire there.
    """
    reader = checkpoint if isinstance(checkpoint, StorageReader) else FileSystemReader(checkpoint)
    names = map(ENTRY.search, reader.read_metadata().state_dict_metadata)
    ranks = {int(found[1]) for found in names if found}
    if not ranks:
        raise InvalidError(f"no rank has saved a state of Thinwire in {checkpoint}")
    return Resharded(stateful, len(ranks))


class Resharded:
    """Made by `resharded`."""

    def __init__(self, stateful: Stateful, world: int) -> None:
        """Of `world` ranks that have saved."""
        self._stateful, self._world = stateful, world

    def state_dict(self) -> dict[str, Any]:
        """The names of what is to be loaded."""
        own = self._stateful.state_dict()
        shared = {name: value for name, value in own.items() if not state.is_entry(name)}
        ranks = state.followed(self._stateful.group, self._world)
        return shared | {f"rank{rank}": () for rank in ranks}

    def load_state_dict(self, entries: dict[str, Any]) -> None:
        """Continues from what was loaded."""
        self._stateful.load_state_dict(entries)
