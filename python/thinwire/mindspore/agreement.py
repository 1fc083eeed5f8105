"""A check that all ranks hold the same parameters, before anything of theirs is exchanged.

Ranks that disagree would overwrite memory or wait for each other; here each learns which rank
differs from rank 0, and in what.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import mindspore as ms
import numpy as np

import thinwire

REPORT_BYTES = 512


def agree(parameters: Sequence[ms.Parameter], group: thinwire.Group) -> None:
    """Checks names, shapes and dtypes against rank 0's; a collective call.

    Raises InvalidError on all ranks if those of any rank differ.
    """
    mine = [f"{each.name} {each.dtype} {list(each.shape)}" for each in parameters]
    report = difference(mine, from_rank_0(mine, group)).encode()[:REPORT_BYTES]
    reports = group.all_gather(np.frombuffer(report.ljust(REPORT_BYTES), np.uint8))
    for rank, said in enumerate(np.asarray(reports).reshape(group.world, REPORT_BYTES)):
        text = said.tobytes().decode(errors="ignore").strip()
        if text:
            raise thinwire.InvalidError(f"parameters differ between ranks: rank {rank} {text}")


def from_rank_0(lines: list[str], group: thinwire.Group) -> list[str]:
    """Rank 0's lines on every rank."""
    text = np.frombuffer(json.dumps(lines).encode(), np.uint8)
    length = np.array([text.size], np.int64)
    group.broadcast(length)
    received = text.copy() if group.rank == 0 else np.empty(length[0], np.uint8)
    group.broadcast(received)
    return json.loads(received.tobytes())


def difference(mine: Sequence[str], theirs: Sequence[str]) -> str:
    """The first difference in words, nothing if there is none."""
    for index, (here, there) in enumerate(zip(mine, theirs)):
        if here != there:
            return f"has {here} as parameter {index}, rank 0 has {there}"
    if len(mine) != len(theirs):
        return f"has {len(mine)} parameters, rank 0 has {len(theirs)}"
    return ""
