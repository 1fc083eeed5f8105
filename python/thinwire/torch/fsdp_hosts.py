"""The ranks of a model under FSDP2 on several hosts. The ranks of one host shard the model; each
shard has replicas on the other hosts."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from thinwire._core import InvalidError
from thinwire.arguments import shown
from thinwire.torch import group as groups
from thinwire.torch import hosts
from thinwire.torch.shards import param_groups

HINT = "(hint: pass the mesh of replicas on every rank, or on none)"

# Calls of `tell` in this process.
_calls = itertools.count()


def tell(replicas: Any) -> int:
    """Tells all ranks whether this one has `replicas`, and returns the number of the call.

    Every rank makes the same number of calls.
    """
    call = next(_calls)
    said = "none" if replicas is None else "given"
    dist.distributed_c10d._get_default_store().set(place_of(call, dist.get_rank()), said)
    return call


def refuse_hosts_without(call: int, replicas: Any) -> None:
    """Raises InvalidError if a rank of `replicas` has reported, in its call with this number, that
    it has no `replicas`.

    The host of such a rank would train alone, and this host would wait for it. This function waits
    for ranks that call later, up to the timeout of PyTorch's store.
    """
    if replicas is None:
        return
    store = dist.distributed_c10d._get_default_store()
    for rank in dist.get_process_group_ranks(process_group_of(replicas)):
        if store.get(place_of(call, rank)) == b"none":
            raise InvalidError(
                f"ranks disagree: replicas is none on rank {rank}, given on rank {dist.get_rank()} "
                f"{HINT}"
            )


def place_of(call: int, rank: int) -> str:
    """Returns the key in PyTorch's store for a rank's report."""
    return f"thinwire/replicas/{call}/{rank}"


def connected(
    shards: dist.ProcessGroup,
    replicas: dist.ProcessGroup,
    timeout_s: float | None,
    heartbeat_timeout_s: float | None,
) -> hosts.Host:
    """Connects the ranks of all hosts; the ranks of this host are in `shards`. A collective call.

    # Errors

    InvalidError if hosts have unequal numbers of shards, or if `replicas` has a rank whose shard
    differs from this rank's.
    """
    mine = dist.get_process_group_ranks(shards)
    rows: list[Any] = [None] * replicas.size()
    dist.all_gather_object(rows, mine, group=replicas)
    place = mine.index(dist.get_rank())
    for rank, theirs in zip(dist.get_process_group_ranks(replicas), rows):
        if len(theirs) != len(mine):
            raise InvalidError(
                f"this rank's host has {len(mine)} shards, that of rank {rank} has {len(theirs)}, "
                "expected equal numbers (hint: start the same number of ranks on each host)"
            )
        if theirs[place] != rank:
            raise InvalidError(
                f"rank {rank} has shard {theirs.index(rank)}, this rank has shard {place}, "
                f"expected "
                'replicas of one shard (hint: replicas=mesh["replicas"] of the mesh whose other '
                "dimension "
                "shards)"
            )
    every = [rank for theirs in rows for rank in theirs]
    if len(set(every)) != len(every):
        raise InvalidError(
            f"all replicas shard over the same ranks {hosts.listed(mine)}, expected each host to "
            f"shard over its own ranks (hint: "
            'fully_shard(module, mesh=mesh["host"]) with the dimension of the host alone)'
        )
    limit_s = groups.TIMEOUT_S if timeout_s is None else timeout_s
    connection = groups.connect(
        dist.distributed_c10d._get_default_store(),
        every.index(dist.get_rank()),
        len(every),
        f"replicas/{'-'.join(map(str, every))}",
        limit_s,
        heartbeat_timeout_s,
        watch=groups.watch_of(replicas, limit_s),
    )
    ranks = [every.index(rank) for rank in mine]
    peers = [every.index(theirs[place]) for theirs in rows]
    return hosts.Host(connection, ranks, peers, shards)


def process_group_of(replicas: Any) -> dist.ProcessGroup:
    """Returns the process group of a mesh of one dimension; a process group is returned unchanged."""
    if isinstance(replicas, dist.ProcessGroup):
        return replicas
    if isinstance(replicas, DeviceMesh) and replicas.ndim == 1:
        return replicas.get_group()
    dimensions = f" of {replicas.ndim} dimensions" if isinstance(replicas, DeviceMesh) else ""
    raise InvalidError(
        f"replicas is {shown(replicas)}{dimensions}, expected a mesh of one dimension or a "
        f"process group "
        '(hint: mesh["replicas"])'
    )


def shards_of(units: Mapping[str, Any]) -> dist.ProcessGroup:
    """Returns the host's process group, over which all modules are sharded.

    # Errors

    InvalidError for a mesh with a dimension of replicas, and for modules on different meshes.
    """
    found: dict[tuple[int, ...], dist.ProcessGroup] = {}
    for name, unit in units.items():
        for group in param_groups(unit):
            info = group.mesh_info
            # Only the mesh of HSDP has a dimension of replicas.
            if getattr(info, "replicate_mesh_size", None) is not None:
                names = info.mesh.mesh_dim_names
                own = names[info.shard_mesh_dim] if names else "shard"
                raise InvalidError(
                    f"module '{name}' is on a mesh of two dimensions, over one of which FSDP2 "
                    f"itself sums gradients, "
                    f'expected the one that shards (hint: fully_shard(module, mesh=mesh["{own}"]))'
                )
            shards = info.shard_process_group
            found[tuple(dist.get_process_group_ranks(shards))] = shards
    if not found:
        raise InvalidError("no sharded module has parameters, expected at least one")
    if len(found) > 1:
        first, second = (hosts.listed(ranks) for ranks in list(found)[:2])
        raise InvalidError(
            f"modules are sharded over ranks {first} and over ranks {second}, expected one mesh "
            "for all of them with replicas"
        )
    return next(iter(found.values()))


def refuse_hooked(units: Mapping[str, Any]) -> None:
    """Refuses modules that have an all-reduce hook."""
    for name, unit in units.items():
        if any(getattr(group, "_all_reduce_hook", None) for group in param_groups(unit)):
            raise InvalidError(
                f"module '{name}' has an all-reduce hook already, expected none (hint: remove it, "
                "since thinwire.torch.fsdp sets its own)"
            )
