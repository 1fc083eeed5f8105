"""Embedding whose table is on servers.

The unique rows of a lookup are a small dense leaf of the autograd graph, in which autograd sums the
gradients. The gradients of all leaves since the last step are added to the gradient of one
parameter. So anything that changes gradients between backward and step (clipping, a loss scaler,
`requires_grad_`, hooks) also changes the gradients of the table.

Law: with `sgd`, the table changes exactly like `nn.Embedding` in the same loop.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.nn import functional

from thinwire._core import InvalidError
from thinwire.arguments import shown
from thinwire.deprecated import renamed
from thinwire.server.table import ServedTable

MARK = 1e-20
"""The gradient that represents the gradients that are kept apart. It is too small to affect a norm,
and `zero_grad` drops it."""


class ServerEmbedding(torch.nn.Module):
    """Embedding whose table is on servers, in place of `nn.Embedding(rows, width, sparse=True)`.

    A forward pass pulls the rows of its ids, and `ServerOptimizer.step` pushes their gradients. Create the
    optimizer before the first forward pass: it connects the module to the servers.

    The only parameter, `batch`, stands for the rows with a gradient since the last step: it has the
    values and gradients of these rows, [number of rows, width], and is empty before the first
    backward. It is not in `state_dict`. While `batch.requires_grad` is false, the table does not
    change.

    Args:
        rows: number of rows.
        width: f32 values per row.
        initial: initial values of the rows: "normal:DEVIATION", "uniform:BOUND", "constant:VALUE", "zeros",
            or "checkpoint" for the values in the safetensors file of `ParameterServer(restore=…)`.
            The name of the tensor is that of this module in the model, with or without ".weight".
        optimizer: rule of this table; by default that of the `ParameterServer`.
        codec: how rows and gradients travel: "none" (as f32), "f16" or "int8"; by default that of the
            `ParameterServer`.
        cache: memory for cached rows, in bytes or as text such as "64MB"; by default no row is cached.
        staleness: number of this worker's own steps for which a cached row is used; 0 means until the next
            step. Cached rows contain all gradients of this worker. Gradients of other workers may
            be missing for `staleness` steps, in addition to the delay that the consistency allows.
            A worker that makes no steps never sees its cached rows change.
    """

    @renamed(values="codec")
    def __init__(
        self,
        rows: int,
        width: int,
        *,
        initial: str = "normal:1",
        optimizer: str | None = None,
        codec: str | None = None,
        cache: int | str | None = None,
        staleness: int = 0,
    ) -> None:
        """Checks the arguments. The module has no servers yet."""
        super().__init__()
        self.rows, self.width = rows, width
        options: dict[str, Any] = {"codec": codec, "cache": cache, "staleness": staleness}
        self.served = ServedTable(rows, width, initial=initial, optimizer=optimizer, **options)
        """The table on servers."""
        self.batch = torch.nn.Parameter(torch.empty(0, width))
        self._numbers = torch.empty(0, dtype=torch.int64)
        self._own: torch.Tensor | None = None

    @property
    def cache_stats(self) -> dict[str, int]:
        """Counters of the cache: `lookups`, `ids`, `hits`, `misses`, `stale` (misses of cached rows that
        are too old), `evictions` and `bytes_missed`. Empty without a cache or servers."""
        return self.served.cache_stats

    @torch._disable_dynamo
    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Returns the rows of `ids`, integers of any shape, as a tensor [*ids.shape, width].

        # Errors

        InvalidError if an id is not a row of the table; PeerError if no server answers.
        """
        # Dynamo would compile the lookup without the hooks and the frozen state of later ones.
        rows, places = torch.unique(self._checked(ids), return_inverse=True)
        leaf = torch.from_numpy(self.served.pull(rows.cpu().numpy())).to(ids.device)
        if torch.is_grad_enabled() and self.batch.requires_grad:
            leaf.requires_grad_()
            for hook in (self.batch._backward_hooks or {}).values():
                leaf.register_hook(hook)
            leaf.register_post_accumulate_grad_hook(functools.partial(self._accumulate, rows))
        return functional.embedding(places, leaf)

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, torch.nn.Parameter]]:
        """Returns no parameters unless `recurse` is true.

        DDP and FSDP search without `recurse` for the parameters whose gradients they exchange.
        """
        found = super().named_parameters(prefix, recurse, remove_duplicate)
        return found if recurse else iter(())

    def extra_repr(self) -> str:
        """Returns rows and width for the module's `repr`."""
        return f"{self.rows}, {self.width}"

    def owe(self, factor: float) -> None:
        """Adds the gradients since the last step, multiplied by `factor`, to the next push. A
        frozen table has no gradients."""
        self._follow_zero_grad()
        gradient = self._held.grad
        if gradient is not None and self.batch.requires_grad:
            values = (gradient.detach() * factor).float().cpu().contiguous()
            self.served.owe(self._numbers.cpu().numpy(), values.numpy())

    def forget(self) -> None:
        """Drops the gradients since the last step."""
        for each in (self.batch, self._held):
            each.grad = None
            each.data = each.new_empty(0, self.width)

    def keep_apart(self) -> None:
        """Keeps gradients outside of `batch`, because each rank has gradients of different rows.

        Otherwise, ranks that clip by the norm of all parameters would clip their common parameters
        differently. A row of nearly zero represents these gradients in `batch`: if `zero_grad` of
        the model, or of another optimizer, removes this row, the gradients are dropped, too.
        """
        self._own = torch.empty(0, self.width)

    @property
    def is_finite(self) -> bool:
        """Whether the gradients since the last step are finite."""
        return self._held.grad is None or bool(self._held.grad.isfinite().all())

    @property
    def _held(self) -> torch.Tensor:
        """Tensor that has the gradients since the last step."""
        return self.batch if self._own is None else self._own

    def _follow_zero_grad(self) -> None:
        """Drops gradients that are kept apart, if the row that represents them was removed."""
        mark = self.batch.grad
        if self._own is not None and (mark is None or not mark.any()):
            self.forget()

    @torch.no_grad()
    def _accumulate(self, rows: torch.Tensor, leaf: torch.Tensor) -> None:
        """Adds the gradient of a lookup, whose leaf has these ascending rows, to the gradient of
        `batch`."""
        assert leaf.grad is not None
        values, gradient, leaf.grad = leaf.detach(), leaf.grad.detach(), None
        if not len(rows):
            return  # norms of no elements are errors
        self._follow_zero_grad()
        held = self._held
        if held.grad is not None:
            mine, old = self._numbers.to(rows.device), held.grad.to(gradient)
            both, places = torch.unique(torch.cat([mine, rows]), return_inverse=True)
            known, new = places[: len(mine)], places[len(mine) :]
            pulled, added, shape = values, gradient, (len(both), self.width)
            values = pulled.new_empty(shape).index_copy_(0, known, held.data.to(pulled))
            values.index_copy_(0, new, pulled)
            gradient = added.new_zeros(shape).index_copy_(0, known, old).index_add_(0, new, added)
            held.grad, rows = None, both
        self._numbers, held.data, held.grad = rows, values, gradient
        if self._own is not None and self.batch.grad is None:
            self.batch.data = self.batch.new_zeros(1, self.width)
            self.batch.grad = torch.full_like(self.batch, MARK)
        for hook in (self.batch._post_accumulate_grad_hooks or {}).values():
            hook(held)

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Any:
        """Moves the module to another device. Ignores a change of dtype, because rows are f32."""
        gradient, self.batch.grad = self.batch.grad, None
        self.batch.data = fn(self.batch.data).float()
        self.batch.grad = None if gradient is None else fn(gradient).float()
        return self

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        """Adds nothing: the rows are on servers."""

    def _load_from_state_dict(
        self,
        state_dict: Any,
        prefix: str,
        local_metadata: Any,
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        """Expects nothing, as `_save_to_state_dict` adds nothing."""
        unexpected_keys += [key for key in state_dict if strict and key.startswith(prefix)]

    def _checked(self, ids: torch.Tensor) -> torch.Tensor:
        if not isinstance(ids, torch.Tensor) or ids.dtype not in (torch.int64, torch.int32):
            found = ids.dtype if isinstance(ids, torch.Tensor) else shown(ids)
            raise InvalidError(f"ids of '{self.served.name}' are {found}, expected torch.int64")
        return ids.long()
