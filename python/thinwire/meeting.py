"""The group that is used when none is given.

A launcher's environment describes one rendezvous of all ranks, and a process can take part in it
only once.
"""

from __future__ import annotations

import functools

import thinwire
from thinwire.arguments import instance


def group_or_default(group: thinwire.Group | None) -> thinwire.Group:
    """Returns `group`, or, if it is None, the group of the launcher's environment, which this
    process joins at the first such call."""
    return default_group() if group is None else instance("group", group, thinwire.Group)


@functools.cache
def default_group() -> thinwire.Group:
    """Returns the group of all ranks that the launcher's environment describes."""
    return thinwire.init()
