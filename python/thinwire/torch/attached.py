"""A hook for a model that another framework wraps in DDP, with a state per rank in its checkpoints.

Hugging Face's Trainer, Accelerate, Lightning and Ray Train wrap the model in DDP themselves: some
once, some again for every training, and some not at all on one device. This module has the common
part of their integrations. Law: each DDP model gets the hook once, a new DDP around the same
parameters gets the same hook, and every rank's state is saved.
"""

from __future__ import annotations

import operator
import os
import warnings
import weakref
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from thinwire._core import InvalidError
from thinwire.agreement import agree, together
from thinwire.torch import ddp, state
from thinwire.torch.alone import LEFT_OUT
from thinwire.torch.attach import of_model, register
from thinwire.torch.hook import Hook, check, hook

Folder = str | os.PathLike[str]


class Attached:
    """The hook of one model, and its state in a folder."""

    def __init__(self, options: dict[str, Any]) -> None:
        """`options` are those of `thinwire.torch.hook`.

        # Errors

        InvalidError for an argument that `thinwire.torch.hook` would refuse.
        """
        pairs = options.get("named_parameters")
        if isinstance(pairs, Iterable):  # a training after the first one needs them again
            options = {**options, "named_parameters": list(pairs)}
        check(options)
        self.hook: Hook | None = None
        """The handle of the hook; None until DDP wraps the model, so always None on one device."""
        self._options = options
        self._parameters: list[torch.Tensor] = []
        self._models: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()

    def __getstate__(self) -> dict[str, Any]:
        """Returns what another process needs before the first training: the options."""
        return self._options

    def __setstate__(self, options: dict[str, Any]) -> None:
        """Restores an object that is not connected to the other ranks yet."""
        Attached.__init__(self, options)

    def follow(self, model: torch.nn.Module) -> None:
        """Registers the hook with `model`, which the framework has wrapped; does nothing the second time.

        # Errors

        InvalidError where there are several ranks and `model` is not in DDP.
        """
        model = ddp.unwrapped(model)
        if not isinstance(model, DistributedDataParallel):
            return refuse_several(model)
        if model not in self._models:
            register(model, *self._hook_of(model))
            self._models.add(model)

    def save(self, folder: Folder) -> None:
        """Writes this rank's state to a separate file in `folder`; every rank calls it.

        It removes files of ranks that this world does not have.
        """
        entries = {} if self.hook is None else self.hook.state_dict()
        rank, world = self._place()
        Path(folder).mkdir(parents=True, exist_ok=True)
        if any(entries.values()):
            write(entries, file_of(folder, rank))
        else:
            file_of(folder, rank).unlink(missing_ok=True)
        for file in files_in(folder) if rank == 0 else ():
            if file not in {file_of(folder, each) for each in range(world)}:
                file.unlink()

    def load(self, folder: Folder) -> None:
        """Continues from the states in `folder`, saved by this or another number of ranks.

        A collective call. A checkpoint without a state of Thinwire is accepted with a warning: codecs then
        begin without residuals.

        # Errors

        InvalidError on all ranks, before anything has changed, if the file of any rank is damaged
        or missing, or has the state of a different model or codec.
        """
        if self.hook is None:
            return self.resume(entries_in(folder, *self._place()))
        group = self.hook.group
        entries = together(group, lambda: entries_in(folder, group.rank, group.world))
        agree([f"{'a' if entries else 'no'} state of Thinwire in the checkpoint"], group)
        self.resume(entries)

    def resume(self, entries: dict[str, Any]) -> None:
        """Does what `load` does, with the given entries: those of this rank or, if a different
        number of ranks saved, those of all of them."""
        if self.hook is not None and entries:
            self.hook.load_state_dict(entries)
        elif entries:
            warnings.warn(LEFT_OUT, stacklevel=3)
        elif self._place()[1] > 1:
            said = "the checkpoint has no state of Thinwire: codecs begin without residuals"
            warnings.warn(said, stacklevel=3)

    def _place(self) -> tuple[int, int]:
        """Rank and world of the hook's group; 0 and 1 without a hook."""
        return (0, 1) if self.hook is None else (self.hook.group.rank, self.hook.group.world)

    def _hook_of(self, model: DistributedDataParallel) -> tuple[Hook, Any]:
        """Returns the hook of a model's parameters; makes a new one for new parameters."""
        options = of_model(model, self._options)
        parameters = [each for each in model.module.parameters() if each.requires_grad]
        same = len(parameters) == len(self._parameters)
        if not same or not all(map(operator.is_, parameters, self._parameters)):
            self.hook, self._function = hook(**options)
            self._parameters = parameters
        assert self.hook is not None
        return self.hook, self._function


def entries_in(folder: Folder, rank: int, world: int) -> dict[str, Any]:
    """Returns the entries in a folder for a rank: its own, or those of all ranks if a different
    number of ranks saved; empty if there are none."""
    own = file_of(folder, rank)
    entries = read(own) if own.exists() else {}
    if state.worlds(entries) == {world}:
        return entries
    return {name: entry for file in files_in(folder) for name, entry in read(file).items()}


def read(file: Path) -> dict[str, Any]:
    """Returns the entries that a rank has saved.

    # Errors

    InvalidError, which names the file, if it is not a state or was truncated.
    """
    try:
        # Opening a pipe would wait for a writer.
        if not file.is_file():
            raise InvalidError("no regular file")
        # torch.load compares no checksums.
        damaged = zipfile.ZipFile(file).testzip() if zipfile.is_zipfile(file) else None
        if damaged is not None:
            raise InvalidError(f"{damaged} in it was changed after it was saved")
        entries: dict[str, Any] = torch.load(file, map_location="cpu", weights_only=True)
        if not state.worlds(entries):
            raise InvalidError("it has no entry for a rank")
    except Exception as error:
        why = " ".join(str(error).split())[:160] or type(error).__name__
        raise InvalidError(
            f"cannot read the state of Thinwire in {file}: {why} (hint: it may have been cut short: "
            "load an earlier checkpoint, or remove the thinwire.rank*.pt of this one: codecs then begin "
            "without residuals)"
        ) from error
    return entries


def write(entries: dict[str, Any], file: Path) -> None:
    """Writes a file atomically: a reader finds the old one or the new one."""
    part = file.with_name(f".{file.name}.part")
    part.unlink(missing_ok=True)
    with part.open("xb") as opened:
        torch.save(entries, opened)
        opened.flush()
        os.fsync(opened.fileno())
    part.replace(file)


def files_in(folder: Folder) -> list[Path]:
    """The files of all ranks."""
    return list(Path(folder).glob("thinwire.rank*.pt"))


def file_of(folder: Folder, rank: int) -> Path:
    """The file of a rank's state."""
    return Path(folder, f"thinwire.rank{rank}.pt")


def refuse_several(model: torch.nn.Module) -> None:
    """Refuses a model that several ranks train without DDP; a single rank does not need DDP."""
    if dist.is_initialized() and dist.get_world_size() > 1:
        raise InvalidError(
            f"the model is a {type(model).__name__} on {dist.get_world_size()} ranks, expected one in "
            "DistributedDataParallel (hint: attach it after the framework has wrapped it, which Accelerate "
            "does on CPUs only with Accelerator(cpu=True); thinwire.torch.fsdp is for FSDP2)"
        )
