"""Residuals in MindSpore's checkpoint files, one file per rank.

What a codec has lost of the gradients so far is state of training, as moments are: a run that continues
from a checkpoint without it repeats no error that had been fed back. Another number of ranks takes over
what all ranks together owe.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np

import thinwire
from thinwire import _core
from thinwire.agreement import together

from .guard import Averaging

PLAN = "thinwire.plan"
RANKS = "thinwire.ranks"
Tensors = dict[str, tuple[list[int], bytes]]


def save_residuals(exchanging: Averaging, path: str) -> str:
    """Writes the residuals of this rank to `path` with `.rank<rank>.ckpt` added, and returns that.

    Call it on every rank, between steps, where the model is saved.
    """
    plan, tensors = exchanging.synchronizer.state()
    group = exchanging.group
    ranks = ms.Tensor(np.array([group.rank, group.world], np.int32))
    entries = [{"name": RANKS, "data": ranks}]
    for name, (shape, data) in tensors.items():
        array = np.frombuffer(data, np.float32).reshape(shape)
        entries.append({"name": name, "data": ms.Tensor(array)})
    file = file_of(path, group.rank)
    ms.save_checkpoint(entries, file, append_dict={PLAN: plan}, crc_check=True)
    return file


def load_residuals(exchanging: Averaging, path: str) -> None:
    """Reads what `save_residuals` wrote with the same path; call it on every rank.

    Where another number of ranks has saved, each rank reads the files of those that it follows: what all
    owe together stays. Rank 0's file, if it can be seen from here, says how many they were.

    Raises InvalidError on all ranks, before anything has changed, if the file of any rank is missing or
    truncated, is not one of `save_residuals`, or is of another rank, save, codec or other parameters.
    """
    group = exchanging.group
    plan, tensors = together(group.core, lambda: of_ranks(group, path))
    exchanging.synchronizer.load(plan, tensors)


def of_ranks(group: thinwire.Group, path: str) -> tuple[str, Tensors]:
    """Returns the plan and the tensors of a rank, saved by any number of ranks."""
    first = file_of(path, 0) if Path(file_of(path, 0)).exists() else file_of(path, group.rank)
    world = read(first).world
    if world == group.world:
        saved = of_rank(path, group.rank, world)
        return saved.plan, saved.tensors
    plan = of_rank(path, 0, world).plan

    def raw(rank: int) -> Tensors:
        return of_rank(path, rank, world, plan).tensors

    return plan, _core.reshard(group.rank, group.world, world, raw)


@dataclasses.dataclass(frozen=True)
class Saved:
    """What is in a file of `save_residuals`: whose it is, the plan, and shapes and bytes of f32."""

    rank: int
    world: int
    plan: str
    tensors: Tensors


def of_rank(path: str, rank: int, world: int, plan: str | None = None) -> Saved:
    """The file of one of `world` ranks; with the plan that it must have, if there is one."""
    file = file_of(path, rank)
    saved = read(file)
    if (saved.rank, saved.world) != (rank, world):
        raise thinwire.InvalidError(
            f"{file} is of rank {saved.rank} of {saved.world}, expected rank {rank} of {world} "
            "(hint: the files of all ranks, of one saving, in one folder)"
        )
    if plan is not None and saved.plan != plan:
        raise thinwire.InvalidError(f"the plans in {file_of(path, 0)} and {file} are not the same")
    return saved


def read(file: str) -> Saved:
    """What is in a file of `save_residuals`."""
    entries = entries_of(file)
    plan = str(entries.pop(PLAN))
    ranks = entries.pop(RANKS).asnumpy().ravel().tolist()
    if len(ranks) != 2:
        raise thinwire.InvalidError(f"{file} is no file of save_residuals")
    rank, world = ranks
    for name, each in entries.items():
        if not isinstance(each, ms.Parameter) or each.dtype != ms.float32:
            found = each.dtype if isinstance(each, ms.Parameter) else type(each).__name__
            raise thinwire.InvalidError(f"{name} in {file} is {found}, expected Float32")
    return Saved(rank, world, plan, {name: content(each) for name, each in entries.items()})


def entries_of(file: str) -> dict[str, Any]:
    """What is in a file of `save_residuals`."""
    try:
        # Opening a pipe would wait for a writer.
        if Path(file).exists() and not Path(file).is_file():
            raise ValueError("no regular file")
        entries: dict[str, Any] = ms.load_checkpoint(file, crc_check=True)
    except Exception as error:  # of many kinds, where a file was cut short
        reason = " ".join(str(error).split())
        raise thinwire.InvalidError(
            f"cannot read the residuals in {file}: {reason[:300]}"
        ) from error
    if not {PLAN, RANKS} <= entries.keys():
        raise thinwire.InvalidError(f"{file} is no file of save_residuals")
    return entries


def file_of(path: str, rank: int) -> str:
    """Where the residuals of a rank are."""
    return f"{path}.rank{rank}.ckpt"


def content(parameter: ms.Parameter) -> tuple[list[int], bytes]:
    """Shape and values, float32 in the machine's order."""
    return list(parameter.shape), parameter.asnumpy().astype(np.float32).tobytes()
