"""The same parameters on all ranks before the first step."""

from __future__ import annotations

from collections.abc import Iterable

import mindspore as ms

import thinwire
from thinwire.agreement import agree
from thinwire.meeting import group_or_default

from . import memory


def broadcast_parameters(
    parameters: Iterable[ms.Parameter], group: thinwire.Group | None = None, root: int = 0
) -> None:
    """Copies the values of rank `root`'s parameters, of any dtype, to all ranks; a collective call.

    group: by default that of the launcher's environment. Raises InvalidError on all ranks, before
    anything has changed, if names, shapes or dtypes differ between ranks; PeerError if a rank is lost.
    """
    group = group_or_default(group)
    parameters = list(parameters)
    agree([f"{each.name} {each.dtype} {list(each.shape)}" for each in parameters], group.core)
    for parameter in parameters:
        if parameter.has_init:
            parameter.init_data()
        array = memory.view(parameter)
        group.core.broadcast(memory.address(array), array.nbytes, root)
        memory.store(parameter, array)
