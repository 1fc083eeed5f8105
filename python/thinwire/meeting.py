"""The group that is used when none is given.

A launcher's environment names one meeting of all ranks, at which a process can appear once.
"""

from __future__ import annotations

import functools

import thinwire
from thinwire.arguments import instance


def group_or_default(group: thinwire.Group | None) -> thinwire.Group:
    """`group`, or the one of the launcher's environment, which this process joins when it is first
    needed."""
    return default_group() if group is None else instance("group", group, thinwire.Group)


@functools.cache
def default_group() -> thinwire.Group:
    """The one group of all ranks, by the launcher's environment."""
    return thinwire.init()
