"""Features that the ranks of a job share: each rank has a part of the rows, and requests the other
rows from other ranks."""

from __future__ import annotations

import secrets
from types import NoneType
from typing import Any

import torch
import torch.distributed

from thinwire._core import InvalidError, RowServer, RowSource
from thinwire.arguments import Seconds, instance, seconds, shown
from thinwire.deprecated import renamed
from thinwire.torch.graph.rows import Rows, rows_of_tensor
from thinwire.torch.group import master, own_address

TIMEOUT_S_MIN, TIMEOUT_S_MAX = 2.0, 1e9


class SharedFeatures:
    """Feature rows of all vertices; every rank has its own part in memory.

    Ranks create it together, under `torch.distributed`. Parts are consecutive: rank 0 has the first
    vertices. `Loader(data, ..., features=SharedFeatures(x), cache="1GB")` reads rows of other ranks
    over the network: the rows of a batch together, and each row at most once per batch. With a
    cache, it keeps rows that the next batches use.

    Arguments:
        x: Rows of this rank: a tensor [own vertices, ...] on the CPU, which must not change, or
            `StoredGraph.part`.
        codec: Format of a tensor's rows in memory, in caches and on the network. "int8" has a scale per row
            and a byte per value, of finite values; batches have float32. None leaves them unchanged.
        host: Name or address of this machine for the other ranks; None finds one. It listens on all
            interfaces, or on loopback alone if that is the address.
        timeout: Longest wait for another rank, in seconds or as a timedelta, at least 2 s: a rank that
            sends gradients holds rows back for a second.
    """

    @renamed(format="codec")
    def __init__(
        self,
        x: torch.Tensor | Rows,
        *,
        codec: str | None = None,
        host: str | None = None,
        timeout: Seconds = 60.0,
    ) -> None:
        """Starts to answer other ranks, and connects to all of them.

        # Errors

        InvalidError if ranks have rows of other shapes or dtypes, or for a short timeout; PeerError if a
        rank does not answer.
        """
        timeout_s = seconds("timeout", timeout, TIMEOUT_S_MIN, TIMEOUT_S_MAX)
        instance("host", host, str, NoneType)
        if not isinstance(x, (torch.Tensor, Rows)):
            hint = "hint: torch.as_tensor, StoredGraph.part"
            raise InvalidError(f"x is {shown(x)}, expected a tensor or rows of a file ({hint})")
        if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
            raise InvalidError(
                "SharedFeatures needs ranks (hint: torch.distributed.init_process_group)"
            )
        if codec is not None and not isinstance(x, torch.Tensor):
            hint = "hint: thinwire graph import --format"
            raise InvalidError(
                f"codec {shown(codec)} for rows that already have a codec, {x.about} ({hint})"
            )
        own = rows_of_tensor(x, codec) if isinstance(x, torch.Tensor) else x
        if own.like is None:
            raise InvalidError("a graph without features has nothing to share")
        rank, world = torch.distributed.get_rank(), torch.distributed.get_world_size()
        tokens = [secrets.token_hex(16)]
        torch.distributed.broadcast_object_list(tokens)
        counts: list[Any] = [None] * world
        torch.distributed.all_gather_object(counts, (own.source.rows, own.about))
        for other, (_, about) in enumerate(counts):
            if about != counts[0][1]:
                raise InvalidError(f"rank {other} has rows of {about}, rank 0 of {counts[0][1]}")
        first = sum(count for count, _ in counts[:rank])
        if host is None:
            host = own_address(*master(torch.distributed.distributed_c10d._get_default_store()))
        address = f"[{host}]:0" if ":" in host else f"{host}:0"
        server = RowServer(own.source, first, address, tokens[0])
        addresses: list[Any] = [None] * world
        torch.distributed.all_gather_object(addresses, server.address)
        parts = [
            own.source if other == rank else address for other, address in enumerate(addresses)
        ]
        source = RowSource.of_parts(parts, tokens[0], timeout_s)
        self.rows = Rows(own.like, source, own.format, server)

    def __len__(self) -> int:
        """Returns the number of rows of all ranks."""
        return self.rows.source.rows

    @property
    def fetched(self) -> int:
        """Number of rows that other ranks have sent to this one."""
        return self.rows.source.fetched
