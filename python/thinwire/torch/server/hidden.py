"""Parameters of tables, which are hidden from PyTorch's optimizers.

An optimizer for the other parameters, such as `torch.optim.Adam(model.parameters())`, also gets the
parameters of tables. It must not apply their gradients, because servers do that. It must not keep
state for them either, because their rows change with each batch.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

import torch
from torch.optim import optimizer

from thinwire._core import InvalidError


class Hidden:
    """Hides the gradients of tables while another optimizer of PyTorch makes a step."""

    def __init__(
        self, parameters: Iterable[torch.nn.Parameter], owner: torch.optim.Optimizer
    ) -> None:
        """Begins to hide gradients, until the object is deleted. `owner` is the optimizer that may
        see the gradients."""
        self._parameters = list(parameters)
        self._owner = weakref.ref(owner)
        self._gradients: dict[int, list[torch.Tensor | None]] = {}
        self._sharer: str | None = None
        self._is_scaled = False
        hide, show = weakref.WeakMethod(self._hide), weakref.WeakMethod(self._show)
        for handle in (
            optimizer.register_optimizer_step_pre_hook(
                lambda each, args, kwargs: called(hide, each, closure(args, kwargs))
            ),
            optimizer.register_optimizer_step_post_hook(lambda each, *_: called(show, each)),
        ):
            weakref.finalize(self, handle.remove)

    def scale(self) -> None:
        """Records that a GradScaler unscales the gradients of tables.

        # Errors

        InvalidError if a PyTorch optimizer also has a table, because the scaler would unscale the
        table's gradients twice.
        """
        self._is_scaled = True
        self._expect_once()

    def forget(self) -> None:
        """Records a step without a GradScaler. From then on it no longer matters which optimizers
        had the tables before."""
        self._sharer, self._is_scaled = None, False

    def _hide(self, other: torch.optim.Optimizer, closure: object = None) -> None:
        theirs = {id(each) for group in other.param_groups for each in group["params"]}
        if other is self._owner() or theirs.isdisjoint(map(id, self._parameters)):
            return
        self._sharer = type(other).__name__
        self._expect_once()
        if closure is not None:
            raise InvalidError(
                f"{self._sharer} has the parameters of tables and a closure, so gradients of tables "
                f"would be lost (hint: {self._sharer}(server_optimizer.other_parameters(), ...))"
            )
        # A step that raised has shown nothing again.
        self._show(other)
        # One optimizer may be in the step of another.
        self._gradients[id(other)] = [each.grad for each in self._parameters]
        for each in self._parameters:
            each.grad = None

    def _show(self, other: torch.optim.Optimizer) -> None:
        for each, gradient in zip(self._parameters, self._gradients.pop(id(other), [])):
            each.grad = gradient

    def _expect_once(self) -> None:
        if self._is_scaled and self._sharer is not None:
            raise InvalidError(
                f"{self._sharer} has the parameters of tables, so that a GradScaler unscales their "
                f"gradients twice (hint: {self._sharer}(server_optimizer.other_parameters(), ...))"
            )


def called(
    method: weakref.WeakMethod[Any], other: torch.optim.Optimizer, *arguments: object
) -> None:
    """Calls a method of an object if the object still exists."""
    found = method()
    if found is not None:
        found(other, *arguments)


def closure(arguments: tuple[object, ...], named: dict[str, object]) -> object:
    """Returns the closure among the arguments of an optimizer's step; the first argument is the
    optimizer."""
    return named.get("closure", arguments[1] if len(arguments) > 1 else None)
