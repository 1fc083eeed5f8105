"""Sums of sparse tensors, such as the gradients of an embedding: all ranks gather all entries."""

from __future__ import annotations

import torch

from thinwire._core import Group, InvalidError
from thinwire.torch import exchange
from thinwire.torch.reduction import SUMS, Reduction


def check(tensor: torch.Tensor, reduction: Reduction) -> None:
    """Refuses layouts and reductions for which there is no sparse result, before anything is sent."""
    if tensor.layout != torch.sparse_coo or tensor.device.type != "cpu":
        raise InvalidError(
            f"thinwire reduces sparse tensors as torch.sparse_coo on cpu, got {tensor.layout} on "
            f"{tensor.device} (hint: to_dense())"
        )
    if reduction.kind not in SUMS or reduction.factor is not None:
        raise InvalidError(f"sparse tensors can be summed and averaged, not {reduction.kind}")


def all_reduce(core: Group, tensor: torch.Tensor, reduction: Reduction) -> None:
    """Sums or averages in place, on all ranks."""
    mine = tensor.detach().coalesce()
    counts = exchange.gathered(core, torch.tensor([mine._nnz()])).view(-1).tolist()
    indices = entries(core, mine.indices().t(), counts).t()
    values = entries(core, mine.values(), counts)
    total = torch.sparse_coo_tensor(indices, values, tensor.shape).coalesce()
    with torch.no_grad():
        tensor.copy_(total / core.world if reduction.average else total)


def entries(core: Group, mine: torch.Tensor, counts: list[int]) -> torch.Tensor:
    """Gathers the entries of all ranks, `counts` each, along the first dimension."""
    padded = mine.new_zeros(max(counts), *mine.shape[1:])
    padded[: len(mine)] = mine
    rows = exchange.gathered(core, padded).view(core.world, *padded.shape)
    return torch.cat([row[:count] for row, count in zip(rows, counts)])
