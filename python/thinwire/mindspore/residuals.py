"""Residuals in MindSpore's checkpoint files, one file per rank.

A residual is the part of the gradients that a codec has not sent yet. It is training state, like
moments: a run that continues from a checkpoint without it never sends that part. If the run
continues on a different number of ranks, the sum of all residuals is preserved.
"""

from __future__ import annotations

import functools
from typing import Any

import mindspore as ms
import numpy as np

import thinwire
from thinwire.agreement import together
from thinwire.residuals import PLAN, RANKS, Saved, arrays_of, entries_of, of_ranks

from .guard import Averaging


def save_residuals(exchanging: Averaging, path: str) -> str:
    """Writes the residuals of this rank to `path` with `.rank<rank>.ckpt` added, and returns that path.

    Call it on every rank, between steps, where the model is saved.
    """
    plan, tensors = exchanging.synchronizer.state()
    group = exchanging.group
    ranks = ms.Tensor(np.array([group.rank, group.world], np.int32))
    entries = [{"name": RANKS, "data": ranks}]
    for name, array in arrays_of(tensors).items():
        entries.append({"name": name, "data": ms.Tensor(array)})
    file = file_of(path, group.rank)
    ms.save_checkpoint(entries, file, append_dict={PLAN: plan}, crc_check=True)
    return file


def load_residuals(exchanging: Averaging, path: str) -> None:
    """Reads what `save_residuals` wrote with the same path; call it on every rank.

    If a different number of ranks saved, each rank reads the files of the old ranks that it continues, so
    the sum of all residuals is preserved. If this rank can read rank 0's file, it learns from it
    how many ranks saved.

    Raises InvalidError on all ranks, before anything has changed, if the file of any rank is missing or
    truncated, was not written by `save_residuals`, or is of a different rank, save, codec or set of
    parameters.
    """
    group = exchanging.group
    file = functools.partial(file_of, path)
    plan, tensors = together(group.core, lambda: of_ranks(group.rank, group.world, file, read))
    exchanging.synchronizer.load(plan, tensors)


def read(file: str) -> Saved:
    """The content of a file of `save_residuals`."""
    # Errors of many kinds, where a file was cut short.
    entries = entries_of(file, loaded, Exception)
    plan = str(entries.pop(PLAN))
    ranks = entries.pop(RANKS).asnumpy().ravel().tolist()
    if len(ranks) != 2:
        raise thinwire.InvalidError(f"{file} is not a file of save_residuals")
    rank, world = ranks
    for name, each in entries.items():
        if not isinstance(each, ms.Parameter) or each.dtype != ms.float32:
            found = each.dtype if isinstance(each, ms.Parameter) else type(each).__name__
            raise thinwire.InvalidError(f"{name} in {file} is {found}, expected Float32")
    return Saved(rank, world, plan, {name: content(each) for name, each in entries.items()})


def loaded(file: str) -> dict[str, Any]:
    """The parameters and values in a MindSpore file."""
    entries: dict[str, Any] = ms.load_checkpoint(file, crc_check=True)
    return entries


def file_of(path: str, rank: int) -> str:
    """The path of a rank's residuals."""
    return f"{path}.rank{rank}.ckpt"


def content(parameter: ms.Parameter) -> tuple[list[int], bytes]:
    """Shape and values, float32 in the machine's order."""
    return list(parameter.shape), parameter.asnumpy().astype(np.float32).tobytes()
