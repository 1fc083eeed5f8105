"""States of exchanges: flat NumPy arrays by name, of one rank, and of any number of ranks that have saved.

A name begins with its rank, so the arrays of all ranks fit into one dict, as into one item of orbax; and
arrays by name are what safetensors and numpy.savez take.

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

PLAN, WORLD = "plan", "world"
NAME = re.compile(r"rank(\d+)\.(.+)", re.DOTALL)

Tensors = dict[str, tuple[list[int], bytes]]


def of_rank(group: Group, synchronizer: _core.Synchronizer) -> dict[str, np.ndarray[Any, Any]]:
    """The state of this rank, between steps."""
    plan, tensors = synchronizer.state()
    arrays: dict[str, np.ndarray[Any, Any]] = {
        PLAN: np.frombuffer(plan.encode(), np.uint8),
        WORLD: np.array([group.world], np.int32),
    }
    for name, (shape, data) in tensors.items():
        arrays[name] = np.frombuffer(data, np.float32).reshape(shape)
    return {f"rank{group.rank}.{name}": array for name, array in arrays.items()}


def for_rank(
    group: Group, entries: Mapping[str, Any], options: Mapping[str, Any]
) -> tuple[str, Tensors]:
    """The plan and the tensors from which a rank of a training with these options continues.

    # Errors

    InvalidError if the entries of a rank that it follows are missing, or are no state, or do not belong
    together.
    """
    ranks = parsed(entries)
    worlds = {world_of(rank, arrays) for rank, arrays in ranks.items()}
    if len(worlds) > 1:
        raise InvalidError(f"the state has entries of {min(worlds)} and of {max(worlds)} ranks")
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
        return tensors_of(rank, ranks[rank])

    if world == group.world:
        return plans[0], raw(group.rank)
    return plans[0], _core.reshard(group.rank, group.world, world, raw)


def parsed(entries: Mapping[str, Any]) -> dict[int, dict[str, np.ndarray[Any, Any]]]:
    """The arrays of each rank."""
    if not isinstance(entries, Mapping):
        raise InvalidError(f"the state is {shown(entries)}, expected what state_dict gave")
    ranks: dict[int, dict[str, np.ndarray[Any, Any]]] = {}
    for name, value in entries.items():
        found = NAME.fullmatch(name) if isinstance(name, str) else None
        if found is None or not hasattr(value, "dtype"):
            raise InvalidError(
                f"the state has {shown(name)}: {shown(value)}, expected arrays of ranks"
            )
        ranks.setdefault(int(found[1]), {})[found[2]] = np.asarray(value)
    if not ranks:
        raise InvalidError("the state is empty, expected what state_dict gave")
    return ranks


def world_of(rank: int, arrays: Mapping[str, np.ndarray[Any, Any]]) -> int:
    """The number of ranks with which a rank has saved."""
    world = arrays.get(WORLD)
    if world is None or world.size != 1 or world.dtype.kind not in "iu" or world.item() < 1:
        raise InvalidError(
            f"rank{rank}.{WORLD} in the state is {shown(world)}, expected a number of ranks"
        )
    return int(world.item())


def text_of(rank: int, arrays: Mapping[str, np.ndarray[Any, Any]]) -> str:
    """The plan that a rank has saved."""
    plan = arrays.get(PLAN)
    if plan is None or plan.dtype != np.uint8:
        raise InvalidError(
            f"rank{rank}.{PLAN} in the state is {shown(plan)}, expected bytes of text"
        )
    return plan.tobytes().decode(errors="replace")


def tensors_of(rank: int, arrays: Mapping[str, np.ndarray[Any, Any]]) -> Tensors:
    """The tensors that a rank has saved."""
    tensors = {name: array for name, array in arrays.items() if name not in (PLAN, WORLD)}
    for name, array in tensors.items():
        if array.dtype != np.float32:
            raise InvalidError(
                f"rank{rank}.{name} in the state is {shown(array)}, expected float32"
            )
    return {name: (list(array.shape), array.tobytes()) for name, array in tensors.items()}
