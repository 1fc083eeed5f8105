"""Collectives of contiguous tensors in host memory, as calls of the core.

Callers check sizes and dtypes first, with `thinwire.torch.arguments`, because the core does not
check addresses. Each function blocks until its result is available. Functions that make exactly one
call of the core also accept a callback `done`. With it they return at once, and the core calls it
at the end. `begins_at_once` returns whether a reduction is such a call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from thinwire._core import Group
from thinwire.torch.reduction import Reduction

Done = Callable[[BaseException | None], None]
GATHERED_BYTES_MAX = 1 << 16
"""Up to this number of bytes, an exact reduction gathers all values on all ranks: one exchange
instead of two."""


def size(tensor: torch.Tensor) -> int:
    """Bytes of a tensor."""
    return tensor.numel() * tensor.element_size()


def all_reduce(
    core: Group, tensor: torch.Tensor, reduction: Reduction, done: Done | None = None
) -> None:
    """Reduces in place, on all ranks."""
    dtype = reduction.native(tensor)
    reduction.scale(tensor)
    if dtype is not None:
        core.all_reduce(
            tensor.data_ptr(), tensor.numel(), dtype, average=reduction.average, done=done
        )
    elif size(tensor) * core.world <= GATHERED_BYTES_MAX:
        rows = gathered(core, tensor, reduction.words("all_reduce", tensor))
        tensor.view(-1).copy_(reduction.merge(rows))
    else:
        reduce_by_parts(core, tensor, reduction)


def begins_at_once(tensor: torch.Tensor, reduction: Reduction) -> bool:
    """Whether this reduction is one call of the core."""
    return reduction.native(tensor) is not None


def gathered(core: Group, tensor: torch.Tensor, call: str | None = None) -> torch.Tensor:
    """Returns the tensors of all ranks, each as one flat row, for a call with this description."""
    rows = tensor.new_empty(core.world, tensor.numel())
    core.all_gather(tensor.data_ptr(), rows.data_ptr(), size(tensor), call=call)
    return rows


def reduce_by_parts(core: Group, tensor: torch.Tensor, reduction: Reduction) -> None:
    """Reduces the r-th part on rank r; then all ranks gather the parts."""
    elements = tensor.numel()
    chunk = -(-elements // core.world)
    padded = tensor.new_zeros(core.world, chunk)
    padded.view(-1)[:elements] = tensor.view(-1)
    call = reduction.words("all_reduce", tensor)
    mine = reduce_rows(core, padded, reduction, call)
    core.all_gather(mine.data_ptr(), padded.data_ptr(), size(mine), call=call)
    tensor.view(-1).copy_(padded.view(-1)[:elements])


def reduce_rows(core: Group, rows: torch.Tensor, reduction: Reduction, call: str) -> torch.Tensor:
    """Sends row r of every rank to rank r, which reduces them, for a call with this description."""
    theirs = torch.empty_like(rows)
    row_bytes = [size(rows) // core.world] * core.world
    core.all_to_all(rows.data_ptr(), row_bytes, theirs.data_ptr(), row_bytes, call=call)
    return reduction.merge(theirs)


def all_reduce_many(core: Group, tensors: Sequence[torch.Tensor], reduction: Reduction) -> None:
    """Reduces several tensors; those with the same dtype in one call."""
    by_dtype: dict[torch.dtype, list[torch.Tensor]] = {}
    for tensor in tensors:
        by_dtype.setdefault(tensor.dtype, []).append(tensor)
    for alike in by_dtype.values():
        flat = torch.cat([tensor.view(-1) for tensor in alike])
        all_reduce(core, flat, reduction)
        for tensor, part in zip(alike, flat.split([tensor.numel() for tensor in alike])):
            tensor.view(-1).copy_(part)


def reduce_scatter(
    core: Group,
    target: torch.Tensor,
    source: torch.Tensor,
    reduction: Reduction,
    done: Done | None = None,
) -> None:
    """Reduces the r-th part of every rank's `source`, which is overwritten, into rank r's `target`."""
    dtype = reduction.native(source)
    reduction.scale(source)
    if dtype is not None:
        addresses = source.data_ptr(), target.data_ptr()
        core.reduce_scatter(*addresses, target.numel(), dtype, average=reduction.average, done=done)
    else:
        rows = source.view(core.world, target.numel())
        call = reduction.words("reduce_scatter", source)
        target.view(-1).copy_(reduce_rows(core, rows, reduction, call))


def all_gather(
    core: Group, target: torch.Tensor, source: torch.Tensor, done: Done | None = None
) -> None:
    """Concatenates every rank's `source` in `target`."""
    core.all_gather(source.data_ptr(), target.data_ptr(), size(source), done=done)


def all_gather_list(core: Group, targets: Sequence[torch.Tensor], source: torch.Tensor) -> None:
    """Copies rank r's `source` into the r-th target; sizes may differ between targets, but not
    between ranks."""
    if len({size(target) for target in targets}) == 1:
        for target, row in zip(targets, gathered(core, source)):
            target.view(-1).copy_(row)
        return
    targets[core.rank].view(-1).copy_(source.view(-1))
    for rank, target in enumerate(targets):
        core.broadcast(target.data_ptr(), size(target), rank)


def all_to_all(
    core: Group,
    target: torch.Tensor,
    target_bytes: list[int],
    source: torch.Tensor,
    source_bytes: list[int],
    done: Done | None = None,
) -> None:
    """Sends the r-th part of `source` to rank r, and receives rank r's part in the r-th place of
    `target`."""
    core.all_to_all(source.data_ptr(), source_bytes, target.data_ptr(), target_bytes, done=done)


def all_to_all_list(
    core: Group, targets: Sequence[torch.Tensor], sources: Sequence[torch.Tensor]
) -> None:
    """Sends the r-th source to rank r, and receives rank r's tensor in the r-th target; empty
    tensors send nothing."""
    source, target = flat(sources), flat(targets, copy=False)
    target_bytes = sizes(targets, core.world)
    core.all_to_all(source.data_ptr(), sizes(sources, core.world), target.data_ptr(), target_bytes)
    place = 0
    for tensor in targets:
        part = target[place : place + size(tensor)]
        octets(tensor).copy_(part)
        place += size(tensor)


def to_root(core: Group, targets: Sequence[torch.Tensor], source: torch.Tensor, root: int) -> None:
    """Copies rank r's `source` into the r-th target on `root`; the other ranks pass no targets."""
    none = source.new_empty(0)
    sources = [source if rank == root else none for rank in range(core.world)]
    all_to_all_list(core, targets, sources)


def from_root(
    core: Group, target: torch.Tensor, sources: Sequence[torch.Tensor], root: int
) -> None:
    """Copies the r-th source of `root` into rank r's `target`; the other ranks pass no sources."""
    none = target.new_empty(0)
    targets = [target if rank == root else none for rank in range(core.world)]
    all_to_all_list(core, targets, sources)


def reduce(core: Group, tensor: torch.Tensor, reduction: Reduction, root: int) -> None:
    """Reduces in place on `root`; the other ranks' tensors are unchanged."""
    all_reduce(core, tensor if core.rank == root else tensor.clone(), reduction)


def reduce_scatter_list(
    core: Group, target: torch.Tensor, sources: Sequence[torch.Tensor], reduction: Reduction
) -> None:
    """Reduces every rank's r-th source, which is overwritten, into rank r's `target`; sizes may differ."""
    if len({source.numel() for source in sources}) == 1:
        together = torch.cat([source.view(-1) for source in sources])
        return reduce_scatter(core, target, together, reduction)
    for rank, source in enumerate(sources):
        reduce(core, source, reduction, rank)
    target.view(-1).copy_(sources[core.rank].view(-1))


def flat(tensors: Sequence[torch.Tensor], copy: bool = True) -> torch.Tensor:
    """The concatenated bytes of some tensors, or memory for them."""
    if not copy:
        return torch.empty(sum(map(size, tensors)), dtype=torch.uint8)
    parts = [octets(tensor) for tensor in tensors]
    return torch.cat(parts) if parts else torch.empty(0, dtype=torch.uint8)


def octets(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of a contiguous tensor, whatever the strides of its dimensions of length 1."""
    return tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8)


def sizes(tensors: Sequence[torch.Tensor], world: int) -> list[int]:
    """Returns the bytes of each rank's tensor, 0 for a rank without one."""
    return [size(tensor) for tensor in tensors] or [0] * world
