"""A check that all ranks agree on something, before they exchange anything that depends on it.

Ranks that disagree about a model would read each other's bits as another dtype, or wait for each
other. With this check, every rank learns which rank differs from rank 0, and in what respect. Law:
either all ranks raise, or none.
"""

from __future__ import annotations

import contextlib
import json
import zlib
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy

from thinwire import _core

REPORT_BYTES = 512
T = TypeVar("T")


def agree(lines: Sequence[str], core: _core.Group) -> None:
    """Compares these lines with rank 0's; a collective call, whose messages have the same size for
    all lines.

    # Errors

    InvalidError on all ranks if the lines of any rank differ.
    """
    if core.world == 1:
        return
    for rank, text in enumerate(gathered(difference(lines, from_rank_0(lines, core)), core)):
        if text:
            raise _core.InvalidError(f"ranks disagree: rank {rank} {text}")


def together(core: _core.Group, read: Callable[[], T]) -> T:
    """Calls `read`, and returns its result once `read` has returned on all ranks; a collective
    call.

    # Errors

    The exception that `read` raises on this rank; InvalidError if `read` has raised on other ranks
    only.
    """
    if core.world == 1:
        return read()
    try:
        found = read()
    except Exception as error:
        kind = "" if isinstance(error, _core.Error) else f"{type(error).__name__}: "
        gathered(" ".join(f"{kind}{error}".split()).removesuffix(":"), core)
        raise
    for rank, text in enumerate(gathered("", core)):
        if text:
            raise _core.InvalidError(f"rank {rank} says: {text}")
    return found


def gathered(text: str, core: _core.Group) -> list[str]:
    """Returns the short texts of all ranks; a collective call whose messages have a fixed size."""
    report = numpy.frombuffer(text.encode()[:REPORT_BYTES].ljust(REPORT_BYTES), numpy.uint8)
    reports = numpy.empty((core.world, REPORT_BYTES), numpy.uint8)
    core.all_gather(report.ctypes.data, reports.ctypes.data, REPORT_BYTES)
    texts = [said.tobytes().decode(errors="ignore").strip() for said in reports]
    if any(texts):
        # A rank that raises ends its groups, so it waits until all others have read the reason.
        with contextlib.suppress(_core.PeerError):
            core.barrier()
    return texts


def from_rank_0(lines: Sequence[str], core: _core.Group) -> list[str]:
    """Returns rank 0's lines on every rank."""
    text = numpy.frombuffer(json.dumps(list(lines)).encode(), numpy.uint8)
    length = numpy.array([text.size], numpy.int64)
    core.broadcast(length.ctypes.data, length.nbytes, 0)
    received = text.copy() if core.rank == 0 else numpy.empty(length[0], numpy.uint8)
    core.broadcast(received.ctypes.data, received.nbytes, 0)
    answer: list[str] = json.loads(received.tobytes())
    return answer


def checksum(values: Any) -> str:
    """Returns a short fingerprint of an array's values; None stands for values that cannot be read."""
    if values is None:
        return "unknown values"
    return f"checksum {zlib.crc32(numpy.asarray(values).tobytes()):08x}"


def difference(mine: Sequence[str], theirs: Sequence[str]) -> str:
    """Returns a description of the first difference, or an empty string."""
    for here, there in zip(mine, theirs):
        if here != there:
            return f"has {here}, rank 0 has {there}"
    if len(mine) != len(theirs):
        return f"has {len(mine)} parameters and options, rank 0 has {len(theirs)}"
    return ""
