"""Averages remain in `grad` until `zero_grad()`; this module checks that backward does not add to them.

Backward adds to `grad`, and DDP passes the sum to its hook. Without momentum correction this is
harmless, because averaging an average does not change it. Momentum correction would add the old
average to the momentum a second time. So this module checks that a parameter's `grad` is None or
zero before backward adds to it.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch

from thinwire._core import InvalidError
from thinwire.torch.marks import watch


class Averages:
    """The parameters of a model whose gradients may still be averages."""

    def __init__(self, refuse: Callable[[InvalidError], Any]) -> None:
        """`refuse` raises an error on all ranks."""
        self._refuse = refuse
        self._nodes: dict[int, Any] = {}
        self._there: set[int] = set()

    def add(self, parameters: Iterable[torch.Tensor]) -> None:
        """Records that these parameters receive averages, and checks each when backward next adds to it."""
        for parameter in parameters:
            if id(parameter) not in self._nodes:
                self._nodes[id(parameter)] = watch(parameter, weakref.WeakMethod(self._look))
            self._there.add(id(parameter))

    def _look(self, parameter: torch.Tensor) -> None:
        """Refuses a backward that would add to an average; checks each parameter once."""
        if id(parameter) not in self._there:
            return
        self._there.remove(id(parameter))
        if parameter.grad is not None and bool(parameter.grad.any()):
            self._refuse(
                InvalidError(
                    f"backward has added to a gradient of shape {list(parameter.shape)} that still "
                    "holds the average of the last step, and momentum_correction would count this "
                    "average twice (hint: zero_grad() before it, or model.no_sync() for all "
                    "backward passes of a step but the last)"
                )
            )
