"""The group that is meant when none is given.

A launcher's environment names one meeting of all ranks, at which a process can appear once.
"""

from __future__ import annotations

import functools

import thinwire
from thinwire.arguments import instance


def group_or_default(group: thinwire.Group | None) -> thinwire.Group:
    """`group`, or the one that this process joins by its environment when first asked for it."""
    return default_group() if group is None else instance("group", group, thinwire.Group)


@functools.cache
def default_group() -> thinwire.Group:
    """The one group of all ranks, by the launcher's environment."""
    return thinwire.init()
