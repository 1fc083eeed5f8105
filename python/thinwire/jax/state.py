"""States of exchanges, of one or more ranks, as flat NumPy arrays by name.

A name begins with its rank, so the arrays of all ranks fit into one dict, or one item of orbax;
safetensors and numpy.savez also take arrays by name.

    safetensors.numpy.save_file(exchange.state_dict(), f"exchange-{rank}.safetensors")
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from thinwire import Group, _core
from thinwire._core import InvalidError
from thinwire.arguments import shown
from thinwire.residuals import Tensors, arrays_of, tensors_of

PLAN, WORLD = "plan", "world"
MODE, PROGRESS = "mode", "progress"
CORE, EXACT = "core.", "exact."
"""Prefixes of names in a state of rounds: for the core's tensors, and for the parameters as f32."""
NAME = re.compile(r"rank(\d+)\.(.+)", re.DOTALL)


def of_rank(group: Group, synchronizer: _core.Synchronizer) -> dict[str, np.ndarray[Any, Any]]:
    """The state of this rank, between steps."""
    plan, tensors = synchronizer.state()
    return named(group, {PLAN: plan}, arrays_of(tensors))


def of_rounds(
    group: Group,
    mode: str,
    progress: str,
    tensors: Tensors,
    exact: Mapping[str, np.ndarray[Any, Any]],
) -> dict[str, np.ndarray[Any, Any]]:
    """The state of rounds on this rank, between steps."""
    arrays = {f"{CORE}{name}": each for name, each in arrays_of(tensors).items()}
    arrays.update({f"{EXACT}{name}": each for name, each in exact.items()})
    return named(group, {MODE: mode, PROGRESS: progress}, arrays)


def for_rounds(
    group: Group, mode: str, entries: Mapping[str, Any]
) -> tuple[str, Tensors, dict[str, np.ndarray[Any, Any]]]:
    """Returns the progress, the core's tensors and the parameters with which a rank continues in a
    mode.

    # Errors

    InvalidError if the rank's entries are missing, are not a state of rounds, or are of a different
    mode or number of ranks.
    """
    arrays = parsed(entries).get(group.rank)
    if arrays is None:
        raise InvalidError(
            f"the state has no entries of rank {group.rank} (hint: save on every rank)"
        )
    saved = text_of(group.rank, arrays, MODE), world_of(group.rank, arrays)
    if saved != (mode, group.world):
        raise InvalidError(
            f"the state is of mode {saved[0]} on {saved[1]} ranks, this training is of mode {mode} on "
            f"{group.world}"
        )

    def under(prefix: str) -> dict[str, np.ndarray[Any, Any]]:
        found = [(name, each) for name, each in arrays.items() if name.startswith(prefix)]
        return {name.removeprefix(prefix): as_f32(group.rank, name, each) for name, each in found}

    progress = text_of(group.rank, arrays, PROGRESS)
    return progress, tensors_of(under(CORE)), under(EXACT)


def named(
    group: Group, texts: Mapping[str, str], arrays: Mapping[str, np.ndarray[Any, Any]]
) -> dict[str, np.ndarray[Any, Any]]:
    """Returns this rank's strings, number of ranks and arrays, by names that begin with the
    rank."""
    found = {name: np.frombuffer(text.encode(), np.uint8) for name, text in texts.items()}
    found[WORLD] = np.array([group.world], np.int32)
    return {f"rank{group.rank}.{name}": each for name, each in {**found, **arrays}.items()}


def for_rank(
    group: Group, entries: Mapping[str, Any], options: Mapping[str, Any]
) -> tuple[str, Tensors]:
    """Returns the plan and the tensors from which a rank of a training with these options
    continues.

    # Errors

    InvalidError if the entries of a rank that it continues are missing, invalid, or do not belong together.
    """
    ranks = parsed(entries)
    worlds = {world_of(rank, arrays) for rank, arrays in ranks.items()}
    if len(worlds) > 1:
        raise InvalidError(
            f"the state has entries of {min(worlds)} and of {max(worlds)} ranks, expected one number"
        )
    world = worlds.pop()
    needed = [group.rank]
    if world != group.world:
        needed = sorted({0, *range(group.rank, world, group.world)})
    missing = [rank for rank in needed if rank not in ranks]
    if missing:
        raise InvalidError(
            f"the state of {world} ranks lacks rank{missing[0]}, which rank {group.rank} of {group.world} "
            "needs (hint: save on every rank, and give the entries of all in one dict)"
        )
    plans = [text_of(rank, ranks[rank]) for rank in needed]
    if len(set(plans)) > 1:
        raise InvalidError("the plans of ranks in the state are not the same")
    _core.check_state(plans[0], **options)

    def raw(rank: int) -> Tensors:
        entries = [each for each in ranks[rank].items() if each[0] not in (PLAN, WORLD)]
        return tensors_of({name: as_f32(rank, name, array) for name, array in entries})

    if world == group.world:
        return plans[0], raw(group.rank)
    return plans[0], _core.reshard(group.rank, group.world, world, raw)


def parsed(entries: Mapping[str, Any]) -> dict[int, dict[str, np.ndarray[Any, Any]]]:
    """The arrays of each rank."""
    if not isinstance(entries, Mapping):
        raise InvalidError(f"the state is {shown(entries)}, expected the result of state_dict")
    ranks: dict[int, dict[str, np.ndarray[Any, Any]]] = {}
    for name, value in entries.items():
        found = NAME.fullmatch(name) if isinstance(name, str) else None
        if found is None or not hasattr(value, "dtype"):
            raise InvalidError(
                f"the state has {shown(name)}: {shown(value)}, expected arrays of ranks"
            )
        ranks.setdefault(int(found[1]), {})[found[2]] = np.asarray(value)
    if not ranks:
        raise InvalidError("the state is empty, expected the result of state_dict")
    return ranks


def world_of(rank: int, arrays: Mapping[str, np.ndarray[Any, Any]]) -> int:
    """The number of ranks at the time when a rank saved."""
    world = arrays.get(WORLD)
    if world is None or world.size != 1 or world.dtype.kind not in "iu" or world.item() < 1:
        raise InvalidError(
            f"rank{rank}.{WORLD} in the state is {shown(world)}, expected a number of ranks"
        )
    return int(world.item())


def text_of(rank: int, arrays: Mapping[str, np.ndarray[Any, Any]], name: str = PLAN) -> str:
    """The plan, or another string, that a rank has saved."""
    text = arrays.get(name)
    if text is None or text.dtype != np.uint8:
        raise InvalidError(
            f"rank{rank}.{name} in the state is {shown(text)}, expected bytes of text"
        )
    return text.tobytes().decode(errors="replace")


def as_f32(rank: int, name: str, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """An array of a state, which is f32."""
    if array.dtype != np.float32:
        raise InvalidError(f"rank{rank}.{name} in the state is {shown(array)}, expected float32")
    return array
