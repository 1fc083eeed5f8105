"""Marks of parameters that received a gradient since the last step.

For a parameter without a gradient, DDP's bucket contains zeros, or the `grad` of an earlier step. The core
must not treat these as a gradient: it would send the parameter's residual with them, and DDP discards the
average. So each parameter is marked when backward accumulates its gradient, also under `no_sync`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch


class Marks:
    """Marks of parameters by their identity."""

    def __init__(self) -> None:
        self._marked: set[int] = set()

    def watch(self, parameters: Iterable[torch.Tensor]) -> None:
        """Marks these parameters from now on."""
        for parameter in parameters:
            parameter.register_post_accumulate_grad_hook(self._mark)

    def without(self, parameters: Sequence[torch.Tensor]) -> list[int]:
        """Returns the indices of the parameters that are not marked.

        The list is empty if no parameter of the model is marked: gradients were then not accumulated.
        """
        if not self._marked:
            return []
        places = enumerate(parameters)
        return [place for place, each in places if id(each) not in self._marked]

    def clear(self) -> None:
        """Ends a step."""
        self._marked.clear()

    def _mark(self, parameter: torch.Tensor) -> None:
        self._marked.add(id(parameter))
