"""Features that the ranks of a job share: each has a part of the rows and asks others for theirs."""

from __future__ import annotations

import secrets

import torch
import torch.distributed

from thinwire._core import InvalidError, RowServer, RowSource
from thinwire.torch.graph.rows import Rows, rows_of_tensor
from thinwire.torch.group import master, own_address


class SharedFeatures:
    """Feature rows of all vertices, of which every rank has its own part in memory.

    Ranks make it together, under `torch.distributed`. Parts are consecutive: rank 0 has the first
    vertices. `Loader(data, ..., features=SharedFeatures(x), cache="1GB")` reads rows of other ranks
    over the network, each batch's at once and each row at most once per batch, and with a cache those
    that the next batches use are kept.

    Arguments:
        x: Rows of this rank: a tensor [own vertices, ...] on the CPU, which may not change, or
            `StoredGraph.part`.
        timeout: Longest wait for another rank, in seconds.
    """

    def __init__(self, x: torch.Tensor | Rows, *, timeout: float = 60.0) -> None:
        """Starts to answer other ranks, and connects to all of them.

        # Errors

        InvalidError if ranks have rows of other shapes or dtypes; PeerError if a rank does not answer.
        """
        if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
            raise InvalidError(
                "SharedFeatures needs ranks (hint: torch.distributed.init_process_group)"
            )
        own = rows_of_tensor(x) if isinstance(x, torch.Tensor) else x
        if own.like is None:
            raise InvalidError("a graph without features has nothing to share")
        rank, world = torch.distributed.get_rank(), torch.distributed.get_world_size()
        tokens = [secrets.token_hex(16)]
        torch.distributed.broadcast_object_list(tokens)
        counts: list = [None] * world
        about = (own.source.rows, list(own.like.shape[1:]), str(own.like.dtype))
        torch.distributed.all_gather_object(counts, about)
        for other, (_, shape, dtype) in enumerate(counts):
            if (shape, dtype) != (counts[0][1], counts[0][2]):
                first = f"{counts[0][2]} {counts[0][1]}"
                raise InvalidError(f"rank {other} has rows of {dtype} {shape}, rank 0 of {first}")
        first = sum(count for count, _, _ in counts[:rank])
        host = own_address(*master(torch.distributed.distributed_c10d._get_default_store()))
        self._server = RowServer(own.source, first, f"{host}:0", tokens[0])
        addresses: list = [None] * world
        torch.distributed.all_gather_object(addresses, self._server.address)
        parts = [
            own.source if other == rank else address for other, address in enumerate(addresses)
        ]
        self.rows = Rows(own.like, RowSource.of_parts(parts, tokens[0], timeout))

    def __len__(self) -> int:
        """Returns the number of rows of all ranks."""
        return self.rows.source.rows

    @property
    def fetched(self) -> int:
        """Number of rows that other ranks have sent to this one."""
        return self.rows.source.fetched
