"""Residuals in files of NumPy, one per rank, for frameworks whose checkpoints are the model alone.

What a codec has lost of the gradients so far is state of training, as moments are: a run that continues
from a checkpoint without it loses what had been fed back. Another number of ranks takes over what all
ranks together owe.
"""

from __future__ import annotations

import os
import zipfile
from pathlib import Path
from typing import Any

import numpy

from thinwire import _core
from thinwire.agreement import together
from thinwire.gradients import Gradients

PLAN, RANKS = "thinwire.plan", "thinwire.ranks"
Tensors = dict[str, tuple[list[int], bytes]]
Saved = tuple[list[int], str, Tensors]
"""Rank and world of a file, the plan, and shapes and bytes of f32 by name."""


def save_residuals(exchanging: Any, path: str) -> str:
    """Writes the residuals of this rank to `path` with `.rank<rank>.npz` added, and returns that.

    Call it on every rank, between steps, where the model is saved. `exchanging` is an exchange, a tape or
    an optimizer of `thinwire.tensorflow` or `thinwire.keras`.
    """
    gradients: Gradients = exchanging.gradients
    plan, tensors = gradients.state()
    group = gradients.group
    arrays = {
        name: numpy.frombuffer(data, numpy.float32).reshape(shape)
        for name, (shape, data) in tensors.items()
    }
    arrays[PLAN] = numpy.frombuffer(plan.encode(), numpy.uint8)
    arrays[RANKS] = numpy.array([group.rank, group.world], numpy.int64)
    file = file_of(path, group.rank)
    # A run that is killed here leaves the file of the last saving.
    with open(f"{file}.part", "wb") as part:
        numpy.savez(part, **arrays)
    os.replace(f"{file}.part", file)
    return file


def load_residuals(exchanging: Any, path: str) -> None:
    """Reads what `save_residuals` wrote with the same path; call it on every rank.

    Where another number of ranks has saved, each rank reads the files of those that it follows: what all
    owe together stays. Before the first step the residuals are kept until it comes.

    Raises InvalidError on all ranks, before anything has changed, if the file of any rank is missing or
    truncated, is not one of `save_residuals`, or is of another rank or codec; a state of other variables is
    refused when the first step comes.
    """
    gradients: Gradients = exchanging.gradients
    group = gradients.group
    plan, tensors = together(group.core, lambda: of_ranks(group.rank, group.world, path))
    gradients.load(plan, tensors)


def of_ranks(rank: int, world: int, path: str) -> tuple[str, Tensors]:
    """The plan and the tensors of a rank, saved by any number of ranks."""
    first = file_of(path, 0) if Path(file_of(path, 0)).exists() else file_of(path, rank)
    saved_world = read(first)[0][1]
    if saved_world == world:
        _, plan, tensors = of_rank(path, rank, world)
        return plan, tensors
    plan = of_rank(path, 0, saved_world)[1]

    def raw(saved_rank: int) -> Tensors:
        _, other, tensors = of_rank(path, saved_rank, saved_world)
        if other != plan:
            names = file_of(path, 0), file_of(path, saved_rank)
            raise _core.InvalidError(f"the plans in {names[0]} and {names[1]} are not the same")
        return tensors

    return plan, _core.reshard(rank, world, saved_world, raw)


def of_rank(path: str, rank: int, world: int) -> Saved:
    """What is in the file of one of `world` ranks."""
    file = file_of(path, rank)
    saved = read(file)
    if saved[0] != [rank, world]:
        found = f"rank {saved[0][0]} of {saved[0][1]}"
        raise _core.InvalidError(
            f"{file} is of {found}, expected rank {rank} of {world} (hint: the files of all ranks, of one "
            "saving, in one folder)"
        )
    return saved


def read(file: str) -> Saved:
    """What is in a file of `save_residuals`."""
    try:
        # Opening a pipe would wait for a writer.
        if Path(file).exists() and not Path(file).is_file():
            raise ValueError("no regular file")
        with numpy.load(file, allow_pickle=False) as entries:
            arrays = {name: entries[name] for name in entries.files}
    except (OSError, ValueError, EOFError, AttributeError, zipfile.BadZipFile) as error:
        reason = " ".join(str(error).split())
        raise _core.InvalidError(f"cannot read the residuals in {file}: {reason[:300]}") from error
    if not {PLAN, RANKS} <= arrays.keys() or arrays[RANKS].shape != (2,):
        raise _core.InvalidError(f"{file} is no file of save_residuals")
    plan, ranks = arrays.pop(PLAN).tobytes().decode(errors="replace"), arrays.pop(RANKS).tolist()
    for name, each in arrays.items():
        if each.dtype != numpy.float32:
            raise _core.InvalidError(f"{name} in {file} is {each.dtype}, expected float32")
    return ranks, plan, {name: (list(each.shape), each.tobytes()) for name, each in arrays.items()}


def file_of(path: str, rank: int) -> str:
    """Where the residuals of a rank are."""
    return f"{path}.rank{rank}.npz"
