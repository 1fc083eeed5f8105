"""Residuals in files of NumPy, one per rank, for frameworks whose checkpoints are the model alone.

A residual is the part of the gradients that a codec has not sent yet. It is training state, like
moments: a run that continues from a checkpoint without it never sends that part. If the run
continues on a different number of ranks, the sum of all residuals is preserved.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy

from thinwire import _core
from thinwire.agreement import together

if TYPE_CHECKING:
    from thinwire.gradients import Array, Gradients

PLAN, RANKS = "thinwire.plan", "thinwire.ranks"
Tensors = dict[str, tuple[list[int], bytes]]


@dataclasses.dataclass(frozen=True)
class Saved:
    """The content of a file of `save_residuals`: the rank, the number of ranks, the plan, and by
    name the shapes and f32 bytes of tensors."""

    rank: int
    world: int
    plan: str
    tensors: Tensors


def save_residuals(exchanging: Any, path: str) -> str:
    """Writes the residuals of this rank to `path` with `.rank<rank>.npz` added, and returns that path.

    Call it on every rank, between steps, where the model is saved. `exchanging` is an exchange, a tape or
    an optimizer of `thinwire.tensorflow` or `thinwire.keras`.
    """
    gradients: Gradients = exchanging.gradients
    plan, tensors = gradients.state()
    group = gradients.group
    arrays = arrays_of(tensors)
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

    If a different number of ranks saved, each rank reads the files of the old ranks that it continues, so
    the sum of all residuals is preserved. Before the first step, the residuals are kept until that step.

    Raises InvalidError on all ranks, before anything has changed, if the file of any rank is
    missing or truncated, was not written by `save_residuals`, or is of a different rank or codec; a
    state of other variables is refused in the first step.
    """
    gradients: Gradients = exchanging.gradients
    group = gradients.group
    plan, tensors = together(
        group.core,
        lambda: of_ranks(group.rank, group.world, functools.partial(file_of, path), read),
    )
    gradients.load(plan, tensors)


def of_ranks(
    rank: int, world: int, file: Callable[[int], str], read: Callable[[str], Saved]
) -> tuple[str, Tensors]:
    """Returns the plan and the tensors of a rank, which any number of ranks have saved, each in its
    own `file`.

    If this rank can read rank 0's file, it learns from it how many ranks saved.
    """
    saved_world = read(file(0) if Path(file(0)).exists() else file(rank)).world

    def of_rank(of: int) -> Saved:
        saved = read(file(of))
        if (saved.rank, saved.world) != (of, saved_world):
            raise _core.InvalidError(
                f"{file(of)} is of rank {saved.rank} of {saved.world}, expected rank {of} of "
                f"{saved_world} (hint: put the files of all ranks, saved together, in one folder)"
            )
        return saved

    if saved_world == world:
        own = of_rank(rank)
        return own.plan, own.tensors
    plan = of_rank(0).plan

    def raw(of: int) -> Tensors:
        saved = of_rank(of)
        if saved.plan != plan:
            raise _core.InvalidError(f"the plans in {file(0)} and {file(of)} are not the same")
        return saved.tensors

    return plan, _core.reshard(rank, world, saved_world, raw)


def entries_of(
    file: str, load: Callable[[str], dict[str, Any]], *errors: type[Exception]
) -> dict[str, Any]:
    """Returns the content that `load` finds in a file of `save_residuals`; `load` may raise
    `errors`."""
    try:
        # Opening a pipe would wait for a writer.
        if Path(file).exists() and not Path(file).is_file():
            raise ValueError("no regular file")
        entries = load(file)
    except errors as error:
        reason = " ".join(str(error).split())
        raise _core.InvalidError(f"cannot read the residuals in {file}: {reason[:300]}") from error
    if not {PLAN, RANKS} <= entries.keys():
        raise _core.InvalidError(f"{file} is not a file of save_residuals")
    return entries


def read(file: str) -> Saved:
    """The content of a file of `save_residuals`."""
    errors = OSError, ValueError, EOFError, AttributeError, zipfile.BadZipFile
    arrays = entries_of(file, loaded, *errors)
    plan, ranks = arrays.pop(PLAN).tobytes().decode(errors="replace"), arrays.pop(RANKS)
    if ranks.shape != (2,):
        raise _core.InvalidError(f"{file} is not a file of save_residuals")
    for name, each in arrays.items():
        if each.dtype != numpy.float32:
            raise _core.InvalidError(f"{name} in {file} is {each.dtype}, expected float32")
    rank, world = ranks.tolist()
    return Saved(rank, world, plan, tensors_of(arrays))


def loaded(file: str) -> dict[str, Any]:
    """The arrays in a file of NumPy."""
    with numpy.load(file, allow_pickle=False) as entries:
        return {name: entries[name] for name in entries.files}


def arrays_of(tensors: Tensors) -> dict[str, Array]:
    """The core's values as arrays."""
    return {
        name: numpy.frombuffer(data, numpy.float32).reshape(shape)
        for name, (shape, data) in tensors.items()
    }


def tensors_of(arrays: Mapping[str, Array]) -> Tensors:
    """Arrays of f32 as the core takes them."""
    return {name: (list(array.shape), array.tobytes()) for name, array in arrays.items()}


def file_of(path: str, rank: int) -> str:
    """The path of a rank's residuals."""
    return f"{path}.rank{rank}.npz"
