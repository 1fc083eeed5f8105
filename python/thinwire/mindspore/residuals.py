"""Residuals in MindSpore's checkpoint files, one file per rank.

What a codec has lost of the gradients so far is state of training, as moments are: a run that goes on
from a checkpoint without it repeats no error that had been fed back.
"""

from __future__ import annotations

from typing import Any

import mindspore as ms
import numpy as np

import thinwire

from .guard import Exchanging

PLAN = "thinwire.plan"
RANKS = "thinwire.ranks"


def save_residuals(exchanging: Exchanging, path: str) -> str:
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
    ms.save_checkpoint(entries, file, append_dict={PLAN: plan})
    return file


def load_residuals(exchanging: Exchanging, path: str) -> None:
    """Reads what `save_residuals` wrote on this rank with the same path; call it on every rank.

    Raises InvalidError if the file is missing, no file of `save_residuals`, another rank's, of another
    number of ranks, or of other parameters; then nothing has changed.
    """
    group = exchanging.group
    file = file_of(path, group.rank)
    entries = entries_of(file)
    plan = str(entries.pop(PLAN))
    rank, world = entries.pop(RANKS).asnumpy().tolist()
    if (rank, world) != (group.rank, group.world):
        raise thinwire.InvalidError(
            f"{file} is of rank {rank} of {world}, this is rank {group.rank} of {group.world} "
            "(hint: residuals differ between ranks; with another number of ranks go on without them)"
        )
    exchanging.synchronizer.load(plan, {name: content(each) for name, each in entries.items()})


def entries_of(file: str) -> dict[str, Any]:
    """What is in a file of `save_residuals`."""
    try:
        entries: dict[str, Any] = ms.load_checkpoint(file)
    except (OSError, ValueError, RuntimeError) as error:
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
